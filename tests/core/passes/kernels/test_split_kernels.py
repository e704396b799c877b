"""Cutting a routine into kernels."""

from __future__ import annotations

from typing import Any

import pytest

from ocannl_core.base.errors import VerifyError
from ocannl_core.ir.indexing import FixedIndex, StaticIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, Plan
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Barrier,
    Binary,
    Block,
    CallExternal,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopProgram,
    Remark,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    Verbatim,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.split_kernels import split_kernels

A, B, C, T = (TensorNode(n, (name,)) for n, name in enumerate("abct"))
NODES = {node: NodeInfo(float32, (4,)) for node in (A, B, C, T)}
I = fresh_var("i")  # noqa: E741
STEP, LATER = StaticIndex("step", 4), StaticIndex("later", 4)
V = Local(0, float32)
ONE = Const(1.0, float32)


class _Sort:
    name = "sort"

    def perform(self, inputs: Any, outputs: Any) -> None:
        return


def planned(*stmts: Stmt) -> Plan:
    return split_kernels(LoopProgram("p", (A, B, C, T), (LATER, STEP), NODES, Block(stmts)))


def nests(*stmts: Stmt) -> list[Kernel]:
    steps = planned(*stmts).steps
    assert all(isinstance(step, Kernel) for step in steps)
    return [step for step in steps if isinstance(step, Kernel)]


def load(node: TensorNode) -> Load:
    return Load(node, (VarIndex(I),), float32)


def copy(target: TensorNode, value: Expr) -> For:
    return For(I, 0, 4, Block((Store(target, (VarIndex(I),), value),)))


def cell(node: TensorNode, value: Expr = ONE, at: int = 0) -> Store:
    return Store(node, (FixedIndex(at),), value)


def test_every_top_level_nest_and_fill_is_a_kernel() -> None:
    first, second, third = Fill(C, 0.0), copy(C, load(A)), copy(B, load(C))
    found = nests(first, second, third)
    assert [nest.body for nest in found] == [Block((s,)) for s in (first, second, third)]


def test_arguments_and_indices_come_in_order_of_first_use() -> None:
    value = Binary(BinaryOp.ADD, load(B), LoadMerge(A, (VarIndex(STEP),), float32), float32)
    (nest,) = nests(copy(C, Binary(BinaryOp.MUL, value, load(B), float32)))
    assert nest.arguments == (B, A, C)
    assert nest.indices == (STEP,)


def test_the_plan_keeps_the_routines_parameters_and_indices() -> None:
    plan = planned(copy(C, load(A)))
    assert plan.params == (A, B, C, T)
    assert plan.indices == (LATER, STEP)
    assert plan.nodes == NODES
    assert plan.name == "p"


def test_memory_of_the_routine_becomes_scratch() -> None:
    body = Block((Allocate(T, Scope.ROUTINE), Fill(T, 0.0), copy(C, load(T))))
    plan = split_kernels(LoopProgram("p", (C,), (), NODES, body))
    assert plan.scratch == (T,)
    assert [step.arguments for step in plan.steps if isinstance(step, Kernel)] == [(T,), (T, C)]


def test_memory_of_a_kernel_stays_with_its_uses() -> None:
    stmts = (Allocate(T, Scope.KERNEL), Fill(T, 0.0), copy(C, load(T)))
    found = nests(*stmts, Fill(A, 0.0))
    assert [nest.body for nest in found] == [Block(stmts), Block((Fill(A, 0.0),))]
    assert found[0].arguments == (C,)


def test_memory_that_neighboring_blocks_allocate_is_allocated_once() -> None:
    uses = Fill(T, 0.0), copy(C, load(T))
    block = Block((Allocate(T, Scope.KERNEL), *uses))
    (found,) = nests(block, block)
    assert found.body == Block((Allocate(T, Scope.KERNEL), *uses, *uses))


def test_a_variable_stays_with_its_uses() -> None:
    declared = (DeclareLocal(V), SetLocal(V, ONE), copy(A, load(B)), copy(C, LocalRead(V)))
    found = nests(*declared, copy(B, ONE))
    assert [len(nest.body.stmts) for nest in found] == [4, 1]


def test_neighboring_statements_without_loops_share_a_kernel() -> None:
    found = nests(cell(A), Remark("then"), cell(B), copy(C, ONE), cell(A, at=1), cell(B, at=1))
    assert [len(nest.body.stmts) for nest in found] == [2, 1, 2]
    assert found[0].title == "then (writes a, b)"


def test_a_statement_with_an_inlined_loop_is_a_kernel_of_its_own() -> None:
    summing = For(I, 0, 4, Block((SetLocal(V, load(B)),)))
    inlined = cell(A, Scoped(V, Block((SetLocal(V, ONE), summing))))
    assert len(nests(cell(C), inlined, cell(C, at=1))) == 3


def test_external_calls_stand_between_kernels() -> None:
    call = CallExternal(_Sort(), (A,), (C,))
    steps = planned(cell(A), Remark("sort a"), call, cell(C)).steps
    assert [type(step) for step in steps] == [Kernel, HostCall, Kernel]
    assert steps[1] == HostCall(call, "sort a (writes c)")


def test_staged_code_is_a_kernel() -> None:
    verbatim = Verbatim("c", "c[0] = 1;", Block((cell(C),)))
    (nest,) = nests(verbatim)
    assert nest.body == Block((verbatim,))


def test_titles_contain_remarks_and_written_nodes() -> None:
    found = nests(Remark("forward"), Remark("c = a"), copy(C, load(A)), copy(B, load(C)))
    assert [nest.title for nest in found] == ["forward; c = a (writes c)", "writes b"]


def test_blocks_are_looked_into_and_barriers_between_kernels_are_dropped() -> None:
    found = nests(Block((Fill(A, 0.0), Block((Fill(B, 0.0),)))), Barrier(), Fill(C, 0.0))
    assert [nest.arguments for nest in found] == [(A,), (B,), (C,)]


def test_a_variable_used_across_an_external_call_is_a_defect() -> None:
    call = CallExternal(_Sort(), (A,), (C,))
    with pytest.raises(VerifyError, match="across an external call"):
        planned(DeclareLocal(V), SetLocal(V, ONE), call, copy(B, LocalRead(V)))


def test_long_runs_of_statements_without_loops_are_several_kernels() -> None:
    one = Store(A, (FixedIndex(0),), ONE)
    found = nests(*[one] * 300)
    assert [len(nest.body.stmts) for nest in found] == [128, 128, 44]
    declared = (
        DeclareLocal(V),
        *[SetLocal(V, ONE)] * 200,
        Store(A, (FixedIndex(1),), LocalRead(V)),
    )
    assert [len(nest.body.stmts) for nest in nests(one, *declared, one)] == [1, 202, 1]
