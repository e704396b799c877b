"""Tensors with cells replaced at positions, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings

X = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)


def evaluated(target: str, x: oc.Tensor) -> Any:
    ctx = oc.Context(target)
    ctx.compile(oc.train.forward(x), keep=[x])()
    return ctx[x]


def normal(*dims: int) -> Any:
    return np.random.default_rng(1).normal(size=dims).astype(np.float32)


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (1, 1)])
def test_rows_are_replaced_by_the_last_of_equal_positions(
    target: str, axes: tuple[int, int]
) -> None:
    kinds: Any = {"batch_axes": axes[0], "input_axes": axes[1]}
    x, ids = oc.tensor(X, **kinds), np.array([1, 3, 1], np.int32)
    for axis, at in ((0, ids % 3), (1, ids), (2, ids % 2)):
        shape = list(X.shape)
        shape[axis] = 3
        values, expected = normal(*shape), X.copy()
        expected[(slice(None),) * axis + (at,)] = values
        found = oc.put(x, oc.tensor(at), oc.tensor(values, **kinds), axis)
        np.testing.assert_array_equal(evaluated(target, found), expected)


def test_cells_are_replaced_in_row_major_order(target: str) -> None:
    at, values = np.array([[5, 0], [23, 5]], np.int32), normal(2, 2)
    expected = X.copy()
    np.put(expected, at, values)
    found = oc.put(oc.tensor(X, batch_axes=1), oc.tensor(at), oc.tensor(values))
    np.testing.assert_array_equal(evaluated(target, found), expected)


@pytest.mark.parametrize("rows", [(3, 2), (1, 1)])
def test_cells_along_an_axis_are_replaced_place_by_place(
    target: str, rows: tuple[int, int]
) -> None:
    at = np.random.default_rng(2).integers(0, 4, size=(rows[0], 5, rows[1])).astype(np.int32)
    values, expected = normal(3, 5, 2), X.copy()
    np.put_along_axis(expected, at, values, 1)
    found = oc.put_along(oc.tensor(X), oc.tensor(at), oc.tensor(values), 1)
    np.testing.assert_array_equal(evaluated(target, found), expected)


def test_nothing_is_replaced_at_no_positions(target: str) -> None:
    x, ids = oc.tensor(X), np.zeros((0, 4, 2), np.int32)
    row, cells = oc.tensor(ids[:, 0, 0]), oc.tensor(ids.astype(np.float32))
    for found in (
        oc.put(x, row, cells, 0),
        oc.put(x, row, oc.tensor(np.zeros(0, np.float32))),
        oc.put(x, row, 7.0, 0),
        oc.put_along(x, oc.tensor(ids), cells, 0),
        oc.put_along(x, oc.tensor(ids), 7.0, 0),
    ):
        assert found.dtype is oc.float32
        np.testing.assert_array_equal(evaluated(target, found), X)


def test_a_number_is_put_at_all_positions(target: str) -> None:
    at = np.array([1, 3, 1], np.int32)
    expected = X.copy()
    expected[:, at] = 7
    found = oc.put(oc.tensor(X), oc.tensor(at), 7.0, 1)
    np.testing.assert_array_equal(evaluated(target, found), expected)


def test_a_replaced_cell_passes_its_gradient_to_the_value_that_stays(target: str) -> None:
    x = oc.param("x", init=[1.0, 2.0, 3.0])
    values = oc.param("values", init=[4.0, 5.0, 6.0])
    ids = oc.tensor(np.array([2, 0, 2], np.int32))
    loss = oc.sum(oc.put(x, ids, values, 0) * oc.tensor([1.0, 10.0, 100.0]))
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.grad_update(loss), keep=[x.grad, values.grad])
    ctx.init_params(loss)
    step()
    assert ctx[x.grad].tolist() == [0, 10, 0]
    assert ctx[values.grad].tolist() == [0, 1, 100]


def test_gradients_of_cells_along_an_axis_are_those_of_the_cells_that_stay(target: str) -> None:
    cells, values = normal(3, 5), normal(3, 3)
    at = np.array([[1, 1, 4], [0, 2, 2], [3, 3, 3]], np.int32)
    x, new = oc.param("x", init=cells), oc.param("new", init=values)
    found = oc.put_along(x, oc.tensor(at), new, 1)
    loss = oc.sum(found * found * found)
    expected = cells.copy()
    np.put_along_axis(expected, at, values, 1)
    of_x, of_new = 3 * expected**2, np.zeros_like(values)
    for row in range(3):
        for position in set(at[row]):
            last = np.flatnonzero(at[row] == position)[-1]
            of_new[row, last], of_x[row, position] = of_x[row, position], 0
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.grad_update(loss))
    ctx.init_params(loss)
    step()
    np.testing.assert_allclose(ctx[x.grad], of_x, rtol=1e-5)
    np.testing.assert_allclose(ctx[new.grad], of_new, rtol=1e-5)
    squares = [oc.sum(each * each) for each in oc.gradients(loss, [x, new])]
    second = ctx.compile(oc.train.grad_update(squares[0] + squares[1]))
    second()
    np.testing.assert_allclose(ctx[x.grad], 2 * of_x * 6 * expected, rtol=1e-4)


def test_gradients_flow_through_several_puts(target: str) -> None:
    x, new = oc.param("x", init=normal(3, 2)), oc.param("new", init=normal(1, 2))
    first, second = oc.tensor(np.array([1], np.int32)), oc.tensor(np.array([0, 0], np.int32))
    found = oc.put(oc.put(x * 2.0, first, new, 0), second, 0.5, 1)
    loss = oc.sum(found * found)
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.grad_update(loss))
    ctx.init_params(loss)
    step()
    expected = 8 * normal(3, 2) * [[0, 1], [0, 0], [0, 1]]
    np.testing.assert_allclose(ctx[x.grad], expected, rtol=1e-5)
    np.testing.assert_allclose(ctx[new.grad], 2 * normal(1, 2) * [[0, 1]], rtol=1e-5)


def test_steps_of_a_loop_put_rows(target: str) -> None:
    cells, rows = normal(4, 2), normal(3, 2)
    at = np.array([2, 0, 2], np.int32)

    def step(table: oc.Tensor, entry: tuple[oc.Tensor, oc.Tensor]) -> tuple[oc.Tensor, oc.Tensor]:
        position, row = entry
        found = oc.put(table, oc.reshape(position, 1), oc.reshape(row, 1, 2), 0)
        return found, oc.sum(found * found)

    x, new = oc.param("x", init=cells), oc.param("new", init=rows)
    sums, last = oc.scan(step, x, (oc.tensor(at, batch_axes=1), oc.einsum("ij => i|j", new)))
    loss = oc.sum(sums)
    table, expected = cells.copy(), 0.0
    of_x, of_new = np.zeros_like(cells), np.zeros_like(rows)
    writer = [-1] * 4
    for number, position in enumerate(at):
        table[position], writer[position] = rows[number], number
        expected += (table * table).sum()
        for place, by in enumerate(writer):
            (of_x if by < 0 else of_new)[place if by < 0 else by] += 2 * table[place]
    ctx = oc.Context(target)
    routine = ctx.compile(oc.train.grad_update(loss), keep=[loss, last, x.grad, new.grad])
    ctx.init_params(loss)
    routine()
    np.testing.assert_allclose(ctx[loss], expected, rtol=1e-5)
    np.testing.assert_array_equal(ctx[last], table)
    np.testing.assert_allclose(ctx[x.grad], of_x, rtol=1e-5)
    np.testing.assert_allclose(ctx[new.grad], of_new, rtol=1e-5)


def test_a_position_beyond_the_axis_is_an_error_when_the_routine_runs(target: str) -> None:
    ids = oc.placeholder("ids", output=[2], dtype="int32")
    found = oc.put(oc.tensor(X), ids, 0.0, 1)
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.forward(found))
    ctx[ids] = np.array([1, 4], np.int32)
    with pytest.raises(oc.UsageError, match=r"ids\[1\] = 4"):
        step()


def test_positions_in_order_are_those_of_numpy_with_nan_as_the_greatest(target: str) -> None:
    ordered = np.array([-1.0, 0.0, 0.0, 2.0, np.nan, np.nan], np.float32)
    cells = np.array([[np.nan, 0.0, 3.0], [-2.0, 2.0, 1.0]], np.float32)
    with settings.overrides(allow_nan=True):
        for side in ("left", "right"):
            found = oc.searchsorted(oc.tensor(ordered), oc.tensor(cells), side=side)
            expected = np.searchsorted(ordered, cells, side)  # type: ignore[call-overload]
            np.testing.assert_array_equal(evaluated(target, found), expected)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, ids = oc.tensor(X), oc.tensor(np.array([[0, 1]], np.int32))
    with pytest.raises(oc.ShapeError, match="one axis"):
        oc.put(x, ids, 1.0, 0)
    with pytest.raises(oc.ShapeError, match="axes of the tensor"):
        oc.put_along(x, ids, 1.0, 0)
    with pytest.raises(oc.ShapeError, match="shape of the positions"):
        oc.put_along(x, oc.argmax(x, axis=-1, keepdims=True), x, -1)
