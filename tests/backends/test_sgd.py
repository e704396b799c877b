"""Stochastic gradient descent, step by step, against its formulas."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc

START, TARGET = np.array([1.0, -2.0, 0.5]), np.array([0.25, 1.0, 3.0])


def expected(momentum: float, weight_decay: float, nesterov: bool, steps: int) -> np.ndarray:  # type: ignore[type-arg]
    p, velocity = START.copy(), np.zeros(3)
    for _ in range(steps):
        delta = 2 * (p - TARGET) + weight_decay * p
        if momentum > 0:
            velocity = momentum * velocity + delta
            delta = delta + momentum * velocity if nesterov else velocity
        p = p - 0.1 * delta
    return p


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("rate_is_placeholder", [False, True])
def test_every_variant_takes_the_steps_of_its_formula(
    target: str, momentum: float, weight_decay: float, nesterov: bool, rate_is_placeholder: bool
) -> None:
    with oc.Session(dtype="float64"):
        p = oc.param("p", init=oc.tensor(START, dtype="float64"))
        loss = oc.einsum("...=>0", (p - oc.tensor(TARGET, dtype="float64")) ** 2)
        rate = oc.placeholder("rate", output=[1]) if rate_is_placeholder else 0.1
        update = oc.train.sgd_update(
            loss,
            learning_rate=rate,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss) + update)
        ctx.init_params(loss)
        if isinstance(rate, oc.Tensor):
            ctx[rate] = 0.1
        for count in range(1, 4):
            step()
            reference = expected(momentum, weight_decay, nesterov, count)
            np.testing.assert_allclose(ctx[p], reference, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_momentum_of_a_short_format_loses_no_small_gradients(target: str, dtype: str) -> None:
    with oc.Session(dtype=dtype):
        p = oc.param("p", init=[0.0])
        slope = oc.placeholder("slope", output=[1])
        update = oc.train.sgd_step(p, learning_rate=1.0, momentum=0.99)
        loss = oc.einsum("...=>0", p * slope)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss) + update)
        ctx.init_params(loss)
        ctx[slope] = 1.0
        expected = 0.0
        for _ in range(400):  # of less than half a unit in the last place of the velocity
            step()
            expected = 0.99 * expected + 1.0
        ctx[p] = 0.0
        step()
        assert -ctx.item(p) == pytest.approx(0.99 * expected + 1.0, rel=0.01)


def test_only_velocities_are_kept_between_steps() -> None:
    with oc.Session():
        p = oc.param("p", init=[1.0, 2.0])
        loss = oc.einsum("...=>0", p * p)
        plain = oc.train.sgd_update(loss, learning_rate=0.1, weight_decay=0.1)
        heavy = oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.5, nesterov=True)
        assert plain.resolve().fresh == frozenset()
        assert [node.name for node in heavy.resolve().fresh] == ["sgd_momentum_p"]


def test_parameters_without_a_gradient_are_left_alone() -> None:
    with oc.Session():
        p = oc.param("p", init=[1.0])
        fixed = oc.param("fixed", init=[2.0], requires_grad=False)
        loss = oc.einsum("...=>0", p * fixed)
        ctx = oc.Context("interp")
        update = oc.train.sgd_update(loss, learning_rate=1.0)
        step = ctx.compile(oc.train.grad_update(loss) + update)
        ctx.init_params(loss)
        step()
        assert ctx.item(p) == -1
        assert ctx.item(fixed) == 2


def test_a_step_of_a_tensor_without_a_gradient_names_it() -> None:
    x = oc.tensor([[1.0, 2.0]])
    with pytest.raises(oc.UsageError, match="has none") as caught:
        oc.train.sgd_step(x, learning_rate=0.1)
    assert caught.value.where.startswith("test_sgd.py:")
