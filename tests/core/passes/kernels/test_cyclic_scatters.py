"""Blocks that own parts of the positions of a scatter store what plain loops store, bit for bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.verify import verify
from ocannl_core.ir.loops.nodes import AxisKind, For
from ocannl_core.ir.loops.parse import parse
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.subject import subject_named

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
