"""Products in repetitions copy their constant operands once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.compile.kernel_benchmark import Bench
from ocannl_core.ir.kernels.nest_plan import nest_kernels
from ocannl_core.ir.kernels.nodes import Kernel, RepeatedSteps
from ocannl_core.passes.kernels.pipeline import nest_plan, plan_variants
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.runtime.routine import Routine
from ocannl_core.schedule.tuning.schedule_candidates import first_candidates

STEPS = 6


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with oc.Session(seed=0):
        yield


def whole(*dims: int) -> np.ndarray:
    """Return small whole numbers, whose sums of products are exact in every order."""
    return np.random.default_rng(len(dims)).integers(-1, 2, dims).astype(np.float32)


def recurrence(w: oc.Tensor, batch: int, width: int) -> oc.Tensor:
    """Return the states of `h = clip(w @ h + x[t])`."""

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        h = oc.minimum(oc.maximum(w @ h + x, -2.0), 2.0)
        return h, h

    xs = oc.tensor(whole(STEPS, batch, width), batch_axes=2)
    return oc.scan(step, 0.0, xs)[0]


def compiled(result: oc.Tensor, backend: str) -> tuple[oc.Context, Routine]:
    ctx = oc.Context(backend)
    ctx.init_params(result)
    routine = ctx.compile(oc.train.forward(result), keep=[result])
    routine()
    return ctx, routine


def titles(routine: Routine, *, repeated: bool) -> list[str]:
    """Return the titles of kernels that copy operands, inside of repetitions or outside."""
    steps = [each for each in routine.plan.steps if isinstance(each, RepeatedSteps) is repeated]
    inside = [leaf for each in steps if isinstance(each, RepeatedSteps) for leaf in each.steps]
    kernels = [each for each in (inside if repeated else steps) if isinstance(each, Kernel)]
    return [each.title for each in kernels if each.title.startswith("copies for")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [33, 64, 256])
@pytest.mark.parametrize("batch", [1, 3, 8, 40])
def test_results_are_those_of_plain_loops(batch: int, width: int, dtype: str) -> None:
    w = oc.tensor(whole(width, width), input_axes=1, dtype=dtype)
    result = recurrence(w, batch, width)
    ctx, _ = compiled(result, "cpu_c")
    with settings.overrides(schedule="none"):
        plain, _ = compiled(result, "cpu_c")
    np.testing.assert_array_equal(ctx[result], plain[result])


@pytest.mark.parametrize("batch", [8, 40])
def test_weights_are_copied_ahead_of_the_steps(batch: int) -> None:
    w = oc.tensor(whole(256, 256), input_axes=1)
    _, routine = compiled(recurrence(w, batch, 256), "cpu_c")
    assert len(titles(routine, repeated=False)) == 1


def test_a_single_row_reads_weights_where_they_are() -> None:
    w = oc.tensor(whole(256, 256), input_axes=1)
    _, routine = compiled(recurrence(w, 1, 256), "cpu_c")
    assert titles(routine, repeated=False) == titles(routine, repeated=True) == []


def test_copies_are_made_again_where_an_outer_loop_changes_the_weights() -> None:
    w = oc.tensor(whole(256, 256), input_axes=1)

    def outer(w: oc.Tensor, _: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        states = recurrence(w, 8, 256)
        return w * -1.0, states

    result = oc.scan(outer, w, length=2)[0]
    ctx, routine = compiled(result, "cpu_c")
    assert titles(routine, repeated=False) == []
    assert len(titles(routine, repeated=True)) == 1
    with settings.overrides(schedule="none"):
        plain, _ = compiled(result, "cpu_c")
    np.testing.assert_array_equal(ctx[result], plain[result])


def test_a_trial_copies_once_and_runs_the_product_as_often_as_the_loop() -> None:
    w = oc.tensor(whole(256, 256), input_axes=1)
    _, routine = compiled(recurrence(w, 8, 256), "cpu_c")
    build, target = routine._build, routine._build.target
    plan = nest_plan(split_kernels(build.program.loops), target)
    (kernel,) = [each for each in nest_kernels(plan) if each.nest.repetition is not None]
    bench = Bench(plan, kernel, manager.select("cpu_c")[0], target)
    assert bench.runs == STEPS
    default, *_ = first_candidates(kernel.nest, plan.nodes, target)
    *copies, repeated = plan_variants(plan, kernel, [default.schedule], target, bench.runs).steps
    assert [each.title.startswith("copies for") for each in copies] == [True]
    assert isinstance(repeated, RepeatedSteps)
    assert repeated.count == STEPS


def test_a_search_changes_no_result(tmp_path: Path) -> None:
    w = oc.tensor(whole(96, 96), input_axes=1)
    result = recurrence(w, 8, 96)
    with settings.overrides(cache_dir=str(tmp_path)):
        ctx, routine = compiled(result, "cpu_c")
        expected = ctx[result]
        tuning = routine.tune(0.5)
        assert [each.title for each in tuning.kernels]
        tuned, _ = compiled(result, "cpu_c")
        np.testing.assert_array_equal(tuned[result], expected)


def test_a_memory_budget_has_no_room_for_copies() -> None:
    w = oc.tensor(whole(256, 256), input_axes=1)
    with settings.overrides(memory_budget=100_000):
        _, routine = compiled(recurrence(w, 8, 256), "cpu_c")
    assert titles(routine, repeated=False) == []
