"""Summaries of arrays in one line."""

from __future__ import annotations

import numpy as np

from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.node import NodeInfo


def as_numbers(cells: Array) -> Array | None:
    """Return cells as float64; None for words, which are no numbers."""
    return None if cells.dtype.names is not None else np.asarray(cells, np.float64)


def summary(cells: Array, info: NodeInfo) -> str:
    """Return the format, the extents and the range of some cells, and the number of NaNs."""
    dims = " x ".join(map(str, cells.shape)) or "1 cell"
    numbers = as_numbers(cells)
    if numbers is None or numbers.size == 0:
        return f"{info.dtype} {dims}"
    finite = numbers[np.isfinite(numbers)]
    parts = [f"{info.dtype} {dims}"]
    if finite.size:
        parts.append(f"min {finite.min():.6g}, mean {finite.mean():.6g}, max {finite.max():.6g}")
    for name, count in (
        ("NaN", int(np.isnan(numbers).sum())),
        ("infinite", int(np.isinf(numbers).sum())),
    ):
        if count:
            parts.append(f"{count} {name}")
    return ", ".join(parts)
