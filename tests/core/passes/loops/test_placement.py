"""Nodes in memory of the routine, and reasons against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ocannl_core.base import settings
from ocannl_core.ir.indexing import FixedIndex, LoopVar, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
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
    Stmt,
    Store,
    StoreVector,
    Unary,
    Verbatim,
)
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import Margin, MemoryMode, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.loops.accesses import analyze_accesses
from ocannl_core.passes.loops.decisions import Decisions, allocate_scratch
from ocannl_core.passes.loops.pipeline import core_passes, run_passes
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


def with_scratch(
    whole: LoopProgram, stored: Mapping[TensorNode, Placement] = STORED
) -> LoopProgram:
    facts = analyze_accesses(whole).nodes.items()
    assigned = {node for node, found in facts if found.is_definitely_assigned}
    return allocate_scratch(whole, stored, assigned)


def is_scratch(node: TensorNode, *stmts: Stmt) -> bool:
    allocated = with_scratch(program(*stmts))
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
    "stored in two halves": (loop(I, 0, 2, store(T)), loop(I, 2, 4, store(T)), READ),
    "stored in reverse": (each(Store(T, (affine([(-1, I)], 3),), ONE)), READ),
    "stored in pairs": (
        loop(I, 0, 2, loop(J, 0, 2, Store(T, (affine([(2, I), (1, J)]),), ONE))),
        READ,
    ),
    "written as a vector": (StoreVector(T, (FixedIndex(0),), 4, Load(W, (), uint4x32)), READ),
    "written by an external call": (CallExternal(CopyCall(), (X,), (T,)), READ),
    "written by verbatim code": (Verbatim("c", "", Block((each(store(T)),))), READ),
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
    assert T in with_scratch(whole).params


def test_a_node_that_the_context_stores_stays_a_parameter() -> None:
    kept = {**STORED, T: Placement(MemoryMode.MATERIALIZED, Reason.KEPT)}
    whole = program(Fill(T, 0.0), READ)
    assert with_scratch(whole, kept) is whole


def test_margins_count_as_cells() -> None:
    read = Store(C, (FixedIndex(0),), Load(P, (FixedIndex(1), FixedIndex(5)), float32))

    def box(rows: tuple[int, int], columns: tuple[int, int]) -> For:
        inner = Store(P, (VarIndex(I), VarIndex(J)), ONE)
        return loop(I, *rows, loop(J, *columns, inner))

    interior, top, right = box((1, 3), (0, 4)), box((0, 1), (0, 6)), box((1, 3), (4, 6))
    assert is_scratch(P, interior, top, right, read)
    assert not is_scratch(P, interior, top, read)


def test_memory_is_allocated_at_the_start_in_the_order_of_parameters() -> None:
    allocated = with_scratch(program(Fill(P, 0.0), Fill(T, 0.0)))
    assert allocated.body.stmts[:2] == (Allocate(T, Scope.ROUTINE), Allocate(P, Scope.ROUTINE))
    assert allocated.params == (X, C, W)


def test_memory_of_the_routine_starts_with_rubbish_that_no_result_sees(interpret: Run) -> None:
    double = Binary(BinaryOp.MUL, load(T), Const(2.0, float32), float32)
    whole = program(each(store(T, load(X))), each(store(C, double)))
    allocated = with_scratch(whole)
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


Seen = list[tuple[TensorNode, tuple[MemoryMode, ...]]]


def placed(
    whole: LoopProgram, chosen: Mapping[TensorNode, MemoryMode], **options: Any
) -> tuple[LoopProgram, Mapping[TensorNode, Placement], Seen]:
    """Return a program after all passes, its placements, and the choices that a backend had."""
    seen: Seen = []

    def choose(node: TensorNode, info: NodeInfo, modes: tuple[MemoryMode, ...]) -> Placement | None:
        seen.append((node, modes))
        mode = chosen.get(node)
        return None if mode is None else Placement(mode, Reason.BACKEND_CHOICE, "it says so")

    decisions = Decisions({X: STORED[X], C: STORED[C]}, choose, **options)
    result = run_passes(whole, core_passes(decisions))
    return result, decisions.placements(whole.nodes, result), seen


TWICE = Binary(BinaryOp.MUL, load(T), MIRRORED, float32)
EXP = Unary(UnaryOp.EXP, load(X), float32)
OFTEN = program(each(store(T, EXP)), each(store(C, TWICE)))
"""A program that reads each cell of T twice, which the core does not inline."""
ONCE = program(each(store(T, EXP)), each(store(C, load(T))))
"""A program that reads each cell of T once, which the core inlines."""
_V, _L, _D = MemoryMode.VIRTUAL, MemoryMode.LOCAL, MemoryMode.ON_DEVICE


@pytest.mark.parametrize(("whole", "modes"), [(OFTEN, (_L, _D, _V)), (ONCE, (_V, _L, _D))])
@pytest.mark.parametrize("mode", [_V, _L, _D])
def test_the_backend_chooses_the_mode_of_nodes_that_are_open(
    whole: LoopProgram, modes: tuple[MemoryMode, ...], mode: MemoryMode, interpret: Run
) -> None:
    result, placements, seen = placed(whole, {T: mode})
    assert seen == [(T, modes)]
    assert placements[T] == Placement(mode, Reason.BACKEND_CHOICE, "it says so")
    assert str(placements[T]).endswith("because the backend chose this place: it says so (206)")
    assert (T in result.params) is (mode is _D)
    assert (T in result.nodes) is (mode is not _V)
    cells = {X: [1.0, 2.0, 3.0, 4.0]}
    assert interpret(result, cells)[C].tolist() == interpret(whole, cells)[C].tolist()


def test_the_backend_may_store_a_node_that_nothing_reads() -> None:
    unused = program(each(store(T, EXP)), each(store(C, load(X))))
    result, placements, seen = placed(unused, {T: _D})
    assert seen == [(T, (_V, _D))]
    assert T in result.params
    assert placements[T].mode is _D
    assert placed(unused, {})[1][T] == Placement(_V, Reason.NEVER_READ)


def test_the_backend_is_not_consulted_about_nodes_that_are_decided() -> None:
    assert placed(OFTEN, {}, requested=frozenset({T}))[2] == []
    with settings.overrides(enable_device_only=False):
        assert placed(ONCE, {})[2] == [(T, (_V, _D))]
    assert placed(ONCE, {}, outlives=False)[2] == [(T, (_V, _L))]


def test_a_veto_against_one_node_leaves_the_others_inlined() -> None:
    other = TensorNode(5, ("other",))
    body = each(store(T, EXP)), each(store(other, load(T))), each(store(C, load(other)))
    nodes = {**NODES, other: NODES[T]}
    whole = LoopProgram("p", tuple(nodes), (), nodes, Block(body))
    result, placements, _ = placed(whole, {T: _L})
    assert (placements[T].mode, placements[other].mode) == (_L, _V)
    assert T in result.nodes
    assert other not in result.nodes


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
        "split at guards",
        "hoist invariants",
        "share subexpressions",
        "contract",
        "allocate scratch",
        "remove dead stores",
    ]
    assert seen[0][1] is whole
    assert seen[-1][1] is result
    assert result.params == (X, C)
    verify(result)
