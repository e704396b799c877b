"""Which loops may run on several threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.dtypes import float32, uint4x32
from ocannl_core.indexing import AxisIndex, FixedIndex, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.loopir.nodes import (
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
    Scope,
    Staged,
    Stmt,
    Store,
    StoreVector,
)
from ocannl_core.loopir.traverse import substitute_in_stmt
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp
from ocannl_core.schedule.parallel import LEAST_WORK, is_independent, mark_parallel, work_of
from ocannl_core.schedule.plan import Nest, Plan
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import loop_programs

Run = Callable[..., dict[TensorNode, Any]]

A, B, C, T = (TensorNode(number, (name,)) for number, name in enumerate("abct"))
NODES = {node: NodeInfo(float32, (64, 64)) for node in (A, B, C, T)}
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741
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
    "neighbours in the same block": lambda: outer(
        Store(A, (times(2), FixedIndex(0)), load(A, times(2, offset=1), FixedIndex(0)))
    ),
    "a static index beside": lambda: outer(Store(A, (affine([(1, I), (1, STEP)]), j), ONE)),
    "memory of the iteration": lambda: outer(
        Allocate(T, Scope.KERNEL), Fill(T, 0.0), Store(A, (i, i), load(T, j, j))
    ),
    "wide stores": lambda: outer(
        StoreVector(A, (FixedIndex(0), times(4)), 4, ConstBits(1, uint4x32))
    ),
    "a look-up in another node": lambda: outer(
        Store(A, (i, i), Gather(B, (FixedIndex(0), i), 0, load(C, i, i), float32))
    ),
}
DEPENDENT: dict[str, Callable[[], For]] = {
    "one cell for all": lambda: outer(Store(A, (FixedIndex(0), FixedIndex(0)), ONE)),
    "a sum over iterations": lambda: outer(inner(Store(A, (j, j), add(load(A, j, j), ONE)))),
    "the cell before": lambda: outer(
        Store(A, (affine([(1, I)], 1), FixedIndex(0)), load(A, i, FixedIndex(0))),
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
    "a transposed read": lambda: outer(inner(Store(A, (i, j), load(A, j, i)))),
    "a fill": lambda: outer(Fill(A, 0.0)),
    "wide stores that overlap": lambda: outer(
        StoreVector(A, (FixedIndex(0), times(3)), 4, ConstBits(1, uint4x32))
    ),
    "a look-up in what is written": lambda: outer(
        Store(A, (i, FixedIndex(0)), Gather(A, (FixedIndex(0), i), 0, ONE, float32))
    ),
    "code of a backend": lambda: outer(Staged("c", "", Block((Store(A, (i, i), ONE),)))),
    "a single iteration": lambda: outer(Store(A, (i, i), ONE), extent=1),
    "iterations of a device": lambda: outer(
        For(J, 0, 8, Block((Store(A, (i, j), ONE),)), AxisKind.BLOCK)
    ),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_iterations_that_touch_cells_of_their_own_are_independent(name: str) -> None:
    assert is_independent(INDEPENDENT[name](), NODES)


@pytest.mark.parametrize("name", DEPENDENT)
def test_iterations_that_may_meet_are_not_independent(name: str) -> None:
    assert not is_independent(DEPENDENT[name](), NODES)


def marked(*stmts: Stmt) -> tuple[Stmt, ...]:
    nest = Nest(Block(stmts), (A, B), ())
    (step,) = mark_parallel(Plan("p", (nest,), (A, B), (), (), NODES)).steps
    assert isinstance(step, Nest)
    return step.body.stmts


def large() -> For:
    return outer(inner(Store(A, (i, j), load(B, i, j)), extent=LEAST_WORK))


def test_a_large_independent_loop_is_marked() -> None:
    (loop,) = marked(large())
    assert isinstance(loop, For)
    assert loop.kind is AxisKind.PARALLEL


def test_small_dependent_and_accompanied_loops_stay_as_they_are() -> None:
    small = outer(inner(Store(A, (i, j), ONE)))
    dependent = outer(inner(Store(A, (FixedIndex(0), j), load(B, i, j)), extent=LEAST_WORK))
    for stmts in ((small,), (dependent,), (large(), large())):
        assert marked(*stmts) == stmts


def test_work_counts_every_iteration() -> None:
    once = work_of(Store(A, (i, j), load(B, i, j)))
    assert work_of(outer(inner(Store(A, (i, j), load(B, i, j)), extent=5))) == 40 * once


def backwards(stmt: Stmt, nodes: Mapping[TensorNode, NodeInfo]) -> Stmt:
    """Returns a top-level loop with its iterations in the opposite order, if they are independent."""
    if not isinstance(stmt, For) or not is_independent(stmt, nodes):
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
        body = Block(tuple(backwards(stmt, program.nodes) for stmt in program.body.stmts))
        reversed_loops += body != program.body
        before = interpret(program, example.arrays, example.indices)
        after = interpret(replace(program, body=body), example.arrays, example.indices)
        for node, cells in before.items():
            assert after[node].tobytes() == cells.tobytes()

    check()
    assert reversed_loops > 10
