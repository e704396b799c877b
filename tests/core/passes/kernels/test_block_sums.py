"""Long sums in blocks: their accuracy, and their meaning for all loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels import block_sums
from ocannl_core.passes.kernels.block_sums import block_long_sums
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.reductions import random_reductions

BLOCK = 1 << 12


def in_blocks(plan: Plan, target: Target) -> Plan:
    """Return a plan with the sums of its kernels in blocks."""
    steps = [block_long_sums(each) if isinstance(each, Kernel) else each for each in plan.steps]
    return replace(plan, steps=tuple(steps))


def value_of(tensor: oc.Tensor, backend: str = "cpu_c") -> np.ndarray:
    context = oc.Context(backend)
    context.compile(oc.train.forward(tensor))()
    return np.asarray(context[tensor])


@pytest.mark.parametrize("schedule", ["default", "none"])
@pytest.mark.parametrize("terms", [1 << 22, (1 << 22) + 1, 3_000_001])
def test_a_long_sum_of_computed_terms_stays_within_its_bound(schedule, terms):
    with oc.Session(), oc.base.settings.overrides(schedule=schedule):
        found = value_of(oc.sum(oc.arange(terms, dtype="float32") * 0.0 + 0.1))
    exact = terms * float(np.float32(0.1))
    assert abs(found - exact) <= exact * 2 * BLOCK * 2**-24


def test_a_long_sum_over_several_axes_stays_within_its_bound():
    with oc.Session(), oc.base.settings.overrides(schedule="none", warn_summed_once=False):
        x = oc.tensor(np.full((1 << 10, 1 << 7), 0.1, np.float32))
        found = value_of(oc.einsum("ij; k => ", x, oc.tensor(np.ones(100, np.float32))))
    exact = 100 * (1 << 17) * float(np.float32(0.1))
    assert abs(found - exact) <= exact * 2 * BLOCK * 2**-24


def test_a_long_sum_of_loaded_terms_with_a_schedule_stays_within_its_bound():
    terms = (1 << 21) + 5
    with oc.Session():
        found = value_of(oc.sum(oc.tensor(np.full(terms, 0.1, np.float32))))
    exact = terms * float(np.float32(0.1))
    assert abs(found - exact) <= exact * (1 << 16) * 2**-24


def test_the_interpreter_adds_up_the_same_blocks():
    cells = np.random.default_rng(3).standard_normal(10_007).astype(np.float32)
    with oc.Session(), oc.base.settings.overrides(schedule="none"):
        total = oc.sum(oc.tensor(cells))
        assert value_of(total).tobytes() == value_of(total, "interp").tobytes()


@settings(max_examples=60)
@given(example=random_reductions(float32, most_steps=600))
def test_blocks_of_any_loops_have_the_sums_of_the_loops(example: Example):
    subject = subject_named("interp")
    right = subject.run(example.program, example.arrays)
    with pytest.MonkeyPatch.context() as patch:
        for most in (1, 3, 7):
            patch.setattr(block_sums, "MAX_BLOCK_TERMS", most)
            found = subject.run(example.program, example.arrays, schedule=in_blocks)
            for node, cells in right.items():
                np.testing.assert_array_equal(found[node], cells)


def test_short_sums_and_sums_with_schedules_stay_as_they_are():
    with oc.Session():
        total = oc.sum(oc.arange(BLOCK, dtype="float32") * 1.5)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(total))
        assert routine.source.count("for (") == 1
