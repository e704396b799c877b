"""Launches within planted limits: folded grids, and refusals before the driver is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.codegen.text.routine_source import Launch, RoutineSource
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import Subject, subject_named
from ocannl_opencl.source import shape_of
from tests.support.example_count import example_count
from tests.support.reductions import random_reductions

FEW = settings(
    max_examples=example_count(4),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def device(limits: LaunchLimits) -> Subject:
    """Return the first device with other limits."""
    subject = subject_named("opencl")
    blocks = subject.target.thread_blocks
    assert blocks is not None
    most = min(limits.threads, limits.block[0])
    own = replace(
        blocks,
        max_threads=most,
        threads=min(most, blocks.threads),
        local_bytes=limits.shared_bytes,
        limits=limits,
    )
    return Subject(subject.backend, replace(subject.target, thread_blocks=own))


def scheduled(plan: Plan, target: Target) -> Plan:
    return schedule_for(plan, target, finish_for(target)).plan()


@FEW
@given(
    example=random_reductions(float32, (1, 2, 5, 33, 70), 3000)
    | random_programs(dtypes=(int32,), max_nests=3),
    threads=st.sampled_from((1, 3, 16, 64)),
    blocks=st.sampled_from((1, 2, 3, 7, 20)),
)
def test_programs_run_within_planted_limits_and_are_right(
    example: Example, threads: int, blocks: int
) -> None:
    extents = (threads, 1, 1), (blocks, 1 << 20, 1)
    subject = device(LaunchLimits(threads, *extents, 1 << 14, 1 << 14))
    source = subject.generate(example.program, scheduled)
    assert isinstance(source, RoutineSource)
    for launch in source.launches:
        if isinstance(launch, Launch):
            grid, items = shape_of(launch.text)
            assert grid[0] <= blocks
            assert items <= max(threads, 128 if launch.checks else 1)
    expected = subject_named("interp").run(example.program, example.arrays, example.indices)
    found = subject.run(example.program, example.arrays, example.indices, scheduled)
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


def test_a_launch_beyond_a_limit_is_refused_with_the_limit_and_the_kernel() -> None:
    subject = device(LaunchLimits(4, (4, 1, 1), (3, 2, 1), 1 << 14, 1 << 14))
    program = parse("""routine test(a: float32[900], c: float32[900]):
    for i in range(900):
        c[i] = a[i] + 1.0""")
    source = subject.generate(program, scheduled)
    with pytest.raises(oc.LaunchLimitError) as caught:
        subject.backend.compile(source, subject.target)
    error = caught.value
    assert (error.rule, error.found, error.fix) == snapshot(
        (
            "A launch of a kernel stays within the limits of its device.",
            "19 blocks along axis y of the grid, of which opencl:0 has at most 2",
            "compute the tensor in parts; `OCANNL_SCHEDULE=none` chooses other launches",
        )
    )
    assert "writes c" in error.where
