"""Blocks own parts of the positions of a scatter and store what plain loops store, bit for bit;
threads of processors share the columns inside of the loops over rows.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, Plan, parallel_loop
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.loops.nodes import AxisKind, For
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.parallel_loops import parallel_axes, parallel_iterations
from ocannl_core.passes.kernels.parallelize import parallelize_step
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.subject import subject_named
from tests.support.verify_plans import verify

BLOCKS = ThreadBlocks(max_threads=64, threads=32, local_bytes=1 << 14, processors=16)


def scheduled(plan: Plan, target: Target) -> Plan:
    device = replace(target, thread_blocks=BLOCKS, has_fma=True)
    found = schedule_for(plan, device, finish_for(device)).plan()
    verify(found)
    return found


def blocks_of(text: str, kind: AxisKind = AxisKind.GRID) -> list[int]:
    """Return the iterations of the loops over thread blocks, or over their threads."""
    plan = scheduled(split_kernels(parse(text)), Target("device"))
    (step,) = plan.steps
    assert isinstance(step, Kernel)
    return [
        loop.stop - loop.start
        for loop in walk(step.body)
        if isinstance(loop, For) and loop.kind is kind
    ]


def text_of(dtype: str, terms: int, rows: int, columns: int) -> str:
    return f"""routine test(ids: {dtype}[{terms}], x: float32[{terms}, {columns}], \
c: float32[{rows}, {columns}]):
    for t in range({terms}):
        for o in range({columns}):
            scatter(c[ids[t], o]) += x[t, o]"""


def test_idle_blocks_own_parts_of_the_positions() -> None:
    assert blocks_of(text_of("int32", 1000, 50, 64)) == [8, 2]


def test_blocks_that_are_busy_own_all_positions() -> None:
    assert blocks_of(text_of("int32", 1000, 50, 600)) == [19]


def test_a_short_scatter_stays_in_one_piece() -> None:
    assert blocks_of(text_of("int32", 10, 50, 32)) == [1]


def test_positions_that_fill_their_format_have_none_outside() -> None:
    assert blocks_of(text_of("uint8", 1000, 256, 32)) == [1]


def test_threads_own_parts_of_a_count() -> None:
    text = """routine test(ids: int32[500], c: int32[7]):
    for t in range(500):
        scatter(c[ids[t]]) += 1"""
    assert blocks_of(text, AxisKind.BLOCK) == [4]


@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from(["int32", "int8", "uint8", "int64"]),
    st.integers(64, 90),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 9),
)
def test_every_cell_gets_its_values_in_the_order_of_the_loops(
    dtype: str, terms: int, rows: int, columns: int, seed: int
) -> None:
    program = parse(text_of(dtype, terms, rows, columns))
    ids, x, c = program.params
    random = np.random.default_rng(seed)
    least = 0 if dtype == "uint8" else -2  # positions out of bounds store nothing
    arrays = {
        ids: random.integers(least, rows + 2, terms),
        x: random.standard_normal((terms, columns)).astype(np.float32),
        c: random.standard_normal((rows, columns)).astype(np.float32),
    }
    subject = subject_named("interp")
    expected = subject.run(program, arrays)
    found = subject.run(program, arrays, (), scheduled)
    np.testing.assert_array_equal(found[c], expected[c])


PARALLEL = AxisKind.PARALLEL

HEAD = "routine test(c: float32[50, 256], x: float32[300, 256], ids: int32[300]):"
ROWS = """
    for t in range(300):
        for o in range(256):
            scatter(c[ids[t], o]) += x[t, o]"""


def cut(body: str, least_work: int = 0) -> tuple[Plan, Kernel]:
    """Return the plan of a routine of one phase, and its kernel."""
    plan = split_kernels(parse(HEAD + body))
    plan = map_steps(plan, partial(parallelize_step, least_work=least_work))
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    verify(plan)
    return plan, kernel


def test_columns_are_dealt_out_in_strips_inside_of_the_rows() -> None:
    plan, kernel = cut(ROWS)
    (rows,) = kernel.body.stmts
    assert isinstance(rows, For)
    assert (rows.kind, rows.stop) == (AxisKind.SERIAL, 300)
    strips = parallel_loop(rows)
    assert strips is not None
    assert strips.stop == 4
    assert parallel_axes(kernel) == (("o", 4),)
    found = parallel_iterations(kernel, plan.nodes)
    assert found is not None
    assert [run.count for run in found.outer] == [4]
    assert found.inner == ()


@pytest.mark.parametrize(
    "body",
    [
        ROWS.replace("range(256)", "range(250)"),
        ROWS.replace("range(256)", "range(48)"),
        ROWS.replace("c[ids[t], o]", "c[ids[t], 0]"),
        ROWS.replace("x[t, o]", "c[0, 0]"),
    ],
    ids=["uneven strips", "few columns", "one column", "reads of what others write"],
)
def test_other_scatters_stay_on_one_thread(body: str) -> None:
    assert not cut(body)[1].is_parallel


def test_a_small_scatter_stays_on_one_thread() -> None:
    assert not cut(ROWS, least_work=10**9)[1].is_parallel


def test_a_scatter_inside_of_a_shared_loop_has_no_strips() -> None:
    head = "routine test(c: float32[3, 50, 256], x: float32[300, 256], ids: int32[300]):"
    body = """
    for n in range(3):
        for t in range(300):
            for o in range(256):
                scatter(c[n, ids[t], o]) += x[t, o]"""
    plan = split_kernels(parse(head + body))
    (kernel,) = map_steps(plan, partial(parallelize_step, least_work=0)).steps
    assert isinstance(kernel, Kernel)
    (outer,) = kernel.body.stmts
    assert isinstance(outer, For)
    marked = [each for each in walk(outer) if isinstance(each, For) and each.kind is PARALLEL]
    assert marked == [outer]
