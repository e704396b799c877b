"""Schedules for thread blocks compute what plain loops do, on the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.product_status import COMMON_UNITS, Obstacle
from ocannl_core.ir.kernels.transforms import Schedule, parse_schedule, schedule_text
from ocannl_core.ir.loops.nodes import AxisKind, For
from ocannl_core.ir.numbers.dtypes import float32, int32, uint32
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import finish_for, nest_plan, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.rules.block_rules import block_schedules, decide_on_blocks
from ocannl_core.testing import programs
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import subject_named
from tests.support.loop_programs import loop_programs
from tests.support.reductions import random_reductions
from tests.support.rows import random_row_programs
from tests.support.schedules import schedule_by_rule
from tests.support.verify_plans import verify

DEVICES = {
    "tiny": ThreadBlocks(max_threads=8, threads=4, local_bytes=1 << 12),
    "small": ThreadBlocks(max_threads=64, threads=64, local_bytes=1 << 14, processors=2),
    "large": ThreadBlocks(max_threads=256, threads=256, registers=255),
    "vectors": ThreadBlocks(
        64, 32, 1 << 14, subgroup=4, processors=2, vector_bytes=16, has_shuffles=True
    ),
}
TRANSPOSING = ThreadBlocks(64, 64, 1 << 16, subgroup=4, processors=1)
LONG = (1, 2, 3, 5, 8, 16, 19, 33, 70)
FEW = settings(
    max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def plan_for(blocks: ThreadBlocks) -> Callable[[Plan, Target], Plan]:
    def schedule(plan: Plan, target: Target) -> Plan:
        device = replace(target, thread_blocks=blocks, has_fma=True)
        found = schedule_for(plan, device, finish_for(device)).plan()
        verify(found)
        return found

    return schedule


def check(example: Example, blocks: ThreadBlocks) -> None:
    """Small integers are exact in every order of addition."""
    subject = subject_named("interp")
    expected = subject.run(example.program, example.arrays, example.indices)
    found = subject.run(example.program, example.arrays, example.indices, plan_for(blocks))
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


@pytest.mark.parametrize("device", DEVICES)
@FEW
@given(example=random_reductions(int32, LONG, 5000) | random_reductions(float32, LONG, 5000))
def test_reductions_on_thread_blocks_are_right(device: str, example: Example) -> None:
    check(example, DEVICES[device])


@FEW
@given(
    example=random_programs(dtypes=(int32, uint32), max_nests=5), name=st.sampled_from([*DEVICES])
)
def test_programs_of_many_kernels_are_right(example: Example, name: str) -> None:
    check(example, DEVICES[name])


@FEW
@given(example=loop_programs(dtypes=(int32, uint32)), name=st.sampled_from([*DEVICES]))
def test_dependent_statements_are_right(example: Example, name: str) -> None:
    check(example, DEVICES[name])


@FEW
@given(example=random_row_programs(), name=st.sampled_from([*DEVICES]))
def test_kernels_over_the_same_rows_are_right(example: Example, name: str) -> None:
    check(example, DEVICES[name])


@FEW
@given(
    sizes=st.tuples(*[st.sampled_from((16, 31, 32, 33, 50, 64))] * 2),
    dtype=st.sampled_from(("int32", "float32", "bfloat16")),
    form=st.sampled_from(
        (
            "c[{n}j, i] = a[{n}i, j]",
            "c[{n}j, i] = a[{n}i, j] * b[{n}i, j] + d[{n}j, i]",
            "c[{n}j, i] = a[{n}i, j] - a[{n}i, j] * b[{n}i, j]",
            "c[{n}j, i] = c[{n}j, i] + a[{n}i, j]",
        )
    ),
    batch=st.booleans(),
)
def test_transpositions_on_thread_blocks_are_right(
    sizes: tuple[int, int], dtype: str, form: str, batch: bool
) -> None:
    rows, columns = sizes
    n, more = ("n, ", "3, ") if batch else ("", "")
    inner = "    " * batch
    wide, high = f"{dtype}[{more}{rows}, {columns}]", f"{dtype}[{more}{columns}, {rows}]"
    text = f"""\
routine transpose(a: {wide}, b: {wide}, d: {high}, c: {high}):
{"    for n in range(3):" if batch else "    # one"}
{inner}    for i in range({rows}):
{inner}        for j in range({columns}):
{inner}            {form.format(n=n)}""".replace("    # one\n", "")
    program = parse(text)
    random = np.random.default_rng(rows)
    arrays = {
        node: random.integers(-3, 4, info.buffer_dims).astype(info.dtype.numpy)
        for node, info in program.nodes.items()
    }
    if rows * columns * (3 if batch else 1) >= 1024:
        device = replace(DEVICE, thread_blocks=TRANSPOSING)
        plan = schedule_for(split_kernels(program), device, finish_for(device)).plan()
        assert any("pack 0 as" in schedule_text(each.schedule) for each in plan.steps)  # type: ignore[union-attr]
    check(Example(program, arrays), TRANSPOSING)


@pytest.mark.parametrize(("rows", "is_transposed"), [(64, True), (40, False)])
def test_a_load_that_may_be_left_out_is_transposed_only_if_it_is_in_bounds(
    rows: int, is_transposed: bool
) -> None:
    program = parse(f"""\
routine transpose(a: int32[{rows}, 64], c: int32[64, 64]):
    for i in range(64):
        for j in range(64):
            c[j, i] = where(int64(i) < {rows}, a[i, j], 7)""")
    device = replace(DEVICE, thread_blocks=TRANSPOSING)
    (step,) = schedule_for(split_kernels(program), device, finish_for(device)).plan().steps
    assert isinstance(step, Kernel)
    assert ("pack" in schedule_text(step.schedule)) == is_transposed
    a, _ = program.params
    check(
        Example(program, {a: np.arange(rows * 64, dtype=np.int32).reshape(rows, 64)}), TRANSPOSING
    )


@pytest.mark.parametrize("make", programs.HAND_MADE, ids=lambda make: make.__name__)
def test_hand_made_programs_are_right(make: Callable[[], Example]) -> None:
    example = make()
    subject = subject_named("interp")
    found = subject.run(
        example.program, example.arrays, example.indices, plan_for(DEVICES["small"])
    )
    for node, expected in example.expected.items():
        np.testing.assert_allclose(
            found[node].astype(float), np.asarray(expected, float), rtol=1e-5
        )


DEVICE = Target(
    "device",
    has_fma=True,
    thread_blocks=ThreadBlocks(
        max_threads=1024, threads=256, local_bytes=48 << 10, subgroup=32, processors=8
    ),
)


def schedules(text: str) -> list[str]:
    """Return the schedules of the kernels of a program."""
    plan = schedule_for(split_kernels(parse(text)), DEVICE, finish_for(DEVICE)).plan()
    verify(plan)
    return [schedule_text(step.schedule) for step in plan.steps if isinstance(step, Kernel)]


def test_neighboring_threads_store_neighboring_cells() -> None:
    text = """\
routine transpose(a: float32[600, 10], c: float32[10, 600]):
    for i in range(600):
        for j in range(10):
            c[j, i] = a[i, j]"""
    assert schedules(text) == snapshot(["split i 256; grid j i0; block i1"])


def test_squares_are_transposed_in_shared_memory() -> None:
    text = """\
routine transpose(a: float32[600, 50], c: float32[50, 600]):
    for i in range(600):
        for j in range(50):
            c[j, i] = a[i, j]"""
    assert schedules(text) == snapshot(
        [
            "split j 32; split j1 8; split i 32; grid j0 i0; block j11 i1; unroll j10; pack 0 as j1 i1"
        ]
    )


def test_short_rows_share_a_block() -> None:
    text = """\
routine scale(a: float32[1000, 30], c: float32[1000, 30]):
    for i in range(1000):
        for j in range(30):
            c[i, j] = a[i, j] * a[i, j]"""
    assert schedules(text) == snapshot(["split i 256; grid i0; block i1"])


def test_threads_share_a_sum_along_memory() -> None:
    text = """\
routine rows(a: float32[20, 1000], c: float32[20]):
    for i in range(20):
        for j in range(1000):
            c[i] += a[i, j]"""
    assert schedules(text) == snapshot(
        ["split j 128; split i 2; grid i0; block i1 j1; accumulate over j0"]
    )


def test_sums_across_memory_have_threads_along_the_cells() -> None:
    text = """\
routine columns(a: float32[300, 64], c: float32[64]):
    for j in range(64):
        for i in range(300):
            c[j] += a[i, j]"""
    assert schedules(text) == snapshot(
        ["split j 8; split i 32; grid i0; block j1 i1; accumulate over j0"]
    )


def test_a_product_is_computed_in_tiles_of_shared_memory() -> None:
    text = """\
routine product(a: float32[512, 256], b: float32[256, 512], c: float32[512, 512]):
    for i in range(512):
        for j in range(512):
            for k in range(256):
                c[i, j] += a[i, k] * b[k, j]"""
    assert schedules(text) == snapshot(
        [
            "split i 64; split j 64; split i1 16; split i11 8; split i111 4; split j1 16; split j11 8; split j111 2; split k 16; grid i0 j0; block i10 j110 i110 i1110 j1110 j1111; order i0 j0 i10 j110 i110 i1110 j1110 j1111 k0 k1 i1111 j10; unroll k1; unroll i1111; unroll j10; pack 0 inside k0 as k1 i1; pack 1 inside k0 as k1 j1; accumulate over k0 fused"
        ]
    )


def test_long_sums_are_split_over_the_grid() -> None:
    text = """\
routine total(a: float32[1000000], c: float32[1]):
    for i in range(1000000):
        c[0] += a[i]"""
    assert schedules(text) == snapshot(
        [
            "split j 256; grid i; block j1; accumulate over j0",
            "split i 32; block i1; accumulate over i0",
        ]
    )


def test_threads_of_a_block_normalize_a_row_together() -> None:
    text = """\
routine rows(a: float32[100, 500], s: float32[100, 1], c: float32[100, 500]):
    for i in range(100):
        for j in range(500):
            s[i, 0] += a[i, j]
    for i in range(100):
        for j in range(500):
            c[i, j] = a[i, j] / s[i, 0]"""
    assert schedules(text) == snapshot(
        ["rows i on 256; split j 256; block j1; accumulate over j0; rows i; split j 256; block j1"]
    )


def test_windows_of_results_gather_their_terms() -> None:
    text = """\
routine windows(a: float32[40], b: float32[3], c: float32[42]):
    for i in range(40):
        for k in range(3):
            c[i + k] += a[i] * b[k]"""
    assert schedules(text) == snapshot(["block i; accumulate over j"])


def test_distant_windows_of_results_become_kernels_one_after_the_other() -> None:
    text = """\
routine windows(a: float32[40], b: float32[3], c: float32[81]):
    for i in range(40):
        for k in range(3):
            c[2*i + k] += a[i] * b[k]"""
    assert schedules(text) == snapshot(["block i", "block i", "block i"])


def test_sums_to_overlapping_windows_are_the_obstacle_for_tiles() -> None:
    program = parse("""\
routine windows(a: float32[40, 3], b: float32[3], c: float32[42]):
    for i in range(40):
        for k in range(3):
            c[i + k] += a[i, k] * b[k]""")
    nest = kernel_nest(program.body)
    assert nest is not None
    decision = decide_on_blocks(nest, program.nodes, DEVICE)
    assert decision.schedule is None
    assert decision.refusals == tuple((unit, Obstacle.SHIFTING) for unit in COMMON_UNITS)


def test_statements_without_independent_loops_run_on_one_thread() -> None:
    text = """\
routine recurrence(c: float32[50]):
    for i in range(49):
        c[i + 1] = c[i] + c[i + 1]"""
    plan = schedule_for(split_kernels(parse(text)), DEVICE, finish_for(DEVICE)).plan()
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    (grid,) = kernel.body.stmts
    assert isinstance(grid, For)
    assert (grid.kind, grid.stop) == (AxisKind.GRID, 1)


def test_a_search_has_schedules_for_sums_of_one_factor() -> None:
    program = parse("""\
routine total(a: float32[18, 33], c: float32[18]):
    for i in range(18):
        for k in range(33):
            c[i] += a[i, k]""")
    (kernel,) = nest_plan(split_kernels(program), DEVICE).kernels
    assert list(block_schedules(kernel.nest, program.nodes, DEVICE))


def test_every_schedule_of_a_search_is_right() -> None:
    program = parse("""\
routine product(a: int32[18, 33], b: int32[33, 17], c: int32[18, 17]):
    for i in range(18):
        for j in range(17):
            for k in range(33):
                c[i, j] += a[i, k] * b[k, j]""")
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, shape).astype(np.int32) for shape in ((18, 33), (33, 17)))
    left, right, result = program.params
    target = replace(DEVICE, thread_blocks=replace(DEVICES["small"], threads=16))
    (kernel,) = nest_plan(split_kernels(program), target).kernels
    found = list(block_schedules(kernel.nest, program.nodes, target))
    texts = [schedule_text(schedule) for schedule in found]
    assert len(set(texts)) == len(found) > 4
    assert any("pack" in text for text in texts)
    for schedule in found:
        assert parse_schedule(schedule_text(schedule)) == schedule

        def chosen(plan: Plan, _: Target, schedule: Schedule = schedule) -> Plan:
            return schedule_by_rule(plan, lambda nest, nodes: schedule)

        results = subject_named("interp").run(program, {left: a, right: b}, (), chosen)
        np.testing.assert_array_equal(results[result], a @ b)
