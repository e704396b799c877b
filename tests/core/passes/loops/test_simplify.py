"""Simplification of loops, variables and comparisons preserves results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import FixedIndex, LoopVar, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    For,
    IndexValue,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    Remark,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float16, float32, int32, uint8, uint32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.loops.simplify import simplify

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
A, C, S, T = (TensorNode(n, (name,)) for n, name in enumerate("acst"))
NODES = {
    A: NodeInfo(float32, (4,)),
    C: NodeInfo(float32, (4,)),
    S: NodeInfo(float32, ()),
    T: NodeInfo(float32, (4,)),
}
I, J = LoopVar(-1, "i"), LoopVar(-2, "j")  # noqa: E741
STEP = StaticIndex("step", 4)
V, W = Local(0, float32), Local(1, float32)


def load(node: TensorNode, *variables: LoopVar) -> Load:
    return Load(node, tuple(map(VarIndex, variables)), float32)


def binary(op: BinaryOp, left: Expr, right: Expr) -> Binary:
    return Binary(op, left, right, float32)


def const(value: float) -> Const:
    return Const(value, float32)


def loop(
    var: LoopVar, stop: int, *body: Stmt, start: int = 0, kind: AxisKind = AxisKind.SERIAL
) -> For:
    return For(var, start, stop, Block(body), kind)


def store(value: Expr) -> Store:
    return Store(C, (VarIndex(I),), value)


def simplified(*stmts: Stmt) -> list[str]:
    program = LoopProgram("p", (A, C, S), (STEP,), NODES, Block(stmts))
    verify(program)
    simpler = simplify(program)
    verify(simpler)
    assert simplify(simpler) is simpler or to_text(simplify(simpler)) == to_text(simpler)
    return [line.removeprefix("    ") for line in to_text(simpler).splitlines()[1:]]


def test_loops_without_iterations_or_effects_vanish() -> None:
    empty = loop(I, 0, store(const(1.0)))
    idle = loop(I, 4, Remark("nothing happens"), loop(J, 2))
    assert simplified(empty, idle, Fill(S, 1.0)) == ["s[:] = 1.0"]


def test_a_loop_with_one_iteration_is_its_body() -> None:
    value = binary(BinaryOp.ADD, load(A, I), IndexValue(affine([(2, I)], 1), float32))
    assert simplified(loop(I, 3, loop(J, 1, store(value)), start=2)) == ["c[2] = a[2] + 5.0"]


def test_loops_over_threads_stay_even_with_one_iteration() -> None:
    nest = loop(I, 1, loop(J, 1, store(const(1.0)), kind=AxisKind.BLOCK), kind=AxisKind.GRID)
    assert simplified(nest) == snapshot(
        ["for i in grid(1):", "    for j in block(1):", "        c[i] = 1.0"]
    )


def test_allocations_of_a_removed_loop_live_to_the_end_of_the_enclosing_block() -> None:
    body = (Allocate(T, Scope.KERNEL), Fill(T, 0.0), store(load(T, I)))
    assert simplified(loop(I, 1, *body)) == snapshot(
        ["kernel t: float32[4]", "t[:] = 0.0", "c[0] = t[0]"]
    )


def test_blocks_that_introduce_nothing_are_merged() -> None:
    assert simplified(Block((Block((Fill(S, 1.0),)), Fill(C, 2.0)))) == ["s[:] = 1.0", "c[:] = 2.0"]


def test_adding_zero_changes_nothing_where_no_cell_is_negative_zero() -> None:
    cell = Load(A, (VarIndex(I),), float32)
    nest = loop(I, 4, store(binary(BinaryOp.ADD, const(0.0), cell)))
    program = LoopProgram("p", (A, C, S), (STEP,), NODES, Block((nest,)))
    assert "c[i] = a[i]" in to_text(simplify(program, positive=[A]))
    assert "c[i] = 0.0 + a[i]" in to_text(simplify(program, positive=[C]))


def test_an_inlined_value_is_itself() -> None:
    scoped = Scoped(V, Block((Remark("a"), SetLocal(V, Unary(UnaryOp.EXP, load(A, I), float32)))))
    assert simplified(loop(I, 4, store(scoped))) == ["for i in range(4):", "    c[i] = exp(a[i])"]


def test_an_inlined_loop_stays() -> None:
    step = SetLocal(V, binary(BinaryOp.ADD, LocalRead(V), load(A, J)))
    scoped = Scoped(V, Block((SetLocal(V, const(0.0)), loop(J, 4, step))))
    assert simplified(loop(I, 4, store(scoped))) == snapshot(
        [
            "for i in range(4):",
            "    c[i] = v",
            "        where v: float32",
            "            v = 0.0",
            "            for j in range(4):",
            "                v += a[j]",
        ]
    )


def test_a_variable_set_twice_in_a_row_is_set_once() -> None:
    first = SetLocal(V, load(A, I))
    second = SetLocal(V, binary(BinaryOp.ADD, LocalRead(V), const(1.0)))
    scoped = Scoped(V, Block((first, second)))
    assert simplified(loop(I, 4, store(scoped))) == ["for i in range(4):", "    c[i] = a[i] + 1.0"]


def test_work_is_not_repeated_to_save_a_variable() -> None:
    first = SetLocal(V, Unary(UnaryOp.EXP, load(A, I), float32))
    second = SetLocal(V, binary(BinaryOp.MUL, LocalRead(V), LocalRead(V)))
    assert simplified(loop(I, 4, store(Scoped(V, Block((first, second)))))) == snapshot(
        [
            "for i in range(4):",
            "    c[i] = v",
            "        where v: float32",
            "            v = exp(a[i])",
            "            v *= v",
        ]
    )


def test_a_value_does_not_move_into_an_inlined_loop() -> None:
    inner = Scoped(
        W,
        Block(
            (
                SetLocal(W, const(0.0)),
                loop(J, 4, SetLocal(W, binary(BinaryOp.ADD, LocalRead(W), LocalRead(V)))),
            )
        ),
    )
    outer = Scoped(V, Block((SetLocal(V, load(A, I)), SetLocal(V, inner))))
    assert simplified(loop(I, 4, store(outer))) == snapshot(
        [
            "for i in range(4):",
            "    c[i] = v",
            "        where v: float32",
            "            v = a[i]",
            "            v = v1",
            "                where v1: float32",
            "                    v1 = 0.0",
            "                    for j in range(4):",
            "                        v1 += v",
        ]
    )


def test_a_store_of_a_cell_to_itself_vanishes() -> None:
    assert simplified(loop(I, 4, Store(C, (VarIndex(I),), load(C, I))), Fill(S, 0.0)) == [
        "s[:] = 0.0"
    ]


def test_a_variable_that_stands_for_a_constant_vanishes() -> None:
    assert simplified(
        DeclareLocal(V),
        SetLocal(V, const(1.0)),
        SetLocal(V, const(2.0)),
        Store(S, (), LocalRead(V)),
    ) == ["s = 2.0"]


def compare(op: BinaryOp, left: Expr, right: Expr) -> Expr:
    condition = Binary(op, left, right, uint8)
    return Ternary(TernaryOp.WHERE, condition, load(A, I), const(0.0), float32)


def index(dtype: DType = int32, factor: int = 1, offset: int = 0) -> IndexValue:
    return IndexValue(affine([(factor, I)], offset), dtype)


def decided(op: BinaryOp, left: Expr, right: Expr) -> str:
    (_, body) = simplified(loop(I, 4, store(compare(op, left, right))))
    value = body.removeprefix("    c[i] = ")
    return {"a[i]": "true", "0.0": "false"}.get(value, "open")


def test_comparisons_are_decided_by_the_bounds_of_loops() -> None:
    def number(value: int) -> Const:
        return Const(value, int32)

    lt, le, eq, ne = BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE
    assert decided(lt, index(), number(4)) == "true"
    assert decided(lt, index(), number(3)) == "open"
    assert decided(lt, index(), number(0)) == "false"
    assert decided(le, number(0), index()) == "true"
    assert decided(le, index(offset=4), number(3)) == "false"
    assert decided(eq, index(factor=-1), number(1)) == "false"
    assert decided(ne, index(), number(7)) == "true"
    assert decided(eq, index(), number(2)) == "open"
    assert decided(eq, index(factor=2, offset=1), number(2)) == "false"
    assert decided(ne, index(factor=2, offset=1), number(3)) == "open"
    assert decided(lt, index(), IndexValue(affine([(1, STEP)], 4), int32)) == "true"


def test_comparisons_of_values_that_wrap_or_round_are_left_alone() -> None:
    zero = Const(0, uint32)
    assert decided(BinaryOp.LE, zero, index(uint32, offset=-1)) == "open"
    large = index(float16, factor=1, offset=4096)
    assert decided(BinaryOp.EQ, large, Const(5000.0, float16)) == "open"


def test_unused_parameters_are_dropped() -> None:
    program = LoopProgram("p", (A, C, S), (), NODES, Block((Fill(S, 1.0),)))
    assert simplify(program).params == (S,)
    assert simplify(program).nodes == {S: NODES[S]}


@st.composite
def statements(draw: st.DrawFn, variables: tuple[LoopVar, ...] = (), depth: int = 3) -> Stmt:
    def place() -> VarIndex | FixedIndex:
        choices = [VarIndex(v) for v in variables] + [FixedIndex(n) for n in range(2)]
        return draw(st.sampled_from(choices))

    def value(size: int = 2) -> Expr:
        kind = draw(st.integers(0, 5 if size else 2))
        if kind == 0:
            return const(draw(st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0])))
        if kind == 1:
            return Load(draw(st.sampled_from([A, C])), (place(),), float32)
        if kind == 2:
            return IndexValue(place(), float32)
        if kind == 3:
            local = Local(size, float32)
            first = SetLocal(local, value(size - 1))
            second = SetLocal(local, binary(BinaryOp.ADD, LocalRead(local), value(0)))
            return Scoped(local, Block((first, second) if draw(st.booleans()) else (first,)))
        if kind == 4:
            guard = Binary(BinaryOp.LT, IndexValue(place(), int32), Const(1, int32), float32)
            return Ternary(TernaryOp.WHERE, guard, value(size - 1), value(size - 1), float32)
        op = draw(st.sampled_from([BinaryOp.ADD, BinaryOp.MUL, BinaryOp.SUB, BinaryOp.MAX]))
        return binary(op, value(size - 1), value(size - 1))

    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return Store(C, (place(),), value())
    if draw(st.booleans()):
        var = fresh_var()
        start = draw(st.integers(0, 2))
        body = draw(st.lists(statements((*variables, var), depth - 1), max_size=2))
        return loop(var, draw(st.integers(start - 1, 3)), *body, start=start)
    return Block(tuple(draw(st.lists(statements(variables, depth - 1), max_size=3))))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(statements(), max_size=3))
def test_a_simplified_program_computes_the_same_bits(interpret: Run, stmts: list[Stmt]) -> None:
    nodes = {A: NODES[A], C: NODES[C]}
    program = LoopProgram("p", (A, C), (), nodes, Block(tuple(stmts)))
    verify(program)
    simpler = simplify(program)
    verify(simpler)
    arrays = {A: [1.5, -0.0, np.nan, -np.inf], C: [-2.0, 0.0, 3.0, -0.0]}
    expected = interpret(program, arrays)[C]
    found = interpret(simpler, arrays).get(C, np.array(arrays[C], np.float32))
    same = (expected.view(np.uint32) == found.view(np.uint32)) | (
        np.isnan(expected) & np.isnan(found)
    )
    assert same.all()
