"""Ranges of indices, boxes of cells that a loop nest is certain to access, and diagonals."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import (
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Projections,
    StaticIndex,
    VarIndex,
    affine,
    as_affine,
    is_injective,
    joint_extents,
    variables,
)
from ocannl_core.ir.loops.nodes import Binary, Expr, For, IndexValue
from ocannl_core.ir.numbers.primitives import BinaryOp


@dataclass(frozen=True, slots=True)
class Range:
    """The integers from `low` to `high`, both inclusive; empty if `high < low`."""

    low: int
    high: int

    @property
    def extent(self) -> int:
        return max(0, self.high - self.low + 1)

    def is_within(self, extent: int) -> bool:
        """Return True if all integers are positions of an axis of some extent."""
        return self.low >= 0 and self.high < extent


def ranges_of(loops: Iterable[For]) -> dict[IndexVar, Range]:
    """Return the values of the variables of loops."""
    return {loop.var: Range(loop.start, loop.stop - 1) for loop in loops}


def static_ranges(indices: Iterable[StaticIndex]) -> dict[IndexVar, Range]:
    """Return the values of static indices, without those that have no bound."""
    return {each: Range(0, each.extent - 1) for each in indices if each.extent is not None}


def include_loop(ranges: dict[IndexVar, Range], loop: For) -> None:
    """Extend the range of a variable by a loop that binds it, perhaps one of several."""
    low, high = loop.start, loop.stop - 1
    known = ranges.get(loop.var)
    if known is not None:
        low, high = min(known.low, low), max(known.high, high)
    ranges[loop.var] = Range(low, high)


def visits_cells_once(indices: IndexMap, ranges: Mapping[IndexVar, Range]) -> bool:
    """Return True if no two iterations of loops over the ranges access the same cell."""
    domain = tuple((var, each.extent) for var, each in ranges.items() if isinstance(var, LoopVar))
    return is_injective(Projections(domain, indices, (), (1,) * len(indices), ()))


def subtract(left: AxisIndex, right: AxisIndex, step: int = 0) -> AxisIndex:
    """Return the difference of two indices, plus a number."""
    terms, offset = as_affine(left)
    subtracted, other = as_affine(right)
    return affine([*terms, *((-c, var) for c, var in subtracted)], offset - other + step)


def index_range(index: AxisIndex, ranges: Mapping[IndexVar, Range]) -> Range | None:
    """Return the range of an index over independent ranges of its variables.

    Return None if the range of a variable is unknown or empty.
    """
    if isinstance(index, VarIndex):  # almost all
        values = ranges.get(index.var)
        return None if values is None or values.high < values.low else values
    if isinstance(index, (ConcatIndex, ComputedIndex)):
        return None
    terms, low = as_affine(index)
    high = low
    for coefficient, var in terms:
        values = ranges.get(var)
        if values is None or values.extent == 0:
            return None
        ends = (coefficient * values.low, coefficient * values.high)
        low += min(ends)
        high += max(ends)
    return Range(low, high)


def bounded_range(
    index: AxisIndex, ranges: Mapping[IndexVar, Range], bounds: Iterable[tuple[AxisIndex, int]]
) -> Range | None:
    """Return the range of an index where some positions stay below limits.

    4 * i + j in range(0, 12) where 4 * i + j < 10   -->   0 .. 9

    Args:
        bounds: The positions and their limits, such as the bounds of the loops around.

    Returns:
        The range, or one that contains it; None where `index_range` returns None.
    """
    reach = index_range(index, ranges)
    if reach is None:
        return None
    known = tuple(bounds)
    found = _range_below(index, ranges, reach, known)
    # two positions with terms in common are no sum: each alone may say more than the first of both
    for each in known if len(known) > 1 else ():
        alone = _range_below(index, ranges, reach, (each,))
        found = Range(max(found.low, alone.low), min(found.high, alone.high))
    return found


def _range_below(
    index: AxisIndex,
    ranges: Mapping[IndexVar, Range],
    reach: Range,
    bounds: Iterable[tuple[AxisIndex, int]],
) -> Range:
    """Return the range of an index within its reach, by positions that have no terms in common."""
    terms, low = as_affine(index)
    high = low
    left = {var: coefficient for coefficient, var in terms}
    for position, limit in bounds:
        inner, start = as_affine(position)
        varying = [term for term in inner if ranges.get(term[1]) != Range(0, 0)]
        known = index_range(affine(varying, start), ranges)
        if not varying or known is None:
            continue
        coefficient, var = varying[0]
        times = left.get(var, 0) // coefficient
        if not times or any(left.get(each) != times * factor for factor, each in varying):
            continue
        # the terms of this position move together: take them out of the sum
        taken = {each for _, each in varying}
        left = {each: factor for each, factor in left.items() if each not in taken}
        ends = [times * (end - start) for end in (known.low, min(known.high, limit - 1))]
        low += min(ends)
        high += max(ends)
    rest = index_range(affine([(factor, var) for var, factor in left.items()], 0), ranges)
    assert rest is not None
    return Range(max(low + rest.low, reach.low), min(high + rest.high, reach.high))


def is_in_bounds(
    indices: IndexMap,
    dims: Sequence[int],
    ranges: Mapping[IndexVar, Range],
    bounds: Sequence[tuple[AxisIndex, int]] = (),
) -> bool:
    """Return True if an access to an array is certainly in bounds; `bounds` as `bounded_range`."""
    reached = (bounded_range(index, ranges, bounds) for index in indices)
    return all(
        reach is not None and reach.is_within(extent)
        for reach, extent in zip(reached, joint_extents(indices, dims), strict=True)
    )


_MOST_PIECES = 1_000_000

Box = tuple[Range, ...]
"""A block of cells: one range per axis."""


def covered_box(indices: Sequence[AxisIndex], ranges: Mapping[IndexVar, Range]) -> Box | None:
    """Return a box that the indices cover completely; None if that is not provable.

    Args:
        ranges: The ranges of all loops around the access, also of loops not in the indices.
    """
    if any(values.extent == 0 for values in ranges.values()):
        return None
    used: set[IndexVar] = set()
    box: list[Range] = []
    for index in indices:
        reach = index_range(index, ranges)
        if reach is None:
            return None
        terms, _ = as_affine(index)
        if used.intersection(var for _, var in terms) or not _is_contiguous(terms, ranges):
            return None
        used.update(var for _, var in terms)
        box.append(reach)
    return tuple(box)


def _is_contiguous(
    terms: tuple[tuple[int, IndexVar], ...], ranges: Mapping[IndexVar, Range]
) -> bool:
    """Return True only if the terms' sum takes every value between its least and greatest."""
    reached = 1
    for size, extent in sorted(
        (abs(coefficient), ranges[var].extent) for coefficient, var in terms
    ):
        if extent == 1:
            continue
        if size > reached:
            return False
        reached += size * (extent - 1)
    return True


def boxes_cover(boxes: Iterable[Box], dims: Sequence[int]) -> bool:
    """Return True if every cell of an array of these extents lies in one of the boxes.

    The axes are split where a box begins or ends (coordinate compression), so that the cost depends
    on the number of boxes and not of cells. Return False if there are too many pieces even so.
    """
    if 0 in dims:
        return True
    known = list(boxes)
    cuts = [
        sorted(
            {
                0,
                dim,
                *(e for box in known for e in (box[axis].low, box[axis].high + 1) if 0 < e < dim),
            }
        )
        for axis, dim in enumerate(dims)
    ]
    if prod(len(cut) - 1 for cut in cuts) > _MOST_PIECES:
        return False
    covered = np.zeros([len(cut) - 1 for cut in cuts], dtype=bool)
    for box in known:
        inside = tuple(
            slice(bisect_left(cut, values.low), bisect_left(cut, values.high + 1))
            for cut, values in zip(cuts, box, strict=True)
        )
        covered[inside] = True
    return bool(covered.all())


def visible_difference(condition: Expr | None) -> AxisIndex | None:
    """Return a position below 1 exactly where a comparison of positions holds, or None."""
    match condition:
        case Binary(BinaryOp.LE | BinaryOp.LT as op, IndexValue(left), IndexValue(right)) if (
            variables(left) and variables(right)
        ):
            return subtract(left, right, int(op is BinaryOp.LT))
        case _:
            return None
