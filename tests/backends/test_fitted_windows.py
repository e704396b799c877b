"""Strided windows over axes of any size: as many as fit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
CELLS = np.random.default_rng(7).normal(size=(2, 8, 8, 1)).astype(np.float32)


def computed(target: str, y: oc.Tensor, x: oc.Tensor, cells: Array) -> Array:
    context = oc.Context(target)
    step = context.compile(oc.train.forward(y))
    context[x] = cells
    step()
    return context[y]


def images(size: int) -> oc.Tensor:
    oc.reset()
    return oc.placeholder("x", batch=[2], output=[size, size, 1])


def windows(cells: Array, kernel: int, stride: int, padded: bool, beyond: float) -> Array:
    """Return the cells of every window over two axes: an odd kernel has as many cells before its
    position as behind it.
    """
    around = (kernel - 1) // 2 if padded else 0
    sides = ((0, 0), (around, around), (around, around), (0, 0))
    wide = np.pad(cells, sides, constant_values=beyond)
    found = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), (1, 2))
    return found[:, ::stride, ::stride]


SIZES = list(product((5, 6, 7, 8), (1, 3), (1, 2, 3), (True, False)))


def test_the_number_of_windows_is_rounded_down() -> None:
    for size, kernel, stride, dilation in product((5, 6, 7, 8), (1, 2, 3), (1, 2, 3), (1, 2)):
        for padded in (True, False):
            x = images(size)
            stated: dict[str, Any] = {
                "kernel": kernel,
                "stride": stride,
                "dilation": dilation,
                "padded": padded,
                "floor": True,
            }
            span = dilation * (kernel - 1)
            count = (size + (span if padded else 0) - span - 1) // stride + 1
            for y in (
                oc.nn.conv2d(channels=[1], **stated)(x),
                oc.nn.conv(axes=2, channels=1, **stated)(x),
            ):
                assert tuple(y.shape) == (2, count, count, 1)


@pytest.mark.parametrize(("size", "kernel", "stride", "padded"), SIZES)
def test_pools_read_the_windows_that_fit(
    target: str, size: int, kernel: int, stride: int, padded: bool
) -> None:
    x, cells = images(size), CELLS[:, :size, :size] - 9
    y = oc.nn.max_pool2d(x, window=kernel, stride=stride, padded=padded, floor=True)
    exact = windows(cells, kernel, stride, padded, -np.inf).max((-1, -2))
    np.testing.assert_array_equal(computed(target, y, x, cells), exact)
    if not padded:
        for pool, reduce in ((oc.nn.max_pool, np.max), (oc.nn.avg_pool, np.mean)):
            x = images(size)
            y = pool(x, window=kernel, stride=stride, floor=True)
            exact = reduce(windows(cells, kernel, stride, padded, 0.0), axis=(-1, -2))
            np.testing.assert_allclose(computed(target, y, x, cells), exact, rtol=1e-5)


@pytest.mark.parametrize(("size", "kernel", "stride", "padded"), SIZES[::2] + SIZES[1::6])
def test_convolutions_read_the_windows_that_fit(
    target: str, size: int, kernel: int, stride: int, padded: bool
) -> None:
    x, cells = images(size), CELLS[:, :size, :size]
    y = oc.nn.conv2d(kernel=kernel, stride=stride, padded=padded, channels=[1], floor=True)(x)
    (weight,) = [each for each in y.params if each.label[0].startswith("weight")]
    context = oc.Context(target)
    step = context.compile(oc.train.forward(y))
    context.init_params(y)
    context[x] = cells
    step()
    kernels = context[weight].reshape(kernel, kernel)
    exact = np.einsum("bhwckl,kl->bhwc", windows(cells, kernel, stride, padded, 0.0), kernels)
    np.testing.assert_allclose(context[y], exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "value"), [("int32", -5), ("bool", False)])
def test_padded_maxima_ignore_cells_beyond_the_axis(target: str, dtype: str, value: int) -> None:
    oc.reset()
    x = oc.placeholder("x", batch=[1], output=[7, 7, 1], dtype=dtype)
    y = oc.nn.max_pool2d(x, window=3, stride=2, padded=True, floor=True)
    found = computed(target, y, x, np.full((1, 7, 7, 1), value, dtype))
    np.testing.assert_array_equal(found, np.full((1, 4, 4, 1), value))


def test_sizes_beside_an_extent_are_rounded_too(target: str) -> None:
    oc.reset()
    x = oc.placeholder("x", batch=[oc.static_extent("n", max=2)], output=[7, 7, 1])
    y = oc.nn.max_pool2d(x, floor=True)
    context = oc.Context(target)
    step = context.compile(oc.train.forward(y))
    context[x] = CELLS[:1, :7, :7]
    step(n=1)
    exact = windows(CELLS[:1, :7, :7], 2, 2, False, 0.0).max((-1, -2))
    np.testing.assert_array_equal(context[y], exact)


def test_without_the_option_the_error_names_it() -> None:
    with pytest.raises(oc.ShapeError, match="floor=True"):
        oc.nn.max_pool2d(images(7))
    with pytest.raises(oc.ShapeError, match="floor=True"):
        oc.nn.conv2d(channels=[1], stride=2)(images(7))


def test_a_window_longer_than_its_axis_does_not_fit() -> None:
    with pytest.raises(oc.UsageError, match="no longer than the axis"):
        oc.nn.max_pool2d(images(2), window=3, floor=True)


def test_a_transposed_convolution_rounds_nothing() -> None:
    with pytest.raises(oc.UsageError, match="nothing to round"):
        oc.nn.conv(axes=2, channels=1, transposed=True, floor=True)(images(4))


@pytest.mark.parametrize("output", [[], [4]])
@pytest.mark.parametrize("name", ["conv2d", "conv", "max_pool2d", "max_pool", "avg_pool"])
def test_windows_along_more_axes_than_there_are_are_refused(name: str, output: list[int]) -> None:
    options: dict[str, Any] = {"axes": 2} if name in ("conv", "max_pool", "avg_pool") else {}
    options |= {"channels": [2], "kernel": 2} if "conv" in name else {}
    with oc.Session():
        x = oc.placeholder("x", batch=[3, 3], output=output, input=[5, 5])
        with pytest.raises(oc.ShapeError, match="first output axes"):
            getattr(oc.nn, name)(x, **options, floor=True)
