"""Row fusion: loops, refusals, and equal results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import NodeInfos, Plan
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.kernels.transforms import parse_kernel_schedule, schedule_text
from ocannl_core.ir.loops.nodes import Allocate, Binary, Block, LoopProgram, Scope, Stmt, Unary
from ocannl_core.ir.loops.printer import to_text as program_text
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.fusion import fuse_distant_kernels, fuse_neighbors
from ocannl_core.passes.kernels.inline_nodes import initialize_reductions
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.passes.kernels.recognize_nests import recognize_nests
from ocannl_core.passes.kernels.rows.apply import fuse_group
from ocannl_core.passes.kernels.rows.choose import group_rows
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.rules.decision import ScheduleDecision
from ocannl_core.schedule.rules.pointwise import pointwise_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import Scheduler, subject_named
from tests.support.example_count import example_count
from tests.support.row_fusions import fuse_rows
from tests.support.rows import random_row_programs
from tests.support.schedules import contraction_schedule

I, J = fresh_var("i"), fresh_var("j")  # noqa: E741

ROWS, LENGTH = 4, 6


class Softmax:
    """exp of every cell, the sum of a row, and their quotient."""

    def __init__(self) -> None:
        draft = self.draft = Draft("softmax")
        x, y = (draft.node(name, float32, ROWS, LENGTH) for name in "xy")
        e, s = draft.scratch("e", float32, ROWS, LENGTH), draft.scratch("s", float32, ROWS, 1)
        self.nodes = {"x": x, "y": y, "e": e, "s": s}
        cell = draft.load(e, I, J)
        quotient = Binary(BinaryOp.DIV, cell, draft.load(s, I, 0), float32)
        self.stmts = [
            self.over(draft.store(e, I, J, value=Unary(UnaryOp.EXP, draft.load(x, I, J), float32))),
            self.over(draft.accumulate(s, I, 0, op=BinaryOp.ADD, value=cell)),
            self.over(draft.store(y, I, J, value=quotient)),
        ]

    def over(self, stmt: Stmt) -> Stmt:
        return loop(I, ROWS, loop(J, LENGTH, stmt))

    def nests(self, *more: Stmt) -> list[Nest]:
        return [nest_of(stmt) for stmt in (*self.stmts, *more)]


def nest_of(stmt: Stmt) -> Nest:
    nest = kernel_nest(Block((stmt,)))
    assert nest is not None
    return nest


def text_of(draft: Draft, nests: Sequence[Nest], schedule: str) -> str:
    """Return the loops of nests together as text."""
    result = fuse_rows(nests, parse_kernel_schedule(schedule), draft.nodes)
    draft.nodes.update(result.nodes)
    text = program_text(draft.program(*result.body.stmts))
    return "\n".join(line for line in text.splitlines() if line.startswith("  "))


def refusal(draft: Draft, nests: Sequence[Nest], schedule: str) -> str:
    with pytest.raises(UsageError) as caught:
        fuse_rows(nests, parse_kernel_schedule(schedule), draft.nodes)
    return str(caught.value).splitlines()[0]


def test_nests_run_one_after_the_other_in_each_row() -> None:
    softmax = Softmax()
    schedule = "rows i; rows i; rows i; fold 0"
    assert text_of(softmax.draft, softmax.nests(), schedule) == snapshot("""\
    for i in range(4):
        kernel e_row: float32[6]
        block:
            for j in range(6):
                e_row[j] = exp(x[i, j])
        block:
            block:
                thread sums: float32[]
                sums = 0.0
                for j in range(6):
                    sums += e_row[j]
                s[i, 0] += sums
        block:
            for j in range(6):
                y[i, j] = e_row[j] / s[i, 0]\
""")


def test_rows_run_several_at_a_time() -> None:
    softmax = Softmax()
    schedule = "rows i by 2; rows i; rows i; fold 0"
    assert text_of(softmax.draft, softmax.nests(), schedule) == snapshot("""\
    for i in range(2):
        kernel e_row: float32[2, 6]
        block:
            for i1 in range(2):
                for j in range(6):
                    e_row[i1, j] = exp(x[2*i + i1, j])
        block:
            for i1 in range(2):
                block:
                    thread sums: float32[]
                    sums = 0.0
                    for j in range(6):
                        sums += e_row[i1, j]
                    s[2*i + i1, 0] += sums
        block:
            for i1 in range(2):
                for j in range(6):
                    y[2*i + i1, j] = e_row[i1, j] / s[2*i + i1, 0]\
""")


def test_a_sum_over_rows_has_partial_results_for_each_group() -> None:
    softmax = Softmax()
    draft, column = softmax.draft, softmax.draft.node("c", float32, LENGTH)
    total = draft.accumulate(column, J, op=BinaryOp.ADD, value=draft.load(softmax.nodes["x"], I, J))
    nests = [softmax.nests()[0], nest_of(loop(J, LENGTH, loop(I, ROWS, total)))]
    assert text_of(draft, nests, "rows i in 2; rows j along") == snapshot("""\
    for i in range(2):
        for j in range(6):
            c_partial[i, j] = 0.0
        for i1 in range(2):
            block:
                for j in range(6):
                    e[2*i + i1, j] = exp(x[2*i + i1, j])
                    c_partial[i, j] += x[2*i + i1, j]\
""")
    (combining,) = fuse_rows(nests, parse_kernel_schedule("rows i in 2; rows j"), draft.nodes).sums
    assert [axis.extent for axis in combining.axes] == [LENGTH, 2]


def test_a_node_is_computed_where_it_is_read() -> None:
    softmax = Softmax()
    draft, x, y = softmax.draft, softmax.nodes["x"], softmax.nodes["y"]
    d = draft.scratch("d", float32, ROWS, LENGTH)
    double = Binary(BinaryOp.ADD, draft.load(x, I, J), draft.load(x, I, J), float32)
    square = Binary(BinaryOp.MUL, draft.load(d, I, J), draft.load(d, I, J), float32)
    nests = [
        nest_of(softmax.over(draft.store(d, I, J, value=double))),
        nest_of(softmax.over(draft.store(y, I, J, value=square))),
    ]
    assert text_of(draft, nests, "rows i; rows i; fold 0; inline 0") == snapshot("""\
    for i in range(4):
        block:
            for j in range(6):
                y[i, j] = (x[i, j] + x[i, j]) * (x[i, j] + x[i, j])\
""")


def test_a_streamed_node_is_stored_past_the_caches() -> None:
    softmax = Softmax()
    assert "streamed" in text_of(softmax.draft, softmax.nests(), "rows i; rows i; rows i; stream 2")


def test_nests_with_other_numbers_of_rows_are_refused() -> None:
    softmax = Softmax()
    assert refusal(softmax.draft, softmax.nests(), "rows i; rows j; rows i") == snapshot(
        "Nests that run together have rows of equal extents."
    )


def test_a_nest_that_reads_other_rows_is_refused() -> None:
    softmax = Softmax()
    draft = softmax.draft
    other = draft.load(softmax.nodes["y"], affine([(-1, I)], ROWS - 1), J)
    z = draft.node("z", float32, ROWS, LENGTH)
    turned = softmax.over(draft.store(z, I, J, value=other))
    schedule = "rows i; rows i; rows i; rows i"
    assert refusal(draft, softmax.nests(turned), schedule) == snapshot(
        "No row accesses elements that another row writes."
    )


def test_a_nest_that_overwrites_rows_read_by_others_is_refused() -> None:
    softmax = Softmax()
    draft, x = softmax.draft, softmax.nodes["x"]
    z = draft.node("z", float32, ROWS, LENGTH)
    other = draft.load(x, affine([(-1, I)], ROWS - 1), J)
    nests = [
        nest_of(softmax.over(draft.store(z, I, J, value=other))),
        nest_of(softmax.over(draft.store(x, I, J, value=draft.load(z, I, J)))),
    ]
    assert refusal(draft, nests, "rows i; rows i") == snapshot(
        "No row accesses elements that another row writes."
    )


def test_the_result_of_a_sum_over_rows_is_not_read_in_the_rows() -> None:
    softmax = Softmax()
    draft = softmax.draft
    column, z = draft.node("c", float32, LENGTH), draft.node("z", float32, ROWS, LENGTH)
    total = draft.accumulate(column, J, op=BinaryOp.ADD, value=draft.load(softmax.nodes["x"], I, J))
    nests = [
        nest_of(loop(J, LENGTH, loop(I, ROWS, total))),
        nest_of(softmax.over(draft.store(z, I, J, value=draft.load(column, J)))),
    ]
    assert refusal(draft, nests, "rows j; rows i") == snapshot(
        "The result of a sum over rows is for later kernels."
    )


def test_a_node_that_has_changed_is_not_computed_again() -> None:
    softmax = Softmax()
    draft, x, y = softmax.draft, softmax.nodes["x"], softmax.nodes["y"]
    d = draft.scratch("d", float32, ROWS, LENGTH)
    turned = draft.load(x, I, affine([(-1, J)], LENGTH - 1))
    nests = [
        nest_of(softmax.over(draft.store(d, I, J, value=turned))),
        nest_of(softmax.over(draft.store(x, I, J, value=draft.load(d, I, J)))),
        nest_of(softmax.over(draft.store(y, I, J, value=draft.load(d, I, J)))),
    ]
    schedule = "rows i; rows i; rows i; fold 0; inline 0"
    assert refusal(draft, nests, schedule) == snapshot(
        "A node is inlined only if its definition has the same value at every read."
    )


def test_rows_are_divided_into_equal_parts() -> None:
    softmax = Softmax()
    schedule = "rows i by 3; rows i; rows i"
    assert refusal(softmax.draft, softmax.nests(), schedule) == snapshot(
        "Rows are divided into equal parts."
    )


def test_a_schedule_has_the_rows_of_every_nest() -> None:
    softmax = Softmax()
    assert refusal(softmax.draft, softmax.nests(), "rows i; rows i") == snapshot(
        "A schedule of 3 nests that run together has the rows of each."
    )


def test_nodes_are_numbered_in_the_order_in_which_they_are_written() -> None:
    softmax = Softmax()
    schedule = "rows i; rows i; rows i; fold 7"
    assert refusal(softmax.draft, softmax.nests(), schedule) == snapshot(
        "These nests write 3 nodes row by row, which are numbered from 0."
    )


def by_rows(near: int, far: int = 1) -> Scheduler:
    """Return the scheduler for a processor with these caches, and wide vectors."""

    def schedule(plan: Plan, target: Target) -> Plan:
        wide = replace(target, vector_bytes=64, vector_registers=32, has_fma=True)
        return schedule_for(plan, replace(wide, cache_bytes=(near, far, 1))).plan()

    return schedule


def kernels(stmts: Sequence[Stmt], draft: Draft, scratch: Sequence[TensorNode], far: int) -> int:
    """Return how many kernels statements become."""
    allocations = [Allocate(node, Scope.ROUTINE) for node in scratch]
    plan = split_kernels(draft.program(*allocations, *stmts))
    target = subject_named("interp").target
    return len(by_rows(1 << 15, far)(plan, target).steps)


def test_kernels_join_where_their_nodes_leave_the_caches() -> None:
    softmax = Softmax()
    scratch = [softmax.nodes["e"], softmax.nodes["s"]]
    assert kernels(softmax.stmts, softmax.draft, scratch, far=64) == 1


def test_kernels_whose_nodes_stay_in_a_cache_are_left_alone() -> None:
    softmax = Softmax()
    scratch = [softmax.nodes["e"], softmax.nodes["s"]]
    assert kernels(softmax.stmts, softmax.draft, scratch, far=1 << 20) == 3


def test_only_the_accessed_part_of_a_node_takes_room_in_a_cache() -> None:
    softmax = Softmax()
    draft, e, s = softmax.draft, softmax.nodes["e"], softmax.nodes["s"]
    steps = draft.node("steps", float32, 1000, ROWS, LENGTH)
    quotient = Binary(BinaryOp.DIV, draft.load(e, I, J), draft.load(s, I, 0), float32)
    stmts = [*softmax.stmts[:2], softmax.over(draft.store(steps, 7, I, J, value=quotient))]
    assert kernels(stmts, draft, [e, s], far=64) == 1
    assert kernels(stmts, draft, [e, s], far=4096) == 3
    nest = nest_of(stmts[2])
    assert nest.positions == {e: ((), 1), s: ((1,), 1), steps: ((0,), 1)}


def test_a_kernel_that_leaves_rows_out_keeps_its_own_loops() -> None:
    draft = Draft("every_second_row")
    x, y = draft.node("x", float32, ROWS, LENGTH), draft.node("y", float32, 2 * ROWS, LENGTH)
    value = Unary(UnaryOp.EXP, draft.load(x, I, J), float32)
    stored = draft.store(y, affine([(2, I)], 1), J, value=value)
    nest = loop(I, ROWS, loop(J, LENGTH, stored))
    assert kernels([nest], draft, [], far=64) == 1
    interp = subject_named("interp")
    arrays = {x: np.arange(ROWS * LENGTH, dtype=np.float32).reshape(ROWS, LENGTH) / 8}
    found = interp.run(draft.program(nest), arrays, (), by_rows(64, 64))
    expected = np.zeros((2 * ROWS, LENGTH), np.float32)
    expected[1::2] = np.exp(arrays[x])
    np.testing.assert_allclose(found[y], expected, rtol=1e-6)


@pytest.mark.parametrize(("stride", "width"), [(2, 2), (1, 3), (2, 3), (3, 2)])
def test_kernels_over_windows_of_rows_join(stride: int, width: int) -> None:
    """The maximum of each window, and how many cells of the window have it."""
    draft = Draft("windows")
    k, m = fresh_var("k"), fresh_var("m")
    size = stride * (ROWS - 1) + width
    x = draft.node("x", float32, size, LENGTH, 2)
    top, count = (draft.node(name, float32, ROWS, LENGTH) for name in ("top", "count"))
    cell = draft.load(x, affine([(stride, I), (1, k)]), J, m)
    equal = Binary(BinaryOp.EQ, cell, draft.load(top, I, J), float32)
    updates = [
        draft.accumulate(top, I, J, op=BinaryOp.MAX, value=cell),
        draft.accumulate(count, I, J, op=BinaryOp.ADD, value=equal),
    ]
    nests = [loop(I, ROWS, loop(J, LENGTH, loop(k, width, loop(m, 2, each)))) for each in updates]
    assert kernels(nests, draft, [], far=64) == 1
    interp = subject_named("interp")
    cells = np.random.default_rng(size).integers(1, 3, (size, LENGTH, 2)).astype(np.float32)
    program, arrays = draft.program(*nests), {x: cells}
    before, after = interp.run(program, arrays), interp.run(program, arrays, (), by_rows(64, 64))
    for node in (top, count):
        np.testing.assert_array_equal(after[node], before[node])


def test_a_contraction_keeps_its_own_blocks() -> None:
    softmax = Softmax()
    draft = softmax.draft
    k = fresh_var("k")
    w = draft.node("w", float32, LENGTH, LENGTH)
    z = draft.node("z", float32, ROWS, LENGTH)
    product = Binary(
        BinaryOp.MUL, draft.load(softmax.nodes["y"], I, k), draft.load(w, k, J), float32
    )
    update = draft.accumulate(z, I, J, op=BinaryOp.ADD, value=product)
    stmts = [*softmax.stmts, loop(I, ROWS, loop(J, LENGTH, loop(k, LENGTH, update)))]
    scratch = [softmax.nodes["e"], softmax.nodes["s"]]
    assert kernels(stmts, draft, scratch, far=64) == 2


GENERATED = settings(
    max_examples=example_count(30), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
CACHES = st.sampled_from([256, 1024, 4096, 1 << 16, 1 << 20])


@GENERATED
@given(example=random_row_programs(), near=CACHES)
def test_row_fusion_agrees_with_the_program(example: Example, near: int) -> None:
    interp = subject_named("interp")
    before = interp.run(example.program, example.arrays)
    after = interp.run(example.program, example.arrays, (), by_rows(near))
    for node in example.program.params:
        np.testing.assert_array_equal(after[node], before[node])


@GENERATED
@given(example=random_row_programs(), near=CACHES)
def test_kernels_of_rows_are_replayed_from_their_text(example: Example, near: int) -> None:
    known = subject_named("interp").target
    target = replace(known, vector_bytes=64, vector_registers=32, cache_bytes=(near, 1, 1))
    plan = split_kernels(example.program)

    def rule(nest: Nest, nodes: NodeInfos) -> ScheduleDecision:
        if nest.reduction is None:
            return ScheduleDecision(pointwise_schedule(nest, nodes, target))
        return ScheduleDecision(contraction_schedule(nest, nodes, target))

    nests_of_plan = fuse_neighbors(
        fuse_distant_kernels(initialize_reductions(recognize_nests(plan)))
    )
    grouped = group_rows(nests_of_plan, target)
    plan = replace(plan, nodes=grouped.nodes)  # with nodes that are computed again
    for group in grouped.steps:
        if isinstance(group, RowFusion):
            fused = fuse_group(group, rule, plan.nodes)
            nests = [member.nest for member in group.members]
            schedule = parse_kernel_schedule(schedule_text(fused.kernel.schedule))
            again = fuse_rows(nests, schedule, plan.nodes)
            assert kernel_text(again.body, plan, again.nodes) == kernel_text(
                fused.kernel.body, plan, fused.nodes
            )


def kernel_text(body: Block, plan: Plan, made: NodeInfos) -> str:
    nodes = {**plan.nodes, **made}
    return program_text(LoopProgram("kernel", plan.params, (), nodes, body))


def test_operands_of_all_blocks_of_rows_are_packed_ahead_of_them() -> None:
    with oc.Session():
        q, k, v = (oc.placeholder(name, batch=[1, 512], output=[8, 64]) for name in "qkv")
        forward = oc.Context("cpu_c").compile(oc.train.forward(oc.nn.attention(q, k, v)))
    (rows,) = re.findall(r"schedule: (rows .*)", str(oc.explain(forward)))
    packed = [each for each in rows.split("; ") if each.startswith("pack")]
    assert len(packed) == 2  # the keys and the values of a head
    assert not any("inside" in each for each in packed)
