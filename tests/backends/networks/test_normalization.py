"""Normalization over the batch and over a layer, with the textbook mean and variance."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

POINTS = np.random.default_rng(0).normal(loc=1.0, size=(5, 3))
IMAGES = np.random.default_rng(1).normal(loc=-1.0, size=(2, 3, 2, 4))


def standardize(x: Any, axes: tuple[int, ...]) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def test_batch_normalization_uses_mean_and_variance_of_the_batch(check: Any) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return nn.batch_norm(nn.dense(x, output=[4]))

    output = network(oc.tensor(POINTS, batch_axes=1))

    def reference(weight: Any, bias: Any, gamma: Any, beta: Any) -> Any:
        return gamma * standardize(POINTS @ weight.T + bias, (0,)) + beta

    assert check(output, reference) == ["3->4", "4", "4", "4"]


def test_batch_normalization_of_images_leaves_the_channels(check: Any) -> None:
    x = oc.tensor(IMAGES, batch_axes=1)
    scale = oc.param("scale", output=[4])
    output = nn.batch_norm(scale * x * x, shape="...|h, w, ..c..", features="..c..")

    def reference(scale: Any, gamma: Any, beta: Any) -> Any:
        return gamma * standardize(scale * IMAGES * IMAGES, (0, 1, 2)) + beta

    assert check(output, reference) == ["4", "4", "4"]


def test_layer_normalization_uses_mean_and_variance_of_each_position(check: Any) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return nn.layer_norm(nn.dense(x, output=[4]))

    output = network(oc.tensor(POINTS, batch_axes=1))

    def reference(weight: Any, bias: Any, gamma: Any, beta: Any) -> Any:
        return gamma * standardize(POINTS @ weight.T + bias, (1,)) + beta

    assert check(output, reference) == ["3->4", "4", "4", "4"]


def test_the_only_channel_of_images_has_parameters_of_its_own(check: Any) -> None:
    image = IMAGES[..., :1]
    x = oc.tensor(image, batch_axes=1)
    output = nn.batch_norm(x, shape="...|h, w, ..c..", features="..c..")

    def reference(gamma: Any, beta: Any) -> Any:
        return gamma * standardize(image, (0, 1, 2)) + beta

    assert check(output, reference) == ["1", "1"]


def test_layers_that_end_with_an_axis_of_one_cell_are_normalized(check: Any) -> None:
    image = IMAGES[..., :1]
    output = nn.layer_norm(oc.tensor(image, batch_axes=1))

    def reference(gamma: Any, beta: Any) -> Any:
        return gamma * standardize(image, (1, 2, 3)) + beta

    assert check(output, reference) == ["3,2,1", "3,2,1"]


def test_a_mean_divides_by_the_number_of_cells_that_it_adds_up(target: str) -> None:
    with oc.Session(dtype="float64"):
        x = oc.tensor(IMAGES, batch_axes=1)
        means = {
            (0, 1, 2, 3): oc.mean(x, logic="...|... => 0"),
            (1, 2, 3): oc.mean(x, logic="...|... => ...|0"),
            (0,): oc.mean(x, logic="...|... => ..."),
            (1,): oc.mean(x, logic="...|h, ... => ...|..."),
        }
        ctx = oc.Context(target)
        for axes, found in means.items():
            ctx.compile(oc.train.forward(found))()
            np.testing.assert_allclose(ctx[found].ravel(), IMAGES.mean(axes).ravel(), rtol=1e-12)


CHANNELS = np.random.default_rng(2).normal(loc=20.0, scale=300.0, size=(64, 512))

WIDE: dict[str, tuple[Any, Any]] = {
    "layer_norm": (nn.layer_norm, lambda x: standardize(x, (1,))),
    "rms_norm": (nn.rms_norm, lambda x: x / np.sqrt((x**2).mean(1, keepdims=True))),
    "batch_norm": (nn.batch_norm, lambda x: standardize(x, (0,))),
    "group_norm": (lambda x: nn.group_norm(x, groups=1, axes=0), lambda x: standardize(x, (1,))),
    "mean": (oc.mean, np.mean),
    "std": (oc.std, np.std),
    "norm": (lambda x: oc.norm(x, axis=-1), lambda x: np.linalg.norm(x, axis=-1)),
    "avg_pool": (
        lambda x: nn.avg_pool(x[..., None], axes=1, window=256),
        lambda x: x.reshape(64, 2, 256).mean(2)[..., None],
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_sums_of_float16_may_be_longer_than_their_mean(target: str, name: str) -> None:
    """The squares of the cells are up to 10**6, beyond the range of the format."""
    block, reference = WIDE[name]
    with oc.Session(dtype="float16"):
        y = block(oc.tensor(CHANNELS, batch_axes=1, dtype="float16"))
        ctx = oc.Context(target)
        forward = ctx.compile(oc.train.forward(y))
        if y.params:
            ctx.init_params(y)
        forward()
        assert y.dtype is oc.float16
        assert all(p.dtype is oc.float16 for p in y.params)
        expected = reference(CHANNELS.astype(np.float16).astype(np.float64))
        np.testing.assert_allclose(ctx[y].astype(np.float64), expected, rtol=2e-3, atol=2e-3)


def test_batches_of_any_size_move_the_running_statistics_of_one_routine(target: str) -> None:
    oc.reset()
    n = oc.static_extent("n", max=6)
    x = oc.placeholder("x", batch=[n], output=[2, 3])
    norm = nn.batch_norm(momentum=0.5, shape="...|h, ..c..", features="..c..")
    loss = oc.sum(norm(x))
    ctx = oc.Context(target)
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss))
    mean, variance = np.zeros(3), np.ones(3)
    for size in (6, 3, 1):
        cells = np.random.default_rng(size).standard_normal((size, 2, 3)).astype(np.float32)
        ctx[x] = cells
        step(n=size)
        mean = (mean + cells.mean((0, 1))) / 2
        variance = (variance + cells.var((0, 1), ddof=1)) / 2
    found = norm.statistics
    np.testing.assert_allclose(ctx[found["batch_norm.running_mean"]], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ctx[found["batch_norm.running_variance"]], variance, rtol=1e-5)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_batch_normalization_of_narrow_floats_rounds_once(
    target: str, dtype: str, digits: int, is_training: bool
) -> None:
    cells = np.float32(POINTS * 8).view(np.uint32) >> 16 << 16  # numbers of both formats
    points = cells.view(np.float32).astype(np.float64)
    factors = np.array([1.5, 0.875, 3.0])
    with oc.Session(dtype=dtype):
        x = oc.tensor(points.astype(np.float32), batch_axes=1, dtype=dtype)
        with nullcontext() if is_training else oc.evaluation():
            y = nn.batch_norm(x)
        ctx = oc.Context(target)
        forward = ctx.compile(oc.train.forward(y))
        ctx.init_params(y)
        (gamma,) = (each for each in y.params if each.label[0] == "gamma")
        ctx[gamma] = factors
        forward()
        found = ctx[y].astype(np.float64)
        assert {each.dtype.name for each in y.params} == {dtype}
    normal = standardize(points, (0,)) if is_training else points / np.sqrt(1 + 1e-5)
    unit = 2.0 ** (np.floor(np.log2(np.abs(normal * factors))) + 1 - digits)
    assert np.max(np.abs(found - normal * factors) / unit) < 0.51
