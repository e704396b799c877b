"""Schedules on the host and in compiled steps."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

T = oc.train

SCHEDULES = {
    "constant": T.constant(0.1),
    "warmup": T.constant(0.1, warmup=4),
    "linear": T.linear(0.1, steps=10, final=0.01, warmup=3),
    "cosine": T.cosine(0.1, steps=10, final=0.01, warmup=3),
    "wsd": T.wsd(0.1, steps=12, decay=4, warmup=3, final=0.01),
    "wsd without a stable stage": T.wsd(0.1, steps=7, decay=4, warmup=3),
    "exponential": T.exponential(0.1, decay=0.5, steps=4),
    "staircase": T.exponential(0.1, decay=0.5, steps=4, staircase=True, final=0.02),
    "one cycle": T.one_cycle(0.1, steps=10),
    "joined": T.joined([T.constant(0.1), T.cosine(0.05, steps=5)], boundaries=[4]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_compiled_schedule_has_the_values_of_the_host(name: str) -> None:
    schedule = SCHEDULES[name]
    with oc.Session():
        step = oc.placeholder("step", output=[1])
        rate = schedule(step)
        ctx = oc.Context("cpu_c")
        routine = ctx.compile(oc.train.forward(rate))
        for count in range(16):
            ctx[step] = float(count)
            routine()
            assert ctx.item(rate) == pytest.approx(schedule(count), rel=2e-6, abs=1e-8)


def test_a_warm_up_ends_at_the_first_value_and_the_last_value_stays() -> None:
    cosine = T.cosine(1.0, steps=10, final=0.1, warmup=4)
    assert [cosine(k) for k in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cosine(7) == pytest.approx(0.1 + 0.9 * 0.5)
    assert cosine(10) == cosine(1000) == pytest.approx(0.1)


def test_a_stable_stage_lies_between_warm_up_and_decay() -> None:
    wsd = T.wsd(1.0, steps=10, decay=4, warmup=2)
    expected = [0.5, 1, 1, 1, 1, 1, 1, *(1 - math.sqrt(k / 4) for k in (1, 2, 3, 4, 4))]
    assert [wsd(k) for k in range(12)] == pytest.approx(expected)


def test_joined_schedules_begin_at_their_first_values() -> None:
    joined = T.joined([T.constant(1.0), T.linear(0.5, steps=5)], boundaries=[3])
    assert [joined(k) for k in range(6)] == pytest.approx([1, 1, 1, 0.5, 0.4, 0.3])


def test_a_schedule_is_a_value_that_other_processes_print_alike() -> None:
    cosine = T.cosine(1e-3, steps=100, warmup=5)
    assert cosine == T.cosine(1e-3, steps=100, warmup=5) != T.cosine(1e-3, steps=100, warmup=6)
    assert pickle.loads(pickle.dumps(cosine)) == cosine
    assert repr(cosine) == "warmup(half_wave(0.001, 0.0, 95, 0.0), 5)"


def test_an_optimizer_follows_its_schedule(target: str) -> None:
    schedule = T.linear(0.5, steps=4, warmup=2)
    with oc.Session(dtype="float64"):
        p = oc.param("p", init=oc.tensor([1.0, 2.0], dtype="float64"))
        loss = oc.einsum("...=>0", p)
        optimizer = T.SGD(learning_rate=schedule)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        total = 0.0
        for count in range(6):
            step()
            total += schedule(count)
            np.testing.assert_allclose(ctx[p], [1 - total, 2 - total], rtol=1e-12)


class _Own(T.Schedule):
    def value(self, step: Any) -> Any:
        return oc.minimum(0.1 * step, 0.2)


@pytest.mark.parametrize(
    ("rate", "rates"),
    [
        (lambda k: 0.1 / (1.0 + k), [0.1, 0.05, 0.1 / 3, 0.025]),
        (lambda k: oc.where(k < 2, 0.1, 0.01), [0.1, 0.1, 0.01, 0.01]),
        (lambda k: 0.1, [0.1] * 4),
        (_Own(), [0.0, 0.1, 0.2, 0.2]),
    ],
    ids=["quotient", "condition", "constant", "class"],
)
def test_a_function_of_the_number_of_updates_is_a_rate(rate: Any, rates: list[float]) -> None:
    with oc.Session(dtype="float64"):
        p = oc.param("p", init=0.0, output=[])
        loss = oc.sum(p)
        optimizer = T.SGD(learning_rate=1.0, groups={"p": {"learning_rate": rate}})
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        step = ctx.compile(optimizer.minimize(loss))
        found = [0.0]
        for _ in rates:
            step()
            found.append(-ctx.item(p))
    assert np.diff(found) == pytest.approx(rates)


def test_functions_that_are_no_rates_are_refused() -> None:
    for rate in (lambda: 0.1, T.cosine):
        with pytest.raises(oc.UsageError, match="a function of 1 argument as learning_rate"):
            T.SGD(learning_rate=rate)
    with pytest.raises(oc.UsageError, match="The value of a schedule") as error:
        _Own()(3)
    assert "min and math.cos" in error.value.fix


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.cosine(0.1, steps=0),
        lambda: T.cosine(0.1, steps=5, warmup=5),
        lambda: T.cosine("x", steps=5),
        lambda: T.linear(math.inf, steps=5),
        lambda: T.wsd(0.1, steps=5, decay=4, warmup=2),
        lambda: T.exponential(0.1, decay=0.0, steps=4),
        lambda: T.one_cycle(0.1, steps=10, rise=1.5),
        lambda: T.one_cycle(0.1, steps=10, first_divisor=0.0),
        lambda: T.one_cycle(0.1, steps=10, last_divisor=-1.0),
        lambda: T.cosine(-0.1, steps=5),
        lambda: T.linear(0.1, steps=5, final=-0.1),
        lambda: T.joined([T.constant(0.1)], boundaries=[3]),
        lambda: T.joined([T.constant(0.1), T.constant(0.2)], boundaries=[0]),
        lambda: T.joined([], boundaries=[]),
        lambda: T.constant(0.1)(-1),
        lambda: T.constant(0.1)("now"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(make: Any) -> None:
    with pytest.raises(oc.UsageError):
        make()
