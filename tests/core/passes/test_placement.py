"""Nodes in memory of the routine, and reasons against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ocannl_core import settings
from ocannl_core.dtypes import float32, uint4x32
from ocannl_core.indexing import FixedIndex, LoopVar, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.loopir.nodes import (
    Allocate,
    Binary,
    Block,
    CallExternal,
    Const,
    Expr,
    Fill,
    For,
    Load,
    LoadMerge,
    LoopProgram,
    Scope,
    Staged,
    Stmt,
    Store,
    StoreVector,
    Unary,
)
from ocannl_core.loopir.verify import verify
from ocannl_core.node import Margin, MemoryMode, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.passes.decisions import Decisions
from ocannl_core.passes.pipeline import core_passes, run_passes
from ocannl_core.passes.placement import allocate_scratch
from tests.support.external_calls import CopyCall

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
X, T, C, P, W = (TensorNode(n, (name,)) for n, name in enumerate("xtcpw"))
NODES = {
    X: NodeInfo(float32, (4,)),
    T: NodeInfo(float32, (4,)),
    C: NodeInfo(float32, (4,)),
    P: NodeInfo(float32, (2, 4), (Margin(1, 0), Margin(0, 2))),
    W: NodeInfo(uint4x32, ()),
}
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741
STORED = {
    X: Placement(MemoryMode.HOSTED, Reason.HOST_DATA),
    C: Placement(MemoryMode.MATERIALIZED, Reason.KEPT),
}
ONE = Const(1.0, float32)


def loop(var: LoopVar, start: int, stop: int, *body: Stmt) -> For:
    return For(var, start, stop, Block(body))


def load(node: TensorNode, var: LoopVar = I) -> Load:
    return Load(node, (VarIndex(var),), float32)


MIRRORED = Load(T, (affine([(-1, I)], 3),), float32)


def store(node: TensorNode, value: Expr = ONE, var: LoopVar = I) -> Store:
    return Store(node, (VarIndex(var),), value)


def each(*body: Stmt) -> For:
    return loop(I, 0, 4, *body)


def program(*stmts: Stmt) -> LoopProgram:
    body = Block(stmts)
    used = LoopProgram("p", (X, T, C, P, W), (), NODES, body)
    verify(used)
    return used


def is_scratch(node: TensorNode, *stmts: Stmt) -> bool:
    allocated = allocate_scratch(program(*stmts), STORED)
    verify(allocated)
    return node not in allocated.params


READ = each(store(C, load(T)))
PLUS = Binary(BinaryOp.ADD, load(T), ONE, float32)
STEP = StaticIndex("step", 4)
OWN: dict[str, tuple[Stmt, ...]] = {
    "filled": (Fill(T, 0.0), READ),
    "stored everywhere": (each(store(T)), READ),
    "stored and read in one loop": (each(store(T), store(C, load(T))),),
    "stored, then read in an inner loop": (
        each(store(T), loop(J, 0, 4, Store(C, (VarIndex(J),), load(T)))),
    ),
    "accumulated after a fill": (Fill(T, 0.0), each(store(T, PLUS)), READ),
    "stored in two halves": (
        loop(I, 0, 2, store(T)),
        loop(I, 2, 4, store(T)),
        READ,
    ),
    "stored in reverse": (each(Store(T, (affine([(-1, I)], 3),), ONE)), READ),
    "stored in pairs": (
        loop(I, 0, 2, loop(J, 0, 2, Store(T, (affine([(2, I), (1, J)]),), ONE))),
        READ,
    ),
    "written as a vector": (StoreVector(T, (FixedIndex(0),), 4, Load(W, (), uint4x32)), READ),
    "written by an external call": (CallExternal(CopyCall(), (X,), (T,)), READ),
    "written by staged code": (Staged("c", "", Block((each(store(T)),))), READ),
    "written in a block": (Block((Block((each(store(T)),)), READ)),),
    "written and never read": (loop(I, 0, 2, store(T)),),
}
OUTSIDE: dict[str, tuple[Stmt, ...]] = {
    "read only": (READ,),
    "read first": (READ, Fill(T, 0.0)),
    "accumulated": (each(store(T, PLUS)), READ),
    "stored in part": (loop(I, 0, 3, store(T)), READ),
    "stored at every other cell": (loop(I, 0, 2, Store(T, (affine([(2, I)]),), ONE)), READ),
    "stored at one place given when called": (Store(T, (VarIndex(STEP),), ONE), READ),
    "stored in a loop without iterations": (loop(J, 0, 0, Fill(T, 0.0)), READ),
    "read at another cell in the loop that stores": (
        each(store(T), Store(C, (VarIndex(I),), Load(T, (FixedIndex(3),), float32))),
    ),
    "read after the inner loop that stored its cell": (
        each(loop(J, 0, 0, store(T)), store(C, load(T))),
    ),
    "its merge buffer is read": (
        Fill(T, 0.0),
        each(store(C, LoadMerge(T, (VarIndex(I),), float32))),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_node_written_before_it_is_read_belongs_to_the_routine(name: str) -> None:
    assert is_scratch(T, *OWN[name])


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_node_that_may_be_read_before_it_is_written_stays_outside(name: str) -> None:
    stmts = OUTSIDE[name]
    whole = LoopProgram("p", (X, T, C, P, W), (STEP,), NODES, Block(stmts))
    verify(whole)
    assert T in allocate_scratch(whole, STORED).params


def test_a_node_that_the_context_stores_stays_a_parameter() -> None:
    kept = {**STORED, T: Placement(MemoryMode.MATERIALIZED, Reason.KEPT)}
    whole = program(Fill(T, 0.0), READ)
    assert allocate_scratch(whole, kept) is whole


def test_margins_count_as_cells() -> None:
    read = Store(C, (FixedIndex(0),), Load(P, (FixedIndex(1), FixedIndex(5)), float32))

    def box(rows: tuple[int, int], columns: tuple[int, int]) -> For:
        inner = Store(P, (VarIndex(I), VarIndex(J)), ONE)
        return loop(I, *rows, loop(J, *columns, inner))

    interior, top, right = box((1, 3), (0, 4)), box((0, 1), (0, 6)), box((1, 3), (4, 6))
    assert is_scratch(P, interior, top, right, read)
    assert not is_scratch(P, interior, top, read)


def test_memory_is_allocated_at_the_start_in_the_order_of_parameters() -> None:
    allocated = allocate_scratch(program(Fill(P, 0.0), Fill(T, 0.0)), STORED)
    assert allocated.body.stmts[:2] == (Allocate(T, Scope.ROUTINE), Allocate(P, Scope.ROUTINE))
    assert allocated.params == (X, C, W)


def test_memory_of_the_routine_starts_with_rubbish_that_no_result_sees(interpret: Run) -> None:
    double = Binary(BinaryOp.MUL, load(T), Const(2.0, float32), float32)
    whole = program(each(store(T, load(X))), each(store(C, double)))
    allocated = allocate_scratch(whole, STORED)
    found = interpret(allocated, {X: [1, 2, 3, 4]})
    np.testing.assert_array_equal(found[C], [2, 4, 6, 8])
    assert T not in found


def test_every_node_has_a_place_and_a_reason() -> None:
    doubled = Binary(BinaryOp.MUL, load(X), Const(2.0, float32), float32)
    whole = program(
        Fill(P, 0.0),
        StoreVector(T, (FixedIndex(0),), 4, Load(W, (), uint4x32)),
        each(store(C, Binary(BinaryOp.ADD, load(C), load(T), float32))),
        each(store(X, load(T))),
        each(store(T, doubled)),
        each(store(X, load(T))),
    )
    decisions = Decisions({X: STORED[X]})
    result = run_passes(whole, core_passes(decisions))
    assert decisions.placements(whole.nodes, result) == {
        X: STORED[X],
        T: Placement(MemoryMode.LOCAL, Reason.VECTOR_STORE),
        C: Placement(MemoryMode.ON_DEVICE, Reason.READ_BEFORE_WRITE),
        P: Placement(MemoryMode.VIRTUAL, Reason.NEVER_READ),
        W: Placement(MemoryMode.ON_DEVICE, Reason.READ_ONLY),
    }


def test_the_backend_decides_nodes_that_may_be_local() -> None:
    asked: list[TensorNode] = []

    def prefers_device(node: TensorNode, info: NodeInfo) -> bool:
        asked.append(node)
        return True

    twice = Binary(BinaryOp.MUL, load(T), MIRRORED, float32)
    exp = Unary(UnaryOp.EXP, load(X), float32)
    decisions = Decisions(STORED, prefers_device)
    whole = program(each(store(T, exp)), each(store(C, twice)))
    result = run_passes(whole, core_passes(decisions))
    assert asked == [T]
    assert T in result.params
    reasons = decisions.placements(whole.nodes, result)
    assert reasons[T] == Placement(MemoryMode.ON_DEVICE, Reason.BACKEND_CHOICE)


def test_without_memory_of_the_routine_everything_stays_on_the_device() -> None:
    exp = Unary(UnaryOp.EXP, load(X), float32)
    twice = Binary(BinaryOp.MUL, load(T), MIRRORED, float32)
    decisions = Decisions(STORED)
    with settings.overrides(enable_device_only=False):
        whole = program(each(store(T, exp)), each(store(C, twice)))
        result = run_passes(whole, core_passes(decisions))
    assert T in result.params
    place = decisions.placements(whole.nodes, result)[T]
    assert place == Placement(MemoryMode.ON_DEVICE, Reason.LOCAL_MEMORY_DISABLED)


def test_the_passes_run_in_order_and_observers_see_every_program() -> None:
    seen: list[tuple[str, LoopProgram]] = []
    whole = program(each(store(T, Binary(BinaryOp.MUL, load(X), ONE, float32))), READ)
    decisions = Decisions(STORED)
    result = run_passes(whole, core_passes(decisions), [lambda *now: seen.append(now)])
    assert [name for name, _ in seen] == [
        "lower",
        "inline",
        "simplify",
        "read one-hot",
        "forward fills",
        "hoist invariants",
        "share subexpressions",
        "split at guards",
        "contract",
        "allocate scratch",
        "remove dead stores",
    ]
    assert seen[0][1] is whole
    assert seen[-1][1] is result
    assert result.params == (X, C)
    verify(result)
