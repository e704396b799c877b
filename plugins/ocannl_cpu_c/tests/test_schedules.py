"""Scheduled reductions in C agree with plain loops on the reference interpreter."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings as core_settings
from ocannl_core.codegen.rendering.render_state import NotVectorizedError
from ocannl_core.codegen.rendering.vector_loops import VectorLoop
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.numbers.dtypes import float32, int32, uint32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import Scheduler, subject_named
from tests.support.blocks import random_block_programs
from tests.support.example_count import example_count
from tests.support.reductions import fitting_schedules, random_reductions
from tests.support.rows import random_row_programs
from tests.support.schedules import schedule_by_rule

LONG = (1, 2, 3, 5, 8, 16, 19, 33)
REDUCTIONS = random_reductions(int32, LONG, 5000) | random_reductions(float32, LONG, 5000)


def check(example: Example, schedule: Scheduler) -> None:
    """Small integers are exact in every order of addition."""
    expected = subject_named("interp").run(example.program, example.arrays)
    found = subject_named("cpu_c").run(example.program, example.arrays, (), schedule)
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


@settings(
    max_examples=example_count(6),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(example=REDUCTIONS, data=st.data())
def test_c_code_of_any_schedule_is_right(example: Example, data: st.DataObject) -> None:
    nest = kernel_nest(example.program.body)
    assert nest is not None
    schedule = data.draw(fitting_schedules(nest))
    check(example, lambda plan, target: schedule_by_rule(plan, lambda nest, nodes: schedule))


PROCESSORS = {
    "wide": {"vector_bytes": 64, "vector_registers": 32, "has_fma": True},
    "narrow": {"vector_bytes": 32, "vector_registers": 16, "has_fma": True},
    "plain": {"vector_bytes": 0, "vector_registers": 16, "has_fma": False},
}


@pytest.mark.parametrize("processor", PROCESSORS)
@settings(
    max_examples=example_count(5),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(example=REDUCTIONS)
def test_the_chosen_schedule_is_right_on_every_processor(processor: str, example: Example) -> None:
    def schedule(plan: Plan, target: Target) -> Plan:
        return schedule_for(plan, replace(target, **PROCESSORS[processor])).plan()

    check(example, schedule)


@settings(
    max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(example=random_programs(dtypes=(int32, uint32), max_nests=6))
def test_scheduled_programs_of_many_kernels_are_right(example: Example) -> None:
    expected = subject_named("interp").run(example.program, example.arrays, example.indices)
    found = subject_named("cpu_c").run(
        example.program, example.arrays, example.indices, schedule_for
    )
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


@pytest.mark.parametrize("shape", [(64, 300, 48), (7, 1000, 129), (1, 513, 1)])
def test_sums_of_products_are_within_the_bound(shape: tuple[int, int, int]) -> None:
    """`n u / (1 - n u)` times the sum of magnitudes, for sums of `n` products in `float32`."""
    rows, terms, columns = shape
    random = np.random.default_rng(terms)
    a, b = random.normal(size=(rows, terms)), random.normal(size=(terms, columns))
    a, b = a.astype(np.float32), b.astype(np.float32)
    with oc.Session():
        product = oc.einsum("ij; jk => ik", oc.tensor(a), oc.tensor(b))
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(product))
        routine()
        found = context[product]
    assert any(kernel.schedule for kernel in oc.explain(routine).kernels)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = (terms + 1) * 2.0**-24 / (1 - (terms + 1) * 2.0**-24) * (np.abs(a) @ np.abs(b))
    assert (np.abs(found - exact) <= bound).all()


def test_without_schedules_the_bits_are_those_of_the_interpreter() -> None:
    random = np.random.default_rng(3)
    a, b = (random.normal(size=(40, 40)).astype(np.float32) for _ in range(2))
    results = []
    for backend in ("interp", "cpu_c"):
        with core_settings.overrides(schedule="none"), oc.Session():
            product = oc.einsum("ij; jk => ik", oc.tensor(a), oc.tensor(b))
            context = oc.Context(backend)
            routine = context.compile(oc.train.forward(product))
            routine()
            results.append(context[product])
        assert not any(kernel.schedule for kernel in oc.explain(routine).kernels)
    assert results[0].tobytes() == results[1].tobytes()


@settings(
    max_examples=example_count(8),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(example=random_row_programs(), near=st.sampled_from([1024, 4096, 1 << 20]))
def test_kernels_that_run_together_row_by_row_are_right(example: Example, near: int) -> None:
    """All results are larger than these caches, so they are stored past them."""

    def schedule(plan: Plan, target: Target) -> Plan:
        return schedule_for(
            plan, replace(target, **PROCESSORS["wide"], cache_bytes=(near, 1, 1))
        ).plan()

    check(example, schedule)


@settings(
    max_examples=example_count(4),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(example=random_block_programs(), threads=st.sampled_from([1, 3]))
def test_kernels_that_run_together_by_blocks_are_right(example: Example, threads: int) -> None:
    """The scores do not fit into these caches."""

    def schedule(plan: Plan, target: Target) -> Plan:
        caches = (256, 1024, 1 << 20)
        return schedule_for(plan, replace(target, **PROCESSORS["wide"], cache_bytes=caches)).plan()

    with core_settings.overrides(threads=threads):
        check(example, schedule)


@pytest.mark.parametrize("function", [oc.maximum, oc.minimum])
@pytest.mark.parametrize("length", [64, 200])
def test_limits_of_rows_propagate_nan(function: Callable[..., Any], length: int) -> None:
    random = np.random.default_rng(length)
    x = random.normal(size=(40, length)).astype(np.float32)
    x[np.arange(20), random.integers(0, length, 20)] = np.nan
    x[30] = np.inf
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        rows = oc.tensor(x, batch_axes=1)
        other = oc.tensor(np.roll(x, 1, axis=0), batch_axes=1)
        value = function(rows, oc.exp(other))
        limit = oc.einmax("...|... => ...|0", value)
        context = oc.Context("cpu_c")
        context.compile(oc.train.forward(limit), keep=[value, limit])()
        found, most = context[value], context[limit]
    numpy = np.maximum if function is oc.maximum else np.minimum
    with np.errstate(invalid="ignore"):
        expected = numpy(x, np.exp(np.roll(x, 1, axis=0)))
    np.testing.assert_allclose(found, expected, rtol=3e-7)
    np.testing.assert_array_equal(most.reshape(-1), found.max(axis=1))


def test_layer_normalization_and_its_gradients_are_one_kernel_and_small_sums() -> None:
    random = np.random.default_rng(11)
    x, weights = (random.normal(size=(700, 1101)).astype(np.float32) for _ in range(2))
    gamma = random.normal(size=1101).astype(np.float32)
    results = []
    for schedule in ("none", "default"):
        with core_settings.overrides(schedule=schedule), oc.Session():
            rows = oc.tensor(x, batch_axes=1, requires_grad=True)
            scale = oc.tensor(gamma, requires_grad=True)
            difference = rows - oc.einsum("...|... => ...|0", rows) / x.shape[1]
            variance = oc.einsum("...|... => ...|0", difference * difference) / x.shape[1]
            value = scale * (difference * oc.rsqrt(variance + 1e-5))
            loss = oc.einsum("... => 0", value * oc.tensor(weights, batch_axes=1))
            context = oc.Context("cpu_c")
            kept = [value, rows.grad, scale.grad]
            routine = context.compile(oc.train.grad_update(loss), keep=kept)
            routine()
            results.append([np.array(context[each]) for each in kept])
    schedules = [kernel.schedule for kernel in oc.explain(routine).kernels]
    assert [schedule.startswith("rows") for schedule in schedules] == [True, False]
    for found, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("cells", [5, 8, 16])
def test_overlapping_windows_accumulate(cells: int, dtype: str) -> None:
    """Iterations load cells that earlier ones stored in two parts: compilers may take one part for all."""
    arch = "x86-64" if platform.machine() in ("x86_64", "AMD64") else "native"
    ones = np.ones(cells)
    with (
        core_settings.overrides(cpu_c__arch=arch, max_visits=0, tune="off", warn_summed_once=False),
        oc.Session(dtype=dtype),
    ):
        x, y = (oc.param(name, output=[cells]) for name in "xy")
        total = oc.primitives.outer_sum("i=+k; i => i", x, y, values={"k": cells})
        context = oc.Context("cpu_c")
        step = context.compile(oc.train.grad_update(total), keep=[x.grad])
        context[x], context[y] = ones, ones
        step()
        left = cells // 2
        expected = np.convolve(ones, ones)[left : left + cells]
        np.testing.assert_array_equal(context[x.grad], expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("cells", [65, 257])
def test_integers_of_the_last_cell_are_summed_in_pairs(cells: int, dtype: str) -> None:
    """Sums that change between signed and unsigned numbers are ones that compilers get wrong."""
    values = np.arange(cells) * 37 % 19 - 7
    with core_settings.overrides(tune="off", warn_summed_once=False), oc.Session():
        x = oc.tensor(values.astype(dtype), dtype=dtype)
        y = oc.add(x, oc.einsum("a; b => b", x, x))
        context = oc.Context("cpu_c")
        context.compile(oc.train.forward(y))()
        np.testing.assert_array_equal(context[y], values + values * values.sum())


def test_an_explanation_names_vectors_that_became_plain_loops(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object) -> None:
        raise NotVectorizedError

    x = oc.placeholder("x", output=[64])
    code = oc.train.forward(oc.exp(x))
    ctx = oc.Context("cpu_c")
    with core_settings.overrides(cache_dir=str(tmp_path / "vectors")):
        vectors = ctx.compile(code)
    with core_settings.overrides(cache_dir=str(tmp_path / "plain")):
        monkeypatch.setattr(VectorLoop, "render", refuse)
        plain = oc.Context("cpu_c").compile(code)
    for routine, is_plain in ((vectors, False), (plain, True)):
        (kernel,) = oc.explain(routine).kernels
        assert "vectorize" in kernel.schedule
        assert kernel.has_plain_tiles is is_plain
        assert ("the renderer has no form" in str(oc.explain(routine))) is is_plain
