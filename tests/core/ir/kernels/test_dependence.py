"""Dependences between iterations and between statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    LoopVar,
    StaticIndex,
    VarIndex,
    affine,
    fresh_var,
)
from ocannl_core.ir.kernels.dependence import (
    access_set,
    are_independent,
    iterations_are_independent,
)
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    Const,
    ConstBits,
    Expr,
    Fill,
    For,
    Gather,
    Load,
    Local,
    LocalRead,
    Scope,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    Verbatim,
)
from ocannl_core.ir.loops.traverse import substitute_in_stmt
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.testing.programs import Example
from tests.support.loop_programs import loop_programs

Run = Callable[..., dict[TensorNode, Any]]

A, B, C, T = (TensorNode(number, (name,)) for number, name in enumerate("abct"))
I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741
SHARED = Local(0, float32)
STEP = StaticIndex("step", 4)
ONE = Const(1.0, float32)


def times(factor: int, var: object = I, offset: int = 0) -> AxisIndex:
    return affine([(factor, var)], offset)  # type: ignore[list-item]


def load(node: TensorNode, *places: AxisIndex) -> Expr:
    return Load(node, places, float32)


def add(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.ADD, left, right, float32)


def outer(*stmts: Stmt, extent: int = 8) -> For:
    return For(I, 0, extent, Block(stmts))


def inner(*stmts: Stmt, extent: int = 8) -> For:
    return For(J, 0, extent, Block(stmts))


i, j = VarIndex(I), VarIndex(J)
INDEPENDENT: dict[str, Callable[[], For]] = {
    "rows of its own": lambda: outer(inner(Store(A, (i, j), load(B, j, i)))),
    "a reduction into its own cell": lambda: outer(
        inner(Store(A, (i, i), add(load(A, i, i), load(B, i, j))))
    ),
    "columns of its own": lambda: outer(inner(Store(A, (j, i), ONE))),
    "blocks of its own": lambda: outer(
        inner(Store(A, (affine([(8, I), (1, J)]), FixedIndex(0)), ONE))
    ),
    "backwards": lambda: outer(Store(A, (affine([(-1, I)], 63), j), ONE)),
    "neighbors in the same block": lambda: outer(
        Store(A, (times(2), FixedIndex(0)), load(A, times(2, offset=1), FixedIndex(0)))
    ),
    "a static index beside": lambda: outer(Store(A, (affine([(1, I), (1, STEP)]), j), ONE)),
    "memory of the iteration": lambda: outer(
        Allocate(T, Scope.KERNEL), Fill(T, 0.0), Store(A, (i, i), load(T, j, j))
    ),
    "wide stores": lambda: outer(
        StoreVector(A, (FixedIndex(0), times(4)), 4, ConstBits(1, uint4x32))
    ),
    "a number that is the same for all": lambda: outer(
        inner(Store(A, (affine([(1, I), (1, K)]), affine([(1, J), (1, K)])), ONE))
    ),
    "a look-up in another node": lambda: outer(
        Store(A, (i, i), Gather(B, (FixedIndex(0), i), 0, load(C, i, i), float32))
    ),
}
DEPENDENT: dict[str, Callable[[], For]] = {
    "one cell for all": lambda: outer(Store(A, (FixedIndex(0), FixedIndex(0)), ONE)),
    "a sum over iterations": lambda: outer(inner(Store(A, (j, j), add(load(A, j, j), ONE)))),
    "the cell before": lambda: outer(
        Store(A, (affine([(1, I)], 1), FixedIndex(0)), load(A, i, FixedIndex(0)))
    ),
    "blocks that overlap": lambda: outer(
        inner(Store(A, (affine([(7, I), (1, J)]), FixedIndex(0)), ONE))
    ),
    "different steps": lambda: outer(
        Store(A, (times(2), FixedIndex(0)), load(A, times(3), FixedIndex(0)))
    ),
    "a static index in one of two": lambda: outer(
        Store(A, (affine([(1, I), (1, STEP)]), FixedIndex(0)), load(A, i, FixedIndex(0)))
    ),
    "a number that is the same for all, in one of two": lambda: outer(
        Store(A, (affine([(1, I), (1, K)]), FixedIndex(0)), load(A, i, FixedIndex(0)))
    ),
    "a variable that all share": lambda: outer(
        SetLocal(SHARED, load(B, i, i)), Store(A, (i, i), LocalRead(SHARED))
    ),
    "a transposed read": lambda: outer(inner(Store(A, (i, j), load(A, j, i)))),
    "a fill": lambda: outer(Fill(A, 0.0)),
    "wide stores that overlap": lambda: outer(
        StoreVector(A, (FixedIndex(0), times(3)), 4, ConstBits(1, uint4x32))
    ),
    "a look-up in what is written": lambda: outer(
        Store(A, (i, FixedIndex(0)), Gather(A, (FixedIndex(0), i), 0, ONE, float32))
    ),
    "code of a backend": lambda: outer(Verbatim("c", "", Block((Store(A, (i, i), ONE),)))),
    "a single iteration": lambda: outer(Store(A, (i, i), ONE), extent=1),
    "iterations of a device": lambda: outer(
        For(J, 0, 8, Block((Store(A, (i, j), ONE),)), AxisKind.BLOCK)
    ),
}


def has_independent_iterations(loop: For) -> bool:
    return iterations_are_independent(loop, access_set(loop))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_iterations_that_touch_cells_of_their_own_are_independent(name: str) -> None:
    assert has_independent_iterations(INDEPENDENT[name]())


@pytest.mark.parametrize("name", DEPENDENT)
def test_iterations_that_may_meet_are_not_independent(name: str) -> None:
    assert not has_independent_iterations(DEPENDENT[name]())


def at(*places: AxisIndex) -> Stmt:
    return Store(A, places, ONE)


def up_to(extent: int, var: LoopVar, *stmts: Stmt, start: int = 0) -> For:
    return For(var, start, extent, Block(stmts))


APART: dict[str, Callable[[], tuple[Stmt, Stmt]]] = {
    "different nodes": lambda: (at(FixedIndex(0)), Store(B, (FixedIndex(0),), ONE)),
    "readers": lambda: (Store(B, (i,), load(A, i)), Store(C, (i,), load(A, i))),
    "blocks and what is left over": lambda: (
        up_to(3, I, up_to(4, J, at(affine([(4, I), (1, J)])))),
        up_to(2, J, at(affine([(1, J)], 12))),
    ),
    "ranges of one variable": lambda: (up_to(4, I, at(i)), up_to(8, I, at(i), start=4)),
    "columns of one row": lambda: (
        up_to(4, J, at(VarIndex(K), j)),
        up_to(4, J, at(VarIndex(K), affine([(1, J)], 4))),
    ),
    "memory of their own": lambda: (
        Block((Allocate(T, Scope.KERNEL), Fill(T, 0.0))),
        Block((Allocate(T, Scope.KERNEL), Fill(T, 1.0))),
    ),
}
TOGETHER: dict[str, Callable[[], tuple[Stmt, Stmt]]] = {
    "one cell": lambda: (at(FixedIndex(0)), at(FixedIndex(0))),
    "a reader of what is written": lambda: (at(FixedIndex(0)), Store(B, (i,), load(A, i))),
    "ranges that overlap": lambda: (up_to(5, I, at(i)), up_to(8, I, at(i), start=4)),
    "rows that differ by a number that is not known": lambda: (
        at(VarIndex(K), FixedIndex(0)),
        at(FixedIndex(1), FixedIndex(0)),
    ),
    "a fill": lambda: (Fill(A, 0.0), up_to(4, I, at(i))),
    "a look-up": lambda: (
        up_to(4, I, at(i)),
        Store(B, (FixedIndex(9),), Gather(A, (FixedIndex(0),), 0, ONE, float32)),
    ),
}


def are_told_apart(first: Stmt, second: Stmt) -> bool:
    a, b = access_set(first), access_set(second)
    assert a is not None
    assert b is not None
    assert are_independent(a, b) == are_independent(b, a)
    return are_independent(a, b)


@pytest.mark.parametrize("name", APART)
def test_statements_that_touch_cells_of_their_own_are_apart(name: str) -> None:
    assert are_told_apart(*APART[name]())


@pytest.mark.parametrize("name", TOGETHER)
def test_statements_that_may_meet_are_not_apart(name: str) -> None:
    assert not are_told_apart(*TOGETHER[name]())


def backwards(stmt: Stmt) -> Stmt:
    """Return a top-level loop with its iterations in the opposite order, if they are independent."""
    if not isinstance(stmt, For) or not has_independent_iterations(stmt):
        return stmt
    mirrored = affine([(-1, stmt.var)], stmt.start + stmt.stop - 1)
    return replace(stmt, body=substitute_in_stmt(stmt.body, {stmt.var: mirrored}))


def test_independent_iterations_give_the_same_bits_in_the_opposite_order(interpret: Run) -> None:
    reversed_loops = 0

    @settings(
        max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(loop_programs())
    def check(example: Example) -> None:
        nonlocal reversed_loops
        program = example.program
        body = Block(tuple(backwards(stmt) for stmt in program.body.stmts))
        reversed_loops += body != program.body
        before = interpret(program, example.arrays, example.indices)
        after = interpret(replace(program, body=body), example.arrays, example.indices)
        for node, cells in before.items():
            assert after[node].tobytes() == cells.tobytes()

    check()
    assert reversed_loops > 10
