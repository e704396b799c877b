"""One convolution under two names, and channels as a number or as the size of an axis."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

IMAGES = np.linspace(-1.0, 1.0, 2 * 6 * 6 * 4, dtype=np.float32).reshape(2, 6, 6, 4)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padded": False, "kernel": 2},
    {"groups": 2},
    {"transposed": True, "stride": 2, "kernel": 2},
    {"bias": False, "dilation": 2},
    {"stride": 4, "floor": True},
]


def _cells(target: str, block: Any, **options: Any) -> Any:
    with oc.Session(seed=3):
        y = block(oc.tensor(IMAGES, batch_axes=1), **options)
        ctx = oc.Context(target)
        ctx.init_params(y)
        ctx.compile(oc.train.forward(y))()
        return ctx[y]


@pytest.mark.parametrize("options", OPTIONS)
def test_conv2d_is_conv_along_two_axes(target: str, options: dict[str, Any]) -> None:
    ours = _cells(target, oc.nn.conv2d, channels=6, **options)
    np.testing.assert_array_equal(ours, _cells(target, oc.nn.conv, channels=6, axes=2, **options))
    np.testing.assert_array_equal(ours, _cells(target, oc.nn.conv, channels=[6], **options))


def test_the_two_names_have_the_same_arguments() -> None:
    both = [
        {
            name: parameter.default
            for name, parameter in inspect.signature(block).parameters.items()
            if name != "axes"
        }
        for block in (oc.nn.conv, oc.nn.conv2d)
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "block", [oc.nn.separable_conv, oc.nn.basic_block, oc.nn.bottleneck_block, oc.nn.vgg_block]
)
def test_channels_are_a_number_or_the_size_of_an_axis(target: str, block: Any) -> None:
    with oc.evaluation():
        stated = _cells(target, block, channels=8)
        np.testing.assert_array_equal(stated, _cells(target, block, channels=[8]))
    with oc.Session(), pytest.raises(oc.UsageError, match="one axis of channels"):
        oc.nn.separable_conv(oc.tensor(IMAGES, batch_axes=1), channels=[4, 2])


@pytest.mark.parametrize(
    "options", [{}, {"window": 3, "stride": 1, "padded": True}, {"window": 4, "floor": True}]
)
def test_max_pool2d_is_max_pool_along_two_axes(target: str, options: dict[str, Any]) -> None:
    np.testing.assert_array_equal(
        _cells(target, oc.nn.max_pool2d, **options), _cells(target, oc.nn.max_pool, **options)
    )
