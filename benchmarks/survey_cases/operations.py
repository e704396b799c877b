"""Operations on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import ocannl_core as oc
from survey_cases import Arrays, Case, distinct, floats, numbers

_POINTWISE = ((512, 512), (77, 1001))
_ROWS = ((256, 4096), (1000, 100))


def cases() -> Iterator[Case]:
    """Yield all operations."""
    yield from _cell_by_cell()
    yield from _of_two()
    yield from _reductions()
    yield from _scans_and_orders()
    yield from _moved()
    yield from _positions()
    yield from _random()


def _made(shapes: tuple[tuple[int, ...], ...], **arguments: Any) -> Any:
    """Return functions that create arguments of some shapes."""

    def arrays(shape: tuple[int, ...]) -> Arrays:
        return {name: make(*shape) for name, make in arguments.items()}

    return tuple(partial(arrays, shape) for shape in shapes)


def _case(
    name: str,
    own: Callable[..., Any],
    torch: Callable[..., Any],
    shapes: tuple[tuple[int, ...], ...] = _POINTWISE,
    *,
    covers: tuple[str, ...] = (),
    gradients: bool = True,
    is_random: bool = False,
    **arguments: Any,
) -> Case:
    """Return a case whose arguments have one shape."""
    return Case(
        name=name,
        covers=covers or (name,),
        arrays=_made(shapes, **(arguments or {"x": floats})),
        own=own,
        torch=torch,
        gradients=gradients,
        is_random=is_random,
    )


def _cell_by_cell() -> Iterator[Case]:
    positive, unit = partial(floats, low=0.1), partial(floats, low=-0.5)
    for name, arguments in (
        ("abs", floats),
        ("acos", unit),
        ("asin", unit),
        ("atan", floats),
        ("cos", floats),
        ("cosh", floats),
        ("erf", floats),
        ("exp", floats),
        ("exp2", floats),
        ("expm1", floats),
        ("log", positive),
        ("log1p", positive),
        ("log2", positive),
        ("negative", floats),
        ("relu", floats),
        ("rsqrt", positive),
        ("sigmoid", floats),
        ("sin", floats),
        ("sinh", floats),
        ("sqrt", positive),
        ("square", floats),
        ("tan", unit),
        ("tanh", floats),
    ):
        yield _case(name, getattr(oc, name), _by_name(name), x=arguments)
    for name in ("sign", "floor", "ceil", "trunc", "round", "isnan", "isinf", "isfinite"):
        yield _case(name, getattr(oc, name), _by_name(name), gradients=False)
    yield _case("reciprocal", oc.reciprocal, lambda t, x: t.reciprocal(x), x=positive)
    for name, function in (
        ("gelu", "gelu"),
        ("elu", "elu"),
        ("selu", "selu"),
        ("silu", "silu"),
        ("mish", "mish"),
        ("relu6", "relu6"),
        ("hardtanh", "hardtanh"),
        ("hardsigmoid", "hardsigmoid"),
        ("hardswish", "hardswish"),
        ("leaky_relu", "leaky_relu"),
        ("log_sigmoid", "logsigmoid"),
        ("softplus", "softplus"),
        ("softsign", "softsign"),
    ):
        yield _case(name, getattr(oc, name), _functional(function))
    yield _case(
        "gelu by tanh",
        lambda x: oc.gelu(x, approximate="tanh"),
        lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
        covers=("gelu",),
    )
    yield _case(
        "gelu of a sum",
        lambda x, y: oc.gelu(x + y),
        lambda t, x, y: t.nn.functional.gelu(x + y),
        covers=("gelu",),
        x=floats,
        y=partial(floats, seed=1),
    )
    yield _case("primitives.sat01", oc.primitives.sat01, lambda t, x: t.clamp(x, 0.0, 1.0))
    yield _case("clip", lambda x: oc.clip(x, -1.0, 1.0), lambda t, x: t.clamp(x, -1.0, 1.0))
    yield _case("primitives.identity", oc.primitives.identity, lambda t, x: x.clone())
    yield _case("stop_gradient", oc.stop_gradient, lambda t, x: x.clone(), gradients=False)
    yield _case(
        "cast", lambda x: oc.cast(x, "bfloat16"), lambda t, x: x.to(t.bfloat16), gradients=False
    )
    yield _case("logical_not", oc.logical_not, lambda t, x: t.logical_not(x), gradients=False)
    yield _case(
        "bitwise_not",
        oc.bitwise_not,
        lambda t, x: t.bitwise_not(x),
        gradients=False,
        x=partial(numbers, 1000),
    )


def _by_name(name: str) -> Callable[..., Any]:
    return lambda t, x: getattr(t, name)(x)


def _functional(name: str) -> Callable[..., Any]:
    return lambda t, x: getattr(t.nn.functional, name)(x)


def _of_two() -> Iterator[Case]:
    two = {"x": floats, "y": partial(floats, seed=1)}
    above = {"x": partial(floats, low=0.5), "y": partial(floats, seed=1, low=0.5)}
    ints = {"x": partial(numbers, 1000), "y": lambda *shape: 1 + numbers(99, *shape)}
    for name in ("add", "subtract", "multiply", "atan2", "maximum", "minimum", "logaddexp"):
        yield _case(name, getattr(oc, name), _of_pair(name), **two)
    yield _case("divide", oc.divide, _of_pair("div"), **above)
    yield _case("pow", oc.pow, _of_pair("pow"), **above)
    yield _case("remainder", oc.remainder, _of_pair("fmod"), gradients=False, **above)
    yield _case("floor_divide", oc.floor_divide, _of_pair("floor_divide"), gradients=False, **above)
    for name, theirs in (
        ("equal", "eq"),
        ("not_equal", "ne"),
        ("less", "lt"),
        ("less_equal", "le"),
        ("logical_and", "logical_and"),
        ("logical_or", "logical_or"),
        ("logical_xor", "logical_xor"),
    ):
        yield _case(name, getattr(oc, name), _of_pair(theirs), gradients=False, **two)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield _case(name, getattr(oc, name), _of_pair(name), gradients=False, **ints)
    yield _case(
        "bitcast",
        lambda x: oc.bitcast(x, "int32"),
        lambda t, x: x.view(t.int32),
        gradients=False,
        x=floats,
    )
    yield _case(
        "where", lambda x, y: oc.where(x < y, x, y), lambda t, x, y: t.where(x < y, x, y), **two
    )
    yield _case(
        "fma", lambda x, y: oc.fma(x, y, x, logic="."), lambda t, x, y: t.addcmul(x, x, y), **two
    )
    for name, at in (("relu_gate", "relu"), ("sat01_gate", "clamp")):
        yield _case(
            f"primitives.{name}",
            getattr(oc.primitives, name),
            (lambda t, x, y: t.where(x > 0, y, 0.0))
            if at == "relu"
            else (lambda t, x, y: t.where((x > 0) & (x < 1), y, 0.0)),
            gradients=False,
            **two,
        )


def _of_pair(name: str) -> Callable[..., Any]:
    return lambda t, x, y: getattr(t, name)(x, y)


def _reductions() -> Iterator[Case]:
    for name in ("sum", "mean", "prod", "var", "std", "norm", "logsumexp"):
        for axis in (-1, 0):
            own: Any = getattr(oc, name)
            yield _case(
                f"{name} along {'the last' if axis else 'the first'} axis",
                partial(_along, own, axis, {}),
                partial(_theirs_along, "linalg.vector_norm" if name == "norm" else name, axis),
                _ROWS,
                covers=(name,),
                x=partial(floats, low=0.5) if name == "prod" else floats,
            )
    for name, theirs in (("max", "amax"), ("min", "amin")):
        for axis in (-1, 0):
            yield _case(
                f"{name} along {'the last' if axis else 'the first'} axis",
                partial(_along, getattr(oc, name), axis, {}),
                partial(_theirs_along, theirs, axis),
                _ROWS,
                covers=(name,),
            )
    for name in ("argmax", "argmin", "any", "all"):
        for axis in (-1, 0):
            yield _case(
                f"{name} along {'the last' if axis else 'the first'} axis",
                partial(_along, getattr(oc, name), axis, {}),
                partial(_theirs_along, name, axis),
                _ROWS,
                covers=(name,),
                gradients=False,
            )
    for name in ("softmax", "log_softmax"):
        for axis in (-1, 0):
            yield _case(
                f"{name} along {'the last' if axis else 'the first'} axis",
                partial(_along, getattr(oc, name), axis, {}),
                partial(_theirs_along, name, axis),
                _ROWS,
                covers=(name,),
            )
    yield _case(
        "softmax along a specification",
        lambda x: oc.softmax(x, logic="...|c => ...|0"),
        _softmax_of_rows,
        _ROWS,
        covers=("softmax",),
    )
    yield _case("sum of all", lambda x: oc.sum(x), lambda t, x: x.sum(), _ROWS, covers=("sum",))
    yield _case(
        "einmax",
        lambda x: oc.einmax("...|c => ...|0", x),
        lambda t, x: x.amax(-1, keepdim=True),
        _ROWS,
    )
    yield _case(
        "mean along a specification",
        lambda x: oc.mean(x, logic="...|c => ...|0"),
        lambda t, x: x.mean(-1, keepdim=True),
        _ROWS,
        covers=("mean",),
    )


def _softmax_of_rows(t: Any, x: Any) -> Any:
    return t.softmax(x, -1)


def _along(own: Any, axis: int, more: dict[str, Any], x: Any) -> Any:
    return own(x, axis=axis, **more)


def _theirs_along(name: str, axis: int, t: Any, x: Any) -> Any:
    function = t
    for part in name.split("."):
        function = getattr(function, part)
    if name in ("var", "std"):
        return function(x, axis, correction=0)
    return function(x, dim=axis)


def _scans_and_orders() -> Iterator[Case]:
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        for axis in (-1, 0):
            theirs: Any = (
                (lambda t, x, name=name, axis=axis: getattr(t, name)(x, axis).values)
                if name in ("cummax", "cummin")
                else (lambda t, x, name=name, axis=axis: getattr(t, name)(x, axis))
            )
            yield _case(
                f"{name} along {'the last' if axis else 'the first'} axis",
                partial(_along, getattr(oc, name), axis, {}),
                theirs,
                _ROWS,
                covers=(name,),
                x=partial(floats, low=0.5) if name == "cumprod" else floats,
            )
    yield _case(
        "sort", lambda x: oc.sort(x, axis=-1), lambda t, x: t.sort(x, -1).values, _ROWS, x=distinct
    )
    yield _case(
        "argsort",
        lambda x: oc.argsort(x, axis=-1),
        lambda t, x: t.argsort(x, -1),
        _ROWS,
        gradients=False,
        x=distinct,
    )
    yield _case(
        "topk", lambda x: oc.topk(x, 16, axis=-1)[0], lambda t, x: t.topk(x, 16, -1).values, _ROWS
    )
    yield _case(
        "median", lambda x: oc.median(x, axis=-1), lambda t, x: t.quantile(x, 0.5, dim=-1), _ROWS
    )
    yield Case(
        name="searchsorted",
        covers=("searchsorted",),
        arrays=tuple(
            (lambda n=n, m=m: {"a": _ascending(n), "v": floats(m, low=0.0)})
            for n, m in ((4096, 65536), (100, 1000))
        ),
        own=lambda a, v: oc.searchsorted(a, v),
        torch=lambda t, a, v: t.searchsorted(a, v),
        batch_axes={"a": 0},
        gradients=False,
    )
    yield _case(
        "scan",
        lambda x: oc.scan(lambda state, row: (0.5 * state + row, 0.5 * state + row), x[0], x)[0],
        _decayed,
        ((128, 512), (33, 100)),
    )
    yield _case(
        "scan_while",
        lambda x: oc.scan_while(
            lambda total: total < 8.0, lambda total, row: (total + oc.abs(row), None), 0 * x[0], x
        )[1],
        _summed_until,
        ((128, 512), (33, 100)),
    )


def _ascending(n: int) -> Any:
    cells = floats(n, low=0.0)
    cells.sort()
    return cells


def _decayed(t: Any, x: Any) -> Any:
    state, rows = x[0], []
    for row in x:
        state = 0.5 * state + row
        rows.append(state)
    return t.stack(rows)


def _summed_until(t: Any, x: Any) -> Any:
    total = 0 * x[0]
    for row in x:
        total = t.where(total < 8.0, total + row.abs(), total)
    return total


def _moved() -> Iterator[Case]:
    squares = ((1024, 1024), (1000, 777))
    boxes = ((16, 64, 256), (7, 33, 101))
    yield _case(
        "swapaxes", lambda x: oc.swapaxes(x, 0, 1), lambda t, x: x.t().contiguous(), squares
    )
    yield Case(
        name="exchange of input and output axes",
        covers=("Tensor",),
        arrays=_made(squares, x=floats),
        own=lambda x: x.T,
        torch=lambda t, x: x.t().contiguous(),
        batch_axes={"x": 0},
        input_axes={"x": 1},
    )
    yield _case(
        "transpose",
        lambda x: oc.transpose(x, 2, 0, 1),
        lambda t, x: x.permute(2, 0, 1).contiguous(),
        boxes,
    )
    yield _case(
        "moveaxis", lambda x: oc.moveaxis(x, 0, 1), lambda t, x: x.movedim(0, 1).contiguous(), boxes
    )
    yield _case("reshape", lambda x: oc.reshape(x, -1), lambda t, x: x.reshape(-1).clone())
    yield _case("flatten", lambda x: oc.flatten(x), lambda t, x: x.flatten().clone())
    yield _case("expand_dims", lambda x: oc.expand_dims(x, 1), lambda t, x: x.unsqueeze(1).clone())
    yield _case(
        "squeeze",
        lambda x: oc.squeeze(oc.expand_dims(x, 1), 1),
        lambda t, x: x.unsqueeze(1).squeeze(1).clone(),
    )
    yield _case(
        "broadcast_to",
        lambda x: oc.broadcast_to(x, 8, 100, 300),
        lambda t, x: x.expand(8, 100, 300).contiguous(),
        ((100, 300), (1, 300)),
    )
    pair = {"x": floats, "y": partial(floats, seed=1)}
    for axis, place in ((0, "first"), (-1, "last")):
        yield _case(
            f"concat along the {place} axis",
            lambda x, y, axis=axis: oc.concat([x, y], axis=axis),
            lambda t, x, y, axis=axis: t.cat([x, y], axis),
            covers=("concat",),
            **pair,
        )
        yield _case(
            f"stack along the {place} axis",
            lambda x, y, axis=axis: oc.stack([x, y], axis=axis),
            lambda t, x, y, axis=axis: t.stack([x, y], axis),
            covers=("stack",),
            **pair,
        )
        yield _case(
            f"flip along the {place} axis",
            lambda x, axis=axis: oc.flip(x, axis),
            lambda t, x, axis=axis: t.flip(x, (axis,)),
            covers=("flip",),
        )
        yield _case(
            f"roll along the {place} axis",
            lambda x, axis=axis: oc.roll(x, 5, axis),
            lambda t, x, axis=axis: t.roll(x, 5, axis),
            covers=("roll",),
        )
        yield _case(
            f"repeat along the {place} axis",
            lambda x, axis=axis: oc.repeat(x, 3, axis),
            lambda t, x, axis=axis: t.repeat_interleave(x, 3, axis),
            covers=("repeat",),
        )
    yield _case(
        "primitives.interleave",
        lambda x, y: oc.primitives.interleave(x, y),
        lambda t, x, y: t.stack([x, y], -1).flatten(-2),
        **pair,
    )
    yield _case("tile", lambda x: oc.tile(x, (2, 2)), lambda t, x: x.tile(2, 2))
    yield _case("tril", oc.tril, lambda t, x: t.tril(x))
    yield _case("triu", oc.triu, lambda t, x: t.triu(x))
    for mode, theirs in (("constant", "constant"), ("edge", "replicate"), ("reflect", "reflect")):
        yield _case(
            f"pad, {mode}",
            lambda x, mode=mode: oc.pad(x, 2, mode=mode),
            lambda t, x, theirs=theirs: t.nn.functional.pad(x[None], (2, 2, 2, 2), mode=theirs)[0],
            covers=("pad",),
        )
    yield _case(
        "slice", lambda x: x[10:60, 7:], lambda t, x: x[10:60, 7:].clone(), covers=("Tensor",)
    )


def _positions() -> Iterator[Case]:
    def rows(entries: int, width: int, count: int) -> Any:
        return lambda: {"table": floats(entries, width), "ids": numbers(entries, count)}

    sizes = (rows(10000, 128, 2048), rows(101, 33, 500))
    tables = {"table": 0}
    yield Case(
        name="take",
        covers=("take",),
        arrays=sizes,
        own=lambda table, ids: oc.take(table, ids, axis=0),
        torch=lambda t, table, ids: table[ids.long()],
        batch_axes=tables,
    )
    yield Case(
        name="put",
        covers=("put",),
        arrays=tuple(partial(_rows_at, *each) for each in ((10000, 128, 2048), (501, 33, 100))),
        own=lambda table, ids, rows: oc.put(table, ids, rows, axis=0),
        torch=lambda t, table, ids, rows: table.index_copy(0, ids.long(), rows),
        batch_axes=tables,
    )
    for entries, width, count in ((1000, 128, 2048), (501, 33, 100)):
        yield Case(
            name=f"scatter to {entries} rows",
            covers=("scatter",),
            arrays=(partial(_rows_to, entries, width, count),),
            own=lambda ids, rows, size=entries: oc.scatter(ids, rows, size=size),
            torch=lambda t, ids, rows, size=entries: rows.new_zeros(size, rows.shape[1]).index_add(
                0, ids.long(), rows
            ),
        )
    along = tuple(
        (lambda n=n, m=m, k=k: {"x": floats(n, m), "ids": numbers(m, n, k)})
        for n, m, k in ((256, 4096, 64), (1000, 100, 5))
    )
    yield Case(
        name="take_along",
        covers=("take_along",),
        arrays=along,
        own=lambda x, ids: oc.take_along(x, ids, axis=-1),
        torch=lambda t, x, ids: t.gather(x, -1, ids.long()),
    )
    yield Case(
        name="put_along",
        covers=("put_along",),
        arrays=tuple(
            (lambda n=n, m=m: {"x": floats(n, m), "ids": numbers(m, n, 1), "y": floats(n, 1)})
            for n, m in ((256, 4096), (1000, 100))
        ),
        own=lambda x, ids, y: oc.put_along(x, ids, y, axis=-1),
        torch=lambda t, x, ids, y: x.scatter(-1, ids.long(), y),
    )
    yield Case(
        name="one_hot",
        covers=("one_hot",),
        arrays=tuple((lambda n=n: {"ids": numbers(100, n)}) for n in (4096, 333)),
        own=lambda ids: oc.one_hot(ids, 100),
        torch=lambda t, ids: t.nn.functional.one_hot(ids.long(), 100),
        gradients=False,
    )
    yield Case(
        name="arange",
        covers=("primitives.offsets",),
        arrays=tuple((lambda n=n: {"x": floats(n)}) for n in (1 << 18, 1001)),
        own=lambda x: x + oc.primitives.offsets(),
        torch=lambda t, x: x + t.arange(len(x)),
        batch_axes={"x": 0},
    )


def _rows_at(entries: int, width: int, count: int) -> Arrays:
    """Return a table, different positions in it, and rows for them."""
    ids = np.random.default_rng(entries).permutation(entries)[:count].astype(np.int32)
    return {"table": floats(entries, width), "ids": ids, "rows": floats(count, width, seed=1)}


def _rows_to(entries: int, width: int, count: int) -> Arrays:
    """Return positions, some of them equal, and rows for them."""
    return {"ids": numbers(entries, count), "rows": floats(count, width, seed=1)}


def _random() -> Iterator[Case]:
    for name, theirs in (("uniform", "rand_like"), ("normal", "randn_like")):
        yield _case(
            name,
            lambda x, name=name: x + getattr(oc, name)(),
            lambda t, x, theirs=theirs: x + getattr(t, theirs)(x),
            gradients=False,
            is_random=True,
        )
    yield _case(
        "categorical",
        lambda x: oc.categorical(x),
        lambda t, x: t.multinomial(t.softmax(x, -1), 1),
        ((256, 1024), (33, 101)),
        gradients=False,
        is_random=True,
    )
