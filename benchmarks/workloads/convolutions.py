"""Convolutions with a 3x3 window: 64 channels to 64, images of 56x56, minibatches of 8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function


def workloads() -> Iterator[Function]:
    """Yields all combinations of strides 1 and 2, padded and valid."""
    for stride in (1, 2):
        for padded in (True, False):
            kind = "padded" if padded else "valid"
            yield Function(
                f"convolution 3x3, stride {stride}, {kind}",
                partial(_arrays, stride, padded),
                partial(_own, stride=stride, padded=padded),
                partial(_torch, stride=stride, padded=padded),
                partial(_jax, stride=stride, padded=padded),
                batch_axes={"images": 1},
                input_axes={"weights": 3},
            )


def _arrays(stride: int, padded: bool) -> dict[str, Array]:
    random = np.random.default_rng(0)
    size = 56 if padded else stride * ((56 - 3) // stride) + 3
    return {
        "images": random.standard_normal((8, size, size, 64), dtype=np.float32),
        "weights": random.standard_normal((64, 3, 3, 64), dtype=np.float32),
    }


def _own(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    mark = "=" if padded else "<"
    windows = f"{stride}*y{mark}+v, {stride}*x{mark}+u"
    return oc.einsum(f"...|{windows}, i; v, u, i -> o => ...|y, x, o", images, weights)


def _torch(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    import torch

    images, weights = images.permute(0, 3, 1, 2), weights.permute(0, 3, 1, 2)
    if padded:  # strided windows of this project begin at the first cell outside
        images = torch.nn.functional.pad(images, _margins(stride))
    return torch.nn.functional.conv2d(images, weights, stride=stride).permute(0, 2, 3, 1)


def _jax(images: Any, weights: Any, *, stride: int, padded: bool) -> Any:
    import jax

    low, high = _margins(stride)[:2] if padded else (0, 0)
    return jax.lax.conv_general_dilated(
        images,
        weights,
        (stride, stride),
        [(low, high), (low, high)],
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )


def _margins(stride: int) -> tuple[int, int, int, int]:
    """Returns how many cells windows reach over the image: left, right, above, below."""
    reach = 3 - stride
    return (reach - reach // 2, reach // 2, reach - reach // 2, reach // 2)
