"""Convolution and pooling of signals, images and volumes: `b|length,channels`,
`b|height,width,channels` and `b|depth,height,width,channels`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.renamed import takes_old_keywords
from ocannl_core.ir.numbers.dtypes import extremes, float32
from ocannl_core.nn.sizes import channel_count, count_of_axes, positive_integers
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.operations.activations import formats_of
from ocannl_core.tensor.operations.axes import apply, axes_of, sized_axes_of, write_shape
from ocannl_core.tensor.operations.contractions import einmax, einsum
from ocannl_core.tensor.operations.literals import tensor
from ocannl_core.tensor.operations.rearrangement import reshape
from ocannl_core.tensor.operations.repetition import pad, select
from ocannl_core.tensor.primitives.pointwise_operations import add, cast, div, identity, mul

MAX_RESIZED = 2**28
"""The first size that `resize` refuses: its weights and positions are computed on the host."""

Sizes = int | Sequence[int]
"""One number for all axes that windows slide over, or one for each."""


@op
def conv(
    x: Tensor,
    *,
    axes: int = 2,
    kernel: Sizes = 3,
    channels: int | Sequence[int] | None = None,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    padded: bool = True,
    groups: int = 1,
    transposed: bool = False,
    bias: bool = True,
    floor: bool = False,
) -> Tensor:
    """Return a weighted sum over the window of cells around each position, plus a bias.

    Shapes: `b|l..., n` to `b|l'..., m`, with `l = stride * l'` when padded, and else `l = stride *
    (l' - 1) + dilation * (kernel - 1) + 1`; transposed, `l` and `l'` are exchanged. Parameters:
    `weight` of shape `kernel...,n->m`, and `bias` of shape `m`, 0 at first. With groups, the weight
    has an axis of groups in front, and channels are of one group each. Weights are not flipped.

    Args:
        axes: The number of axes that windows slide over.
        kernel: The number of cells of a window along each axis.
        channels: The number of output channels; inferred from the use of the result when not given.
        stride: The distance of neighboring windows.
        dilation: The distance of neighboring cells in a window.
        padded: True to pad with zeros, so that windows may leave the input: by
            `dilation * (kernel - 1) // 2` cells in front, and by as many or one more behind.
        groups: The number of groups of channels that do not mix. As many groups as channels are a
            depthwise convolution; the sizes of channels must then be known.
        transposed: True for the transposed convolution, whose windows overlap in the result.
        bias: False to leave out the bias.
        floor: True to round the number of windows down, for inputs of any size: cells behind the
            last window are left out, or, when padded, every `stride`-th cell has a window.
    """
    windows = _Windows(axes, kernel, stride, dilation, padded, floor)
    return _convolve(x, windows, channels, groups, transposed=transposed, bias=bias)


@op
def conv2d(
    x: Tensor,
    *,
    kernel: Sizes = 3,
    channels: int | Sequence[int] | None = None,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    padded: bool = True,
    groups: int = 1,
    transposed: bool = False,
    bias: bool = True,
    floor: bool = False,
) -> Tensor:
    """Return `conv(x, axes=2)`: a convolution of images, with the arguments of `conv`.

    x = oc.nn.conv2d(images, kernel=3, channels=16)                 # b|h,w,n to b|h,w,16
    x = oc.nn.conv2d(images, kernel=3, channels=16, stride=2)       # b|h/2,w/2,16
    x = oc.nn.conv2d(images, kernel=5, channels=6, padded=False)    # b|h-4,w-4,6
    """
    windows = _Windows(2, kernel, stride, dilation, padded, floor)
    return _convolve(x, windows, channels, groups, transposed=transposed, bias=bias)


@dataclass(frozen=True, slots=True)
class _Windows:
    """The windows of a convolution or of pooling, along the first output axes."""

    axes: int
    kernel: Sizes
    stride: Sizes
    dilation: Sizes = 1
    padded: bool = False
    floor: bool = False
    noun: str = "kernel"
    """The argument that states the number of cells."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the axes that windows slide over."""
        return "hw" if self.axes == 2 else [str(k) for k in range(self.axes)]

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The numbers of cells, the distances of windows, and the distances of cells."""
        kernels = _each(self.kernel, self.axes, self.noun)
        strides = _each(self.stride, self.axes, "stride")
        return kernels, strides, _each(self.dilation, self.axes, "dilation")


def _convolve(
    x: Tensor,
    windows: _Windows,
    channels: int | Sequence[int] | None,
    groups: int,
    *,
    transposed: bool,
    bias: bool,
) -> Tensor:
    kernels, strides, gaps = windows.sizes
    axes, padded = windows.axes, windows.padded
    if windows.floor and transposed:
        raise UsageError.at_caller(
            "A transposed convolution computes the size of its result: there is nothing to round.",
            found="floor=True with transposed=True",
            fix="leave out floor=; slices and oc.pad change the size of the result",
        )
    if windows.floor:
        x = fit_windows(x, kernels, strides, gaps, padded=padded)
    slid, plain, window = _axes(windows.names, kernels, strides, gaps, padded=padded)
    read, made = (plain, slid) if transposed else (slid, plain)
    if groups == 1:
        weight = param("weight", input=[*kernels, ...], output=channels)
        spec = f"...|{read}..ic..; {window}..ic.. -> ..oc.. => ...|{made}..oc.."
        result: Tensor = einsum(spec, x, weight)
    else:
        inner, width = _group_sizes(x, axes, groups, channels)
        weight = param("weight", input=[groups, *kernels, inner], output=[width])
        batch, places = x.shape[: -1 - axes], x.shape[-1 - axes : -1]
        spread = reshape(x, batch=list(batch), output=[*places, groups, inner])
        spec = f"...|{read}g, ic; g, {window}ic -> oc => ...|{made}g, oc"
        grouped = einsum(spec, spread, weight)
        joined = f"...|{plain}g, oc => ...|{plain}{width}*g<+oc"
        result = identity(grouped, logic=joined, values={"oc": width})
    return _with_bias(result, plain, channels) if bias else result


def _axes(
    names: Sequence[str],
    kernels: Sequence[int],
    strides: Sequence[int],
    gaps: Sequence[int],
    *,
    padded: bool,
) -> tuple[str, str, str]:
    """Return the axes that windows slide over, the axes of positions, and the axes of a window:
    `2*oh=+1*kh, 2*ow=+1*kw, ` and `oh, ow, ` and `kh, kw, `.

    An odd number of cells around a window's own position is split unevenly: `=` alone puts the
    extra cell before the position; here it lies behind, as in PyTorch.
    """
    slid = ""
    for name, kernel, stride, gap in zip(names, kernels, strides, gaps, strict=True):
        has_odd_rest = gap * (kernel - 1) % 2 == 1
        mark = ("=+1+" if has_odd_rest else "=+") if padded else "<+"
        slid += f"{stride}*o{name}{mark}{gap}*k{name}, "
    plain, window = ("".join(f"{kind}{name}, " for name in names) for kind in "ok")
    return slid, plain, window


def _with_bias(x: Tensor, plain: str, channels: int | Sequence[int] | None) -> Tensor:
    """Return the result of a convolution plus a number for each channel."""
    bias = param("bias", output=[...] if channels is None else channels, input=[], init=0.0)
    return add(x, bias, logic=f"...|{plain}..oc..; ..oc.. => ...|{plain}..oc..")


def _group_sizes(
    x: Tensor, axes: int, groups: int, channels: int | Sequence[int] | None
) -> tuple[int, int]:
    """Return the numbers of input and of output channels of one group."""
    inputs = x.shape[-1]
    given = inputs if channels is None else channels
    outputs = channel_count(given)
    rule = "Groups divide the channels of the input and of the output."
    found = f"{groups!r} groups of {inputs} input and {outputs} output channels"
    (groups,) = positive_integers([groups], rule, found, "groups=1")
    if inputs % groups or outputs % groups:
        raise UsageError.at_caller(rule, found=found)
    return inputs // groups, outputs // groups


@op
def avg_pool(
    x: Tensor, *, axes: int = 2, window: Sizes = 2, stride: Sizes | None = None, floor: bool = False
) -> Tensor:
    """Return the mean of every window, for each channel by itself; windows stay inside.

    Shapes: `b|l..., c` to `b|l'..., c`, with `l = stride * (l' - 1) + window`.

    Args:
        axes: The number of axes that windows slide over.
        window: The number of cells of a window along each axis.
        stride: The distance of neighboring windows; the window's size when not given.
        floor: True to leave out cells behind the last window.
    """
    cells = _each(window, axes, "window")
    steps = cells if stride is None else _each(stride, axes, "stride")
    if floor:
        x = fit_windows(x, cells, steps, (1,) * axes, padded=False)
    slid = "".join(f"{steps[k]}*o{k}<+k{k}, " for k in range(axes))
    plain = "".join(f"o{k}, " for k in range(axes))
    values = {f"k{k}": cells[k] for k in range(axes)}
    wide, narrow = formats_of(x)
    spec = f"...|{slid}..c.. => ...|{plain}..c.."
    total = einsum(spec, x, values=values, dtype=wide)
    result: Tensor = div(total, float(math.prod(cells)), dtype=narrow)
    return result


@op
def max_pool(
    x: Tensor,
    *,
    axes: int = 2,
    window: Sizes = 2,
    stride: Sizes | None = None,
    padded: bool = False,
    floor: bool = False,
) -> Tensor:
    """Return the maximum of every window, for each channel by itself.

    Shapes are as for `avg_pool`, and as for `conv` when padded. The gradient goes to the maximum,
    or to the first of several equal cells. `axes`, `window` and `stride` are as for `avg_pool`.

    Args:
        padded: True to let windows leave the input, as in `conv`; only cells inside count.
        floor: True to round the number of windows down, as in `conv`.
    """
    steps = window if stride is None else stride
    return _greatest(x, _Windows(axes, window, steps, 1, padded, floor, "window"))


def max_pool2d(
    x: Tensor,
    *,
    window: Sizes = 2,
    stride: Sizes | None = None,
    padded: bool = False,
    floor: bool = False,
) -> Tensor:
    """Return `max_pool(x, axes=2)`, the maximum of every window of images."""
    steps = window if stride is None else stride
    return _greatest(x, _Windows(2, window, steps, 1, padded, floor, "window"))


def _greatest(x: Tensor, windows: _Windows) -> Tensor:
    cells, steps, gaps = windows.sizes
    dtype = x.dtype
    if windows.padded and dtype.is_float and not dtype.has_infinities:
        x = cast(x, float32)  # cells beyond an axis are less than every number
    if windows.floor:
        x = fit_windows(x, cells, steps, gaps, padded=windows.padded, is_maximum=True)
    slid, plain, _ = _axes(windows.names, cells, steps, gaps, padded=windows.padded)
    values = {f"k{name}": size for name, size in zip(windows.names, cells, strict=True)}
    found: Tensor = einmax(f"...|{slid}..c.. => ...|{plain}..c..", x, values=values)
    return found if found.dtype is dtype else cast(found, dtype)


@takes_old_keywords("oc.nn.resize")
def resize(
    x: Tensor,
    sizes: Sequence[int],
    *,
    axis: int | Sequence[int] | None = None,
    mode: str = "nearest",
) -> Tensor:
    """Return the tensor with axes of other sizes: images made larger or smaller.

    A cell's position is its center (half-pixel centers); beyond the first and the last center, the
    outer cells are repeated.

    Args:
        x: The tensor, of known sizes.
        sizes: The new sizes, as in `[64, 64]`, one for each axis.
        axis: The axes, in buffer order; when not given, all before the last one (the channels).
        mode: "nearest" for the cell whose center is nearest, of two the lower one; "bilinear" for
            the mean of the two cells beside the position, weighted by nearness, along each axis.
    """
    if mode not in ("nearest", "bilinear"):
        raise UsageError.at_caller(
            "Sizes are changed by the nearest cell or by linear interpolation.",
            found=f"mode={mode!r}",
            fix='mode="nearest" or mode="bilinear"',
        )
    rule, fix = "The new sizes of axes are positive integers.", "sizes=[32, 32]"
    sizes = positive_integers(sizes, rule, f"sizes={sizes!r}", fix)
    if any(size >= MAX_RESIZED for size in sizes):
        raise UsageError.at_caller(
            f"The new size of an axis is below {MAX_RESIZED}.",
            found=f"sizes={list(sizes)}",
            fix="state the number of cells of each axis after the change",
        )
    own = sized_axes_of(x, "resize")
    counted = tuple(range(-1 - len(sizes), -1)) if axis is None else axis
    positions = own.positions(counted)
    if len(sizes) != len(positions):
        raise UsageError.at_caller(
            "Each axis has one new size.",
            found=f"sizes={list(sizes)} for axis={axis!r}",
            fix="oc.nn.resize(x, [64, 64], axis=[1, 2])",
        )
    for position, size in zip(positions, sizes, strict=True):
        count, extent = own.known_size(position), own.extent(position)
        if extent is not None:
            raise ShapeError.at_caller(
                "The cells of a new size are counted in the old one, which is constant.",
                found=f"axis {position} of {x.describe()}, of size {own.sizes[position]}, which "
                "calls give",
                fix="give the axis a constant size, or resize others: axis=...",
            )
        middles = (np.arange(size) + 0.5) * count / size - 0.5
        if size == count:
            continue
        if mode == "nearest":
            nearest = np.clip(np.ceil(middles - 0.5), 0, count - 1).astype(int)
            x = select(x, position, nearest.tolist(), "resize")
            continue
        inside = np.clip(middles, 0, count - 1)
        low = np.floor(inside).astype(int)
        high = np.minimum(low + 1, count - 1)
        dtype = x.dtype if x.dtype.is_float else None
        weights = tensor(inside - low, dtype=dtype)
        below = select(x, position, low.tolist(), "resize")
        above = select(x, position, high.tolist(), "resize")
        step = above - below
        named = axes_of(step, "resize")
        along = write_shape([named.names[position]], (0, 1, 0))
        spec = f"{named.spec}; {along} => {named.spec}"
        x = below + apply(mul, (step, weights), spec, name="resize")
    return x


def _each(value: Sizes, axes: int, name: str) -> tuple[int, ...]:
    """Return a positive number for each axis."""
    given = [value] * count_of_axes(axes) if isinstance(value, int | np.integer) else value
    if len(given) != axes:
        raise UsageError.at_caller(
            "Sizes of windows are one number, or one for each axis that windows slide over.",
            found=f"{tuple(given)} for {axes} axes",
        )
    rule = "Sizes and distances of windows and of cells in them are positive integers."
    return positive_integers(given, rule, f"{name}={value!r}", f"{name}=2, or one for each axis")


def fit_windows(
    x: Tensor,
    kernels: Sequence[int],
    strides: Sequence[int],
    gaps: Sequence[int],
    *,
    padded: bool,
    is_maximum: bool = False,
) -> Tensor:
    """Return a tensor whose first output axes hold a whole number of windows: as many as fit.

    Without padding, the cells behind the last window are left out. With padding, every multiple of
    the stride on an axis begins a window, and the axis is extended by cells that do not count.

    Args:
        gaps: The distances of neighboring cells in a window.
        padded: True where windows may leave the axis.
        is_maximum: True where a cell that does not count is the least number, not zero.

    Raises:
        ShapeError: if there are fewer output axes, or one is of unknown size.
        UsageError: if a window is longer than an axis that it may not leave.
    """
    own = sized_axes_of(x, "floor=True")
    first, outputs = own.ranks[:2]
    if outputs < len(kernels):
        raise ShapeError.at_caller(
            "Windows move along the first output axes of their tensor, one for each.",
            found=f"windows along {len(kernels)} axes of the shape {x.shape}, of {outputs} output "
            f"axes, of {x.describe()}",
            fix="axes=1, or a tensor with more output axes: oc.tensor(images, batch_axes=1)",
        )
    keys = [slice(None)] * first
    behind: list[tuple[int, int]] = []
    for k, (kernel, stride, gap) in enumerate(zip(kernels, strides, gaps, strict=True)):
        size, span = own.known_size(first + k), gap * (kernel - 1) + 1
        if padded:
            behind.append((0, -size % stride))
            continue
        if size < span:
            raise UsageError.at_caller(
                "A window that stays inside of an axis is no longer than the axis.",
                found=f"a window over {span} cells of {size}",
                fix="padded=True, or a smaller kernel",
            )
        keys.append(slice(0, size - (size - span) % stride))
    if padded:
        axes = tuple(range(first, first + len(behind)))
        return pad(x, behind, axis=axes, value=extremes(x.dtype)[0] if is_maximum else 0.0)
    return x[tuple(keys)]
