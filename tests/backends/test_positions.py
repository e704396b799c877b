"""Reading and writing at positions that a tensor holds: against NumPy, and the errors of wrong
positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings as core_settings
from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.ir.loops.computed_positions import check_positions, value_beyond
from ocannl_core.ir.loops.nodes import CheckPositions
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.testing.central_differences import check_gradients
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
KINDS = ("batch", "output", "input")
ID_FORMATS = ("uint8", "uint16", "int32", "uint32", "int64", "uint64")
VALUE_FORMATS = [each for each in dtypes.ALL if each.is_float or each.is_integer]


def placeholder(name: str, dims: tuple[int, ...], kind: str = "output", **options: Any) -> Any:
    return oc.placeholder(name, **{each: [] for each in KINDS} | {kind: list(dims)}, **options)


def run(target: str, *tensors: tuple[Any, Array], result: Any) -> Array:
    """Return the cells of a result."""
    ctx = oc.Context(target)
    routine = ctx.compile(oc.train.forward(result), keep=[result])
    for tensor, cells in tensors:
        ctx[tensor] = cells
    routine()
    return ctx[result]


def forward(*tensors: Any) -> Any:
    """Return the code of several tensors."""
    first, *others = map(oc.train.forward, tensors)
    return sum(others, first)


def small(rng: np.random.Generator, dims: tuple[int, ...], dtype: str = "float32") -> Array:
    return rng.integers(-9, 9, dims).astype(dtype)


extents = st.lists(st.integers(0, 4), max_size=2).map(tuple)
UFUNCS = {
    oc.add: np.add,
    oc.subtract: np.subtract,
    oc.multiply: np.multiply,
    oc.maximum: np.maximum,
    oc.minimum: np.minimum,
    oc.logical_or: np.logical_or,
    oc.logical_and: np.logical_and,
}
"""The functions of NumPy that accumulate as operations do."""


@given(data=st.data(), seed=st.integers(0, 9))
@settings(max_examples=example_count(13), deadline=None)
def test_take_gives_the_cells_that_numpy_takes(target: str, data: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = data.draw(extents), data.draw(extents)
    extent = data.draw(st.integers(1, 5))
    chosen = data.draw(extents)
    kind = data.draw(st.sampled_from(KINDS))
    ids_format = data.draw(st.sampled_from(ID_FORMATS))
    dims, axis = (*before, extent, *after), len(before)
    with oc.Session():
        x, ids = placeholder("x", dims, kind), placeholder("ids", chosen, kind, dtype=ids_format)
        counted = data.draw(st.sampled_from([axis, axis - len(dims)]))
        result = oc.take(x, ids, counted)
        cells, positions = small(rng, dims), rng.integers(0, extent, chosen).astype(ids_format)
        found = run(target, (x, cells), (ids, positions), result=result)
    assert found.tolist() == np.take(cells, positions, axis).tolist()


@pytest.mark.parametrize(
    ("axis", "kind", "shape"),
    [
        (0, "batch", (4, 3, 5)),
        (0, "output", (4, 3, 5)),
        (0, "input", (3, 4, 5)),
        (1, "batch", (2, 4, 5)),
        (1, "output", (2, 4, 5)),
        (1, "input", (2, 4, 5)),
        (2, "batch", (2, 4, 3)),
        (2, "output", (2, 3, 4)),
        (2, "input", (2, 3, 4)),
    ],
)
def test_the_axes_of_positions_keep_their_kinds(
    target: str, axis: int, kind: str, shape: tuple[int, ...]
) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[3], input=[5])
        ids = placeholder("ids", (4,), kind, dtype="int32")
        result = oc.take(x, ids, axis)
        cells = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
        positions = np.array([1, 0, 1, 1], np.int32)
        found = run(target, (x, cells), (ids, positions), result=result)
    moved = np.moveaxis(np.take(cells, positions, axis), axis, shape.index(4))
    assert found.shape == shape
    assert found.tolist() == moved.tolist()


def test_brackets_select_along_one_axis(target: str) -> None:
    with oc.Session():
        x = placeholder("x", (3, 4))
        ids = placeholder("ids", (2,), dtype="int32")
        results = [x[ids], x[:, ids], x[..., ids], x[..., ids, :]]
        ctx = oc.Context(target)
        routine = ctx.compile(forward(*results), keep=results)
        cells, chosen = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2, 0], np.int32)
        ctx[x], ctx[ids] = cells, chosen
        routine()
        found = [ctx[each].tolist() for each in results]
    rows, columns = cells[chosen].tolist(), cells[:, chosen].tolist()
    assert found == [rows, columns, columns, rows]


@given(data=st.data(), seed=st.integers(0, 9))
@settings(max_examples=example_count(10), deadline=None)
def test_take_along_gives_the_cells_that_numpy_takes(target: str, data: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = list(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    chosen = [data.draw(st.sampled_from([n, 1])) for n in dims]
    chosen[axis] = data.draw(st.integers(0, 5))
    with oc.Session():
        x, ids = placeholder("x", tuple(dims)), placeholder("ids", tuple(chosen), dtype="int64")
        result = oc.take_along(x, ids, axis)
        cells, positions = small(rng, tuple(dims)), rng.integers(0, dims[axis], chosen)
        found = run(target, (x, cells), (ids, positions), result=result)
    whole = [m if n == 1 else n for m, n in zip(dims, chosen, strict=True)]
    whole[axis] = chosen[axis]
    expected = np.take_along_axis(cells, np.broadcast_to(positions, whole), axis)
    assert found.tolist() == expected.tolist()


@given(data=st.data(), seed=st.integers(0, 9))
@settings(max_examples=example_count(13), deadline=None)
def test_scatter_accumulates_as_numpy_does(target: str, data: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    combine = data.draw(st.sampled_from(list(UFUNCS)))
    before, after, chosen = data.draw(extents), data.draw(extents), data.draw(extents)
    size, kind = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(KINDS))
    axis, rank = len(before), len(before) + 1 + len(after)
    if not chosen:
        kind = "output"  # positions without axes put the new one among the output axes
    with oc.Session():
        updates = placeholder("updates", (*before, *chosen, *after), kind)
        ids = placeholder("ids", chosen, kind, dtype="int32")
        counted = data.draw(st.sampled_from([axis, axis - rank]))
        result = oc.scatter(ids, updates, size=size, axis=counted, combine=combine)
        added = small(rng, (*before, *chosen, *after))
        positions = rng.integers(0, size, chosen).astype(np.int32)
        found = run(target, (updates, added), (ids, positions), result=result)
    expected = np.full((*before, size, *after), combine.primitive.value.neutral, np.float32)
    UFUNCS[combine].at(expected, (*[slice(None)] * axis, positions), added)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", VALUE_FORMATS, ids=str)
def test_cells_of_every_format_are_read_and_added_up(target: str, dtype: DType) -> None:
    with oc.Session():
        x, ids = placeholder("x", (3, 2), dtype=dtype), placeholder("ids", (4,), dtype="uint8")
        rows = oc.take(x, ids)
        sums = oc.scatter(ids, rows, size=3)
        extremes = [
            oc.scatter(ids, rows, size=3, combine=each) for each in (oc.maximum, oc.minimum)
        ]
        ctx = oc.Context(target)
        routine = ctx.compile(forward(rows, sums, *extremes), keep=[rows, sums, *extremes])
        cells = np.array([[1, 2], [3, 4], [1, 2]]).astype(dtype.numpy)
        chosen = np.array([2, 0, 2, 2], np.uint8)
        ctx[x], ctx[ids] = cells, chosen
        routine()
        assert rows.dtype is sums.dtype is dtype
        assert ctx[rows].tolist() == cells[chosen].tolist()
        assert ctx[sums].tolist() == [[1, 2], [0, 0], [3, 6]]
        for extreme in extremes:
            assert ctx[extreme][[0, 2]].tolist() == [[1, 2], [1, 2]]


def constant_ids(*numbers: Any) -> Any:
    return oc.tensor(np.array(numbers, np.int32))


def products_at_positions(x: Any) -> Any:
    combine = oc.multiply
    one = oc.scatter(constant_ids(1, 3, 1), x, size=4, combine=combine) ** 2
    other = oc.scatter(constant_ids(1, 1), x, size=2, axis=-1, combine=combine)
    both = oc.scatter(constant_ids([1, 0], [1, 1], [0, 1]), x, size=2, combine=combine)
    return oc.sum(one) + oc.sum(other * other) + oc.sum(both * both)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: oc.take(x, constant_ids(2, 0, 2, 2)) ** 2,
        lambda x: oc.take(x, constant_ids([1, 0], [1, 1]), axis=1) ** 2,
        lambda x: oc.take_along(x, constant_ids([1, 1, 0], [0, 0, 0], [1, 0, 1]), axis=1) ** 2,
        lambda x: oc.take_along(x, constant_ids([1, 2]), axis=0) ** 2,
        lambda x: oc.scatter(constant_ids(1, 3, 1), x, size=4) ** 2,
        lambda x: oc.scatter(constant_ids(0, 0), x, size=3, axis=1) ** 2,
        lambda x: oc.scatter(constant_ids(1, 0, 1), x, size=2, combine=oc.subtract) ** 2,
        lambda x: oc.scatter(constant_ids(1, 0, 1), x, size=2, combine=oc.maximum) ** 2,
        lambda x: (
            oc.scatter(constant_ids([1, 0], [1, 1], [0, 0]), x, size=2, combine=oc.minimum) ** 2
        ),
        lambda x: oc.scatter(constant_ids(1, 3, 1), x, size=4, combine=oc.multiply) ** 2,
        lambda x: oc.gradients(oc.sum(products_at_positions(x)), [x])[0] ** 2,
        lambda x: oc.take(x * x, constant_ids(1, 1)) * oc.take(x, constant_ids(0, 1)),
    ],
)
def test_gradients_agree_with_central_differences(target: str, function: Any) -> None:
    point = np.array([[0.5, -1.0], [2.0, 0.25], [1.5, -0.75]])
    check_gradients(function, point, backend=target)


def test_the_gradient_of_an_extreme_goes_to_the_first_of_equal_updates(target: str) -> None:
    with oc.Session():
        u = oc.param("u", init=oc.tensor([2.0, 5.0, 5.0, 2.0, 1.0, 2.0]))
        greatest = oc.scatter(constant_ids(1, 0, 0, 1, 1, 1), u, size=2, combine=oc.maximum)
        loss = oc.sum(greatest * oc.tensor([10.0, 20.0]))
        (gradient,) = oc.gradients(loss, [u])
        ctx = oc.Context(target)
        ctx.init_params(loss)
        code = oc.train.grad_update(loss) + oc.train.forward(gradient)
        ctx.compile(code, keep=[u.grad, gradient])()
        assert ctx[u.grad].tolist() == ctx[gradient].tolist() == [20, 10, 0, 0, 0, 0]


def test_the_gradient_of_a_product_at_positions_divides_by_no_zero(target: str) -> None:
    with oc.Session():
        u = oc.param("u", init=oc.tensor([2.0, 0.0, 3.0, 0.0, 0.0, 5.0, 7.0]))
        products = oc.scatter(constant_ids(0, 0, 0, 1, 1, 1, 2), u, size=3, combine=oc.multiply)
        loss = oc.sum(products)
        (gradient,) = oc.gradients(loss, [u])
        (second,) = oc.gradients(oc.sum(gradient), [u])
        ctx = oc.Context(target)
        ctx.init_params(loss)
        code = sum(map(oc.train.forward, (gradient, second)), oc.train.grad_update(loss))
        ctx.compile(code, keep=[u.grad, gradient, second])()
        assert ctx[u.grad].tolist() == ctx[gradient].tolist() == [0, 6, 0, 0, 0, 0, 1]
        assert ctx[second].tolist() == [3, 5, 2, 5, 5, 0, 0]


def test_gradients_of_repeated_positions_are_summed_in_their_order(target: str) -> None:
    rng = np.random.default_rng(3)
    with oc.Session():
        table = oc.param("table", init=oc.tensor(rng.normal(size=(3, 5)).astype(np.float32)))
        ids = placeholder("ids", (40,), "batch", dtype="int32")
        weights = oc.placeholder("weights", batch=[40], output=[5])
        loss = oc.einsum("...|... => 0", oc.take(table, ids) * weights)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[table.grad])
        ctx.init_params(loss)
        chosen = rng.integers(0, 3, 40).astype(np.int32)
        added = rng.normal(size=(40, 5)).astype(np.float32)
        ctx[ids], ctx[weights] = chosen, added
        step()
        expected = np.zeros((3, 5), np.float32)
        np.add.at(expected, chosen, added)
        assert ctx[table.grad].tobytes() == expected.tobytes()


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(4)
    chosen, added = rng.integers(0, 50, 4000), rng.normal(size=(4000, 200)).astype(np.float32)
    expected = np.zeros((50, 200), np.float32)
    np.add.at(expected, chosen, added)
    for threads in (1, 2, 3):
        with core_settings.overrides(threads=threads), oc.Session():
            updates = oc.placeholder("updates", batch=[4000], output=[200])
            ids = placeholder("ids", (4000,), "batch", dtype="int64")
            result = oc.scatter(ids, updates, size=50)
            found = run("cpu_c", (updates, added), (ids, chosen), result=result)
        assert found.tobytes() == expected.tobytes()


def test_an_embedding_is_a_product_with_one_hot_vectors(target: str) -> None:
    with oc.Session(seed=5):
        ids = oc.placeholder("ids", batch=[2, 3], dtype="int32")
        flags = oc.placeholder("flags", batch=[2, 3], output=[7])
        read = oc.nn.embedding(ids, entries=7, width=4)
        (table,) = read.params.values()
        product = oc.einsum("...|v; |v,n => ...|n", flags, table)
        loss = oc.einsum("...|... => 0", read**3)
        dense = oc.einsum("...|... => 0", product**3)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        chosen = np.array([[0, 6, 3], [3, 3, 1]], np.int32)
        ctx[ids], ctx[flags] = chosen, np.eye(7, dtype=np.float32)[chosen]
        gradients = []
        for each in (loss, dense):
            ctx.compile(oc.train.grad_update(each), keep=[table.grad])()
            gradients.append(ctx[table.grad])
        ctx.compile(forward(read, product), keep=[read, product])()
        assert ctx[table].shape == (7, 4)
        assert ctx[read].shape == (2, 3, 4)
        assert ctx[read].tolist() == ctx[product].tolist()
        assert np.allclose(*gradients, rtol=1e-6, atol=1e-6)


def test_the_sizes_of_an_embedding_follow_from_its_uses(target: str) -> None:
    with oc.Session():
        ids = oc.placeholder("ids", batch=None, dtype="int32")
        read = oc.nn.embedding(ids, label="tokens")
        (table,) = read.params.values()
        logits = oc.einsum("...|n; |v,n => ...|v", read, table)
        oc.require_shape(logits, "5|9")
        oc.require_shape(read, "5|2")
        ctx = oc.Context(target)
        routine = ctx.compile(oc.train.forward(logits))
        ctx.init_params(logits)
        ctx[ids] = np.zeros(5, np.int32)
        routine()
        assert table.node.name == "table_tokens"
        assert ctx[table].shape == (9, 2)


def recorded(target: str, code: Any, cells: Array, chosen: Array, rows: Array) -> Array:
    """Return the cells of `c` after recorded code of `c`, positions and rows."""
    with oc.Session():
        c = oc.declare("c", output=list(cells.shape))
        ids = placeholder("ids", chosen.shape, "batch", dtype="int32")
        r = oc.placeholder("r", batch=list(rows.shape[:1]), output=list(rows.shape[1:]))
        ctx = oc.Context(target)
        routine = ctx.compile(oc.cd(code)(c, ids, r))
        ctx[c], ctx[ids], ctx[r] = cells, chosen, rows
        routine()
        return ctx[c]


CHOSEN = np.array([1, 3, 1, 1], np.int32)
CELLS = np.arange(10, dtype=np.float32).reshape(5, 2)
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2) + 0.5


def test_an_accumulation_at_positions_counts_repeated_ones(target: str) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        c[ids] += rows
        c[ids] -= 1.0
        c[ids] *= 2.0

    expected = CELLS.copy()
    np.add.at(expected, CHOSEN, ROWS)
    np.add.at(expected, CHOSEN, -1.0)
    np.multiply.at(expected, CHOSEN, 2.0)
    assert recorded(target, code, CELLS, CHOSEN, ROWS).tolist() == expected.tolist()


def test_the_last_of_repeated_positions_is_assigned(target: str) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        c[ids] = rows

    expected = CELLS.copy()
    for position, row in zip(CHOSEN, ROWS, strict=True):
        expected[position] = row
    assert recorded(target, code, CELLS, CHOSEN, ROWS).tolist() == expected.tolist()


def test_columns_and_numbers_are_assigned(target: str) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        c[ids] = 7
        c[:, oc.take(ids, constant_ids(0))] += 1.0

    expected = CELLS.copy()
    expected[CHOSEN] = 7
    expected[:, 1] += 1.0
    assert recorded(target, code, CELLS, CHOSEN, ROWS).tolist() == expected.tolist()


def test_rows_read_before_they_are_written_are_values_and_not_references(target: str) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        before = c[ids]
        before = before + rows
        c[:] = 0.0
        c[ids] += before

    expected = np.zeros_like(CELLS)
    np.add.at(expected, CHOSEN, CELLS[CHOSEN] + ROWS)
    assert recorded(target, code, CELLS, CHOSEN, ROWS).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["maximum", "minimum", "add", "multiply", "subtract"])
@pytest.mark.parametrize("is_column", [False, True])
def test_an_accumulation_at_positions_by_a_named_operation(
    target: str, name: str, is_column: bool
) -> None:
    rows = np.array([[9, -1], [2, 7], [-5, 3.5], [4, 4]], np.float32)
    operation = getattr(oc, name)

    def code(c: Any, ids: Any, rows: Any) -> None:
        if is_column:
            c[:, oc.take(ids, constant_ids(0)), operation] = 3.0
        else:
            c[ids, operation] = rows

    expected = CELLS.copy()
    key: Any = np.s_[:, 1] if is_column else CHOSEN
    getattr(np, name).at(expected, key, 3.0 if is_column else rows)
    assert recorded(target, code, CELLS, CHOSEN, rows).tolist() == expected.tolist()


@pytest.mark.parametrize("is_slice", [False, True])
def test_an_updated_part_of_another_tensor_is_assigned_as_it_is(
    target: str, is_slice: bool
) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        part = (2.0 * rows)[0:4] if is_slice else (c + 1.0)[ids]
        part += rows
        c[ids] = part

    expected = CELLS.copy()
    part = 2 * ROWS if is_slice else CELLS[CHOSEN] + 1
    for position, row in zip(CHOSEN, part + ROWS, strict=True):
        expected[position] = row
    assert recorded(target, code, CELLS, CHOSEN, ROWS).tolist() == expected.tolist()


@pytest.mark.parametrize("parts", [(oc.neutral, oc.maximum), (oc.maximum, oc.neutral)])
def test_an_accumulation_at_positions_resets_no_cells(parts: tuple[Any, ...]) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        c[ids, *parts] = rows

    with pytest.raises(oc.UsageError, match="starts from the cells as they are"):
        recorded("interp", code, CELLS, CHOSEN, ROWS)


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        ([[0, 1], [5, 9]], "ids[1, 0] = 5, the first of 2 such positions"),
        ([[0, 1], [4, -2]], "ids[1, 1] = -2"),
    ],
)
def test_a_position_beyond_its_axis_is_an_error_before_anything_is_written(
    target: str, positions: list[list[int]], found: str
) -> None:
    with oc.Session():
        x, ids = placeholder("x", (5, 2)), placeholder("ids", (2, 2), dtype="int32")
        doubled = x * 2.0
        rows = oc.take(x, ids)
        ctx = oc.Context(target)
        routine = ctx.compile(forward(doubled, rows), keep=[doubled, rows])
        ctx[x], ctx[ids] = CELLS, np.zeros((2, 2), np.int32)
        routine()
        before = ctx[doubled], ctx[rows]
        ctx[x], ctx[ids] = CELLS + 1, np.array(positions, np.int32)
        for _ in range(2):
            with pytest.raises(UsageError) as raised:
                routine()
            message = str(raised.value)
            assert "axis 0 of x has the positions range(5)" in message
            assert f"found  {found}\n" in message
            assert "rows = oc.take(x, ids)" in message
        assert [ctx[doubled].tolist(), ctx[rows].tolist()] == [each.tolist() for each in before]
        ctx[ids] = np.full((2, 2), 4, np.int32)
        routine()
        assert ctx[rows].tolist() == [[(CELLS[4] + 1).tolist()] * 2] * 2


@pytest.mark.parametrize("dtype", ID_FORMATS)
def test_the_ends_of_every_format_are_checked(target: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    with oc.Session():
        x, ids = placeholder("x", (3,)), placeholder("ids", (2,), dtype=dtype)
        rows = oc.take(x, ids)
        ctx = oc.Context(target)
        routine = ctx.compile(oc.train.forward(rows))
        ctx[x] = np.arange(3, dtype=np.float32)
        for number in {limits.min, limits.max, 3} - {0}:
            ctx[ids] = np.array([2, number], dtype)
            with pytest.raises(UsageError, match=f"ids\\[1\\] = {number}"):
                routine()
        ctx[ids] = np.array([2, 0], dtype)
        routine()


def test_positions_computed_by_the_routine_are_checked_before_their_use(target: str) -> None:
    with oc.Session():
        x, start = placeholder("x", (4,)), placeholder("start", (2,), dtype="int32")
        later = start + 2
        moved = x + 1.0
        rows = oc.take(moved, later)
        ctx = oc.Context(target)
        routine = ctx.compile(oc.train.forward(rows), keep=[rows])
        ctx[x], ctx[start] = np.arange(4, dtype=np.float32), np.array([0, 1], np.int32)
        routine()
        assert ctx[rows].tolist() == [3, 4]
        ctx[start] = np.array([0, 2], np.int32)
        with pytest.raises(UsageError, match="range\\(4\\)"):
            routine()
        assert ctx[rows].tolist() == [3, 4]


def test_writes_at_wrong_positions_are_errors(target: str) -> None:
    def code(c: Any, ids: Any, rows: Any) -> None:
        c[ids] += rows

    wrong = np.array([1, 3, 5, 1], np.int32)
    with pytest.raises(UsageError, match="ids\\[2\\] = 5"):
        recorded(target, code, CELLS, wrong, ROWS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "uint64"])
def test_without_checks_reads_are_marked_and_writes_dropped(target: str, dtype: str) -> None:
    with core_settings.overrides(check_positions=False, allow_nan=True), oc.Session():
        x, ids = placeholder("x", (3,), dtype=dtype), placeholder("ids", (4,), dtype="int32")
        updates = placeholder("updates", (4,))
        rows, sums = oc.take(x, ids), oc.scatter(ids, updates, size=3)
        ctx = oc.Context(target)
        routine = ctx.compile(forward(rows, sums), keep=[rows, sums])
        ctx[x], ctx[ids] = np.array([1, 2, 3]).astype(x.dtype.numpy), np.array([2, 3, -1, 0])
        ctx[updates] = np.array([1, 2, 4, 8], np.float32)
        routine()
        marked = value_beyond(x.dtype)
        expected = np.array([3, marked, marked, 1], dtype=object).astype(x.dtype.numpy)
        assert np.array_equal(ctx[rows], expected, equal_nan=x.dtype.is_float)
        assert ctx[sums].tolist() == [8, 0, 1]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_functions_of_cells_at_positions_are_marked_beyond_the_axis(
    target: str, axis: int, ids: str, dtype: str
) -> None:
    rng = np.random.default_rng(7)
    dims, count = (5, 21, 37), 37
    x = placeholder("x", dims, dtype=dtype)
    each = placeholder("each", (*dims[:axis], count, *dims[axis + 1 :]), dtype=ids)
    at = placeholder("at", (count,), dtype=ids)
    results = [oc.tanh(oc.take(x, at, axis)), oc.tanh(oc.take_along(x, each, axis))]
    cells = rng.integers(-6, 6, dims).astype("float32") / 2
    positions = [rng.integers(-1, dims[axis] + 1, t.shape.output.sizes) for t in (at, each)]
    ctx = oc.Context(target)
    with core_settings.overrides(check_positions=False):
        routine = ctx.compile(forward(*results), keep=results)
    ctx[x], ctx[at], ctx[each] = cells, positions[0].astype(ids), positions[1].astype(ids)
    routine()
    for result, where in zip(results, positions, strict=True):
        wide = (
            where.reshape([-1 if a == axis else 1 for a in range(3)]) if where.ndim == 1 else where
        )
        wide = np.broadcast_to(wide, (*dims[:axis], count, *dims[axis + 1 :]))
        found = np.take_along_axis(cells, np.clip(wide, 0, dims[axis] - 1), axis)
        expected = np.where((wide >= 0) & (wide < dims[axis]), np.tanh(found), np.nan)
        np.testing.assert_allclose(ctx[result].astype("float64"), expected, rtol=1e-2, atol=1e-6)


def test_no_positions_select_nothing_from_anything(target: str) -> None:
    with oc.Session():
        x, ids = placeholder("x", (0, 2)), placeholder("ids", (0,), dtype="int32")
        rows = oc.take(x, ids)
        empty = np.zeros((0, 2), np.float32)
        assert run(target, (x, empty), (ids, np.zeros(0, np.int32)), result=rows).shape == (0, 2)


def test_positions_on_an_axis_without_cells_are_errors(target: str) -> None:
    with oc.Session():
        x, ids = placeholder("x", (0, 2)), placeholder("ids", (1,), dtype="int32")
        rows = oc.take(x, ids)
        with pytest.raises(UsageError, match="range\\(0\\)"):
            run(
                target, (x, np.zeros((0, 2), np.float32)), (ids, np.zeros(1, np.int32)), result=rows
            )


def test_positions_of_a_padded_tensor_count_its_own_cells(target: str) -> None:
    with core_settings.overrides(check_positions=False, allow_nan=True), oc.Session():
        x, ids = placeholder("x", (4,)), placeholder("ids", (6,), dtype="int32")
        smooth = oc.einsum("i=+k; k => i", x, oc.tensor([1.0, 2.0, 1.0]))
        rows = oc.take(x, ids)
        ctx = oc.Context(target)
        routine = ctx.compile(forward(smooth, rows), keep=[rows])
        ctx[x], ctx[ids] = np.arange(1.0, 5.0), np.array([-2, -1, 0, 3, 4, 5])
        routine()
        expected = np.array([np.nan, np.nan, 1, 4, np.nan, np.nan])
        assert np.array_equal(ctx[rows], expected, equal_nan=True)


def test_positions_are_integers_and_an_axis_is_one_of_the_tensor() -> None:
    with oc.Session():
        x, ids = placeholder("x", (4, 2)), placeholder("ids", (3,), dtype="int32")
        for mistake, message in (
            (lambda: oc.take(x, placeholder("f", (3,))), 'oc.cast(ids, "int32")'),
            (lambda: oc.take(x, [0, 1]), "wrap arrays and lists"),
            (lambda: oc.take(x, ids, axis=0.5), "axis is an integer"),
            (lambda: x[ids, ids], "oc.flatten(x)[i * 8 + j]"),
            (lambda: x[0, ids], "give other keys first: x[1:][:, ids]"),
            (lambda: oc.scatter(ids, x, size=-1), "from 0 to 2"),
            (lambda: oc.scatter(ids, x, size=1 << 70), "from 0 to 2"),
            (lambda: oc.scatter(ids, x, size=int), "size is an integer"),
            (lambda: oc.scatter(ids, x, size=3, combine=oc.less), "with a neutral element"),
            (lambda: oc.scatter(ids, x, size=np.array([])), "size is an integer"),
            (lambda: oc.nn.embedding(ids, entries=0), "positive integers"),
        ):
            with pytest.raises(UsageError) as raised:
                mistake()
            assert message in str(raised.value)
        with pytest.raises(ShapeError, match="axis 2 of a tensor of 2 axes"):
            oc.take(x, ids, axis=2)
        with pytest.raises(ShapeError, match="axis -3"):
            oc.take(x, ids, axis=-3)


def test_rows_are_assigned_in_recorded_code_only() -> None:
    with oc.Session():
        c, ids = oc.declare("c", output=[4, 2]), placeholder("ids", (3,), dtype="int32")
        with pytest.raises(UsageError, match=r"oc\.scatter\("):
            c[ids] = 0.0


def test_positions_beyond_the_extent_of_a_call_are_not_checked(target: str) -> None:
    n = oc.static_extent("n", max=4)
    ids = oc.placeholder("ids", batch=[n], dtype="int32")
    table = oc.tensor(np.arange(6.0, dtype=np.float32).reshape(3, 2))
    rows = oc.take(table, ids)
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.forward(rows), bindings=[n], keep=[rows])
    assert "check ids[:n] in range(3)" in str(step.loop_ir)
    ctx[ids] = np.array([2, 0, 1, 7], np.int32)
    step(n=3)
    assert ctx[rows][:3].tolist() == [[4, 5], [0, 1], [2, 3]]
    with pytest.raises(oc.UsageError, match=r"ids\[3\] = 7"):
        step(n=4)
    step(n=1)
    assert ctx[rows][0].tolist() == [4, 5]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_positions_along_all_axes_beside_an_extent_are_checked(target: str, place: int) -> None:
    n = oc.static_extent("n", max=4)
    axes: list[Any] = [2, 3]
    axes.insert(place, n)
    ids = oc.placeholder("ids", output=axes, dtype="int32")
    cells = oc.take(oc.tensor([1.0, 2.0, 4.0]), ids)
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.forward(cells), keep=[cells])
    positions = np.arange(12).reshape(tuple(2 if size is n else size for size in axes)) % 3
    ctx[ids] = positions
    step(n=2)
    assert ctx[cells].tolist() == (2.0**positions).tolist()
    positions[1, 1, 1] = 3
    ctx[ids] = positions
    with pytest.raises(oc.UsageError, match=r"ids\[1, 1, 1\] = 3"):
        step(n=2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("most", [6, 300])
def test_positions_lie_before_the_end_of_the_call(target: str, dtype: str, most: int) -> None:
    n = oc.static_extent("n", max=most)
    x, ids = oc.placeholder("x", output=[n]), oc.placeholder("ids", output=[2], dtype=dtype)
    y = oc.take(x, ids)
    ctx = oc.Context(target)
    routine = ctx.compile(oc.train.forward(y), keep=[y])
    last = min(most, 2**7 if dtype == "int8" else 2**8)
    for end in (5, last, most):
        ctx[x] = np.arange(1.0, end + 1.0)
        highest = min(end, last) - 1
        ctx[ids] = np.array([0, highest])
        routine(n=end)
        assert ctx[y].tolist() == [1.0, highest + 1.0]
    wrong = [5] if dtype.startswith("u") else [5, -1]
    for position in wrong:
        ctx[ids] = np.array([0, position])
        with pytest.raises(UsageError, match=r"positions range\(5\) in this call") as caught:
            routine(n=5)
        assert f"ids[1] = {position}" in str(caught.value)


def test_rows_beyond_the_extent_of_a_call_add_nothing_to_a_gradient(target: str) -> None:
    n = oc.static_extent("n", max=4)
    ids = oc.placeholder("ids", batch=[n], dtype="int32")
    table = oc.param("table", init=oc.tensor(np.ones((3, 2), np.float32)))
    loss = oc.einsum("...|... => 0", oc.take(table, ids))
    counted = oc.scatter(ids, oc.cast(ids, "float32") * 0.0 + 1.0, size=3)
    ctx = oc.Context(target)
    step = ctx.compile(
        oc.train.grad_update(loss) + oc.train.forward(counted),
        bindings=[n],
        keep=[table.grad, counted],
    )
    ctx.init_params(loss)
    ctx[ids] = np.array([2, 0, 1, 2], np.int32)
    step(n=3)
    assert ctx[table.grad].tolist() == [[1, 1]] * 3
    assert ctx[counted].tolist() == [1, 1, 1]


def test_axes_of_cells_at_positions_in_an_expression_are_counted() -> None:
    """The number of axes of the expression is that of its operands."""
    with oc.Session():
        x = oc.tensor(np.arange(24.0).reshape(4, 2, 3), batch_axes=2) + 1.0
        ids = oc.tensor(np.array([2, 0], np.int32)) + 0
        along = oc.tensor(np.zeros((4, 2, 1), np.int32), batch_axes=2)
        results = [
            oc.take(x, ids, axis=-1)[1],
            oc.take_along(x, along, axis=-1)[0],
            oc.take_along(x, along, axis=-1).sum(axis=1),
        ]
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(sum(map(oc.sum, results))), keep=results)()
        cells = np.arange(24.0).reshape(4, 2, 3) + 1.0
        np.testing.assert_array_equal(ctx[results[0]], cells[1][:, [2, 0]])
        np.testing.assert_array_equal(ctx[results[1]], cells[0][:, :1])
        np.testing.assert_array_equal(ctx[results[2]], cells[..., :1].sum(axis=1))


def test_a_backend_for_version_1_0_checks_the_greatest_extent() -> None:
    n = oc.static_extent("n", max=6)
    check = CheckPositions(TensorNode(0, ("ids",)), 6, "axis 0 of x", at_run_time=n)
    check_positions(check, np.array([5]), {}.__getitem__)  # knows no extent of that axis
    with pytest.raises(UsageError, match=r"range\(6\)"):
        check_positions(check, np.array([6]), {}.__getitem__)
    with pytest.raises(UsageError, match=r"range\(3\) in this call"):
        check_positions(check, np.array([5]), {n: 3}.__getitem__)
