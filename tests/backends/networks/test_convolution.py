"""Convolutional networks against loops over positions, kernels and channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

IMAGES = np.random.default_rng(0).normal(size=(2, 8, 4, 2))


def convolve(
    images: Any, weight: Any, *, stride: int = 1, dilation: int = 1, padded: bool = True
) -> Any:
    """One position and one cell of its window at a time; the weight is `m,kh,kw,n`."""
    count, height, width, _ = images.shape
    channels, kernel_height, kernel_width, _ = weight.shape
    spans = [1 + (kernel - 1) * dilation for kernel in (kernel_height, kernel_width)]
    before = [(span - 1) // 2 if padded else 0 for span in spans]
    if padded:
        sizes = [height // stride, width // stride]
    else:
        sizes = [
            (size - span) // stride + 1 for size, span in zip((height, width), spans, strict=True)
        ]
    result = np.zeros((count, *sizes, channels))
    for oh, ow, kh, kw in np.ndindex(*sizes, kernel_height, kernel_width):
        h = stride * oh + dilation * kh - before[0]
        w = stride * ow + dilation * kw - before[1]
        if 0 <= h < height and 0 <= w < width:
            result[:, oh, ow] += images[:, h, w] @ weight[:, kh, kw].T
    return result


def max_pool(images: Any, window: int, stride: int) -> Any:
    count, height, width, channels = images.shape
    sizes = [(size - window) // stride + 1 for size in (height, width)]
    result = np.zeros((count, *sizes, channels))
    for oh, ow in np.ndindex(*sizes):
        rows = slice(stride * oh, stride * oh + window)
        columns = slice(stride * ow, stride * ow + window)
        result[:, oh, ow] = images[:, rows, columns].max(axis=(1, 2))
    return result


def test_a_network_with_padding_and_pooling_infers_every_size(check: Any) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        for channels in (3, 2):
            x = nn.max_pool2d(oc.tanh(nn.conv2d(x, channels=[channels])))
        return nn.dense(x, output=[3])

    output = network(oc.tensor(IMAGES, batch_axes=1))

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
        first = max_pool(np.tanh(convolve(IMAGES, w1) + b1), 2, 2)
        second = max_pool(np.tanh(convolve(first, w2) + b2), 2, 2)
        return np.einsum("nhwc,mhwc->nm", second, w3) + b3

    shapes = check(output, reference)
    assert shapes == ["3,3,2->3", "3", "3,3,3->2", "2", "2,1,2->3", "3"]


def test_the_network_can_be_written_with_specifications_alone(check: Any) -> None:
    weight = oc.param("weight", input=[3, 3, ...], output=[3])
    hidden = oc.einsum(
        "... | oh=+kh, ow=+kw, ..ic..; kh, kw, ..ic.. -> ..oc.. => ... | oh, ow, ..oc..",
        oc.tensor(IMAGES, batch_axes=1),
        weight,
    )
    window = oc.tensor(np.zeros((2, 2)))
    pooled = oc.primitives.tropical(
        "... | 2*oh<+wh, 2*ow<+ww, ..c..; wh, ww => ... | oh, ow, ..c..", oc.tanh(hidden), window
    )
    output = oc.param("last", output=[2]) @ pooled

    def reference(weight: Any, last: Any) -> Any:
        pooled = max_pool(np.tanh(convolve(IMAGES, weight)), 2, 2)
        return np.einsum("nhwc,mhwc->nm", pooled, last)

    assert check(output, reference) == ["3,3,2->3", "4,2,3->2"]


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"padded": True}),
        (2, {"padded": True}),
        (3, {"padded": False}),
        (3, {"padded": True, "stride": 2}),
        (2, {"padded": False, "stride": 2}),
        (2, {"padded": True, "dilation": 2}),
        (2, {"padded": False, "dilation": 3}),
        (1, {"padded": True, "stride": 2}),
    ],
    ids=str,
)
def test_a_convolution_agrees_with_the_sum_over_its_windows(
    check: Any, kernel: int, options: dict[str, Any]
) -> None:
    image = IMAGES[:1, :4]
    output = nn.conv2d(
        oc.tensor(image, batch_axes=1), kernel=(kernel, kernel), channels=[2], **options
    )

    def reference(weight: Any, bias: Any) -> Any:
        return convolve(image, weight, **options) + bias

    check(output, reference)


def test_the_gradient_of_an_overlapping_maximum_goes_to_the_greatest_cells(check: Any) -> None:
    scale = oc.param("scale", output=[4, 4, 2])
    cells = IMAGES[:1, :4]
    output = nn.max_pool2d(scale * oc.tensor(cells, batch_axes=1), window=2, stride=1)

    def reference(scale: Any) -> Any:
        return max_pool(scale * cells, 2, 1)

    check(output, reference)
