"""Convolutions of one to three axes, pooling and resizing, beside loops over windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
SIGNAL = np.random.default_rng(0).normal(size=(2, 9, 4)).astype(np.float32)
IMAGE = np.random.default_rng(1).normal(size=(2, 4, 6, 3)).astype(np.float32)


def run(target: str, cells: Array, function: Any) -> tuple[Array, Array]:
    """Return the result of a function of a tensor, and its weight, if any."""
    with oc.Session():
        batch, *output = cells.shape
        x = oc.placeholder("x", batch=batch, output=output)
        result = function(x)
        context = oc.Context(target)
        routine = context.compile(oc.train.forward(result))
        context.init_params(result)
        context[x] = cells
        routine()
        weights = [context[p] for p in result.params if p.label[0] == "weight"]
        return context[result], weights[0] if weights else np.empty(0)


def test_a_convolution_with_stride_is_a_sum_over_windows(target: str) -> None:
    found, w = run(
        target,
        SIGNAL,
        lambda x: oc.nn.conv(x, axes=1, channels=6, stride=2, dilation=2, padded=False),
    )
    exact = [
        sum(np.einsum("bc,oc->bo", SIGNAL[:, 2 * o + 2 * k], w[:, k]) for k in range(3))
        for o in range(3)
    ]
    np.testing.assert_allclose(found, np.stack(exact, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "channels"), [(4, 8), (2, 6), (4, None)])
def test_groups_of_channels_do_not_mix(target: str, groups: int, channels: int | None) -> None:
    found, w = run(
        target,
        SIGNAL,
        lambda x: oc.nn.conv(x, axes=1, channels=channels, groups=groups, padded=False),
    )
    size = 4 // groups
    exact = [
        np.concatenate(
            [
                sum(SIGNAL[:, o + k, g * size : (g + 1) * size] @ w[:, g, k].T for k in range(3))
                for g in range(groups)
            ],
            axis=1,
        )
        for o in range(7)
    ]
    np.testing.assert_allclose(found, np.stack(exact, 1), rtol=1e-4, atol=1e-5)


def test_a_transposed_convolution_adds_windows_up(target: str) -> None:
    found, w = run(
        target,
        SIGNAL,
        lambda x: oc.nn.conv(x, axes=1, channels=5, stride=2, padded=False, transposed=True),
    )
    exact = np.zeros((2, 19, 5))
    for i in range(9):
        for k in range(3):
            exact[:, 2 * i + k] += SIGNAL[:, i] @ w[:, k].T
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


def test_volumes_are_convolved_along_three_axes() -> None:
    cells = np.ones((1, 3, 3, 3, 2), np.float32)
    found, w = run(
        "interp", cells, lambda x: oc.nn.conv(x, axes=3, kernel=2, channels=1, padded=False)
    )
    assert found.shape == (1, 2, 2, 2, 1)
    np.testing.assert_allclose(found, w.sum(), rtol=1e-5, atol=1e-5)


def test_pooling_is_over_windows(target: str) -> None:
    blocks = IMAGE.reshape(2, 2, 2, 3, 2, 3)
    mean, _ = run(target, IMAGE, oc.nn.avg_pool)
    np.testing.assert_allclose(mean, blocks.mean((2, 4)), rtol=1e-5, atol=1e-6)
    greatest, _ = run(target, IMAGE, oc.nn.max_pool)
    np.testing.assert_array_equal(greatest, blocks.max((2, 4)))


def test_images_are_resized_by_nearest_and_by_linear_interpolation(target: str) -> None:
    nearest, _ = run(target, IMAGE, lambda x: oc.nn.resize(x, (8, 12)))
    np.testing.assert_array_equal(nearest, IMAGE.repeat(2, 1).repeat(2, 2))
    linear, _ = run(target, IMAGE, lambda x: oc.nn.resize(x, (8, 3), mode="bilinear"))
    exact = IMAGE.astype(np.float64)
    for axis, size in ((1, 8), (2, 3)):
        count = exact.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        exact = np.apply_along_axis(
            lambda v, at=at, count=count: np.interp(at, np.arange(count), v), axis, exact
        )
    np.testing.assert_allclose(linear, exact, rtol=1e-4, atol=1e-5)


def test_groups_that_do_not_divide_and_unknown_modes_are_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[9, 4])
        with pytest.raises(oc.UsageError, match="3 groups of 4"):
            oc.nn.conv(x, axes=1, groups=3)
        with pytest.raises(oc.UsageError, match="mode='cubic'"):
            oc.nn.resize(x, (3,), mode="cubic")
        with pytest.raises(oc.UsageError, match="for 1 axes"):
            oc.nn.conv(x, axes=1, kernel=(3, 3))
