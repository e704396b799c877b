"""Convolution and pooling of images whose shape is `b|height,width,channels`."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.tensor.contractions import einmax, einsum
from ocannl_core.tensor.network_blocks import op
from ocannl_core.tensor.parameters import param
from ocannl_core.tensor.pointwise_operations import add
from ocannl_core.tensor.tensor import Tensor

Pair = int | tuple[int, int]
"""One number for height and width, or one for each."""


@op
def conv2d(
    x: Tensor,
    *,
    kernel: Pair = 3,
    channels: Sequence[int] | None = None,
    stride: Pair = 1,
    dilation: Pair = 1,
    padded: bool = True,
) -> Tensor:
    """Return a weighted sum over the window of cells around each position, plus a bias.

    Shapes: `b|h,w,n` to `b|h',w',m`, where `h = stride * h'` when padded, and else `h = stride *
    (h' - 1) + dilation * (kernel - 1) + 1`. Parameters: `weight` of shape `kernel,kernel,n->m`, and
    `bias` of shape `m`, 0 at first. Weights are not flipped.

    Args:
        x: The images.
        kernel: The number of cells of a window along each axis.
        channels: The sizes `m`; inferred from the use of the result when not given.
        stride: The distance of neighbouring windows.
        dilation: The distance of neighbouring cells in a window.
        padded: True to pad with zeros, so that windows may leave the image.
    """
    image = f"...|{_windows(stride, dilation, padded)}, ..ic.."
    weight = param("weight", input=[*_pair(kernel), ...], output=channels)
    spec = f"{image}; kh, kw, ..ic.. -> ..oc.. => ...|oh, ow, ..oc.."
    bias_spec = "...|oh, ow, ..oc..; ..oc.. => ...|oh, ow, ..oc.."
    result: Tensor = add(einsum(spec, x, weight), param("bias", init=0.0), logic=bias_spec)
    return result


def max_pool2d(
    x: Tensor, *, window: Pair = 2, stride: Pair | None = None, padded: bool = False
) -> Tensor:
    """Return the maximum of every window, for each channel by itself.

    Shapes: `b|h,w,c` to `b|h',w',c`, as for `conv2d`. The gradient goes to the maximum, the first
    one of equal cells.

    Args:
        x: The images.
        window: The number of cells of a window along each axis.
        stride: The distance of neighbouring windows; the window's size when not given.
        padded: True to let windows leave the image; only cells inside count.
    """
    height, width = _pair(window)
    windows = _windows(window if stride is None else stride, 1, padded)
    spec = f"...|{windows}, ..c.. => ...|oh, ow, ..c.."
    result: Tensor = einmax(spec, x, values={"kh": height, "kw": width})
    return result


def _windows(stride: Pair, dilation: Pair, padded: bool) -> str:
    """Return the two axes that windows slide over: `2*oh=+1*kh, 2*ow=+1*kw`."""
    mark = "=" if padded else "<"
    steps = zip("hw", _pair(stride), _pair(dilation), strict=True)
    return ", ".join(f"{step}*o{axis}{mark}+{gap}*k{axis}" for axis, step, gap in steps)


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
