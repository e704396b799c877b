"""The operations here that compute what an operation of PyTorch's sample database computes.

An adapter takes the arguments of PyTorch, with tensors of this package in place of tensors, and
raises `NotOurs` for arguments that have no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ocannl_core as oc


class NotOurs(Exception):
    """Arguments without a counterpart here, with the reason."""


OPERATIONS: dict[str, Callable[..., Any]] = {}


def ours(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def rank(x: Any) -> int:
    return x.ndim if isinstance(x, oc.Tensor) else np.ndim(x)


def axes(dim: Any) -> Any:
    """Return axes for the dimensions of PyTorch, which has all for none."""
    if dim is None or dim == () or dim == []:
        return None
    return tuple(dim) if isinstance(dim, list | tuple) else dim


def numbers(x: Any) -> Any:
    """Return the cells of a tensor of constants, as an integer or a list."""
    return x.tolist() if hasattr(x, "tolist") else x


def scalar_dim(x: Any, dim: Any) -> Any:
    if isinstance(x, oc.Tensor) and rank(x) == 0 and dim is not None:
        raise NotOurs("a tensor without axes has no axis to count")
    return axes(dim)


def no(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotOurs(f"no argument {name}")


# ----- cell by cell -------------------------------------------------------------------------------

_SAME = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "logical_not",
    "neg",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
for _name in _SAME:
    OPERATIONS[_name] = getattr(oc, _name)
_FUNCTIONAL = ["relu", "relu6", "hardsigmoid", "hardswish", "mish", "selu", "silu", "softsign"]
for _name in _FUNCTIONAL:
    OPERATIONS[f"nn.functional.{_name}"] = getattr(oc, _name)
_BINARY = ["logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum"]
for _name in _BINARY:
    OPERATIONS[_name] = getattr(oc, _name)
OPERATIONS |= {
    "atan2": oc.atan2,
    "mul": lambda a, b: a * b,
    "__radd__": lambda a, b: b + a,
    "__rmul__": lambda a, b: b * a,
    "__rsub__": lambda a, b: b - a,
    "__rdiv__": lambda a, b: b / a,
    "__rpow__": lambda a, b: b**a,
    "__rmod__": lambda a, b: b % a,
    "true_divide": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "float_power": lambda a, b: a**b,
    "reciprocal": oc.recip,
    "sgn": oc.sign,
    "positive": lambda x: +x,
    "clone": lambda x, **_: oc.identity(x),
    "deg2rad": lambda x: x * (np.pi / 180),
    "rad2deg": lambda x: x * (180 / np.pi),
    "zeros_like": lambda x, **_: np.zeros_like(x),
    "ones_like": lambda x, **_: np.ones_like(x),
    "full_like": lambda x, value, **_: np.full_like(x, value),
    "nn.functional.gelu": lambda x, approximate="none": oc.gelu(x, approximate=approximate),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01, **_: oc.leaky_relu(
        x, negative_slope
    ),
    "nn.functional.elu": lambda x, alpha=1.0, **_: oc.elu(x, alpha),
    "nn.functional.celu": lambda x, alpha=1.0, **_: alpha * oc.elu(x / alpha),
    "nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0, **_: oc.hardtanh(
        x, min_val, max_val
    ),
    "nn.functional.logsigmoid": oc.log_sigmoid,
    "nn.functional.tanhshrink": lambda x: x - oc.tanh(x),
    "nn.functional.threshold": lambda x, t, v, **_: oc.where(x > t, x, v),
    "nn.functional.softshrink": lambda x, lambd=0.5: oc.where(
        x > lambd, x - lambd, oc.where(x < -lambd, x + lambd, 0.0)
    ),
    "nn.functional.hardshrink": lambda x, lambd=0.5: oc.where(oc.abs(x) > lambd, x, 0.0),
    "isposinf": lambda x: (x > 0) & oc.isinf(x),
    "isneginf": lambda x: (x < 0) & oc.isinf(x),
    "lerp": lambda a, b, w: a + w * (b - a),
    "addcmul": lambda x, a, b, value=1: x + value * (a * b),
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "hypot": lambda a, b: oc.sqrt(a * a + b * b),
    "log10": lambda x: oc.log(x) * float(1 / np.log(10)),
    "erfc": lambda x: 1.0 - oc.erf(x),
    "asinh": lambda x: oc.sign(x) * oc.log1p(oc.abs(x) + x * x / (1 + oc.sqrt(x * x + 1))),
    "acosh": lambda x: oc.log(x + oc.sqrt(x * x - 1)),
    "atanh": lambda x: 0.5 * (oc.log1p(x) - oc.log1p(-x)),
    "frac": lambda x: x - oc.trunc(x),
    "logit": lambda x, eps=None: _logit(x if eps is None else oc.clip(x, eps, 1 - eps)),
}


def _logit(x: Any) -> Any:
    return oc.log(x) - oc.log1p(-x)


@ours("add")
def add(a: Any, b: Any, alpha: float = 1) -> Any:
    return a + (b if alpha == 1 else alpha * b)


@ours("sub")
def sub(a: Any, b: Any, alpha: float = 1) -> Any:
    return a - (b if alpha == 1 else alpha * b)


@ours("rsub")
def rsub(a: Any, b: Any, alpha: float = 1) -> Any:
    return b - (a if alpha == 1 else alpha * a)


@ours("div")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return a // b
    return oc.trunc(a / b) if rounding_mode == "trunc" else a / b


@ours("round")
def round_(x: Any, decimals: int = 0) -> Any:
    return round(x, decimals)


@ours("clamp")
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return oc.clip(x, min, max)


OPERATIONS |= {
    "clamp_min": lambda x, low: oc.clip(x, low, None),
    "clamp_max": lambda x, high: oc.clip(x, None, high),
}


@ours("where")
def where(a: Any, condition: Any, b: Any) -> Any:
    return oc.where(condition, a, b)


@ours("masked_fill")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return oc.where(mask, value, x)


@ours("isclose")
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    no(equal_nan=equal_nan)
    return np.isclose(a, b, rtol=rtol, atol=atol)


@ours("nan_to_num")
def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    most = float(np.finfo(np.float64).max)
    x = oc.where(oc.isnan(x), 0.0 if nan is None else nan, x)
    x = oc.where(oc.isinf(x) & (x > 0), most if posinf is None else posinf, x)
    return oc.where(oc.isinf(x) & (x < 0), -most if neginf is None else neginf, x)


@ours("nn.functional.softplus")
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return oc.where(beta * x > threshold, x, oc.softplus(beta * x) / beta)


# ----- along axes ---------------------------------------------------------------------------------


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None, **kwargs: Any
    ) -> Any:
        no(dtype=dtype)
        return function(x, scalar_dim(x, dim), keepdims=keepdim, **kwargs)

    return reduce


for _theirs, _here in {
    "sum": oc.sum,
    "mean": oc.mean,
    "prod": oc.prod,
    "amax": oc.max,
    "amin": oc.min,
    "all": oc.all,
    "any": oc.any,
    "argmax": oc.argmax,
    "argmin": oc.argmin,
    "logsumexp": oc.logsumexp,
    "count_nonzero": np.count_nonzero,
    "nansum": np.nansum,
    "nanmean": np.nanmean,
}.items():
    OPERATIONS[_theirs] = reduction(_here)


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        ddof = correction if correction is not None else 1 if unbiased in (None, True) else 0
        return function(x, scalar_dim(x, dim), ddof=ddof, keepdims=keepdim)

    return reduce


OPERATIONS |= {
    "var": spread(oc.var),
    "std": spread(oc.std),
    "var_mean": lambda x, *a, **k: (spread(oc.var)(x, *a, **k), _mean_of(x, *a, **k)),
    "std_mean": lambda x, *a, **k: (spread(oc.std)(x, *a, **k), _mean_of(x, *a, **k)),
}


def _mean_of(
    x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
) -> Any:
    return oc.mean(x, None if isinstance(dim, bool) else scalar_dim(x, dim), keepdims=keepdim)


def extreme(reduce: Any, position: Any, pair: Any) -> Callable[..., Any]:
    def apply(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return reduce(x)
        if isinstance(dim, oc.Tensor):
            return pair(x, dim)
        dim = scalar_dim(x, dim)
        return reduce(x, dim, keepdims=keepdim), position(x, dim, keepdims=keepdim)

    return apply


OPERATIONS |= {
    "max": extreme(oc.max, oc.argmax, oc.maximum),
    "min": extreme(oc.min, oc.argmin, oc.minimum),
}


def scan(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: Any, dim: int, dtype: Any = None) -> Any:
        no(dtype=dtype)
        return function(x, scalar_dim(x, dim))

    return apply


OPERATIONS |= {
    "cumsum": scan(oc.cumsum),
    "cumprod": scan(oc.cumprod),
    "cummax": scan(oc.cummax),
    "cummin": scan(oc.cummin),
    "softmax": scan(oc.softmax),
    "log_softmax": scan(oc.log_softmax),
    "nn.functional.softmin": lambda x, dim, dtype=None: scan(oc.softmax)(-x, dim, dtype),
}


@ours("sort")
def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    dim = scalar_dim(x, dim)
    return oc.sort(x, dim, descending=descending), oc.argsort(x, dim, descending=descending)


@ours("argsort")
def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return oc.argsort(x, scalar_dim(x, dim), descending=descending)


@ours("msort")
def msort(x: Any) -> Any:
    return oc.sort(x, 0)


@ours("topk")
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return oc.topk(x, k, scalar_dim(x, dim), largest=largest)


@ours("searchsorted")
def searchsorted(
    ordered: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    no(sorter=sorter)
    if rank(ordered) != 1:
        raise NotOurs("rows in order, each with cells of its own")
    return oc.searchsorted(ordered, x, side=side or ("right" if right else "left"))


@ours("linalg.vector_norm")
def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    no(dtype=dtype)
    if ord == 0:
        raise NotOurs("the number of cells that are not 0, as a norm")
    return oc.norm(x, ord, scalar_dim(x, dim), keepdims=keepdim)


# ----- cells moved --------------------------------------------------------------------------------


def shape_of(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else tuple(args)


@ours("reshape", "view")
def reshape(x: Any, *shape: Any) -> Any:
    if len(shape) == 1 and not isinstance(shape[0], int | list | tuple):
        raise NotOurs("a view of the bits in another format")
    return oc.reshape(x, shape_of(shape))


OPERATIONS |= {
    "reshape_as": lambda x, y: oc.reshape(x, tuple(y.shape)),
    "view_as": lambda x, y: oc.reshape(x, tuple(y.shape)),
    "permute": lambda x, dims: oc.permute(x, *dims) if dims else x,
    "transpose": lambda x, a, b: oc.swapaxes(x, a, b) if rank(x) else x,
    "t": lambda x: oc.swapaxes(x, 0, 1) if rank(x) == 2 else x,
    "mT": lambda x: oc.swapaxes(x, -1, -2),
    "movedim": oc.moveaxis,
    "unsqueeze": oc.expand_dims,
    "broadcast_to": lambda x, shape: oc.broadcast_to(x, *shape),
    "expand_as": lambda x, y: oc.broadcast_to(x, *y.shape),
    "ravel": oc.flatten,
    "flip": lambda x, dims: oc.flip(x, axes(dims)) if dims else x,
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "tile": lambda x, reps: oc.tile(x, tuple(reps)) if reps else x,
    "tril": lambda x, diagonal=0: oc.tril(x, diagonal),
    "triu": lambda x, diagonal=0: oc.triu(x, diagonal),
    "stack": lambda parts, dim=0: np.stack(list(parts), axis=dim),
    "hstack": lambda parts: np.hstack([oc.reshape(x, 1) if rank(x) == 0 else x for x in parts]),
    "vstack": lambda parts: np.vstack([oc.reshape(x, 1, -1) if rank(x) < 2 else x for x in parts]),
    "unbind": lambda x, dim=0: np.unstack(x, axis=dim),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: np.diff(
        _joined(x, dim, prepend, append), n, dim
    ),
    "trace": np.trace,
    "select": lambda x, dim, index: x[(*(slice(None),) * (dim % rank(x)), index)],
}


@ours("narrow")
def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    if isinstance(start, oc.Tensor):
        raise NotOurs("a start from a tensor")
    size = x.shape[dim % rank(x)]
    first = start + size if start < 0 else start
    return x[(*(slice(None),) * (dim % rank(x)), slice(first, first + length))]


def _joined(x: Any, dim: int, *others: Any) -> Any:
    before, after = others
    parts = [part for part in (before, x, after) if part is not None]
    return oc.concat(parts, axis=dim) if len(parts) > 1 else x


@ours("expand")
def expand(x: Any, *shape: Any) -> Any:
    sizes = shape_of(shape)
    own = (1,) * (len(sizes) - rank(x)) + tuple(x.shape)
    return oc.broadcast_to(x, *(o if s == -1 else s for s, o in zip(sizes, own, strict=True)))


@ours("flatten")
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    n = rank(x)
    if n == 0:
        return oc.reshape(x, 1)
    first, last, sizes = start_dim % n, end_dim % n, tuple(x.shape)
    return oc.reshape(
        x, (*sizes[:first], int(np.prod(sizes[first : last + 1])), *sizes[last + 1 :])
    )


@ours("squeeze")
def squeeze(x: Any, dim: Any = None) -> Any:
    if dim is None:
        return oc.squeeze(x)
    wanted = dim if isinstance(dim, list | tuple) else (dim,)
    if rank(x) == 0:
        return x
    chosen = tuple(d % rank(x) for d in wanted if x.shape[d % rank(x)] == 1)
    return oc.squeeze(x, chosen) if chosen else x


@ours("cat")
def cat(parts: Sequence[Any], dim: int = 0) -> Any:
    kept = [x for x in parts if tuple(x.shape) != (0,)] or list(parts[:1])
    return oc.concat(kept, axis=dim) if len(kept) > 1 else kept[0] * 1.0


@ours("roll")
def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    return np.roll(x, tuple(shifts) if isinstance(shifts, list) else shifts, axis=axes(dims))


@ours("repeat")
def repeat(x: Any, *counts: Any) -> Any:
    return oc.tile(x, shape_of(counts)) if shape_of(counts) else x


@ours("repeat_interleave")
def repeat_interleave(x: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    if not isinstance(repeats, int):
        raise NotOurs("a number of copies for each cell")
    return np.repeat(x, repeats, axis=dim) if rank(x) else oc.broadcast_to(x, repeats)


@ours("chunk")
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    size = -(-x.shape[dim % rank(x)] // chunks)
    return split(x, size, dim)


@ours("split", "split_with_sizes")
def split(x: Any, sizes: Any, dim: int = 0) -> Any:
    n = x.shape[dim % rank(x)]
    edges = (
        list(range(sizes, n, sizes)) if isinstance(sizes, int) else np.cumsum(sizes)[:-1].tolist()
    )
    whole, stops = (slice(None),) * (dim % rank(x)), [*edges, n]
    return tuple(x[(*whole, slice(a, b))] for a, b in zip([0, *edges], stops, strict=True))


@ours("diagonal")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return np.diagonal(x, offset, dim1, dim2)


@ours("constant_pad_nd")
def constant_pad(x: Any, widths: Any, value: float = 0.0) -> Any:
    return pad(x, widths, value=value)


@ours("nn.functional.pad")
def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if mode not in names or any(n < 0 for n in pad):
        raise NotOurs(f"padding of mode {mode} and widths {min(pad, default=0)}")
    widths = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)][::-1]
    across = tuple(range(rank(x) - len(widths), rank(x)))
    return oc.pad(x, widths, mode=names[mode], value=value or 0.0, axis=across) if across else x


@ours("__getitem__")
def getitem(x: Any, key: Any) -> Any:
    parts = key if isinstance(key, tuple) else (key,)
    if (
        any(isinstance(p, bool | list) for p in parts)
        or sum(isinstance(p, oc.Tensor) for p in parts) > 1
    ):
        raise NotOurs("subscripts by several tensors, lists or truth values")
    return x[key]


# ----- positions ----------------------------------------------------------------------------------


@ours("index_select")
def index_select(x: Any, dim: int, ids: Any) -> Any:
    return oc.take(x, ids, scalar_dim(x, dim)) if rank(ids) else oc.take(x, oc.reshape(ids, 1), dim)


@ours("take")
def take(x: Any, ids: Any) -> Any:
    return np.take(x, ids)


@ours("gather")
def gather(x: Any, dim: int, ids: Any, sparse_grad: bool = False) -> Any:
    return _along(oc.take_along, x, dim, ids)


@ours("take_along_dim")
def take_along_dim(x: Any, ids: Any, dim: Any = None) -> Any:
    return np.take(x, oc.flatten(ids)) if dim is None else oc.take_along(x, ids, dim)


def _along(function: Any, x: Any, dim: int, ids: Any, *values: Any) -> Any:
    scalar_dim(x, dim)
    position = dim % rank(x)
    mine, theirs = list(x.shape), list(ids.shape)
    if [n for k, n in enumerate(mine) if k != position] != [
        n for k, n in enumerate(theirs) if k != position
    ]:
        raise NotOurs("positions for a part of the tensor")
    return function(x, ids, *values, dim)


@ours("scatter")
def scatter(
    x: Any, dim: int, ids: Any, src: Any = None, reduce: Any = None, value: Any = None
) -> Any:
    no(reduce=reduce)
    return _along(oc.put_along, x, dim, ids, value if src is None else src)


@ours("index_copy")
def index_copy(x: Any, dim: int, ids: Any, source: Any) -> Any:
    return oc.put(x, oc.reshape(ids, -1), source, scalar_dim(x, dim))


@ours("index_fill")
def index_fill(x: Any, dim: int, ids: Any, value: Any) -> Any:
    if isinstance(value, oc.Tensor):
        raise NotOurs("a value from a tensor")
    return oc.put(x, oc.reshape(ids, -1), value, scalar_dim(x, dim))


@ours("index_add")
def index_add(x: Any, dim: int, ids: Any, source: Any, alpha: float = 1) -> Any:
    scalar_dim(x, dim)
    added = oc.scatter_add(oc.reshape(ids, -1), source, size=x.shape[dim % rank(x)], axis=dim)
    return x + alpha * added


@ours("put")
def put(x: Any, ids: Any, source: Any, accumulate: bool = False) -> Any:
    no(accumulate=accumulate)
    if not rank(x):
        raise NotOurs("a tensor without axes")
    return oc.put(oc.flatten(x), oc.reshape(ids, -1), oc.reshape(source, -1), 0).reshape(
        tuple(x.shape)
    )


@ours("nn.functional.embedding")
def embedding(
    table: Any,
    ids: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    scale_grad_by_freq: bool = False,
    **_: Any,
) -> Any:
    no(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq)
    if padding_idx is not None:
        raise NotOurs("a row without a gradient")
    return oc.take(table, ids)


@ours("nn.functional.one_hot")
def one_hot(ids: Any, classes: int = -1) -> Any:
    if classes < 1:
        raise NotOurs("a number of classes that depends on cells")
    return oc.one_hot(ids, classes)


# ----- products -----------------------------------------------------------------------------------

OPERATIONS |= {
    "mm": lambda a, b: np.einsum("ij,jk->ik", a, b),
    "bmm": lambda a, b: np.einsum("bij,bjk->bik", a, b),
    "mv": lambda a, b: np.einsum("ij,j->i", a, b),
    "dot": np.dot,
    "vdot": np.vdot,
    "inner": np.inner,
    "outer": np.outer,
    "tensordot": lambda a, b, dims=2: np.tensordot(a, b, dims),
    "einsum": lambda tensors, equation: np.einsum(equation, *tensors),
    "addmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("ij,jk->ik", a, b),
    "addmv": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("ij,j->i", a, b),
    "addr": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("i,j->ij", a, b),
    "addbmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("bij,bjk->ik", a, b),
    "baddbmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("bij,bjk->bik", a, b),
}


@ours("matmul", "__rmatmul__")
def matmul(a: Any, b: Any) -> Any:
    one, other = rank(a), rank(b)
    left = "j" if one == 1 else "...ij"
    right = "j" if other == 1 else "...jk"
    result = "..." + "i" * (one > 1) + "k" * (other > 1)
    return np.einsum(f"{left},{right}->{result}", a, b)


OPERATIONS["__rmatmul__"] = lambda a, b: matmul(b, a)


@ours("nn.functional.linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    made = np.einsum("...i,oi->...o" if rank(weight) == 2 else "...i,i->...", x, weight)
    return made if bias is None else made + bias


def pool(x: Any, kernel: Any, stride: Any, padding: Any, count: int, reduce: Any) -> Any:
    size = (
        [kernel] * count
        if isinstance(kernel, int)
        else list(kernel) * (count if len(kernel) == 1 else 1)
    )
    steps = (
        size
        if stride in (None, ())
        else [stride] * count
        if isinstance(stride, int)
        else list(stride) * (count if len(stride) == 1 else 1)
    )
    pads = (
        [padding] * count
        if isinstance(padding, int)
        else list(padding) * (count if len(padding) == 1 else 1)
    )
    if any(pads):
        beyond = 0.0 if reduce is oc.einsum else -np.inf
        x = oc.pad(x, [(n, n) for n in pads], value=beyond, axis=tuple(range(-count, 0)))
    spare = [(n - k) % s for n, k, s in zip(tuple(x.shape)[-count:], size, steps, strict=True)]
    x = x[(..., *(slice(0, n - r) for n, r in zip(tuple(x.shape)[-count:], spare, strict=True)))]
    slid = ", ".join(f"{s}*o{k}<+k{k}" for k, s in enumerate(steps))
    spec = f"..., {slid} => ..., {', '.join(f'o{k}' for k in range(count))}"
    return reduce(spec, x, values={f"k{k}": n for k, n in enumerate(size)}), int(np.prod(size))


def average_pool(count: int) -> Callable[..., Any]:
    def apply(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        no(ceil_mode=ceil_mode)
        if not count_include_pad and np.any(padding):
            raise NotOurs("a mean without the padding")
        total, cells = pool(x, kernel_size, stride, padding, count, oc.einsum)
        return total / float(divisor_override or cells)

    return apply


def maximum_pool(count: int) -> Callable[..., Any]:
    def apply(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        no(ceil_mode=ceil_mode, return_indices=return_indices)
        if any(d != 1 for d in np.ravel(dilation)):
            raise NotOurs("dilation of a pool")
        return pool(x, kernel_size, stride, padding, count, oc.einmax)[0]

    return apply


for _count in (1, 2, 3):
    OPERATIONS[f"nn.functional.avg_pool{_count}d"] = average_pool(_count)
    OPERATIONS[f"nn.functional.max_pool{_count}d"] = maximum_pool(_count)


def convolution(count: int) -> Callable[..., Any]:
    def apply(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        def each(value: Any) -> list[int]:
            return (
                [value] * count
                if isinstance(value, int)
                else list(value) * (count if len(value) == 1 else 1)
            )

        steps, apart = each(stride), each(dilation)
        sizes = tuple(weight.shape)[2:]
        if isinstance(padding, str):
            reach = [
                d * (k - 1) if padding == "same" else 0 for d, k in zip(apart, sizes, strict=True)
            ]
            pads = [(r // 2, r - r // 2) for r in reach]
        else:
            pads = [(p, p) for p in each(padding)]
        if any(p != (0, 0) for p in pads):
            x = oc.pad(x, pads, axis=tuple(range(-count, 0)))
        spare = [
            (n - d * (k - 1) - 1) % s
            for n, d, k, s in zip(tuple(x.shape)[-count:], apart, sizes, steps, strict=True)
        ]
        x = x[
            (..., *(slice(0, n - r) for n, r in zip(tuple(x.shape)[-count:], spare, strict=True)))
        ]
        batch = tuple(x.shape)[: -count - 1]
        x = oc.reshape(x, (*batch, groups, -1, *tuple(x.shape)[-count:]))
        weight = oc.reshape(weight, (groups, -1, *tuple(weight.shape)[1:]))
        slid = ", ".join(
            f"{s}*o{k}<+{d}*k{k}" for k, (s, d) in enumerate(zip(steps, apart, strict=True))
        )
        kernel = ", ".join(f"k{k}" for k in range(count))
        made = oc.einsum(
            f"..., g, c, {slid}; g, m, c, {kernel} => ..., g, m, {', '.join(f'o{k}' for k in range(count))}",
            x,
            weight,
        )
        made = oc.reshape(made, (*batch, -1, *tuple(made.shape)[-count:]))
        return made if bias is None else made + oc.reshape(bias, (-1, *[1] * count))

    return apply


for _count in (1, 2, 3):
    OPERATIONS[f"nn.functional.conv{_count}d"] = convolution(_count)


@ours("nn.functional.layer_norm")
def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    across = tuple(range(rank(x) - len(shape), rank(x)))
    found = (x - x.mean(axis=across, keepdims=True)) * oc.rsqrt(
        x.var(axis=across, keepdims=True) + eps
    )
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


@ours("nn.functional.mse_loss")
def mse_loss(x: Any, y: Any, reduction: str = "mean", weight: Any = None) -> Any:
    no(weight=weight)
    squares = (x - y) ** 2
    return (
        squares
        if reduction == "none"
        else oc.mean(squares)
        if reduction == "mean"
        else oc.sum(squares)
    )


@ours("nn.functional.l1_loss")
def l1_loss(x: Any, y: Any, reduction: str = "mean") -> Any:
    sizes = oc.abs(x - y)
    return (
        sizes if reduction == "none" else oc.mean(sizes) if reduction == "mean" else oc.sum(sizes)
    )
