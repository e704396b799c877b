"""Training and evaluation as two routines of one model: dropout, and running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

IMAGES = np.random.default_rng(0).standard_normal((8, 3)) * 2 + 1


@oc.op
def normalized(x: oc.Tensor, *, rate: float = 0.5) -> oc.Tensor:
    return oc.nn.dropout(oc.param("w", output=[4]) @ oc.nn.batch_norm()(x), rate=rate)


class Model:
    """A model with a training step of eight examples and an evaluation of one."""

    def __init__(self, target: str) -> None:
        x = oc.placeholder("x", batch=[8], output=[3])
        one = oc.placeholder("one", batch=[1], output=[3])
        net = normalized()
        self.y = net(x)
        self.loss = oc.einsum("...|...->... => 0", self.y * self.y)
        with oc.evaluation():
            self.evaluated = net(one)
        self.context = oc.Context(target)
        self.context.init_params(self.loss)
        self.step = self.context.compile(
            oc.train.grad_update(self.loss), keep=[self.y, self.loss, *self.loss.params]
        )
        self.evaluate = self.context.compile(oc.train.forward(self.evaluated))
        self.context[x], self.context[one] = IMAGES, IMAGES[:1]

    def statistic(self, name: str) -> Any:
        return self.context[self.loss.statistics[name]]


@pytest.fixture(autouse=True)
def _session() -> Any:
    with oc.Session(dtype="float64"):
        yield


def test_running_statistics_follow_batches(target: str) -> None:
    model = Model(target)
    mean, variance = np.zeros(3), np.ones(3)
    for count in range(1, 4):
        model.step()
        mean = 0.9 * mean + 0.1 * IMAGES.mean(axis=0)
        variance = 0.9 * variance + 0.1 * IMAGES.var(axis=0, ddof=1)
        np.testing.assert_allclose(model.statistic("normalized.batch_norm.running_mean"), mean)
        found = model.statistic("normalized.batch_norm.running_variance")
        np.testing.assert_allclose(found, variance)
        assert model.statistic("normalized.batch_norm.batches") == count


@pytest.mark.parametrize("is_initialized", [True, False])
def test_training_continues_from_statistics_of_other_programs(
    target: str, is_initialized: bool
) -> None:
    """Their files may lack the count of batches."""
    x = oc.placeholder("x", batch=[8], output=[3])
    loss = oc.sum(oc.nn.batch_norm(x))
    context = oc.Context(target)
    if is_initialized:
        context.init_params(loss)
    else:
        context.assign({p: np.ones(3) for p in loss.params})
    step = context.compile(oc.train.grad_update(loss))
    context[loss.statistics["batch_norm.running_variance"]] = [2.0, 0.5, 30.0]
    context[loss.statistics["batch_norm.running_mean"]] = [1.0, 2.0, 3.0]
    context[x] = IMAGES
    step()
    variance = 0.9 * np.array([2.0, 0.5, 30.0]) + 0.1 * IMAGES.var(axis=0, ddof=1)
    mean = 0.9 * np.array([1.0, 2.0, 3.0]) + 0.1 * IMAGES.mean(axis=0)
    found = (context[loss.statistics[f"batch_norm.running_{n}"]] for n in ("mean", "variance"))
    for value, expected in zip(found, (mean, variance), strict=True):
        np.testing.assert_allclose(value, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_running_statistics_have_the_format_of_parameters(target: str, dtype: str) -> None:
    with oc.Session(dtype=dtype, param_dtype="float32"):
        x = oc.placeholder("x", batch=[8], output=[3])
        net = oc.op(lambda x: oc.nn.batch_norm(oc.nn.dense(x, output=[3])))()
        with oc.evaluation():  # a warning would fail
            evaluated = net(x)
        y = net(x)
        loss = oc.sum(y)
        context = oc.Context(target)
        context.init_params(loss)
        step = context.compile(oc.train.grad_update(loss))
        context.compile(oc.train.forward(evaluated))
        assert str(evaluated.dtype) == str(y.dtype) == dtype
        (weight,) = (p for name, p in loss.params.items() if name.endswith("weight"))
        context[weight] = np.eye(3)
        context[x] = 2.0 * (np.arange(8)[:, None] % 2) + np.array([3.0, 10.0, 50.0])
        for _ in range(60):  # nearer than 1/50, steps are lost in 8 bits
            step()
        found = {name.split(".")[-1]: t for name, t in loss.statistics.items()}
        assert found["running_mean"].dtype is found["running_variance"].dtype is oc.float32
        expected = np.array([4.0, 11.0, 51.0]) * (1 - 0.9**60)
        np.testing.assert_allclose(context[found["running_mean"]], expected, rtol=1e-3)


def test_evaluation_reads_the_running_statistics_and_drops_nothing(target: str) -> None:
    model = Model(target)
    for _ in range(3):
        model.step()
    model.evaluate()
    mean = model.statistic("normalized.batch_norm.running_mean")
    variance = model.statistic("normalized.batch_norm.running_variance")
    w = model.context[model.loss.params["normalized.w"]]
    expected = (IMAGES[:1] - mean) / np.sqrt(variance + 1e-5) @ w.T
    np.testing.assert_allclose(model.context[model.evaluated], expected, rtol=1e-9)


def test_evaluation_shares_the_parameters(target: str) -> None:
    model = Model(target)
    assert set(model.evaluated.params) == set(model.loss.params)
    assert list(model.evaluated.statistics.keys()) == [
        "normalized.batch_norm.running_mean",
        "normalized.batch_norm.running_variance",
    ]


def test_an_evaluation_before_training_reads_a_mean_of_0_and_a_variance_of_1(target: str) -> None:
    model = Model(target)
    model.evaluate()
    w = model.context[model.loss.params["normalized.w"]]
    expected = IMAGES[:1] / np.sqrt(1 + 1e-5) @ w.T
    np.testing.assert_allclose(model.context[model.evaluated], expected, rtol=1e-9)
    model.step()
    found = model.statistic("normalized.batch_norm.running_variance")
    np.testing.assert_allclose(found, 0.9 + 0.1 * IMAGES.var(axis=0, ddof=1))
    model.context.init_params(model.loss)
    assert model.statistic("normalized.batch_norm.batches") == 1
    model.context.init_params(model.loss, reinitialize=True)
    assert model.statistic("normalized.batch_norm.running_variance").tolist() == [1, 1, 1]
    assert model.statistic("normalized.batch_norm.batches") == 0


def test_statistics_of_code_are_initialized_with_its_parameters(target: str) -> None:
    model = Model(target)
    code = oc.train.grad_update(model.loss)
    assert set(code.statistics) == set(model.loss.statistics)
    context = oc.Context(target)
    context.init_params(oc.train.forward(model.evaluated))
    name = "normalized.batch_norm.running_variance"
    assert context[model.loss.statistics[name]].tolist() == [1, 1, 1]


def test_statistics_without_a_value_are_refused(target: str) -> None:
    model = Model(target)
    context = oc.Context(target)
    context.assign({p: np.ones(p.info.dims) for p in model.loss.params})
    one = next(t for t in oc.train.forward(model.evaluated).tensors().values() if t.is_placeholder)
    run = context.compile(oc.train.forward(model.evaluated))
    context[one] = IMAGES[:1]
    with pytest.raises(oc.LinkError) as error:
        run()
    assert "statistic running_mean" in str(error.value)
    assert "ctx.init_params(loss)" in str(error.value)


def test_each_step_drops_other_cells_at_the_stated_rate(target: str) -> None:
    x = oc.placeholder("x", batch=[40], output=[25])
    w = oc.param("w", output=[...], init=1.0)
    y = oc.nn.dropout(w * x, rate=0.25)
    loss = oc.einsum("...|...->... => 0", y)
    ctx = oc.Context(target)
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss), keep=[y, w.grad])
    ctx[x] = np.ones((40, 25))
    masks = []
    for _ in range(3):
        step()
        found = ctx[y]
        assert set(np.unique(found)) == {0.0, 1 / 0.75}
        masks.append(found > 0)
        assert masks[-1].mean() == pytest.approx(0.75, abs=0.06)
        assert ctx[w.grad].sum() == pytest.approx(found.sum())
    assert not np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[1], masks[2])


def test_a_forward_pass_drops_cells_before_any_training_step() -> None:
    x = oc.tensor(np.ones((8, 8), np.float32), batch_axes=1)
    y = oc.nn.dropout(x, rate=0.5)
    context = oc.Context("interp")
    forward = context.compile(oc.train.forward(y), keep=[y])
    context.init_params(y)
    forward()
    assert set(context[y].ravel().tolist()) == {0.0, 2.0}
    first = context[y].tolist()
    forward()
    assert context[y].tolist() == first, "backpropagation alone counts steps"


def test_two_dropouts_drop_different_cells_and_count_one_step() -> None:
    x = oc.placeholder("x", batch=[40], output=[25])
    w = oc.param("w", output=[...], init=1.0)
    first, second = oc.nn.dropout(w * x), oc.nn.dropout(w * x)
    loss = oc.einsum("...|...->... => 0", first + second)
    ctx = oc.Context("cpu_c")
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss), keep=[first, second])
    ctx[x] = np.ones((40, 25))
    step()
    step()
    assert not np.array_equal(ctx[first] > 0, ctx[second] > 0)
    assert int(ctx.item(loss.statistics["dropout_step"])) == 2


def test_a_counter_selects_the_dropped_cells() -> None:
    index = oc.static_index("i")
    x = oc.tensor(np.ones((10, 10)), batch_axes=1)
    y = oc.nn.dropout(x, counter=index)
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(y), bindings=[index])
    masks = []
    for number in (0, 1, 0):
        run(i=number)
        masks.append(ctx[y].copy())
    np.testing.assert_array_equal(masks[0], masks[2])
    assert not np.array_equal(masks[0], masks[1])


@pytest.mark.parametrize("rate", [-0.1, 1.5, "half", True])
def test_a_rate_that_is_no_probability_is_refused(rate: Any) -> None:
    with pytest.raises(oc.UsageError, match="rate="):
        oc.nn.dropout(oc.param("w", output=[2]), rate=rate)


def test_rates_of_zero_and_one_keep_and_drop_everything() -> None:
    x = oc.tensor([1.0, 2.0])
    assert oc.nn.dropout(x, rate=0.0) is x
    y = oc.nn.dropout(x, rate=1.0)
    ctx = oc.Context("cpu_c")
    ctx.compile(oc.train.forward(y))()
    np.testing.assert_array_equal(ctx[y], [0, 0])


def test_a_batch_of_one_has_no_variance_to_train_on() -> None:
    x = oc.tensor([[1.0, 2.0]], batch_axes=1)
    y = oc.nn.batch_norm()(x)
    loss = oc.einsum("...|...->... => 0", y * y)
    ctx = oc.Context("cpu_c")
    ctx.init_params(loss)
    with pytest.raises(oc.ShapeError, match="two cells or more"):
        ctx.compile(oc.train.grad_update(loss))


@pytest.mark.parametrize("scale", [None, oc.train.DynamicScale(4)])
def test_minimizing_moves_statistics_and_counts_steps_as_updating_gradients_does(
    scale: oc.train.DynamicScale | None,
) -> None:
    found = []
    for whole in (False, True):
        with oc.Session(seed=1):
            x = oc.tensor(np.arange(12.0).reshape(4, 3), batch_axes=1)
            h = oc.nn.batch_norm(oc.nn.dense(x, output=[5]))
            y = oc.nn.dense(oc.nn.dropout(h, rate=0.5), output=[1])
            loss = oc.mean(y * y)
            opt = oc.train.SGD(learning_rate=0.1, loss_scale=scale if whole else None)
            ctx = oc.Context("interp")
            ctx.init_params(loss)
            updates = oc.train.grad_update(loss) + opt.update(loss) if not whole else None
            step = ctx.compile(opt.minimize(loss) if updates is None else updates)
            for _ in range(3):
                step()
            found.append(
                [np.array(ctx[each]) for each in (*loss.params, *loss.statistics.values())]
            )
    for expected, same in zip(*found, strict=True):
        np.testing.assert_allclose(same, expected, rtol=1e-5, atol=1e-6)
