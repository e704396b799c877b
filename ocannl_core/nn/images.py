"""Networks for images `b|h,w,c`: LeNet, VGG, residual networks and MobileNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ocannl_core.base.errors import UsageError
from ocannl_core.nn.convolution import conv, max_pool, max_pool2d
from ocannl_core.nn.layers import dense
from ocannl_core.nn.normalization import batch_norm
from ocannl_core.nn.sizes import channel_count, count_of_axes, last_size
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.operations.reductions import mean_along as mean
from ocannl_core.tensor.primitives.pointwise_operations import relu


def global_avg_pool(x: Tensor, *, axes: int = 2) -> Tensor:
    """Return the mean of each channel over all positions.

    Shapes: `b|l..., c` to `b|c`.

    Args:
        x: Images, or other positions with their channels.
        axes: The number of axes `l...`.
    """
    places = "".join(f"l{k}, " for k in range(count_of_axes(axes)))
    return mean(f"...|{places}c => ...|c", x)


@op
def lenet(
    x: Tensor,
    *,
    classes: int,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
    activation: Callable[[Tensor], Tensor] = relu,
    pool: Callable[..., Tensor] = max_pool,
) -> Tensor:
    """Return the scores of classes by LeNet-5: convolutions of 5 by 5 cells, each followed by
    pooling, then dense layers.

    Shapes: `b|h,w,c` to `b|classes`. The first convolution is padded, so that images have 28 by 28
    pixels, or other sizes for which windows of 2 by 2 fit.

    Args:
        classes: The number of classes.
        channels: The channels of the convolutions.
        hidden: The widths of the hidden dense layers.
        activation: The activation of all hidden layers.
        pool: The block that halves height and width; `oc.nn.avg_pool` in the paper.
    """
    for number, count in enumerate(channels):
        features = conv(x, axes=2, kernel=5, channels=count, padded=number == 0)
        x = pool(activation(features), window=2)
    for width in hidden:
        x = activation(dense(x, output=[width]))
    return dense(x, output=[classes])


@op
def basic_block(x: Tensor, *, channels: int | Sequence[int], stride: int = 1) -> Tensor:
    """Return images plus two convolutions of them, of 3 by 3 cells, each normalized over the batch.

    Shapes: `b|h,w,c` to `b|h/stride,w/stride,channels`. Where height, width or channels change, the
    images are added after a convolution of one cell, `shortcut`.

    Args:
        channels: The channels of the result.
        stride: The distance of neighboring windows of the first convolution.
    """
    channels = channel_count(channels)
    y = relu(_normal(x, channels, 3, stride, "1"))
    return _added(x, _normal(y, channels, 3, 1, "2"), channels, stride)


@op
def bottleneck_block(x: Tensor, *, channels: int | Sequence[int], stride: int = 1) -> Tensor:
    """Return images plus three convolutions of them, with windows of 1, 3 by 3 and 1 cells; the
    first two have a quarter of the channels.

    Shapes and arguments are as for `basic_block`.
    """
    channels = channel_count(channels)
    inner = channels // 4
    y = relu(_normal(x, inner, 1, 1, "1"))
    y = relu(_normal(y, inner, 3, stride, "2"))
    return _added(x, _normal(y, channels, 1, 1, "3"), channels, stride)


@op
def vgg_block(
    x: Tensor,
    *,
    channels: int | Sequence[int],
    layers: int = 2,
    pool: Callable[..., Tensor] = max_pool,
) -> Tensor:
    """Return images after convolutions of 3 by 3 cells with ReLU, then pooled.

    Shapes: `b|h,w,c` to `b|h/2,w/2,channels`.

    Args:
        channels: The channels of each convolution.
        layers: The number of convolutions.
        pool: The block that halves height and width.
    """
    for number in range(layers):
        x = relu(conv(x, axes=2, kernel=3, channels=channels, label=f"conv{number + 1}"))
    return pool(x, window=2)


@op
def separable_conv(
    x: Tensor, *, channels: int | Sequence[int], kernel: int = 3, stride: int = 1
) -> Tensor:
    """Return a depthwise separable convolution: one of each channel by itself, then one that mixes
    the channels of each cell, both normalized over the batch, with ReLU.

    Shapes: `b|h,w,c` to `b|h/stride,w/stride,channels`.

    Args:
        channels: The channels of the result.
        kernel: The height and width of the first convolution.
        stride: The distance of its neighboring windows.
    """
    width = last_size(x, "a separable convolution")
    x = relu(_normal(x, width, kernel, stride, "1", groups=width))
    return relu(_normal(x, channel_count(channels), 1, 1, "2"))


_MOBILE_CHANNELS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)


@op
def mobilenet(
    x: Tensor, *, classes: int, first: int = 32, channels: Sequence[int] = _MOBILE_CHANNELS
) -> Tensor:
    """Return the scores of classes by separable convolutions; MobileNet of 2017 by default.

    The first convolution halves height and width, and so does each separable one that doubles the
    channels, except for the first.

    Shapes: `b|h,w,c` to `b|classes`.

    Args:
        x: The images. The sizes that are halved are even.
        classes: The number of classes.
        first: The channels of the first convolution.
        channels: The channels of each separable convolution.
    """
    x = relu(_normal(x, first, 3, 2, "1"))
    for number, (before, width) in enumerate(pairwise((first, *channels))):
        stride = 2 if number and width > before else 1
        x = separable_conv(x, channels=width, stride=stride, label=f"layer{number + 1}")
    return dense(global_avg_pool(x), output=[classes])


def _normal(
    x: Tensor, channels: int, kernel: int, stride: int, number: str, *, groups: int = 1
) -> Tensor:
    """Return a convolution without a bias, normalized over the batch."""
    y = conv(
        x,
        axes=2,
        kernel=kernel,
        channels=channels,
        stride=stride,
        groups=groups,
        bias=False,
        label=f"conv{number}",
    )
    return batch_norm(y, shape="...|h, w, ..c..", features="..c..", label=f"norm{number}")


def _added(x: Tensor, y: Tensor, channels: int, stride: int) -> Tensor:
    if stride != 1 or last_size(x, "a residual block") != channels:
        x = _normal(x, channels, 1, stride, "_shortcut")
    return relu(x + y)


@op
def resnet(
    x: Tensor,
    *,
    classes: int,
    blocks: Sequence[int] = (2, 2, 2, 2),
    channels: Sequence[int] = (64, 128, 256, 512),
    block: Callable[..., Tensor] = basic_block,
    stem: str = "large",
) -> Tensor:
    """Return the scores of classes by a residual network; ResNet-18 by default.

    `blocks=(3, 4, 6, 3)` is ResNet-34; with `block=oc.nn.bottleneck_block` and four times the
    channels it is ResNet-50. The first block of every group but the first halves height and width.

    Shapes: `b|h,w,c` to `b|classes`.

    Args:
        x: The images. The sizes that are halved are even.
        classes: The number of classes.
        blocks: The number of blocks in each group.
        channels: The channels of each group.
        block: The residual block.
        stem: "large" for a convolution of 7 by 7 cells and pooling, which divide height and width
            by 4, "small" for a convolution of 3 by 3 cells, as is usual for images of CIFAR.
    """
    if stem not in ("large", "small"):
        raise UsageError.at_caller(
            "The first layers of a residual network are for large or for small images.",
            found=f"stem={stem!r}",
            fix='stem="large" or stem="small"',
        )
    if len(blocks) != len(channels):
        raise UsageError.at_caller(
            "A group of blocks has a number of channels.",
            found=f"blocks={tuple(blocks)} and channels={tuple(channels)}",
            fix=f"channels={tuple(64 * 2**group for group in range(len(blocks)))}",
        )
    first = channels[0] if block is not bottleneck_block else channels[0] // 4
    if stem == "large":
        x = max_pool2d(relu(_normal(x, first, 7, 2, "1")), window=3, stride=2, padded=True)
    else:
        x = relu(_normal(x, first, 3, 1, "1"))
    for group, (count, width) in enumerate(zip(blocks, channels, strict=True)):
        for number in range(count):
            stride = 2 if group and not number else 1
            x = block(x, channels=width, stride=stride, label=f"group{group + 1}_{number + 1}")
    return dense(global_avg_pool(x), output=[classes])
