"""Kernels as phases whose iterations run in parallel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import AxisIndex, FixedIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import substitute_in_stmt
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.parallel_loops import parallel_iterations
from ocannl_core.passes.kernels.parallelize import parallelize_step, top_pieces
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.programs import Example
from tests.support.loop_programs import loop_programs
from tests.support.reductions import random_reductions
from tests.support.verify_plans import verify

Interpret = Callable[..., dict[TensorNode, Any]]

A, B, C, T = (TensorNode(number, (name,)) for number, name in enumerate("abct"))
SIDE = 512
NODES = {node: NodeInfo(float32, (SIDE, SIDE)) for node in (A, B, C, T)}
ZERO = FixedIndex(0)
PROCESSOR = Target("wide", vector_bytes=64, vector_registers=32, has_fma=True)


def load(node: TensorNode, *places: AxisIndex) -> Load:
    return Load(node, places, float32)


def squares(target: TensorNode, source: TensorNode, rows: int = SIDE, start: int = 0) -> For:
    """Return `target[i, j] = source[i, j] * source[i, j]`."""
    i, j = fresh_var("i"), fresh_var("j")
    cell = VarIndex(i), VarIndex(j)
    value = Binary(BinaryOp.MUL, load(source, *cell), load(source, *cell), float32)
    inner = For(j, 0, SIDE, Block((Store(target, cell, value),)))
    return For(i, start, rows, Block((inner,)))


def sums(target: TensorNode, source: TensorNode) -> For:
    """Return `target[0, j] += source[i, j]`, whose rows depend on each other."""
    i, j = fresh_var("i"), fresh_var("j")
    cell = ZERO, VarIndex(j)
    total = Binary(
        BinaryOp.ADD, load(target, *cell), load(source, VarIndex(i), VarIndex(j)), float32
    )
    return For(i, 0, SIDE, Block((For(j, 0, SIDE, Block((Store(target, cell, total),))),)))


def cut(*stmts: Stmt, title: str = "") -> tuple[Plan, tuple[Kernel, ...]]:
    nest = Kernel(Block(stmts), (A, B, C), (), title)
    plan = map_steps(Plan("p", (nest,), (A, B, C), (), (), NODES), parallelize_step)
    return plan, tuple(step for step in plan.steps if isinstance(step, Kernel))


def test_a_large_independent_loop_is_parallel() -> None:
    _, (nest,) = cut(squares(A, B))
    assert nest.is_parallel
    assert [stmt.kind for stmt in nest.body.stmts if isinstance(stmt, For)] == [AxisKind.PARALLEL]


def test_small_and_dependent_loops_stay_as_they_are() -> None:
    for loop in (squares(A, B, rows=8), sums(A, B)):
        _, (nest,) = cut(loop)
        assert not nest.is_parallel
        assert nest.body == Block((loop,))


V, W = Local(0, float32), Local(1, float32)


def scalar(local: Local, value: Expr) -> tuple[Stmt, Stmt]:
    """Return the declaration of a scalar with a value."""
    return DeclareLocal(local), SetLocal(local, value)


def scaled(target: TensorNode, source: TensorNode, local: Local) -> For:
    """Return `target[i, j] = source[i, j] * local`."""
    i, j = fresh_var("i"), fresh_var("j")
    cell = VarIndex(i), VarIndex(j)
    value = Binary(BinaryOp.MUL, load(source, *cell), LocalRead(local), float32)
    inner = For(j, 0, SIDE, Block((Store(target, cell, value),)))
    return For(i, 0, SIDE, Block((inner,)))


def test_each_thread_computes_the_scalars_in_front_of_its_loops() -> None:
    front = scalar(V, load(B, ZERO, ZERO))
    _, (nest,) = cut(*front, scaled(A, B, V))
    assert nest.is_parallel
    assert nest.body.stmts[:2] == front
    found = parallel_iterations(nest, NODES)
    assert found is not None
    assert [run.count for run in found.outer] == [SIDE]


def test_each_phase_has_the_scalars_that_it_reads_and_those_behind_them() -> None:
    double = Binary(BinaryOp.ADD, LocalRead(V), LocalRead(V), float32)
    first, second = scalar(V, load(B, ZERO, ZERO)), scalar(W, double)
    plan, (one, other) = cut(*first, *second, scaled(A, B, V), scaled(C, A, W))
    assert one.is_parallel
    assert other.is_parallel
    assert one.body.stmts[:-1] == first
    assert other.body.stmts[:-1] == (*first, *second)
    verify(plan)


def test_scalars_that_threads_would_compute_differently_keep_a_kernel_on_one() -> None:
    total = For(fresh_var("k"), 0, SIDE, Block((SetLocal(W, LocalRead(W)),)))
    long = Scoped(W, Block((SetLocal(W, load(B, ZERO, ZERO)), total)))
    changing = For(fresh_var("i"), 0, SIDE, Block((SetLocal(V, load(B, ZERO, ZERO)),)))
    for stmts in (
        (*scalar(V, load(A, ZERO, ZERO)), scaled(A, B, V)),  # of a cell that the loops write
        (*scalar(V, load(B, ZERO, ZERO)), scaled(A, B, V), changing),  # set in a loop
        (*scalar(V, long), scaled(A, B, V)),  # as long as a loop
    ):
        _, (nest,) = cut(*stmts)
        assert not nest.is_parallel
        assert nest.body == Block(stmts)


def test_loops_that_touch_different_cells_are_one_phase() -> None:
    _, (nest,) = cut(squares(A, B, rows=500), squares(C, B), squares(A, B, start=500))
    assert nest.is_parallel
    found = parallel_iterations(nest, NODES)
    assert found is not None
    assert [run.count for run in found.outer] == [500, 512, 12]
    assert len({run.work for run in found.outer}) == 1


def test_a_loop_that_reads_written_cells_waits() -> None:
    _, (first, second) = cut(squares(B, A), squares(C, B))
    assert (first.arguments, second.arguments) == ((A, B), (B, C))
    assert first.is_parallel
    assert second.is_parallel


def test_dependent_loops_run_beside_others_in_one_iteration() -> None:
    _, (nest,) = cut(squares(B, A), sums(C, A))
    found = parallel_iterations(nest, NODES)
    assert found is not None
    assert [run.count for run in found.outer] == [512, 1]


def test_buffers_between_phases_are_memory_of_the_routine() -> None:
    plan, (first, second) = cut(
        Allocate(T, Scope.KERNEL), squares(T, A), squares(C, T), title="c = a"
    )
    assert plan.scratch == (T,)
    assert (first.title, first.arguments) == ("copies for c = a", (A, T))
    assert (second.title, second.arguments) == ("c = a", (T, C))


def test_long_vectors_are_shared() -> None:
    vectors = {node: NodeInfo(float32, (1 << 20,)) for node in (A, B)}
    i = fresh_var("i")
    value = Binary(BinaryOp.ADD, load(B, VarIndex(i)), load(B, VarIndex(i)), float32)
    loop = For(i, 0, 1 << 20, Block((Store(A, (VarIndex(i),), value),)))
    steps = parallelize_step(Kernel(Block((loop,)), (A, B), ()), vectors).steps
    found = parallel_iterations(steps[0], vectors)  # type: ignore[arg-type]
    assert found is not None
    assert found.work > 1 << 18


def test_a_fill_is_a_loop_of_which_threads_take_parts() -> None:
    _, (nest,) = cut(Fill(A, 1.5))
    assert nest.is_parallel
    program = LoopProgram("fill", (A,), (), NODES, nest.body)
    assert to_text(program).splitlines()[-4:] == snapshot(
        [
            "routine fill(a: float32[512, 512]):",
            "    for fill in parallel(512):",
            "        for fill1 in range(512):",
            "            a[fill, fill1] = 1.5",
        ]
    )


def test_loops_inside_are_marked_where_there_are_few_iterations() -> None:
    i, j, k = (fresh_var(name) for name in "ijk")
    cell = affine([(128, i), (1, j)]), VarIndex(k)
    row = For(k, 0, SIDE, Block((Store(A, cell, load(B, *cell)),)))
    blocks = For(i, 0, 4, Block((For(j, 0, 128, Block((row,))),)))
    _, (nest,) = cut(blocks)
    found = parallel_iterations(nest, NODES)
    assert found is not None
    assert [run.count for run in found.outer] == [4]
    assert [run.count for run in found.inner] == [128]
    assert found.repeated == 0


def test_statements_before_the_inner_loops_are_repeated() -> None:
    i, j, k, m = (fresh_var(name) for name in "ijkm")
    copy = For(
        m, 0, SIDE, Block((Store(T, (ZERO, VarIndex(m)), load(B, VarIndex(i), VarIndex(m))),))
    )
    cell = affine([(128, i), (1, j)]), VarIndex(k)
    row = For(k, 0, SIDE, Block((Store(A, cell, load(T, ZERO, VarIndex(k))),)))
    rows = For(j, 0, 128, Block((row,)))
    _, (nest,) = cut(For(i, 0, 4, Block((Allocate(T, Scope.KERNEL), copy, rows))))
    found = parallel_iterations(nest, NODES)
    assert found is not None
    assert [run.count for run in found.inner] == [128]
    assert 0 < found.repeated < found.work // 100


def test_accumulators_are_not_repeated() -> None:
    i, j, k = (fresh_var(name) for name in "ijk")
    step = Binary(BinaryOp.ADD, load(T, ZERO, ZERO), load(B, VarIndex(i), VarIndex(j)), float32)
    total = For(j, 0, SIDE, Block((Store(T, (ZERO, ZERO), step),)))
    cell = VarIndex(i), VarIndex(k)
    copies = For(k, 0, SIDE, Block((Store(A, cell, load(T, ZERO, ZERO)),)))
    _, (nest,) = cut(For(i, 0, 16, Block((Allocate(T, Scope.THREAD), total, copies))))
    found = parallel_iterations(nest, NODES)
    assert found is None or found.inner == ()


def test_memory_of_the_iteration_is_not_shared_by_loops_inside() -> None:
    i, j, k = (fresh_var(name) for name in "ijk")
    cell = VarIndex(j), VarIndex(k)
    squared = Binary(BinaryOp.MUL, load(B, *cell), load(B, *cell), float32)
    fills = For(k, 0, SIDE, Block((Store(T, cell, squared),)))
    row = Store(A, (VarIndex(i), VarIndex(j)), load(T, VarIndex(j), ZERO))
    rows = For(j, 0, SIDE, Block((fills, row)))
    _, (nest,) = cut(For(i, 0, 4, Block((Allocate(T, Scope.THREAD), rows))))
    found = parallel_iterations(nest, NODES)
    assert found is not None
    assert (found.outer[0].count, found.inner) == (4, ())


def product_plan(rows: int, terms: int, columns: int) -> Plan:
    """Return a scheduled matrix product, cut into phases."""
    nodes = {
        A: NodeInfo(float32, (rows, terms)),
        B: NodeInfo(float32, (terms, columns)),
        C: NodeInfo(float32, (rows, columns)),
    }
    i, j, k = (fresh_var(name) for name in "ijk")
    cell = VarIndex(i), VarIndex(j)
    term = Binary(
        BinaryOp.MUL, load(A, VarIndex(i), VarIndex(k)), load(B, VarIndex(k), VarIndex(j)), float32
    )
    body: Stmt = Store(C, cell, Binary(BinaryOp.ADD, load(C, *cell), term, float32))
    for var, extent in ((k, terms), (j, columns), (i, rows)):
        body = For(var, 0, extent, Block((body,)))
    program = LoopProgram("product", (A, B, C), (), nodes, Block((Fill(C, 0.0), body)))
    return schedule_for(split_kernels(program), PROCESSOR, parallelize_step).plan()


def outline(plan: Plan) -> list[tuple[bool, list[int], list[int]]]:
    """Return, for each kernel, if it is parallel, and how many iterations can be dealt out."""
    rows = []
    for step in plan.steps:
        assert isinstance(step, Kernel)
        found = parallel_iterations(step, plan.nodes)
        outer = [] if found is None else [run.count for run in found.outer]
        rows.append((step.is_parallel, outer, [run.count for run in found.inner] if found else []))
    return rows


def test_the_copies_of_a_product_are_shared_before_its_blocks_are() -> None:
    assert outline(product_plan(512, 2048, 512)) == snapshot([(True, [512], []), (True, [8], [])])


def test_blocks_of_a_product_are_shared_though_its_sum_is_cut() -> None:
    assert outline(product_plan(500, 9000, 1000)) == snapshot(
        [(True, [500], []), (True, [20, 1], [])]
    )


def test_a_product_of_a_tall_matrix_is_dealt_out_by_columns_and_rows() -> None:
    assert outline(product_plan(4096, 64, 64)) == snapshot([(True, [682, 1], [])])


def test_a_small_product_stays_on_one_thread() -> None:
    assert outline(product_plan(48, 48, 48)) == [(False, [], [])]


def test_a_long_sum_has_parts() -> None:
    assert outline(product_plan(64, 4096, 64)) == snapshot(
        [(True, [8], [64]), (True, [8], []), (True, [64], [])]
    )


def scrambled(body: Block) -> Block:
    """Return the body of a parallel kernel with its loops in the opposite order, backwards."""

    def mirrored(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, For) or stmt.kind is not AxisKind.PARALLEL:
            return stmt
        var = fresh_var()
        place = affine([(-1, var)], stmt.start + stmt.stop - 1)
        inside = Block(tuple(mirrored(each) for each in stmt.body.stmts))
        return For(var, stmt.start, stmt.stop, substitute_in_stmt(inside, {stmt.var: place}))

    scalars = [stmt for stmt in body.stmts if not isinstance(stmt, For)]
    loops = [stmt for stmt in body.stmts if isinstance(stmt, For)]
    return Block((*scalars, *(mirrored(stmt) for stmt in reversed(loops))))


def check_every_order(example: Example, interpret: Interpret, plan: Plan) -> int:
    """Check that phases give the same bits in another order; return the number of parallel
    phases.
    """
    marked = map_steps(plan, partial(parallelize_step, least_work=0))
    program = example.program
    stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in marked.scratch]
    count = 0
    for step in marked.steps:
        assert isinstance(step, Kernel)
        stmts.append(scrambled(step.body) if step.is_parallel else step.body)
        count += step.is_parallel
    cut = LoopProgram(
        program.name, program.params, program.indices, marked.nodes, Block(tuple(stmts))
    )
    before = interpret(program, example.arrays, example.indices)
    after = interpret(cut, example.arrays, example.indices)
    for node, cells in before.items():
        np.testing.assert_array_equal(after[node], cells)
    return count


def test_iterations_of_a_phase_may_run_in_any_order(interpret: Interpret) -> None:
    parallel = 0

    @settings(
        max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(loop_programs())
    def check(example: Example) -> None:
        nonlocal parallel
        parallel += check_every_order(example, interpret, split_kernels(example.program))

    check()
    assert parallel > 10


def test_iterations_of_scheduled_phases_may_run_in_any_order(interpret: Interpret) -> None:
    parallel = 0

    @settings(
        max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(random_reductions(int32))
    def check(example: Example) -> None:
        nonlocal parallel
        plan = schedule_for(split_kernels(example.program), PROCESSOR).plan()
        parallel += check_every_order(example, interpret, plan)

    check()
    assert parallel > 10


def test_the_loops_of_a_fill_of_an_empty_array_have_no_iterations() -> None:
    pieces = top_pieces(Block((Fill(A, 0.0),)), {A: NodeInfo(float32, (0, 3))})
    assert pieces is not None
    (outer,) = pieces
    assert isinstance(outer, For)
    assert (outer.start, outer.stop) == (0, 0)
