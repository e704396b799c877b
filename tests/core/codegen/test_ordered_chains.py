"""Chains of ordered float operations: the loops in which a barrier prevents vectorization."""

from __future__ import annotations

import pytest

from ocannl_core.codegen.text.ordered_chains import has_ordered_chain
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    Load,
    Local,
    LocalRead,
    SetLocal,
    Stmt,
    Store,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, float64, int32
from ocannl_core.ir.numbers.primitives import BinaryOp

X, C = TensorNode(0, ("x",)), TensorNode(1, ("c",))
ROW, COLUMN = fresh_var("i"), fresh_var("j")
ZERO = FixedIndex(0)


def loop(var: LoopVar, *stmts: Stmt, extent: int = 4) -> For:
    return For(var, 0, extent, Block(stmts))


def term(dtype: DType) -> Load:
    return Load(X, (affine([(4, ROW), (-1, COLUMN)], 3),), dtype)


def add(cell: AxisIndex, dtype: DType = float32, value: Expr | None = None) -> Store:
    before = Load(C, (cell,), dtype)
    return Store(C, (cell,), Binary(BinaryOp.ADD, before, value or term(dtype), dtype))


@pytest.mark.parametrize("dtype", [float32, float64])
def test_a_loop_around_another_loop_that_adds_to_the_same_cell_has_a_chain(dtype):
    assert has_ordered_chain(loop(ROW, loop(COLUMN, add(ZERO, dtype))))


def test_a_loop_around_another_loop_that_adds_to_the_same_variable_has_a_chain():
    total = Local(0, float32)
    value = Binary(BinaryOp.MUL, term(float32), LocalRead(total), float32)
    assert has_ordered_chain(loop(ROW, loop(COLUMN, SetLocal(total, value))))


def test_a_loop_that_adds_twice_or_two_terms_at_once_has_a_chain():
    assert has_ordered_chain(loop(ROW, add(ZERO), add(ZERO)))
    twice = Binary(BinaryOp.ADD, add(ZERO).value, term(float32), float32)
    assert has_ordered_chain(loop(ROW, Store(C, (ZERO,), twice)))


def test_a_loop_that_adds_one_term_has_none():
    assert not has_ordered_chain(loop(COLUMN, add(ZERO)))
    assert not has_ordered_chain(loop(ROW, loop(COLUMN, add(ZERO), extent=1)))


def test_a_loop_over_cells_has_none():
    cell = affine([(1, ROW)])
    assert not has_ordered_chain(loop(ROW, loop(COLUMN, add(cell))))
    assert not has_ordered_chain(loop(COLUMN, loop(ROW, add(cell))))


def test_a_sum_that_starts_again_in_each_iteration_is_none():
    total = Local(0, float32)
    start = DeclareLocal(total), SetLocal(total, Const(0.0, float32))
    step = SetLocal(total, Binary(BinaryOp.ADD, LocalRead(total), term(float32), float32))
    assert not has_ordered_chain(loop(ROW, *start, loop(COLUMN, step)))


def test_integers_may_be_added_in_any_order():
    assert not has_ordered_chain(loop(ROW, loop(COLUMN, add(ZERO, int32))))
