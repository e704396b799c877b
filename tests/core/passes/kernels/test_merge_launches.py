"""Independent kernels share a launch; dependent ones, and those that would wait, do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.rendering.device_axes import device_axes
from ocannl_core.ir.indexing import IndexVar, value_of, variables
from ocannl_core.ir.kernels.nodes import Kernel, Plan, Separation
from ocannl_core.ir.kernels.regions import accessed_regions, are_disjoint
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.loops.nodes import AxisKind, Block, CheckPositions, For, Stmt
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.loops.traverse import accesses_at, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import int32, uint32
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.machine_model import MAX_LAUNCH_KERNELS
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import subject_named
from tests.support.verify_plans import verify

BLOCKS = ThreadBlocks(max_threads=64, threads=32, local_bytes=1 << 14, subgroup=8, processors=4)
INTEGERS = (int32, uint32)
DEVICE = Target("device", has_fma=True, thread_blocks=BLOCKS)


def scheduled(plan: Plan, target: Target) -> Plan:
    device = replace(target, thread_blocks=BLOCKS, has_fma=True)
    found = schedule_for(plan, device, finish_for(device)).plan()
    verify(found)
    return found


class _Numbers:
    """The numbers of blocks and threads of a language."""

    def device_index(self, kind: AxisKind) -> str:
        return "group" if kind is AxisKind.GRID else "thread"

    def fold_grid(self, blocks: int) -> tuple[int, ...]:
        return (blocks,)


def launches(text: str, blocks: ThreadBlocks = BLOCKS) -> list[list[str]]:
    """Return the names of the nodes that each launch writes."""
    device = replace(DEVICE, thread_blocks=blocks)
    program = split_kernels(parse(f"routine test({text}"))
    plan = schedule_for(program, device, finish_for(device)).plan()
    return [
        sorted({each.name for each in step.arguments} & set("cdefg"))
        for step in plan.steps
        if isinstance(step, Kernel)
    ]


def test_kernels_of_different_extents_share_a_launch() -> None:
    text = """a: float32[5], b: float32[70], c: float32[5], d: float32[70]):
    for i in range(5):
        c[i] = a[i] + 1.0
    for i in range(70):
        d[i] = b[i] * 2.0"""
    assert launches(text) == [["c", "d"]]


def test_a_kernel_moves_over_others_to_one_before() -> None:
    text = """a: float32[70], c: float32[5], d: float32[70], e: float32[3], f: float32[7]):
    for i in range(5):
        c[i] = a[i] + 1.0
    for i in range(70):
        d[i] = c[0] * a[i]
    for i in range(3):
        e[i] = d[i] * 2.0
    for i in range(7):
        f[i] = a[i] * 2.0"""
    assert launches(text) == [["c", "f"], ["c", "d"], ["d", "e"]]


def test_a_kernel_moves_over_others_to_one_behind() -> None:
    text = """a: float32[70], c: float32[5], d: float32[70], e: float32[3]):
    for i in range(5):
        c[i] = a[i] + 1.0
    for i in range(70):
        a[i] = a[i] + 1.0
    for i in range(70):
        d[i] = a[69 - i] + 2.0
    for i in range(3):
        e[i] = c[i] + d[i]"""
    # c reads the old cells of a: it moves nowhere
    assert launches(text) == [["c"], [], ["d"], ["c", "d", "e"]]


def test_kernels_that_write_other_cells_of_a_node_share_a_launch() -> None:
    text = """a: float32[70], c: float32[9, 70]):
    for i in range(4):
        for j in range(70):
            c[i, j] = a[j] + 1.0
    for i in range(3):
        for j in range(70):
            c[i + 4, j] = a[j] + 2.0
    for i in range(2):
        for j in range(70):
            c[i + 6, j] = a[j] + 3.0"""
    # the last one overlaps with the second
    assert launches(text) == [["c"], ["c"]]


def test_a_check_of_positions_comes_before_later_kernels() -> None:
    with oc.Session():
        table = oc.tensor(np.ones((4, 3), np.float32))
        ids = oc.placeholder("ids", batch=[5], dtype="int32")
        other = oc.placeholder("other", batch=[5])
        code = oc.train.forward(oc.exp(oc.take(table, ids, axis=0) * 2.0))
        code += oc.train.forward(oc.exp(other * 2.0))
        program = oc.Context("interp").compile(code)._build.program.loops
    plan = scheduled(split_kernels(program), DEVICE)
    checks = [
        any(isinstance(each, CheckPositions) for each in walk(step.body))
        for step in plan.steps
        if isinstance(step, Kernel)
    ]
    assert checks == [True, False]
    assert [[each.reason for each in kernel.apart] for kernel in plan.kernels] == [
        [],
        [Separation.OPAQUE],
    ]


def test_threads_that_meet_share_no_launch_with_larger_blocks() -> None:
    # the sum of 40 terms has fewer threads than the other, and barriers
    text = """a: float32[40], b: float32[90], c: float32[1], d: float32[1]):
    for i in range(40):
        c[0] = c[0] + a[i]
    for i in range(90):
        d[0] = d[0] + b[i]"""
    assert len(launches(text)) == 2


def test_threads_meet_in_a_launch_of_their_own_where_barriers_are_unconditional() -> None:
    text = """a: float32[90], c: float32[1], d: float32[90]):
    for i in range(90):
        c[0] = c[0] + a[i]
    for i in range(90):
        d[i] = a[i] + 1.0"""
    assert launches(text) == [["c", "d"]]
    assert len(launches(text, replace(BLOCKS, has_conditional_barriers=False))) == 2


def test_a_kernel_without_threads_of_a_block_has_a_launch_of_its_own() -> None:
    text = """a: float32[3], c: float32[3], d: float32[40]):
    for i in grid(3):
        c[i] = a[i] + 1.0
    for i in grid(4):
        for j in block(10):
            d[10 * i + j] = 2.0"""
    assert launches(text) == [["c"], ["d"]]


def planned(text: str, blocks: ThreadBlocks = BLOCKS) -> list[Kernel]:
    device = replace(DEVICE, thread_blocks=blocks)
    program = split_kernels(parse(f"routine test({text}"))
    plan = schedule_for(program, device, finish_for(device)).plan()
    verify(plan)
    return [step for step in plan.steps if isinstance(step, Kernel)]


def test_the_parts_of_a_launch_have_their_schedules_and_cover_its_blocks() -> None:
    text = """a: float32[5], b: float32[70], c: float32[5], d: float32[70], e: float32[3]):
    for i in range(5):
        c[i] = a[i] + 1.0
    for i in range(70):
        d[i] = b[i] * 2.0
    for i in range(3):
        e[i] = d[i] * c[i]"""
    first, second = planned(text)
    assert [part.title for part in first.parts] == ["writes c", "writes d"]
    assert [part.blocks for part in first.parts] == [1, 3]
    assert [part.threads for part in first.parts] == [5, 32]
    assert first.parts[0].schedule == parse_schedule("block i")
    assert first.parts[1].schedule == parse_schedule("split i 32; grid i0; block i1")
    assert second.parts == ()
    (found,) = second.apart
    assert found.reason is Separation.DEPENDENCE
    assert [node.name for node in found.nodes] == ["c", "d"]
    assert found.title == first.title


SUMS = """a: float32[40], b: float32[90], c: float32[1], d: float32[1]):
    for i in range(40):
        c[0] = c[0] + a[i]
    for i in range(90):
        d[0] = d[0] + b[i]"""
PAIR = """a: float32[70], c: float32[70], d: float32[70]):
    for i in range(70):
        c[i] = a[i] + 1.0
    for i in range(70):
        d[i] = a[i] * 2.0"""
MEETING = """a: float32[90], c: float32[1], d: float32[90]):
    for i in range(90):
        c[0] = c[0] + a[i]
    for i in range(90):
        d[i] = a[i] + 1.0"""


@pytest.mark.parametrize(
    ("text", "blocks", "reason"),
    [
        (SUMS, BLOCKS, Separation.BARRIERS),
        (MEETING, replace(BLOCKS, has_conditional_barriers=False), Separation.CONDITIONAL_BARRIERS),
        (MEETING, replace(BLOCKS, local_bytes=128, processors=1), Separation.COST),
        (PAIR.replace("a[i] * 2.0", "c[i] * 2.0 + c[69 - i]"), BLOCKS, Separation.DEPENDENCE),
    ],
    ids=["threads", "conditional barriers", "shared memory", "dependence"],
)
def test_launches_that_are_kept_apart_state_the_reason(
    text: str, blocks: ThreadBlocks, reason: Separation
) -> None:
    first, second = planned(text, blocks)
    assert first.apart == ()
    assert [each.reason for each in second.apart] == [reason]
    assert second.apart[0].title == first.title


def test_launches_of_too_many_kernels_state_the_reason() -> None:
    count = MAX_LAUNCH_KERNELS + 1
    nodes = ", ".join(f"c{k}: float32[{k + 1}]" for k in range(count))
    stores = "\n".join(
        f"    for i in range({k + 1}):\n        c{k}[i] = a[i] + {k}.0" for k in range(count)
    )
    first, second = planned(f"a: float32[{count}], {nodes}):\n{stores}")
    assert len(first.parts) == MAX_LAUNCH_KERNELS
    assert [each.reason for each in second.apart] == [Separation.SIZE]


def test_copies_of_kernels_refer_to_the_launches_of_the_plan() -> None:
    text = """a: float32[70], b: float32[90], c: float32[70], d: float32[70], e: float32[70], f: float32[1]):
    for i in range(70):
        c[i] = a[i] + 1.0
    for i in range(70):
        d[i] = c[i] + 1.0 + c[69 - i]
    for i in range(70):
        e[i] = d[i] + 1.0 + d[69 - i]"""
    kernels = planned(text)
    assert [each.like is not None for each in kernels] == [False, False, True]
    assert kernels[2].like is kernels[1]
    assert [bool(each.apart) for each in kernels] == [False, True, True]


def test_statements_of_a_launch_run_on_blocks_of_their_own() -> None:
    text = """a: float32[70], b: float32[5], c: float32[70], d: float32[5]):
    for i in range(70):
        c[i] = a[i] + 1.0
    for i in range(5):
        d[i] = b[i] * 2.0"""
    plan = scheduled(split_kernels(parse(f"routine test({text}")), DEVICE)
    (step,) = plan.steps
    assert isinstance(step, Kernel)
    found = device_axes(step.body, cast(Dialect, _Numbers()))
    assert found.launch == ((4,), (32,))
    assert [axis.condition for axis in found.axes.values()] == snapshot(
        ["group < 3", "group >= 3", "", "thread < 5"]
    )
    assert [axis.index for axis in found.axes.values()] == snapshot(
        ["group", "(group - 3)", "thread", "thread"]
    )


def regions(text: str) -> Mapping[str, tuple[Range, ...]]:
    program = parse(f"routine test({text}")
    found = accessed_regions(program.body, program.nodes)
    return {node.name: box for node, box in found.items()}


def test_a_guard_ends_the_cells_of_a_kernel() -> None:
    text = """a: float32[40], c: float32[40]):
    for i in range(4):
        for j in range(8):
            for once in range(1) while 8*i + j + once < 30:
                c[8*i + j + 2] = a[8*i + j]"""
    assert regions(text) == {"a": (Range(0, 29),), "c": (Range(2, 31),)}


def test_boxes_that_share_no_row_are_disjoint() -> None:
    first, second = (Range(0, 3), Range(0, 9)), (Range(4, 5), Range(0, 9))
    assert are_disjoint(first, second)
    assert not are_disjoint(first, (Range(3, 5), Range(9, 20)))


def sampled_cells(body: Block) -> Iterator[tuple[TensorNode, tuple[int, ...]]]:
    """Yield cells that the first, last and middle iterations of all loops access."""
    yield from _sampled(body, {})


def _sampled(stmt: Stmt, env: dict[IndexVar, int]) -> Iterator[tuple[TensorNode, tuple[int, ...]]]:
    match stmt:
        case Block(stmts):
            for each in stmts:
                yield from _sampled(each, env)
        case For(var, start, stop, body):
            for at in sorted({start, (start + stop) // 2, stop - 1} & set(range(start, stop))):
                inside = {**env, var: at}
                bound = stmt.bound
                if bound is None or value_of(bound.index, inside) < bound.maximum:
                    yield from _sampled(body, inside)
        case _:
            for part in walk(stmt):
                for access in accesses_at(part):
                    indices = access.indices or ()
                    if all(var in env for index in indices for var in variables(index)):
                        yield access.node, tuple(value_of(index, env) for index in indices)


FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(random_programs(INTEGERS, max_nests=4))
def test_boxes_hold_every_cell_that_runs_access(example: Example) -> None:
    plan = scheduled(split_kernels(example.program), DEVICE)
    for step in plan.steps:
        assert isinstance(step, Kernel)
        boxes = accessed_regions(step.body, plan.nodes)
        for node, cell in sampled_cells(step.body):
            if node in boxes and len(cell) == len(boxes[node]):
                dims = plan.nodes[node].buffer_dims
                is_cell = all(0 <= at < dim for at, dim in zip(cell, dims, strict=True))
                box = zip(cell, boxes[node], strict=True)
                assert not is_cell or all(r.low <= at <= r.high for at, r in box)


@FEW
@given(random_programs(INTEGERS, max_nests=6))
def test_programs_of_merged_launches_are_right(example: Example) -> None:
    subject = subject_named("interp")
    expected = subject.run(example.program, example.arrays, example.indices)
    found = subject.run(example.program, example.arrays, example.indices, scheduled)
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])
