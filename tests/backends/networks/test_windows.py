"""Convolutions of one to three axes, pooling and resizing, beside loops over windows."""

from __future__ import annotations

import re
from collections.abc import Callable
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


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_an_interpolation_has_the_format_and_the_digits_of_the_image(
    target: str, dtype: str
) -> None:
    with oc.Session(dtype=dtype):
        y = oc.nn.resize(oc.tensor(np.arange(4.0), dtype=dtype), (7,), axis=0, mode="bilinear")
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y))()
        assert str(y.dtype) == dtype
        at = np.clip((np.arange(7) + 0.5) * 4 / 7 - 0.5, 0, 3)
        error = {"float64": 1e-15, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
        np.testing.assert_allclose(ctx[y].astype(np.float64), at, rtol=error, atol=error)


def test_groups_that_do_not_divide_and_unknown_modes_are_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[9, 4])
        with pytest.raises(oc.UsageError, match="3 groups of 4"):
            oc.nn.conv(x, axes=1, groups=3)
        with pytest.raises(oc.UsageError, match="mode='cubic'"):
            oc.nn.resize(x, (3,), mode="cubic")
        with pytest.raises(oc.UsageError, match="for 1 axes"):
            oc.nn.conv(x, axes=1, kernel=(3, 3))


REFUSED: dict[str, Callable[[oc.Tensor], object]] = {
    "kernel=0": lambda x: oc.nn.conv2d(x, channels=3, kernel=0),
    "kernel=(3, -1)": lambda x: oc.nn.conv(x, channels=3, kernel=(3, -1)),
    "kernel='33'": lambda x: oc.nn.conv(x, channels=3, kernel="33"),
    "stride=-1": lambda x: oc.nn.conv(x, channels=3, stride=-1),
    "dilation=0": lambda x: oc.nn.conv(x, channels=3, dilation=0),
    "window=-2": lambda x: oc.nn.avg_pool(x, window=-2),
    "window=0": lambda x: oc.nn.max_pool2d(x, window=0),
    "stride=0": lambda x: oc.nn.max_pool(x, stride=0, floor=True),
    "2.0 groups": lambda x: oc.nn.conv(x, channels=8, groups=2.0),
    "groups=-1": lambda x: oc.nn.group_norm(x, groups=-1),
    r"channels=(2, 4)": lambda x: oc.nn.conv(x, channels=(2, 4), groups=2),
    "sizes=[-1, 3]": lambda x: oc.nn.resize(x, [-1, 3]),
    "sizes=[2.5, 3]": lambda x: oc.nn.resize(x, [2.5, 3]),  # type: ignore[list-item]
    "sizes=[0, 3]": lambda x: oc.nn.resize(x, [0, 3], mode="bilinear"),
    "sizes=[8] for axis=[1, 2]": lambda x: oc.nn.resize(x, [8], axis=[1, 2]),
    "layers=0": lambda x: oc.nn.lstm(x, width=3, layers=0),
    "entries=0": lambda x: oc.nn.embedding(oc.cast(x, "int32"), entries=0, width=3),
    "blocks=(1,) and channels=(4, 4)": lambda x: oc.nn.resnet(
        x, classes=3, blocks=(1,), channels=(4, 4)
    ),
    "stem='Large'": lambda x: oc.nn.resnet(x, classes=3, stem="Large"),
}


@pytest.mark.parametrize("found", REFUSED)
def test_sizes_are_positive_integers_and_errors_name_the_argument(found: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[8, 8, 4])
        with pytest.raises(oc.UsageError, match=re.escape(found)) as caught:
            REFUSED[found](x)
        assert caught.value.fix
        assert "test_windows.py" in caught.value.where


def test_sizes_are_integers_of_numpy_too() -> None:
    two = np.int64(2)
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[8, 8, 4])
        y = oc.nn.conv2d(x, kernel=two, channels=np.int64(8), groups=two)
        y = oc.nn.group_norm(oc.nn.max_pool2d(y, window=two), groups=two)
        y = oc.nn.basic_block(y, channels=two)
        y = oc.nn.resize(y, [two, np.int32(3)])
        xs = oc.nn.embedding(oc.argmax(y, -1), entries=two, width=two)
        oc.nn.gru(xs, width=two, layers=two)
        assert tuple(xs.shape) == (2, 2, 3, 2)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "before"),
    [
        *((1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 1), (4, 1, 1, 1), (2, 2, 1, 0), (3, 2, 1, 1)),
        *((4, 2, 1, 1), (5, 2, 1, 2), (6, 2, 1, 2), (2, 1, 3, 1), (2, 1, 2, 1), (4, 2, 3, 4)),
    ],
)
def test_padded_windows_begin_half_of_their_extent_before_their_position(
    target: str, kernel: int, stride: int, dilation: int, before: int
) -> None:
    cells = np.random.default_rng(0).normal(size=(1, 12, 1)).astype(np.float32)
    options: Any = {"axes": 1, "kernel": kernel, "stride": stride, "dilation": dilation}
    padded = np.zeros(64, np.float32)
    padded[20:32] = cells[0, :, 0]
    at = 20 - before + stride * np.arange(12 // stride)[:, None] + dilation * np.arange(kernel)
    found, w = run(target, cells, lambda x: oc.nn.conv(x, channels=1, **options))
    np.testing.assert_allclose(found[0, :, 0], padded[at] @ w.ravel(), rtol=1e-4, atol=1e-5)
    found, w = run(target, cells, lambda x: oc.nn.conv(x, channels=1, transposed=True, **options))
    spread = np.zeros(64 * stride, np.float32)
    for k in range(kernel):
        for o in range(12):
            spread[20 + stride * o + dilation * k - before] += cells[0, o, 0] * w.ravel()[k]
    exact = spread[20 : 20 + 12 * stride]
    np.testing.assert_allclose(found[0, :, 0], exact, rtol=1e-4, atol=1e-5)
    if dilation == 1:
        image = cells[:, :, None, :]
        pool: Any = {"window": (kernel, 1), "stride": (stride, 1), "padded": True}
        found, _ = run(target, image, lambda x: oc.nn.max_pool2d(x, **pool))
        padded[:20], padded[32:] = -np.inf, -np.inf
        np.testing.assert_array_equal(found[0, :, 0, 0], padded[at].max(axis=1))


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (4, 2), (3, 2), (5, 3), (6, 4), (3, 1)])
@pytest.mark.parametrize("axes", [1, 2])
def test_up_sampling_is_that_of_torch(axes: int, kernel: int, stride: int) -> None:
    torch = pytest.importorskip("torch")
    cells = np.random.default_rng(0).normal(size=(2, *(5, 4)[:axes], 3)).astype(np.float32)
    found, w = run(
        "cpu_c",
        cells,
        lambda x: oc.nn.conv(
            x, axes=axes, kernel=kernel, stride=stride, channels=6, transposed=True
        ),
    )
    function = getattr(torch.nn.functional, f"conv_transpose{axes}d")
    padding = (kernel - 1) // 2
    more = stride - kernel + 2 * padding
    exact = function(
        torch.tensor(np.moveaxis(cells, -1, 1)),
        torch.tensor(np.moveaxis(np.moveaxis(w, -1, 0), 1, 1)),
        stride=stride,
        padding=padding,
        output_padding=more,
    )
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), exact.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel", "dilation"), [(2, 1), (3, 1), (4, 1), (2, 3), (4, 2), (6, 1)])
def test_convolutions_without_strides_are_those_of_torch_at_the_same_size(
    kernel: int, dilation: int
) -> None:
    torch = pytest.importorskip("torch")
    found, w = run(
        "cpu_c",
        IMAGE,
        lambda x: oc.nn.conv(x, axes=2, kernel=kernel, dilation=dilation, channels=2),
    )
    exact = torch.nn.functional.conv2d(
        torch.tensor(np.moveaxis(IMAGE, -1, 1)),
        torch.tensor(np.moveaxis(w, -1, 1)),
        padding="same",
        dilation=dilation,
    )
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), exact.numpy(), rtol=1e-4, atol=1e-5)
