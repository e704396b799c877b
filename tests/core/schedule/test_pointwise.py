"""The lanes of nests without a reduction."""

from __future__ import annotations

import math

import pytest

from ocannl_core.ir.indexing import FixedIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block, Gather, Stmt, Unary
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float32, float64, int32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.schedule.rules.pointwise import pointwise_schedule
from ocannl_core.testing.drafts import Draft, loop

TARGET = Target("test", 0, vector_bytes=64, vector_registers=32)
LANES = "split j 16; order i j0 j1; vectorize j1"
"""The schedule of rows that are cut into vectors."""


def schedule(
    rows: int, columns: int, op: UnaryOp = UnaryOp.NEG, dtype: DType = float32, turned: bool = False
) -> str:
    """Return the schedule of `y[i, j] = op(x[i, j])`, or of `y[i, j] = op(x[j, i])`."""
    draft, i, j = Draft("cells"), fresh_var("i"), fresh_var("j")
    x = draft.node("x", dtype, *((columns, rows) if turned else (rows, columns)))
    y = draft.node("y", dtype, rows, columns)
    read = draft.load(x, *((j, i) if turned else (i, j)))
    stmt = draft.store(y, i, j, value=Unary(op, read, dtype))
    return chosen(draft, loop(i, rows, loop(j, columns, stmt)))


def pair_schedule(columns: int, op: BinaryOp, dtype: DType) -> str:
    """Return the schedule of `y[i, j] = op(x[i, j], x[i, j])`."""
    draft, i, j = Draft("cells"), fresh_var("i"), fresh_var("j")
    x, y = (draft.node(name, dtype, 50, columns) for name in "xy")
    value = Binary(op, draft.load(x, i, j), draft.load(x, i, j), dtype)
    return chosen(draft, loop(i, 50, loop(j, columns, draft.store(y, i, j, value=value))))


def gather_schedule(
    op: UnaryOp, *, along: str, position: DType = int32, dtype: DType = float32
) -> str:
    """Return the schedule of `y[i, j] = op(x[at, j])`, or of `op(x[i, at])`, at positions `p`."""
    draft, i, j = Draft("cells"), fresh_var("i"), fresh_var("j")
    x, y = draft.node("x", dtype, 50, 100), draft.node("y", dtype, 50, 100)
    axis = "ij".index(along)
    at = draft.load(draft.node("p", position, (50, 100)[axis]), (i, j)[axis])
    indices = tuple(FixedIndex(0) if at == axis else VarIndex((i, j)[at]) for at in range(2))
    value = Unary(op, Gather(x, indices, axis, at, dtype, beyond=math.nan), dtype)
    return chosen(draft, loop(i, 50, loop(j, 100, draft.store(y, i, j, value=value))))


def chosen(draft: Draft, stmt: Stmt) -> str:
    nest = kernel_nest(Block((stmt,)))
    assert nest is not None
    found = pointwise_schedule(nest, draft.nodes, TARGET)
    return "plain loops" if found is None else schedule_text(found)


def test_rows_are_cut_into_registers() -> None:
    assert schedule(5, 100) == "split j 16; order i j0 j1; vectorize j1"
    assert schedule(5, 100, dtype=float64) == "split j 8; order i j0 j1; vectorize j1"


def test_a_row_may_be_one_register() -> None:
    assert schedule(5, 16) == "order i j; vectorize j"


def test_axes_of_one_cell_are_no_lanes() -> None:
    assert schedule(100, 1) == "split i 16; order j i0 i1; vectorize i1"


@pytest.mark.parametrize("columns", [2, 10, 15])
def test_short_rows_are_left_to_compilers(columns: int) -> None:
    assert schedule(1000, columns) == "plain loops"


def test_short_rows_that_compilers_do_not_vectorize_are_partial_registers() -> None:
    assert schedule(1000, 10, UnaryOp.EXP) == "order i j; vectorize j"
    assert schedule(1000, 10, dtype=bfloat16) == "order i j; vectorize j"


@pytest.mark.parametrize("op", [BinaryOp.MOD, BinaryOp.FLOOR_DIV])
def test_remainders_of_floats_are_computed_in_lanes(op: BinaryOp) -> None:
    assert [pair_schedule(100, op, each) for each in (float32, bfloat16)] == [LANES, LANES]
    assert pair_schedule(10, op, float32) == "order i j; vectorize j"
    assert pair_schedule(100, op, float64) == pair_schedule(100, op, int32) == "plain loops"


def test_rows_that_become_columns_are_tiles_of_squares() -> None:
    tiles = "split i 64; split i1 16; split j 64; split j1 16; order i0 j0 i10 j10 i11 j11; "
    assert schedule(400, 500, turned=True) == f"{tiles}vectorize i11; vectorize j11"
    rows = "split i 16; split j 16; order i0 j0 i1 j1; vectorize i1; vectorize j1"
    assert schedule(40, 50, turned=True) == rows
    assert schedule(16, 16, turned=True) == "order i j; vectorize i; vectorize j"


def test_rows_that_become_columns_shorter_than_a_register_are_left_to_compilers() -> None:
    assert schedule(40, 15, turned=True) == "plain loops"
    assert schedule(40, 50, turned=True, dtype=bfloat16) == "plain loops"


@pytest.mark.parametrize("step", [-1, 2, 3])
def test_functions_of_cells_apart_are_computed_in_lanes(step: int) -> None:
    draft, i, j = Draft("cells"), fresh_var("i"), fresh_var("j")
    x, y = draft.node("x", float32, 50, 300), draft.node("y", float32, 50, 100)
    read = draft.load(x, VarIndex(i), affine([(step, j)], 99 if step < 0 else 0))
    found = []
    for op in (UnaryOp.EXP, UnaryOp.NEG):
        stmt = draft.store(y, i, j, value=Unary(op, read, float32))
        found.append(chosen(draft, loop(i, 50, loop(j, 100, stmt))))
    assert found == [LANES, "plain loops"]


def test_rows_at_computed_positions_are_vectors() -> None:
    assert gather_schedule(UnaryOp.EXP, along="i") == LANES
    assert gather_schedule(UnaryOp.NEG, along="i", position=int64) == LANES


def test_functions_of_cells_at_computed_positions_are_computed_in_lanes() -> None:
    assert gather_schedule(UnaryOp.EXP, along="j") == LANES
    assert gather_schedule(UnaryOp.EXP, along="j", position=int64) == LANES
    assert gather_schedule(UnaryOp.NEG, along="j") == "plain loops"


def test_functions_are_computed_in_lanes_and_stored_apart() -> None:
    draft, i, j = Draft("cells"), fresh_var("i"), fresh_var("j")
    x, y = draft.node("x", float32, 50, 100), draft.node("y", float32, 50, 300)
    value = Unary(UnaryOp.EXP, draft.load(x, i, j), float32)
    stmt = draft.store(y, VarIndex(i), affine([(3, j)], 0), value=value)
    assert chosen(draft, loop(i, 50, loop(j, 100, stmt))) == LANES
