"""Schedules that users state for kernels."""

from __future__ import annotations

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.runtime.routine import Routine


def product(device: str = "cpu_c") -> tuple[oc.Context, oc.Tensor, Routine]:
    random = np.random.default_rng(0)
    w = oc.tensor(random.normal(size=(40, 24)).astype(np.float32), input_axes=1)
    x = oc.tensor(random.normal(size=(16, 24)).astype(np.float32), batch_axes=1)
    y = oc.relu(w @ x)
    ctx = oc.Context(device)
    return ctx, y, ctx.compile(oc.train.forward(y))


def schedules(routine: Routine) -> list[str]:
    return [each.schedule for each in oc.explain(routine).kernels]


def test_a_kernel_runs_with_the_schedule_that_its_user_states() -> None:
    with oc.Session():
        ctx, y, step = product()
        step()
        expected = ctx[y]
        (default,) = schedules(step)
        for schedule in (
            "order j i k; accumulate over k",
            "split j 8; order i k j0 j1; vectorize j1",
        ):
            step.use_schedules({1: schedule})
            assert schedules(step) == [schedule]
            ctx[y] = np.zeros_like(expected)
            step()
            np.testing.assert_allclose(ctx[y], expected, rtol=1e-5, atol=1e-5)
        step.use_schedules({1: ""})
        assert schedules(step) == [""]
        step.use_schedules({})
        assert schedules(step) == [default]


def test_equal_kernels_get_the_same_schedule() -> None:
    with oc.Session():
        first, second = (oc.placeholder(name, output=[64], batch=[8]) for name in "ab")
        ctx = oc.Context("cpu_c")
        code = oc.train.forward(first.sum()) + oc.train.forward(second.sum())
        step = ctx.compile(code)
        before = schedules(step)
        step.use_schedules({1: ""})
        assert schedules(step) == [""] * len(before)


@pytest.mark.parametrize("number", [0, 2])
def test_a_schedule_is_stated_for_a_kernel_that_exists(number: int) -> None:
    with oc.Session():
        _, _, step = product()
        with pytest.raises(oc.UsageError, match=f"kernel {number} of 1"):
            step.use_schedules({number: ""})


def test_a_schedule_that_does_not_fit_changes_nothing_and_names_the_kernel() -> None:
    with oc.Session():
        _, _, step = product()
        before = schedules(step)
        with pytest.raises(oc.UsageError) as caught:
            step.use_schedules({1: "split m 4"})
        assert schedules(step) == before
        assert str(caught.value) == snapshot("""\
An axis, or the inside of its blocks, is split once.
  found  split m with the axes i j k
  where  kernel 1, relu[b, o] = relu(matmul[b, o]) (writes relu), at test_stated_schedules.py:71: step.use_schedules({1: "split m 4"})\
""")
        with pytest.raises(oc.UsageError, match="A schedule is made of split"):
            step.use_schedules({1: "go faster"})


def test_devices_without_schedules_take_none() -> None:
    with oc.Session():
        _, _, step = product("interp")
        with pytest.raises(oc.UsageError, match="for a device that has them"):
            step.use_schedules({1: ""})


def test_row_groups_take_no_stated_schedule() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[512], output=[1024])
        ctx = oc.Context("cpu_c")
        step = ctx.compile(oc.train.forward(oc.nn.layer_norm(x)))
        with pytest.raises(oc.UsageError, match="shares rows with others"):
            step.use_schedules({1: ""})
