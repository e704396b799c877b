"""The errors of checks of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.loops.nodes import CheckPositions


def check_positions(
    check: CheckPositions,
    cells: np.ndarray[Any, Any],
    value_of: Callable[[StaticExtent], int],
) -> None:
    """Raise UsageError if a position is out of bounds; name the first one in row-major order.

    Args:
        cells: The positions, without margins.
        value_of: Returns the value of an extent in the call.
    """
    if check.extents:
        ends = (None if extent is None else value_of(extent) for extent in check.extents)
        cells = cells[tuple(map(slice, ends))]
    is_outside = (cells < 0) | (cells >= check.extent)
    if not is_outside.any():
        return
    at = np.unravel_index(int(is_outside.argmax()), cells.shape)
    number = int(cells[at])
    place = f"[{', '.join(map(str, map(int, at)))}]" if at else ""
    count = int(is_outside.sum())
    more = f", the first of {count} such positions" if count > 1 else ""
    advice = (
        "positions count from 0: to count from the end, add the extent to negative ones"
        if number < 0
        else "clip the positions, or make the axis longer"
    )
    raise UsageError(
        f"A position lies on its axis: {check.axis} has the positions range({check.extent}).",
        found=f"{check.node.name}{place} = {number}{more}",
        where=str(check.origin or ""),
        fix=f"{advice}; the setting check_positions = off drops such reads and writes unchecked",
    )
