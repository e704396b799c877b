"""Schedules for thread blocks compute what plain loops do, on the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ocannl_core.dtypes import float32, int32, uint32
from ocannl_core.fast_dataclass import replace
from ocannl_core.kernel_passes.pipeline import finish_for, schedule_for
from ocannl_core.kernels.nodes import Plan
from ocannl_core.kernels.verify import verify
from ocannl_core.target import Target, ThreadBlocks
from ocannl_core.testing import programs
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import loop_programs, random_programs
from ocannl_core.testing.subject import subject_named
from tests.support.reductions import random_reductions
from tests.support.rows import random_row_programs

DEVICES = {
    "tiny": ThreadBlocks(max_threads=8, threads=4, local_bytes=1 << 12),
    "small": ThreadBlocks(max_threads=64, threads=64, local_bytes=1 << 14, processors=2),
    "large": ThreadBlocks(max_threads=256, threads=256, registers=255),
}
LONG = (1, 2, 3, 5, 8, 16, 19, 33, 70)
FEW = settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
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
