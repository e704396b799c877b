"""Convolutions with a 3x3 window: 64 channels to 64, images of 56x56, minibatches of 8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function

_BATCH, _SIZE, _CHANNELS, _WINDOW = 8, 56, 64, 3


def workloads() -> Iterator[Function]:
    """Yield all combinations of strides 1 and 2, padded and valid, without and with gradients."""
    for gradients in (False, True):
        for stride in (1, 2):
            for padded in (True, False):
                yield _convolution(stride, padded, gradients)


def _convolution(stride: int, padded: bool, gradients: bool) -> Function:
    kind = "padded" if padded else "valid"
    written = {"stride": stride, "padded": padded}
    size = _SIZE // stride if padded else (_SIZE - _WINDOW) // stride + 1
    result = (_BATCH, size, size, _CHANNELS)
    return Function(
        name=f"convolution 3x3, stride {stride}, {kind}" + (" and gradients" if gradients else ""),
        arrays=partial(_arrays, stride, padded),
        own=partial(_own, **written),
        torch=partial(_torch, **written),
        jax=partial(_jax, **written),
        tinygrad=partial(_tinygrad, **written),
        pytensor=None,
        batch_axes={"images": 1, "result": 1},
        input_axes={"weights": 3},
        result=result,
        gradients=gradients,
        flops=2.0 * np.prod(result) * _WINDOW**2 * _CHANNELS * (3 if gradients else 1),
    )


def _arrays(stride: int, padded: bool) -> dict[str, Array]:
    random = np.random.default_rng(0)
    size = _SIZE if padded else stride * ((_SIZE - _WINDOW) // stride) + _WINDOW
    shapes = {
        "images": (_BATCH, size, size, _CHANNELS),
        "weights": (_CHANNELS, _WINDOW, _WINDOW, _CHANNELS),
    }
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _own(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    mark = "=" if padded else "<"
    windows = f"{stride}*y{mark}+v, {stride}*x{mark}+u"
    return oc.einsum(f"...|{windows}, i; v, u, i -> o => ...|y, x, o", images, weights)


def _torch(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    import torch

    images, weights = images.permute(0, 3, 1, 2), weights.permute(0, 3, 1, 2)
    low, high = _margins(stride)
    padding = 0
    if padded and low == high:
        padding = low
    elif padded:  # strided windows of this project begin at the first cell outside
        images = torch.nn.functional.pad(images, (low, high, low, high))
    found = torch.nn.functional.conv2d(images, weights, stride=stride, padding=padding)
    return found.permute(0, 2, 3, 1)


def _jax(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    import jax

    margins = _margins(stride) if padded else (0, 0)
    return jax.lax.conv_general_dilated(
        images,
        weights,
        (stride, stride),
        [margins, margins],
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )


def _tinygrad(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    low, high = _margins(stride) if padded else (0, 0)
    images, weights = images.permute(0, 3, 1, 2), weights.permute(0, 3, 1, 2)
    found = images.conv2d(weights, stride=stride, padding=(low, high, low, high))
    return found.permute(0, 2, 3, 1)


def _margins(stride: int) -> tuple[int, int]:
    """Return how many cells windows reach over the image, before it and after it."""
    reach = _WINDOW - stride
    return reach - reach // 2, reach // 2
