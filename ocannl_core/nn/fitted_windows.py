"""Axes cut or extended to a whole number of strided windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import sized_axes_of
from ocannl_core.tensor.operations.repetition import pad


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
        gaps: The distances of neighbouring cells in a window.
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
        return pad(x, behind, axis=axes, value=_least(x) if is_maximum else 0.0)
    return x[tuple(keys)]


def _least(x: Tensor) -> float:
    """Return the least number of a format."""
    return -math.inf if x.dtype.is_float else float(np.iinfo(x.dtype.numpy).min)
