"""Estimates of operations and cycles, and comparisons of computing again with storing."""

from __future__ import annotations

from dataclasses import replace

from ocannl_core.ir.indexing import LoopVar, StaticIndex, fresh_var
from ocannl_core.ir.loops.nodes import AxisKind, Block, Fill, Repeat, Stmt, Unary
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.schedule.cost_model import (
    cost,
    estimated_cycles,
    is_cheap,
    is_faster_to_recompute,
    program_cycles,
    repeated_cost,
    transfer_cycles,
)
from ocannl_core.schedule.machine_model import (
    FUNCTION_COST,
    PRODUCTS_PER_BYTE,
    TILE_PRODUCTS_PER_BYTE,
    VECTOR_PRODUCTS_PER_BYTE,
)
from ocannl_core.testing.drafts import Draft, loop

DRAFT = Draft("work")
A, B = (DRAFT.node(name, float32, 1 << 20, 64) for name in "ab")
I, J, K = (fresh_var(name) for name in "ijk")  # noqa: E741


def work(stmt: Stmt) -> int:
    return estimated_cycles(stmt, DRAFT.nodes)


def copy(row: LoopVar | int, column: LoopVar | int = J, source: TensorNode = B) -> Stmt:
    return DRAFT.store(A, row, column, value=DRAFT.load(source, row, column))


def test_work_counts_every_iteration() -> None:
    once = work(loop(J, 64, copy(0)))
    assert once > 0
    assert work(loop(I, 1000, loop(J, 64, copy(I)))) == 1000 * once


def test_loops_without_iterations_take_no_time() -> None:
    assert work(loop(I, 0, loop(J, 64, copy(I)))) == 0


def test_functions_take_longer_than_copies() -> None:
    value = Unary(UnaryOp.EXP, DRAFT.load(B, 0, J), float32)
    assert work(loop(J, 64, DRAFT.store(A, 0, J, value=value))) > work(loop(J, 64, copy(0)))


def test_lanes_of_vectors_work_together() -> None:
    value = Unary(UnaryOp.EXP, DRAFT.load(B, 0, 0), float32)
    plain = loop(J, 64, DRAFT.store(A, 0, J, value=value))
    assert 3 * work(replace(plain, kind=AxisKind.VECTOR)) <= work(plain)


def test_cells_that_are_read_again_come_from_caches() -> None:
    fresh = loop(I, 1000, loop(J, 64, copy(I)))
    again = loop(I, 1000, loop(J, 64, copy(0)))
    assert work(again) < work(fresh)


def test_a_fill_takes_as_long_as_its_memory() -> None:
    assert work(Fill(A, 0.0)) == DRAFT.nodes[A].nbytes // 8


def test_deep_expressions_are_measured() -> None:
    value = DRAFT.load(B, 0, 0)
    for _ in range(5000):
        value = Unary(UnaryOp.NEG, value, float32)  # type: ignore[assignment]
    assert work(Block((DRAFT.store(A, 0, 0, value=value),))) >= 2500


def test_repetitions_count_as_often_as_they_run() -> None:
    body = Block((loop(I, 1000, loop(J, 64, copy(I))),))
    repeat = Repeat(StaticIndex("n", 3), 3, False, body, (B,), (A,), ())
    once = program_cycles(body, DRAFT.nodes)
    assert once == work(body)
    assert program_cycles(Block((*body.stmts, repeat)), DRAFT.nodes) == 4 * once + work(Block(()))


def test_values_that_loads_hide_are_repeated_without_cost() -> None:
    cell = DRAFT.load(B, 0, 0)
    hidden, function = (Unary(op, cell, float32) for op in (UnaryOp.NEG, UnaryOp.EXP))
    assert is_cheap(hidden)
    assert not is_cheap(function)
    assert cost(function) == FUNCTION_COST + 1
    assert repeated_cost([hidden, function], 3) == 2 * cost(function)
    assert repeated_cost([function], 1) == 0


def test_products_are_recomputed_up_to_a_number_for_each_byte() -> None:
    for rate in (VECTOR_PRODUCTS_PER_BYTE, PRODUCTS_PER_BYTE, TILE_PRODUCTS_PER_BYTE):
        assert is_faster_to_recompute(rate * 100, 100, rate)
        assert not is_faster_to_recompute(rate * 100 + 1, 100, rate)


def test_transfers_take_whole_cycles() -> None:
    assert transfer_cycles(DRAFT.nodes[A].nbytes) == DRAFT.nodes[A].nbytes // 8
