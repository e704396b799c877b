"""Clipping, accumulation, averages, and updates that are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc


class Linear:
    """A loss whose gradients the host states: the sum of products of parameters and data."""

    def __init__(self, target: str, optimizer: oc.train.Optimizer, dtype: str = "float64") -> None:
        self.a = oc.param("a", init=oc.tensor([1.0, 2.0], dtype=dtype))
        self.b = oc.param("b", init=oc.tensor([3.0], dtype=dtype))
        self.x = oc.placeholder("x", output=[2], dtype=dtype)
        self.y = oc.placeholder("y", output=[1], dtype=dtype)
        self.loss = oc.einsum("i;i=>0", self.a, self.x) + oc.einsum("i;i=>0", self.b, self.y)
        self.optimizer = optimizer
        self.context = oc.Context(target)
        self.context.init_params(self.loss)
        if optimizer.loss_scale is None:
            code = oc.train.grad_update(self.loss) + optimizer.update(self.loss)
        else:
            code = optimizer.minimize(self.loss)
        self.routine = self.context.compile(code)

    def step(self, *gradients: float) -> list[float]:
        """Take a step; return the parameters."""
        with oc.settings.overrides(allow_nan=True):
            self.context[self.x], self.context[self.y] = gradients[:2], gradients[2:]
        self.routine()
        return [*self.context[self.a], *self.context[self.b]]

    def state(self, name: str) -> Any:
        tensors = {**self.optimizer.state, **self.optimizer.diagnostics}
        return self.context[tensors[name]]


@pytest.fixture(autouse=True)
def _session() -> Any:
    with oc.Session(dtype="float64"):
        yield


def test_long_gradients_are_scaled_down_to_the_norm_and_short_ones_are_kept(target: str) -> None:
    model = Linear(target, oc.train.SGD(learning_rate=1.0, clip_norm=1.0))
    assert model.step(2.0, 3.0, 6.0) == pytest.approx([1 - 2 / 7, 2 - 3 / 7, 3 - 6 / 7])
    assert model.state("gradient_norm")[...] == pytest.approx(7.0)
    before = model.step(0.0, 0.0, 0.0)
    assert model.step(0.1, 0.2, 0.2) == pytest.approx(np.subtract(before, [0.1, 0.2, 0.2]))


def test_the_norm_of_gradients_in_float16_has_their_range(target: str) -> None:
    with oc.Session(dtype="float16"):
        model = Linear(target, oc.train.SGD(learning_rate=1.0, clip_norm=0.5), dtype="float16")
        assert model.step(600.0, 0.0, 800.0) == pytest.approx([0.7, 2.0, 2.6], rel=1e-3)
        assert model.state("gradient_norm")[...] == pytest.approx(1000.0)


def test_an_infinite_norm_stops_the_step_where_gradients_are_finite(target: str) -> None:
    model = Linear(target, oc.train.SGD(learning_rate=1.0, clip_norm=1.0))
    assert model.step(1e200, 1.0, 1.0) == pytest.approx([1, 2, 3])


def test_gradients_are_clipped_by_value(target: str) -> None:
    model = Linear(target, oc.train.SGD(learning_rate=1.0, clip_value=0.5))
    assert model.step(2.0, -3.0, 0.25) == pytest.approx([0.5, 2.5, 2.75])


def test_micro_batches_are_averaged_into_one_update(target: str) -> None:
    model = Linear(target, oc.train.SGD(learning_rate=1.0, momentum=0.5, accumulate=3))
    assert model.step(1.0, 0.0, 0.0) == [1, 2, 3]
    assert model.step(2.0, 0.0, 3.0) == [1, 2, 3]
    assert model.step(3.0, 3.0, 0.0) == pytest.approx([-1, 1, 2])
    assert int(model.state("updates")[...]) == 1
    model.step(0.0, 0.0, 0.0)
    model.step(0.0, 0.0, 0.0)
    assert model.step(0.0, 0.0, 0.0) == pytest.approx([-2, 0.5, 1.5])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_gradients_that_are_not_finite_change_neither_parameters_nor_state(
    target: str, bad: float
) -> None:
    optimizer = oc.train.Adam(learning_rate=0.1, skip_nonfinite=True, average=0.5)
    model = Linear(target, optimizer)
    before = model.step(1.0, 2.0, 3.0)
    state = {name: model.context[each] for name, each in optimizer.state.items()}
    assert model.step(1.0, bad, 3.0) == before
    for name, each in optimizer.state.items():
        np.testing.assert_array_equal(model.context[each], state[name])
    assert model.state("is_applied")[...] == 0
    assert model.step(1.0, 2.0, 3.0) != before


def test_averages_start_at_the_first_parameters_and_follow_them(target: str) -> None:
    optimizer = oc.train.SGD(learning_rate=1.0, average=0.75)
    model = Linear(target, optimizer)
    model.step(1.0, 1.0, 1.0)
    average = model.context[optimizer.averages["a"]]
    np.testing.assert_allclose(average, [0, 1])
    model.step(4.0, 0.0, 0.0)
    np.testing.assert_allclose(model.context[optimizer.averages["a"]], [-1, 1])


def test_a_gradient_far_beyond_recent_norms_is_left_out(target: str) -> None:
    guard = oc.train.ZScore(limit=3.0, window=4)
    model = Linear(target, oc.train.SGD(learning_rate=1.0, skip_outliers=guard))
    for size in (1.0, 1.1, 0.9, 1.0):
        before = model.step(size, 0.0, 0.0)
    assert model.step(50.0, 0.0, 0.0) == before
    assert model.step(1.05, 0.0, 0.0) != before
    before = model.step(0.0, 0.0, 0.0)
    assert model.step(np.nan, 0.0, 0.0) == before
    np.testing.assert_allclose(sorted(model.state("norms")), [0.0, 0.9, 1.0, 1.05])


def test_norms_are_not_judged_before_the_window_is_full(target: str) -> None:
    guard = oc.train.ZScore(limit=3.0, window=4)
    model = Linear(target, oc.train.SGD(learning_rate=1.0, skip_outliers=guard))
    model.step(1.0, 0.0, 0.0)
    assert model.step(100.0, 0.0, 0.0)[0] == pytest.approx(-100.0)


def test_a_dynamic_scale_halves_on_overflow_and_grows_after_the_interval(target: str) -> None:
    scale = oc.train.DynamicScale(initial=4, interval=2, largest=5)
    optimizer = oc.train.SGD(learning_rate=1.0, loss_scale=scale)
    model = Linear(target, optimizer)
    changes = []
    for gradient in (1.0, np.inf, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        model.step(gradient, 0.0, 0.0)
        changes.append(int(model.state("loss_scale_change")[...]))
    assert changes == [0, -1, -1, 0, 0, 1, 1, 1]
    assert int(model.state("updates")[...]) == 7


def test_a_scaled_loss_gives_the_steps_of_the_plain_one(target: str) -> None:
    optimizer = oc.train.SGD(learning_rate=0.5, loss_scale=oc.train.DynamicScale(initial=10))
    assert Linear(target, optimizer).step(1.0, 2.0, 3.0) == pytest.approx([0.5, 1.0, 1.5])


def test_small_gradients_survive_in_float16_by_the_scale() -> None:
    """The gradient of `p * x` is 2**-26, below the range of float16; that of `p` is in float32."""
    found = []
    for scale in (None, oc.train.DynamicScale(initial=12)):
        with oc.Session(dtype="float16", param_dtype="float32"):
            p = oc.param("p", init=1.0, output=[1])
            x = oc.tensor([2.0**-13], dtype="float16")
            loss = oc.einsum("...=>0", (p * x) * x * x)
            optimizer = oc.train.SGD(learning_rate=2.0**37, loss_scale=scale)
            ctx = oc.Context("cpu_c")
            ctx.init_params(loss)
            ctx.compile(optimizer.minimize(loss))()
            found.append(float(ctx.item(p)))
    assert found == [1.0, 0.75]


def test_an_update_apart_from_scaled_gradients_is_refused() -> None:
    p = oc.param("p", init=oc.tensor([1.0], dtype="float64"))
    optimizer = oc.train.SGD(learning_rate=0.1, loss_scale=oc.train.DynamicScale())
    with pytest.raises(oc.UsageError, match=r"opt\.minimize\(loss\)"):
        optimizer.update(oc.einsum("...=>0", p * p))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_guards_store_no_second_gradient_of_each_parameter(dtype: str) -> None:
    with oc.Session(dtype=dtype):
        hidden = oc.tensor(np.ones((4, 64)), batch_axes=1, dtype=dtype)
        for _ in range(3):
            hidden = oc.relu(oc.nn.dense(hidden, output=[64]))
        loss = oc.mean(hidden * hidden)
        opt = oc.train.AdamW(learning_rate=1e-3, clip_norm=1.0, skip_nonfinite=True)
        step = oc.Context("cpu_c").compile(opt.minimize(loss))
        assert step.memory_plan.nbytes < 2 * 4 * 64 * 64
