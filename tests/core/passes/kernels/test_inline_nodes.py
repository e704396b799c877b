"""Nodes that are computed where they are read: the same bits, and less memory."""

from __future__ import annotations

import pytest

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest_plan import mentioned
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import Allocate, Binary, Const, Expr, Scope, Stmt, Ternary, Unary
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.kernels.inline_nodes import forward_stores, rematerialize
from ocannl_core.passes.kernels.recognize_nests import recognize_nests
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.drafts import Draft, loop

ROWS, LENGTH = 5, 7
I, K = fresh_var("i"), fresh_var("k")  # noqa: E741


class Differences:
    """`d = x - m`, `v = the sum of d * d over rows`, `y = d * s`."""

    def __init__(self, cost: UnaryOp | None = None) -> None:
        draft = self.draft = Draft("differences")
        self.x, self.y = (draft.node(name, float32, ROWS, LENGTH) for name in "xy")
        self.m, self.s, self.v = (draft.node(name, float32, LENGTH) for name in "msv")
        self.d = draft.scratch("d", float32, ROWS, LENGTH)
        cell = draft.load(self.d, I, K)
        value: Expr = Binary(BinaryOp.SUB, draft.load(self.x, I, K), draft.load(self.m, K), float32)
        if cost is not None:
            value = Unary(cost, value, float32)
        square = Binary(BinaryOp.MUL, cell, cell, float32)
        scaled = Binary(BinaryOp.MUL, cell, draft.load(self.s, K), float32)
        self.stmts = [
            draft.store(self.d, I, K, value=value),
            draft.accumulate(self.v, K, op=BinaryOp.ADD, value=square),
            draft.store(self.y, I, K, value=scaled),
        ]

    def plan(self) -> Plan:
        body = [loop(I, ROWS, loop(K, LENGTH, each)) for each in self.stmts]
        return split_kernels(self.draft.program(Allocate(self.d, Scope.ROUTINE), *body))

    def nodes_left(self, cache: int) -> frozenset[TensorNode]:
        """Return the nodes that the kernels mention."""
        found = rematerialize(recognize_nests(self.plan()), cache)
        return frozenset(node for step in found.steps for node in mentioned(step))


def test_a_large_node_that_is_cheap_is_computed_by_its_readers() -> None:
    differences = Differences()
    assert differences.d not in differences.nodes_left(cache=4 * ROWS * LENGTH - 1)


def test_a_node_that_a_cache_holds_is_stored() -> None:
    differences = Differences()
    assert differences.d in differences.nodes_left(cache=4 * ROWS * LENGTH)


def test_a_choice_is_computed_again_like_a_sum() -> None:
    differences = Differences()
    draft = differences.draft
    x, m = draft.load(differences.x, I, K), draft.load(differences.m, K)
    choice = Ternary(TernaryOp.WHERE, Binary(BinaryOp.LT, x, m, float32), x, m, float32)
    differences.stmts[0] = draft.store(differences.d, I, K, value=choice)
    assert differences.d not in differences.nodes_left(cache=1)


def test_a_node_that_its_own_kernel_reads_once_moves_at_any_cost() -> None:
    draft = Draft("own")
    x, y, z = (draft.node(name, float32, ROWS) for name in "xyz")
    d = draft.scratch("d", float32, ROWS)
    costly = draft.store(d, I, value=Unary(UnaryOp.EXP, draft.load(x, I), float32))
    readers = [draft.store(each, I, value=draft.load(d, I)) for each in (y, z)]

    def is_stored(*stores: Stmt) -> bool:
        body = Allocate(d, Scope.ROUTINE), loop(I, ROWS, costly, *stores)
        plan = forward_stores(recognize_nests(split_kernels(draft.program(*body))))
        return any(d in mentioned(step) for step in plan.steps)

    assert not is_stored(readers[0])
    assert is_stored(*readers)


def test_costly_nodes_are_stored() -> None:
    differences = Differences(UnaryOp.EXP)
    assert differences.d in differences.nodes_left(cache=1)


@pytest.mark.parametrize("changed", ["x", "m"])
def test_a_node_is_stored_if_its_operands_change(changed: str) -> None:
    differences = Differences()
    draft, node = differences.draft, {"x": differences.x, "m": differences.m}[changed]
    places = (I, K) if changed == "x" else (K,)
    zero = draft.store(node, *places, value=Const(0.0, float32))
    differences.stmts.insert(2, zero)
    assert differences.d in differences.nodes_left(cache=1)


def test_a_node_is_stored_if_its_readers_would_load_more() -> None:
    differences = Differences()
    draft = differences.draft
    others = [draft.node(name, float32, ROWS, LENGTH) for name in "abc"]
    value = draft.load(differences.x, I, K)
    sums: Expr = value
    for other in others:
        sums = Binary(BinaryOp.ADD, sums, draft.load(other, I, K), float32)
    differences.stmts[0] = draft.store(differences.d, I, K, value=sums)
    assert differences.d in differences.nodes_left(cache=1)
