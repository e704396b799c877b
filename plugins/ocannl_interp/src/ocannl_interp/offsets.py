"""Offsets of cells as Python expressions, and checks of offsets that may be outside a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocannl_core.backend_api import NodeInfo, TensorNode
from ocannl_interp.memory import outside, strides
from ocannl_interp.python_code import Frame, Functions, PythonCode

Terms = tuple[Sequence[tuple[int, int]], int]
"""An affine index: coefficients with slots of the frame, and the constant."""


def sum_of(index: Terms) -> PythonCode:
    """Return the code of an affine index."""
    terms, offset = index
    parts = [f"f[{slot}]" if times == 1 else f"f[{slot}]*{times}" for times, slot in terms]
    if offset or not parts:
        parts.append(str(offset))
    return PythonCode(f"({' + '.join(parts)})" if len(parts) > 1 or offset < 0 else parts[0])


def offset_of(
    node: TensorNode,
    info: NodeInfo,
    positions: Sequence[Terms],
    extents: Sequence[int],
    iterations: Mapping[int, range],
    functions: Functions,
) -> PythonCode:
    """Return the row-major offset of a cell, which must exist.

    Args:
        info: Its extents.
        positions: The index along each axis.
        extents: The number of positions of each index.
        iterations: The values of loop variables, by slot.
        functions: The functions of the routine.
    """
    factors, offset = dict[int, int](), 0
    for (terms, start), stride in zip(positions, strides(info), strict=True):
        offset += start * stride
        for coefficient, slot in terms:
            factors[slot] = factors.get(slot, 0) + coefficient * stride
    whole = sum_of(([(factor, slot) for slot, factor in factors.items()], offset))
    tests = [
        f"0 <= {sum_of(index).text} < {extent}"
        for index, extent in zip(positions, extents, strict=True)
        if not _is_inside(index, extent, iterations)
    ]
    if not tests:
        return whole
    is_inside, at = functions.value(PythonCode(" and ".join(tests))), functions.value(whole)
    found = functions.value(PythonCode(f"[{', '.join(sum_of(index).text for index in positions)}]"))

    def checked(frame: Frame) -> int:
        if not is_inside(frame):
            raise outside(node, found(frame), info)
        position: int = at(frame)
        return position

    return functions.result(checked)


def _is_inside(index: Terms, extent: int, iterations: Mapping[int, range]) -> bool:
    """Return True if an index is in `range(extent)` in every iteration."""
    terms, least = index
    greatest = least
    for coefficient, slot in terms:
        values = iterations.get(slot)
        if values is None:
            return False
        ends = coefficient * values[0], coefficient * values[-1]
        least, greatest = least + min(ends), greatest + max(ends)
    return least >= 0 and greatest < extent
