"""Blocks and expressions for PyTorch's convolutions, pools and paddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core import nn
from tests.judges.trial import Missing, Trial, adapter, same


def channels_first(x: Any, axes: int) -> Callable[[Any], Any]:
    """Return the conversion of PyTorch's cells to channels last."""
    return lambda cells: np.moveaxis(cells, x.ndim - axes - 1, -1)


def each_axis(value: Any, axes: int) -> tuple[Any, ...]:
    return (value,) * axes if isinstance(value, int | float) else tuple(value)


def padded(x: oc.Tensor, pairs: Sequence[tuple[int, int]], **options: Any) -> oc.Tensor:
    """Return features with cells added around the axes before the channels."""
    if not any(map(any, pairs)):
        return x
    axes = tuple(range(-1 - len(pairs), -1))
    result: oc.Tensor = oc.pad(x, [tuple(pair) for pair in pairs], axis=axes, **options)
    return result


def trimmed(x: oc.Tensor, places: Sequence[int]) -> oc.Tensor:
    """Return features without the cells after some places: PyTorch's windows leave them out."""
    if tuple(x.shape)[-1 - len(places) : -1] == tuple(places):
        return x
    result: oc.Tensor = x[(..., *(slice(0, n) for n in places), slice(None))]
    return result


MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def kernel_last(groups: int) -> Callable[[Any], Any]:
    """Return the conversion of a kernel to channels of the input last."""

    def convert(cells: Any) -> Any:
        cells = np.moveaxis(cells, 1, -1)
        parts = cells.reshape(groups, -1, *cells.shape[1:])
        return cells if groups == 1 else np.swapaxes(parts, 0, 1)

    return convert


@adapter(*(f"{lazy}Conv{axes}d" for axes in (1, 2, 3) for lazy in ("", "Lazy")))
def conv(trial: Trial, x: Any) -> Any:
    module, axes = trial.module, trial.module.weight.ndim - 2
    ours = trial.images(x, axes)
    flat = module._reversed_padding_repeated_twice
    pairs = np.reshape(flat, (-1, 2))[::-1].tolist() if module.padding != "valid" else []
    ours = padded(ours, pairs, mode=MODES[module.padding_mode])
    reach = [d * (k - 1) + 1 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    sizes = tuple(ours.shape)[-1 - axes : -1]
    places = [(n - r) // s * s + r for n, r, s in zip(sizes, reach, module.stride, strict=True)]
    result = nn.conv(
        trimmed(ours, places),
        axes=axes,
        kernel=module.kernel_size,
        channels=module.out_channels,
        stride=module.stride,
        dilation=module.dilation,
        padded=False,
        groups=module.groups,
        bias=module.bias is not None,
    )
    trial.tie_by_order(result, weight=kernel_last(module.groups))
    return result, channels_first(x, axes)


@adapter(*(f"{lazy}ConvTranspose{axes}d" for axes in (1, 2, 3) for lazy in ("", "Lazy")))
def transposed(trial: Trial, x: Any) -> Any:
    module, axes = trial.module, trial.module.weight.ndim - 2
    if any(module.padding) or any(module.output_padding) or module.groups > 1:
        raise Missing("a transposed convolution whose result is cut")
    result = nn.conv(
        trial.images(x, axes),
        axes=axes,
        kernel=module.kernel_size,
        channels=module.out_channels,
        stride=module.stride,
        dilation=module.dilation,
        padded=False,
        transposed=True,
    )
    trial.tie_by_order(result, weight=lambda cells: np.moveaxis(np.swapaxes(cells, 0, 1), 1, -1))
    return result, channels_first(x, axes)


def windows_of(module: Any, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of windows, and their distances."""
    stride = module.kernel_size if module.stride is None else module.stride
    return each_axis(module.kernel_size, axes), each_axis(stride, axes)


def fitted(
    module: Any, ours: oc.Tensor, window: Sequence[int], stride: Sequence[int], fill: float
) -> oc.Tensor:
    """Return features of the size that windows cover."""
    sizes = tuple(ours.shape)[-1 - len(window) : -1]
    counts = [(n - w) // s + 1 for n, w, s in zip(sizes, window, stride, strict=True)]
    places = [(m - 1) * s + w for m, w, s in zip(counts, window, stride, strict=True)]
    return trimmed(ours, places)


@adapter(*(f"{kind}Pool{axes}d" for axes in (1, 2, 3) for kind in ("Avg", "Max")))
def pool(trial: Trial, x: Any) -> Any:
    module = trial.module
    name = type(module).__name__
    axes = int(name[-2])
    if getattr(module, "return_indices", False):
        raise Missing("return_indices: positions of maxima serve unpooling, which is a scatter")
    if getattr(module, "ceil_mode", False):
        raise Missing("ceil_mode: windows that leave the input at one end")
    window, stride = windows_of(module, axes)
    fill = 0.0 if name.startswith("Avg") else -math.inf
    around = [(n, n) for n in each_axis(module.padding, axes)]
    ours = padded(trial.images(x, axes), around, value=fill)
    block = nn.avg_pool if name.startswith("Avg") else nn.max_pool
    result = block(
        fitted(module, ours, window, stride, fill), axes=axes, window=window, stride=stride
    )
    if getattr(module, "divisor_override", None):
        result = result * (math.prod(window) / module.divisor_override)
    return result, channels_first(x, axes)


@adapter(*(f"LPPool{axes}d" for axes in (1, 2, 3)))
def power_pool(trial: Trial, x: Any) -> Any:
    module = trial.module
    axes = int(type(module).__name__[-2])
    window, stride = windows_of(module, axes)
    powers = trial.images(x, axes) ** float(module.norm_type)
    powers = fitted(module, powers, window, stride, 0.0)
    total = nn.avg_pool(powers, axes=axes, window=window, stride=stride) * float(math.prod(window))
    positive = oc.where(total == 0.0, 1.0, total)
    result = oc.where(total == 0.0, 0.0, positive ** (1.0 / module.norm_type))
    return result, channels_first(x, axes)


@adapter(*(f"Adaptive{kind}Pool{axes}d" for axes in (1, 2, 3) for kind in ("Avg", "Max")))
def adaptive(trial: Trial, x: Any) -> Any:
    name = type(trial.module).__name__
    axes = int(name[-2])
    if getattr(trial.module, "return_indices", False):
        raise Missing("return_indices: positions of maxima serve unpooling, which is a scatter")
    reduce = oc.mean if "Avg" in name else oc.max
    ours = trial.images(x, axes)
    for axis, size in zip(
        range(-1 - axes, -1), each_axis(trial.module.output_size, axes), strict=True
    ):
        count = ours.shape[axis]
        if size is None or size == count:
            continue
        places = [(k * count // size, -(-(k + 1) * count // size)) for k in range(size)]
        after = (slice(None),) * (-1 - axis)
        parts = [
            reduce(ours[(..., slice(a, b), *after)], axis=axis, keepdims=True) for a, b in places
        ]
        ours = oc.concat(parts, axis=axis)
    return ours, channels_first(x, axes)


@adapter("FractionalMaxPool2d", "FractionalMaxPool3d")
def fractional(trial: Trial, x: Any) -> Any:
    raise Missing("windows whose places are drawn at random for each channel")


@adapter("LocalResponseNorm")
def response_norm(trial: Trial, x: Any) -> Any:
    module = trial.module
    ours = trial.images(x, x.ndim - 2)
    squares = oc.pad(ours * ours, (module.size // 2, (module.size - 1) // 2), axis=-1)
    mean = oc.einsum("...|..l.., o<+k => ...|..l.., o", squares, values={"k": module.size})
    mean = mean / float(module.size)
    return ours * (module.k + module.alpha * mean) ** -module.beta, channels_first(x, x.ndim - 2)


PADS = {"Zero": "constant", "Constant": "constant", "Reflection": "reflect"}
PADS |= {"Replication": "edge", "Circular": "wrap"}


@adapter(*(f"{kind}Pad{axes}d" for axes in (1, 2, 3) for kind in PADS))
def pad(trial: Trial, x: Any) -> Any:
    module = trial.module
    mode = PADS[type(module).__name__.split("Pad")[0]]
    pairs = np.reshape(module.padding, (-1, 2))[::-1].tolist()
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [tuple(pair) for pair in pairs]
    value = float(getattr(module, "value", 0.0))
    return oc.pad(trial.leaf(x, 0), widths, mode=mode, value=value), same
