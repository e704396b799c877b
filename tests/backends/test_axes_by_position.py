"""Operations with `axis=`, beside NumPy: reductions, rearrangements, scans and order."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc

Array = np.ndarray[Any, Any]
CELLS = np.random.default_rng(3).permutation(24).reshape(2, 3, 4).astype(np.float32) - 11
AXES = [None, 0, 1, -1, (0, 2), (-1, 1)]


def computed(
    target: str, function: Callable[..., Any], cells: Array = CELLS, dtype: str = "float32"
) -> list[Array]:
    """Return results of a function of a tensor with a batch, an output and an input axis."""
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        batch, output, *input = cells.shape
        x = oc.placeholder("x", batch=batch, output=output, input=input, dtype=dtype)
        found = function(x)
        results = found if isinstance(found, tuple) else (found,)
        context = oc.Context(target)
        routine = context.compile(reduce(add, map(oc.train.forward, results)), keep=list(results))
        context[x] = cells.astype(x.dtype.numpy)
        routine()
        return [context[each] for each in results]


def log_sum_exp(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    found: Array = np.log(np.exp(a.astype(np.float64)).sum(axis=axis, keepdims=keepdims))
    return found


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "any": np.any,
    "all": np.all,
    "logsumexp": log_sum_exp,
    "norm": lambda a, axis, keepdims: np.sqrt((a * a).sum(axis=axis, keepdims=keepdims)),
}


CASES = [(name, axis, kept) for name in REDUCTIONS for axis in AXES for kept in (False, True)]


def test_reductions_are_those_of_numpy(target: str) -> None:
    def reduced(x: oc.Tensor) -> tuple[oc.Tensor, ...]:
        return tuple(getattr(oc, name)(x, axis=a, keepdims=k) for name, a, k in CASES)

    for found, (name, axis, kept) in zip(computed(target, reduced), CASES, strict=True):
        exact = REDUCTIONS[name](CELLS, axis=axis, keepdims=kept)
        assert found.shape == exact.shape
        np.testing.assert_allclose(found, exact, rtol=1e-5, err_msg=f"{name} along {axis}")


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float64", "bfloat16"])
def test_sums_keep_a_wide_format_and_means_are_floats(target: str, dtype: str) -> None:
    cells = np.abs(CELLS)
    total, mean, top = computed(
        target, lambda x: (x.sum(axis=1), x.mean(axis=1), x.max(axis=-1)), cells, dtype
    )
    np.testing.assert_array_equal(total.astype(np.float64), cells.sum(axis=1))
    np.testing.assert_allclose(mean.astype(np.float64), cells.mean(axis=1), rtol=0.01)
    np.testing.assert_array_equal(top.astype(np.float64), cells.max(axis=-1))
    assert str(total.dtype) == ("uint32" if dtype == "uint8" else dtype)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1), None])
def test_softmax_and_its_logarithm_are_weights(target: str, axis: Any) -> None:
    weights, logarithms = computed(
        target, lambda x: (x.softmax(axis=axis), x.log_softmax(axis=axis))
    )
    exact = np.exp(CELLS - log_sum_exp(CELLS, axis, True))
    np.testing.assert_allclose(weights, exact, rtol=1e-5)
    np.testing.assert_allclose(logarithms, np.log(exact), rtol=1e-5, atol=1e-6)


def test_infinite_cells_have_no_weight_and_an_empty_sum_is_minus_infinity(target: str) -> None:
    cells = np.array([[1.0, -np.inf], [-np.inf, -np.inf], [np.inf, 0.0]], np.float32)
    total, weights = computed(target, lambda x: (x.logsumexp(axis=1), x.softmax(axis=1)), cells)
    np.testing.assert_array_equal(total, [1.0, -np.inf, np.inf])
    np.testing.assert_array_equal(weights[:2], [[1, 0], [0, 0]])


def test_the_position_of_an_extreme_is_that_of_the_first_one_or_of_nan(target: str) -> None:
    cells = np.array([[1, 3, 3, 0], [2, np.nan, 5, np.nan]], np.float32)
    functions: list[Callable[[oc.Tensor], oc.Tensor]] = [
        lambda x: x.argmax(axis=1),
        lambda x: x.argmin(axis=-1, keepdims=True),
        lambda x: x.argmax(),
    ]
    found = computed(target, lambda x: tuple(each(x) for each in functions), cells)
    assert [each.tolist() for each in found] == [[1, 1], [[3], [1]], 5]
    assert {each.dtype for each in found} == {np.dtype(np.int32)}


MOVES: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "permute": (lambda x: x.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    "permute reversed": (lambda x: x.permute(), lambda a: a.T),
    "moveaxis": (lambda x: x.moveaxis(0, -1), lambda a: np.moveaxis(a, 0, -1)),
    "moveaxis twice": (
        lambda x: x.moveaxis((0, 1), (-1, 0)),
        lambda a: np.moveaxis(a, (0, 1), (-1, 0)),
    ),
    "swapaxes": (lambda x: x.swapaxes(0, 2), lambda a: a.swapaxes(0, 2)),
    "expand_dims": (lambda x: x.expand_dims((0, -1)), lambda a: a[None, ..., None]),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(), lambda a: a),
    "squeeze one": (lambda x: x.expand_dims((0, 2)).squeeze(2), lambda a: a[None]),
    "reshape": (lambda x: x.reshape(6, 4), lambda a: a.reshape(6, 4)),
    "reshape, size left": (lambda x: x.reshape((8, -1)), lambda a: a.reshape(8, 3)),
    "reshape, ones": (lambda x: x.reshape(4, 1, 6), lambda a: a.reshape(4, 1, 6)),
    "reshape, rows": (
        lambda x: oc.reshape(x, batch=[4], input=[3, 2]),
        lambda a: a.reshape(4, 3, 2),
    ),
    "reshape of a result": (
        lambda x: (x + 1).reshape(3, 2, 2, 2),
        lambda a: (a + 1).reshape(3, 2, 2, 2),
    ),
    "flatten": (lambda x: x.flatten(), np.ravel),
    "broadcast_to": (
        lambda x: x.broadcast_to(5, 2, 3, 4),
        lambda a: np.broadcast_to(a, (5, 2, 3, 4)),
    ),
    "flip": (lambda x: x.flip(1), lambda a: np.flip(a, 1)),
    "flip all": (lambda x: x.flip(), np.flip),
    "roll": (lambda x: x.roll((-1, 5), (1, 2)), lambda a: np.roll(a, (-1, 5), (1, 2))),
    "pad": (lambda x: oc.pad(x, 1), lambda a: np.pad(a, 1)),
    "pad, other value": (
        lambda x: oc.pad(x, [(1, 0), (0, 0), (2, 3)], value=-np.inf),
        lambda a: np.pad(a, [(1, 0), (0, 0), (2, 3)], constant_values=-np.inf),
    ),
    "pad, edge": (
        lambda x: oc.pad(x, 2, mode="edge", axis=1),
        lambda a: np.pad(a, ((0, 0), (2, 2), (0, 0)), mode="edge"),
    ),
    "pad, reflect": (
        lambda x: oc.pad(x, (1, 5), mode="reflect", axis=(1, 2)),
        lambda a: np.pad(a, ((0, 0), (1, 5), (1, 5)), mode="reflect"),
    ),
    "pad, symmetric": (
        lambda x: oc.pad(x, (4, 1), mode="symmetric", axis=-1),
        lambda a: np.pad(a, ((0, 0), (0, 0), (4, 1)), mode="symmetric"),
    ),
    "pad, wrap": (
        lambda x: oc.pad(x, [(2, 3), (0, 9)], mode="wrap", axis=(1, 2)),
        lambda a: np.pad(a, ((0, 0), (2, 3), (0, 9)), mode="wrap"),
    ),
    "pad, reflect all": (
        lambda x: oc.pad(x, [(1, 1), (2, 1), (3, 0)], mode="reflect"),
        lambda a: np.pad(a, [(1, 1), (2, 1), (3, 0)], mode="reflect"),
    ),
    "repeat": (lambda x: x.repeat(3, 1), lambda a: np.repeat(a, 3, 1)),
    "tile": (lambda x: x.tile((2, 1, 1, 3)), lambda a: np.tile(a, (2, 1, 1, 3))),
    "tril": (lambda x: x.tril(-1), lambda a: np.tril(a, -1)),
    "triu": (lambda x: x.triu(1), lambda a: np.triu(a, 1)),
    "concat": (lambda x: oc.concat([x, x + 1], axis=-1), lambda a: np.concatenate([a, a + 1], -1)),
    "stack": (lambda x: oc.stack([x, x + 1], axis=1), lambda a: np.stack([a, a + 1], 1)),
    "iteration": (lambda x: tuple(x), lambda a: a[0]),
    "cumsum": (lambda x: oc.cumsum(x, axis=1), lambda a: np.cumsum(a, 1)),
    "cumsum of all": (oc.cumsum, np.cumsum),
    "cumprod": (lambda x: oc.cumprod(x, axis=-1), lambda a: np.cumprod(a, -1)),
    "cummax": (lambda x: oc.cummax(x, axis=0), lambda a: np.maximum.accumulate(a, 0)),
    "cummin": (lambda x: oc.cummin(x, axis=2), lambda a: np.minimum.accumulate(a, 2)),
    "sort": (lambda x: x.sort(), lambda a: np.sort(a, -1)),
    "sort along another axis": (lambda x: oc.sort(x, 0), lambda a: np.sort(a, 0)),
    "sort, descending": (lambda x: oc.sort(x, 1, descending=True), lambda a: -np.sort(-a, 1)),
    "argsort": (lambda x: oc.argsort(x, 1), lambda a: np.argsort(a, 1, kind="stable")),
    "topk": (lambda x: oc.topk(x, 2), lambda a: -np.sort(-a, -1)[..., :2]),
    "median": (lambda x: oc.median(x, 1), lambda a: np.median(a, 1)),
    "median of two": (
        lambda x: oc.median(x, -1, keepdims=True),
        lambda a: np.median(a, -1, keepdims=True),
    ),
}


@cache
def moved(target: str) -> dict[str, Array]:
    """Return the results of all moves, computed by one routine."""

    def all_moves(x: oc.Tensor) -> tuple[oc.Tensor, ...]:
        found = (ours(x) for ours, _ in MOVES.values())
        return tuple(each[0] if isinstance(each, tuple) else each for each in found)

    return dict(zip(MOVES, computed(target, all_moves), strict=True))


@pytest.mark.parametrize("name", MOVES)
def test_cells_are_where_numpy_moves_them(target: str, name: str) -> None:
    found, wanted = moved(target)[name], MOVES[name][1](CELLS)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["int32", "float64", "bfloat16"])
def test_scans_and_sorting_are_for_every_format(target: str, dtype: str) -> None:
    cells = np.clip(CELLS, -3, 3)
    functions = ("cumsum", "sort", "cummax", "argsort")
    found = computed(
        target, lambda x: tuple(getattr(oc, name)(x, axis=1) for name in functions), cells, dtype
    )
    wanted = [np.cumsum(cells, 1), np.sort(cells, 1), np.maximum.accumulate(cells, 1)]
    for ours, exact in zip(found, [*wanted, np.argsort(cells, 1, kind="stable")], strict=True):
        np.testing.assert_array_equal(ours.astype(np.float64), exact)


def test_nan_is_the_greatest_number_in_order(target: str) -> None:
    cells = np.array([[2, np.nan, -np.inf, 1], [0, -0.0, np.nan, np.inf]], np.float32)
    ascending, descending, order, top, middle = computed(
        target,
        lambda x: (
            oc.sort(x),
            oc.sort(x, descending=True),
            oc.argsort(x),
            *oc.topk(x, 1)[:1],
            oc.median(x, 1),
        ),
        cells,
    )
    np.testing.assert_array_equal(ascending, np.sort(cells, -1))
    np.testing.assert_array_equal(descending[0], [np.nan, 2, 1, -np.inf])
    assert order.tolist() == [[2, 3, 0, 1], [0, 1, 3, 2]]
    assert np.isnan(top).all()
    assert np.isnan(middle).all()


def test_padding_has_the_sign_of_its_zero(target: str) -> None:
    found = computed(target, lambda x: (oc.pad(x, 1, value=0.0), oc.pad(x, 1, value=-0.0)))
    assert [bool(np.signbit(cells[0, 0, 0])) for cells in found] == [False, True]


def test_a_running_maximum_stays_nan(target: str) -> None:
    cells = np.array([[1, np.nan, 3], [3, 1, 4]], np.float32)
    (found,) = computed(target, lambda x: oc.cummax(x, axis=1), cells)
    np.testing.assert_array_equal(found, [[1, np.nan, np.nan], [3, 3, 4]])


def test_triangles_keep_their_sizes_and_formats(target: str) -> None:
    for array in (
        np.ones((3, 1)),
        np.ones((1, 3)),
        np.ones((2, 2), bool),
        np.ones((2, 2), np.int8),
    ):
        with oc.Session(dtype="float64"):
            for ours, theirs in ((oc.tril, np.tril), (oc.triu, np.triu)):
                found = oc.flatten(ours(oc.tensor(array)))
                context = oc.Context(target)
                context.compile(oc.train.forward(found))()
                np.testing.assert_array_equal(
                    context[found], theirs(array).ravel(), strict=array.dtype != float
                )


BY_POSITION: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "tril": (lambda x: oc.tril(x, -1), lambda x: np.tril(x, -1)),
    "triu": (oc.triu, np.triu),
    "cumsum": (lambda x: oc.cumsum(x, axis=1), lambda x: np.cumsum(x, axis=1)),
    "sum": (lambda x: oc.sum(x, axis=1, keepdims=True), lambda x: np.sum(x, axis=1, keepdims=True)),
    "softmax": (lambda x: oc.softmax(x, axis=1), np.ones_like),
    "roll": (lambda x: oc.roll(x, 1, axis=0), lambda x: np.roll(x, 1, axis=0)),
    "flip": (lambda x: oc.flip(x, axis=0), lambda x: np.flip(x, axis=0)),
    "sort": (lambda x: oc.sort(x, axis=1), lambda x: np.sort(x, axis=1)),
    "tile": (lambda x: oc.tile(x, (1, 3)), lambda x: np.tile(x, (1, 3))),
}


@pytest.mark.parametrize("name", BY_POSITION)
def test_an_axis_of_size_1_does_not_grow_before_its_positions_are_read(
    target: str, name: str
) -> None:
    cells = np.array([[1.0, 2.0, 6.0], [2.0, 2.0, 5.0]], np.float32)
    ours, theirs = BY_POSITION[name]
    (found,) = computed(target, lambda x: x + ours(oc.mean(x, axis=1, keepdims=True)), cells)
    np.testing.assert_array_equal(found, cells + theirs(np.array([[3], [3]], np.float32)))


def test_cells_of_an_empty_axis_are_repeated_as_none(target: str) -> None:
    for shape, axis in (((0,), 0), ((2, 0), 1), ((2, 0), 0)):
        with oc.Session():
            found = oc.repeat(oc.tensor(np.zeros(shape, np.float32)), 2, axis)
            context = oc.Context(target)
            context.compile(oc.train.forward(found))()
            assert context[found].shape == np.repeat(np.zeros(shape), 2, axis).shape


def test_one_hot_has_one_cell_for_each_integer(target: str) -> None:
    cells = np.array([[0, 2], [5, -1]])
    (found,) = computed(target, lambda x: oc.one_hot(x, 3), cells, "int32")
    np.testing.assert_array_equal(found, cells[..., None] == np.arange(3))


def test_the_kinds_of_axes_stay_where_they_are() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[3], input=[4])
        assert str(x.permute(2, 1, 0).shape) == "4|2->3"
        assert str(x.expand_dims(0).shape) == "1,2|4->3"
        assert str(x.expand_dims(-1).shape) == "2|4,1->3"
        assert str(x.reshape(2, 12).shape) == "2|12"
        assert str(x.reshape(12, 2).shape) == "12,2"
        assert str(x.reshape(-1, 12).shape) == "2|12"  # a size that follows is one that is stated
        assert str(x[:, 0, 0].reshape(-1, 1).shape) == "2|1"
        assert str(x.reshape(-1, 2).shape) == "12,2"
        several = oc.placeholder("several", batch=[2, 3], output=[4])
        assert str(several.reshape(2, 12).shape) == "2|12"
        assert str(several.reshape(2, 3, 2, 2).shape) == "2,3|2,2"
        assert str(several.reshape(6, 4).shape) == "6,4"
        assert str(x.sum(axis=0).shape) == "4->3"


def test_axes_of_hidden_layers_are_counted_though_sizes_are_open() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[3])
        hidden = oc.relu(oc.param("w", output=[5]) @ x)
        assert hidden.ndim == 2
        assert str((hidden - hidden.mean(axis=-1, keepdims=True)).sum(axis=0).shape).endswith("5")


def test_an_axis_of_a_tensor_of_unknown_rank_is_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
        with pytest.raises(oc.ShapeError, match=r"oc\.einsum"):
            (oc.param("w") @ x).sum(axis=-1)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda x: x.sum(axis=3), "axis=3 of 3 axes"),
        (lambda x: x.sum(axis="0"), "axis='0'"),
        (lambda x: x.sum(axis=True), "axis=True"),
        (lambda x: x.max(axis=(0, -3)), "given once"),
        (lambda x: oc.sum([1.0]), "wrap arrays"),
        (lambda x: x.norm("fro"), "ord='fro'"),
        (lambda x: x.reshape(5, 5), "24 cells"),
        (lambda x: x.reshape(-1, -1), "24 cells"),
        (lambda x: x.reshape("ab"), "24 cells"),
        (lambda x: x.reshape(24, rows=[2]), "rows"),
        (lambda x: x.squeeze(1), "size 3 of axis 1"),
        (lambda x: x.permute(0, 1), "2 of 3 axes"),
        (lambda x: x.moveaxis((0, 1), 2), "2 axes and 1 destinations"),
        (lambda x: x.expand_dims((0, 0)), "different positions"),
        (lambda x: x.broadcast_to(3), "1 sizes"),
        (lambda x: x.broadcast_to(2, 3, 5), "5"),
        (lambda x: x.roll((1, 2), 0), "shift"),
        (lambda x: oc.pad(x, -1), "widths=-1"),
        (lambda x: oc.pad(x, [(1, 1)]), "for 3 axes"),
        (lambda x: oc.pad(x, 1, mode="mean"), "mode='mean'"),
        (lambda x: x.repeat(-1, 1), "repeats=-1"),
        (lambda x: oc.tril(x.sum(axis=(0, 1))), "1 axes"),
        (lambda x: oc.topk(x, 9), "k=9 of 4"),
        (lambda x: oc.topk(x[..., :0], 1), "k=1 of 0"),
        (lambda x: oc.concat([x, x.sum(axis=0)]), "equally many axes"),
        (lambda x: oc.concat([]), "none"),
        (lambda x: oc.concat(x, x), "list of tensors"),
    ],
)
def test_a_mistake_is_reported_with_its_rule(mistake: Callable[[Any], Any], message: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[3], input=[4])
        with pytest.raises((oc.UsageError, oc.ShapeError), match=message):
            mistake(x)


def test_two_axes_are_continued_without_a_copy_between_them() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[20, 30])
        padded = oc.pad(x, ((2, 2), (3, 3)), mode="reflect")
        routine = oc.Context("cpu_c").compile(oc.train.forward(padded))
    head, *statements = routine.loop_ir.splitlines()
    assert "routine " in head
    assert not any("float32[" in each for each in statements), routine.loop_ir


def test_independent_parts_of_a_reshape_are_one_operation() -> None:
    cases = {
        ((1, 6, 4), (2, 3, 4, 1)): 1,
        ((2, 3, 4, 5), (6, 1, 20)): 1,
        ((6, 2, 2), (2, 3, 4)): 1,
        ((4, 1), (4,)): 1,
        ((24,), (2, 3, 4)): 2,
        ((2, 3, 4), (24,)): 2,
        ((4, 6), (6, 4)): 2,
    }
    for (old, new), count in cases.items():
        x = oc.placeholder("x", batch=old[:1], output=old[1:])
        y = oc.reshape(x, *new)
        found, made = 0, y
        while made is not x:
            (made,) = made.operands
            found += 1
        assert (found, y.shape.dims) == (count, new), (old, new)


@st.composite
def shapes_of_as_many_cells(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes: the same factors in another order, joined at random, among ones."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 5]), max_size=5))

    def shape() -> list[int]:
        sizes: list[int] = []
        for factor in draw(st.permutations(factors)):
            if sizes and draw(st.booleans()):
                sizes[-1] *= factor
            else:
                sizes.append(factor)
        return sizes

    return shape(), shape()


@settings(max_examples=60)
@given(shapes=shapes_of_as_many_cells(), kinds=st.integers(0, 5))
def test_any_reshape_is_that_of_numpy(shapes: tuple[list[int], list[int]], kinds: int) -> None:
    old, new = shapes
    cells = np.arange(math.prod(old), dtype=np.float32).reshape(old)
    with oc.Session():
        x = oc.placeholder("x", batch=old[:kinds], output=old[kinds:])
        y = oc.reshape(x, new) + 0.0
        ctx = oc.Context("interp")
        step = ctx.compile(oc.train.forward(y))
        ctx[x] = cells
        step()
        np.testing.assert_array_equal(ctx[y], cells.reshape(new))
