"""Scheduled reductions in C give what the reference interpreter gives for the plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ocannl_core.dtypes import float32, int32
from ocannl_core.schedule.cells import cell_nest
from ocannl_core.schedule.default import scheduled, scheduled_by
from ocannl_core.schedule.plan import Plan
from ocannl_core.target import Target
from ocannl_core.testing.programs import Example
from ocannl_core.testing.reductions import fitting_schedules, random_reductions
from ocannl_core.testing.subject import Scheduler, subject_named

LONG = (1, 2, 3, 5, 8, 16, 19, 33)
REDUCTIONS = random_reductions(int32, LONG, 5000) | random_reductions(float32, LONG, 5000)


def check(example: Example, schedule: Scheduler) -> None:
    """Small integers are exact in whatever order they are added."""
    expected = subject_named("interp").run(example.program, example.arrays)
    found = subject_named("cpu_c").run(example.program, example.arrays, (), schedule)
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


@settings(
    max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(example=REDUCTIONS, data=st.data())
def test_c_code_of_any_schedule_is_right(example: Example, data: st.DataObject) -> None:
    nest = cell_nest(example.program.body)
    assert nest is not None
    schedule = data.draw(fitting_schedules(nest))
    check(example, lambda plan, target: scheduled_by(plan, lambda nest, nodes: schedule))


PROCESSORS = {
    "wide": {"vector_bytes": 64, "vector_registers": 32, "has_fma": True},
    "narrow": {"vector_bytes": 32, "vector_registers": 16, "has_fma": True},
    "plain": {"vector_bytes": 0, "vector_registers": 16, "has_fma": False},
}


@pytest.mark.parametrize("processor", PROCESSORS)
@settings(
    max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(example=REDUCTIONS)
def test_the_chosen_schedule_is_right_on_every_processor(processor: str, example: Example) -> None:
    def schedule(plan: Plan, target: Target) -> Plan:
        return scheduled(plan, replace(target, **PROCESSORS[processor]))

    check(example, schedule)
