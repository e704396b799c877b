"""Operations along one axis, beside another whose extent is known at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
MOST = 6
CELLS = (np.random.default_rng(5).permutation(MOST * 24).reshape(MOST, 4, 6) - 70).astype(
    np.float32
)
PLACES = np.array([2, 0], np.int32)


def replaced(cells: Array, values: Any) -> Array:
    found = cells.copy()
    found[:, PLACES] = values
    return found


def replaced_greatest(cells: Array, values: Any) -> Array:
    found = cells.copy()
    np.put_along_axis(found, cells.argmax(-1, keepdims=True), values, -1)
    return found


CASES: dict[str, tuple[Callable[[oc.Tensor, Any], Any], Callable[[Array], Array]]] = {
    "reshape": (lambda x, n: oc.reshape(x, n, 24), lambda v: v.reshape(-1, 24)),
    "reshape_rest": (lambda x, n: oc.reshape(x, n, 3, -1), lambda v: v.reshape(-1, 3, 8)),
    "reshape_maximum": (lambda x, n: oc.reshape(x, -1, 24), lambda v: v.reshape(-1, 24)),
    "reshape_ones": (lambda x, n: oc.reshape(x, 1, n, 1, 24), lambda v: v.reshape(1, -1, 1, 24)),
    "broadcast": (
        lambda x, n: oc.broadcast_to(x, 2, n, 4, 6),
        lambda v: np.broadcast_to(v, (2, *v.shape)),
    ),
    "broadcast_ones": (
        lambda x, n: oc.broadcast_to(x.max(axis=1, keepdims=True), n, 4, 6),
        lambda v: np.broadcast_to(v.max(1, keepdims=True), v.shape),
    ),
    "sort": (lambda x, n: oc.sort(x, axis=1), lambda v: np.sort(v, axis=1)),
    "argsort": (lambda x, n: oc.argsort(x, axis=-1), lambda v: np.argsort(v, axis=-1)),
    "topk": (lambda x, n: oc.topk(x, 2, axis=-1)[0], lambda v: -np.sort(-v, axis=-1)[..., :2]),
    "cumsum": (lambda x, n: oc.cumsum(x, axis=1), lambda v: np.cumsum(v, axis=1)),
    "cummax": (lambda x, n: oc.cummax(x, axis=-1), lambda v: np.maximum.accumulate(v, axis=-1)),
    "median": (lambda x, n: oc.median(x, axis=-1), lambda v: np.median(v, axis=-1)),
    "put": (
        lambda x, n: oc.put(x, oc.tensor(PLACES, dtype="int32"), -1.0, axis=1),
        lambda v: replaced(v, -1.0),
    ),
    "put_cells": (
        lambda x, n: oc.put(x, oc.tensor(PLACES, dtype="int32"), x[:, 1:3] * 2.0, axis=1),
        lambda v: replaced(v, v[:, 1:3] * 2.0),
    ),
    "put_repeated": (
        lambda x, n: oc.put(
            x, oc.tensor(PLACES, dtype="int32"), oc.tensor([[[1.0], [2.0]]]), axis=1
        ),
        lambda v: replaced(v, np.array([[1.0], [2.0]])),
    ),
    "put_along": (
        lambda x, n: oc.put_along(x, oc.argmax(x, axis=-1, keepdims=True), 9.0),
        lambda v: replaced_greatest(v, 9.0),
    ),
    "put_along_cells": (
        lambda x, n: oc.put_along(
            x, oc.argmax(x, axis=-1, keepdims=True), x.sum(axis=-1, keepdims=True)
        ),
        lambda v: replaced_greatest(v, v.sum(-1, keepdims=True)),
    ),
    "tril": (lambda x, n: oc.tril(x.max(axis=1), 1), lambda v: np.tril(v.max(1), 1)),
    "triu": (lambda x, n: oc.triu(oc.moveaxis(x, 0, 2)), lambda v: np.triu(np.moveaxis(v, 0, 2))),
}


@pytest.mark.parametrize("kind", ["batch", "output"])
@pytest.mark.parametrize("name", CASES)
def test_lines_before_the_extent_are_those_of_numpy(target: str, name: str, kind: str) -> None:
    oc.reset()
    make, exact = CASES[name]
    n, ctx = oc.static_extent("n", max=MOST), oc.Context(target)
    rows = {"batch": [n], "output": [4, 6]} if kind == "batch" else {"output": [n, 4, 6]}
    x = oc.placeholder("x", **rows)
    y = make(x * 1.0, n)
    step = ctx.compile(oc.train.forward(y))
    for size in (MOST, 4, 1):
        ctx[x] = CELLS[:size]
        step(n=size)
        np.testing.assert_allclose(ctx[y], exact(CELLS[:size]), rtol=1e-6)
    step(n=0)
    assert ctx[y].size == 0


@pytest.mark.parametrize("name", ["sort", "cumsum", "topk", "put_cells", "reshape"])
def test_gradients_are_those_of_the_lines_before_the_extent(target: str, name: str) -> None:
    gradients = []
    for size in (3, None):
        oc.reset()
        n: Any = oc.static_extent("n", max=MOST) if size else 3
        ctx, w = oc.Context(target), oc.param("w", output=[6], init=0.5)
        x = oc.placeholder("x", batch=[n], output=[4, 6])
        y = CASES[name][0](x * w, n)
        loss = oc.einsum("...|... => 0", y * y)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        if size:
            ctx[x] = CELLS * np.float32(1e15)
            step(n=MOST)
        ctx[x] = CELLS[:3]
        step(**({"n": 3} if size else {}))
        gradients.append(ctx[w.grad])
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, n: oc.flatten(x),
        lambda x, n: oc.reshape(x, 4, n, 6),
        lambda x, n: oc.reshape(x, 2, 3, 24),
        lambda x, n: oc.reshape(x, oc.static_extent("m", max=MOST), 24),
        lambda x, n: oc.reshape(oc.placeholder("c", batch=[MOST], output=[4]), n, 4),
    ],
)
def test_an_extent_that_would_move_is_refused(make: Callable[[oc.Tensor, Any], Any]) -> None:
    oc.reset()
    n = oc.static_extent("n", max=MOST)
    x = oc.placeholder("x", batch=[n], output=[4, 6])
    with pytest.raises(oc.ShapeError, match="keeps its place in a new shape"):
        make(x, n)


@pytest.mark.parametrize("distance", [1, MOST, -2 * MOST])
def test_an_extent_is_not_rolled(distance: int) -> None:
    oc.reset()
    x = oc.placeholder("x", batch=[oc.static_extent("n", max=MOST)], output=[4])
    with pytest.raises(oc.ShapeError, match="traversed as a whole"):
        oc.roll(x, distance, 0)
    assert oc.roll(x, 0, 0) is x


def test_lines_along_the_extent_itself_are_refused() -> None:
    oc.reset()
    x = oc.placeholder("x", batch=[oc.static_extent("n", max=MOST)], output=[4])
    for name in ("sort", "argsort", "cumsum"):
        with pytest.raises(oc.LoweringError, match=rf"whole lines, of constant[^$]*where  {name},"):
            oc.Context("interp").compile(oc.train.forward(getattr(oc, name)(x * 1.0, axis=0)))


@pytest.mark.parametrize(("axis", "order"), [(0, 2), ((2, 0), 1)])
def test_gradients_of_products_along_an_extent_are_expressions(
    target: str, axis: Any, order: int
) -> None:
    found = []
    for size in (3, None):
        oc.reset()
        n: Any = oc.static_extent("n", max=MOST) if size else 3
        ctx, w = oc.Context(target), oc.param("w", init=[1.0, 0.5])
        x = oc.placeholder("x", batch=[n], output=[2, 2])
        (gradient,) = oc.gradients(oc.prod(x * w, axis=axis).sum(), [w])
        if order == 2:
            (gradient,) = oc.gradients((gradient**2).sum(), [w])
        step = ctx.compile(oc.train.forward(gradient))
        ctx.init_params(gradient)
        ctx[x] = np.array([[[1, 2], [3, 4]], [[0.5, 1], [2, 0]], [[1, 1], [0.25, 3]]])
        step(**{"n": size} if size else {})
        found.append(ctx[gradient])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


@pytest.mark.parametrize("name", ["max", "min", "logsumexp"])
@pytest.mark.parametrize("expression", [False, True])
def test_the_cell_that_is_selected_along_several_extents_gets_the_gradient(
    target: str, name: str, expression: bool
) -> None:
    oc.reset()
    n, m = oc.static_extent("n", max=3), oc.static_extent("m", max=4)
    x = oc.placeholder("x", batch=[n], output=[2, m], requires_grad=True)
    loss = 3.0 * getattr(oc, name)(x)
    gradient = oc.gradients(loss, [x])[0] if expression else x.grad
    code = oc.train.forward(gradient) if expression else oc.train.grad_update(loss)
    ctx = oc.Context(target)
    step = ctx.compile(code, keep=[gradient])
    for rows, columns in ((3, 4), (2, 3), (3, 1), (1, 4)):
        cells = np.round(CELLS[:rows, :2, :columns] / 32)  # with equal ones
        ctx[x] = cells
        step(n=rows, m=columns)
        if name == "logsumexp":
            wanted = np.exp(cells - cells.max())
        else:
            wanted = np.zeros(cells.shape)
            wanted.flat[getattr(cells, f"arg{name}")()] = 1.0
        np.testing.assert_allclose(ctx[gradient], 3.0 * wanted / wanted.sum(), rtol=1e-5)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_cells_are_counted_where_inner_axes_have_extents(target: str, name: str) -> None:
    oc.reset()
    n, m = oc.static_extent("n", max=MOST), oc.static_extent("m", max=4)
    x = oc.placeholder("x", batch=[3], output=[m, 2, n])
    place, kept = getattr(oc, name)(x), getattr(oc, name)(x, keepdims=True)
    random = x + oc.uniform()
    ctx = oc.Context(target)
    step = ctx.compile(sum(map(oc.train.forward, (kept, random)), oc.train.forward(place)))
    numbers = {}
    for rows, columns in ((MOST, 4), (2, 3), (5, 1), (1, 4)):
        ctx[x] = cells = CELLS.reshape(3, 4, 2, MOST)[:, :columns, :, :rows]
        step(n=rows, m=columns)
        assert ctx[place] == ctx[kept].item() == getattr(cells, name)()
        ctx[x] = np.zeros_like(cells)
        step(n=rows, m=columns)
        numbers[rows] = ctx[random].ravel()
        np.testing.assert_array_equal(numbers[rows], numbers[MOST][: cells.size])
    assert len(set(numbers[MOST])) == CELLS.size


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("extents", ["cells", "rows of cells", "axis", "both"])
def test_places_in_order_are_those_of_numpy(target: str, extents: str, side: Any) -> None:
    oc.reset()
    n, m = oc.static_extent("n", max=MOST), oc.static_extent("m", max=5)
    is_open, of_rows = extents in ("axis", "both"), extents == "rows of cells"
    ordered = oc.placeholder("ordered", output=[m if is_open else 5])
    rows = MOST if extents == "axis" else n
    x = oc.placeholder("x", batch=[rows], output=[3] if of_rows else [])
    found, ctx = oc.searchsorted(ordered, x, side=side), oc.Context(target)
    with oc.settings.overrides(allow_nan=True):
        step = ctx.compile(oc.train.forward(found))
        for size, length in ((MOST, 5), (2, 3), (1, 4)):
            count, stop = MOST if rows is MOST else size, length if is_open else 5
            ctx[ordered] = line = np.array([0, 1, 1, 3, np.nan], np.float32)[5 - stop :]
            cells = np.resize(np.array([1, np.nan, 3, -1, 7], np.float32), (count, 3))
            ctx[x] = cells = cells if of_rows else cells[:, 0]
            step(**({} if rows is MOST else {"n": size}), **({"m": length} if is_open else {}))
            np.testing.assert_array_equal(ctx[found], np.searchsorted(line, cells, side))


@pytest.mark.parametrize("combine", ["add", "maximum"])
def test_rows_scatter_to_as_many_as_the_extent(target: str, combine: str) -> None:
    oc.reset()
    edges, nodes = oc.static_extent("edges", max=9), oc.static_extent("nodes", max=MOST)
    ends = oc.placeholder("ends", batch=[edges], dtype="int32")
    x = oc.placeholder("x", batch=[nodes], output=[3])
    sums = oc.scatter(ends, oc.take(x, ends) * 2.0, size=nodes, combine=getattr(oc, combine))
    one, positions = oc.one_hot(ends, nodes), oc.arange(nodes)
    others = oc.arange(0, nodes), oc.arange(3, nodes + 3, dtype="int32")
    loss = oc.sum(oc.where(sums > -1e30, sums, 0.0) * x)
    (gradient,) = oc.gradients(loss, [x])
    ctx = oc.Context(target)
    results = one, positions, *others, gradient
    code = sum(map(oc.train.forward, results[1:]), oc.train.forward(one))
    step = ctx.compile(code, keep=[*results, sums])
    for count, size in ((9, MOST), (4, 2), (1, MOST), (0, 4)):
        ids = np.random.default_rng(count).integers(0, size, count)
        cells = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        ctx[ends], ctx[x] = ids, cells
        step(edges=count, nodes=size)
        np.testing.assert_array_equal(ctx[one], np.eye(size)[ids])
        for each, start in zip((positions, *others), (0, 0, 3), strict=True):
            np.testing.assert_array_equal(ctx[each], np.arange(start, size + start))
        degrees = np.bincount(ids, minlength=size)[:, None]
        if combine == "maximum":
            degrees = np.minimum(degrees, 1)
        nothing = 0.0 if combine == "add" else -np.inf
        wanted = np.where(degrees, 2 * degrees * cells, nothing)
        np.testing.assert_allclose(ctx[sums], wanted, rtol=1e-6)
        np.testing.assert_allclose(ctx[gradient], 4 * degrees * cells, rtol=1e-6)


def test_a_position_beyond_the_extent_of_a_call_is_refused(target: str) -> None:
    oc.reset()
    n = oc.static_extent("n", max=MOST)
    ids = oc.placeholder("ids", batch=[1], dtype="int32")
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.forward(oc.scatter(ids, oc.ones(batch=[1]), size=n)))
    ctx[ids] = [3]
    step(n=4)
    with pytest.raises(oc.UsageError, match=r"the positions range\(3\) in this call"):
        step(n=3)
