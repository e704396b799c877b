"""Access counts per cell of an array in a loop nest, exact where counting is cheap.

An access is an affine map from the box of its loops to cells. Axes that share no loop variable are
independent, so counts factor into one histogram per group of axes; variables in no index multiply
all counts. A convolution with seven loops is two histograms over a window and a position each.

for b in range(8): for i in range(4): for k in range(3): ... x[b, i + k]

x is read once per b and at most three times per position along the second axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod

import numpy as np
import numpy.typing as npt

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, as_affine
from ocannl_core.ir.loops.ranges import Range

Counts = npt.NDArray[np.int64]

MOST_ENUMERATED = 1 << 20
"""Limit on enumeration, in iterations of a group's loops or in cells."""


@dataclass(frozen=True, slots=True)
class AccessCount:
    """Bounds on the number of times that one access touches a cell."""

    least: int
    most: int
    is_exact: bool = True
    """False if `most` is an estimate."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Axes connected by loop variables, and those variables."""

    axes: tuple[int, ...]
    variables: tuple[IndexVar, ...]


def count_accesses(
    indices: Sequence[AxisIndex],
    loops: Mapping[IndexVar, Range],
    dims: Sequence[int],
    max_tracing_dim: int,
) -> AccessCount:
    """Count the accesses per cell of an array.

    Static indices count as zero: their value selects a cell and leaves the count unchanged.

    Args:
        loops: The values of the loop variables around the access.
        max_tracing_dim: The number of iterations per loop to sample where counting is too slow.
    """
    groups = _group_axes(indices, loops)
    used = {var for group in groups for var in group.variables}
    repeats = prod(values.extent for var, values in loops.items() if var not in used)
    found = AccessCount(repeats, repeats)
    for group in groups:
        each = _count_in_group(group, indices, loops, dims, max_tracing_dim)
        found = AccessCount(
            found.least * each.least, found.most * each.most, found.is_exact and each.is_exact
        )
    fixed = [axis for axis, index in enumerate(indices) if not _loop_terms(index, loops)]
    return AccessCount(0, found.most, found.is_exact) if any(dims[a] > 1 for a in fixed) else found


def count_accesses_per_cell(
    indices: Sequence[AxisIndex], loops: Mapping[IndexVar, Range], dims: Sequence[int]
) -> Counts | None:
    """Count the accesses of each cell; return None if counting would be too slow.

    Positions outside the array are left out. Static indices must not occur.
    """
    groups = _group_axes(indices, loops)
    if prod(dims) > MOST_ENUMERATED:
        return None
    used = {var for group in groups for var in group.variables}
    total = np.full((1,) * len(dims), prod(r.extent for v, r in loops.items() if v not in used))
    grouped = {axis for group in groups for axis in group.axes}
    fixed = tuple(_Group((axis,), ()) for axis in range(len(dims)) if axis not in grouped)
    for group in (*groups, *fixed):
        if prod(loops[var].extent for var in group.variables) > MOST_ENUMERATED:
            return None
        histogram = _compute_histogram(group, indices, loops, dims)
        shape = [dim if axis in group.axes else 1 for axis, dim in enumerate(dims)]
        total = total * histogram.reshape(shape)
    return np.broadcast_to(total, tuple(dims)).astype(np.int64)


def _group_axes(
    indices: Sequence[AxisIndex], loops: Mapping[IndexVar, Range]
) -> tuple[_Group, ...]:
    """Group the axes that loop variables connect; constant axes are in no group."""
    groups: list[_Group] = []
    for axis, index in enumerate(indices):
        mine = tuple(var for _, var in _loop_terms(index, loops))
        if not mine:
            continue
        touching = [group for group in groups if set(group.variables).intersection(mine)]
        groups = [group for group in groups if group not in touching]
        variables = dict.fromkeys([*(v for group in touching for v in group.variables), *mine])
        axes = sorted([axis, *(a for group in touching for a in group.axes)])
        groups.append(_Group(tuple(axes), tuple(variables)))
    return tuple(groups)


def _loop_terms(
    index: AxisIndex, loops: Mapping[IndexVar, Range]
) -> tuple[tuple[int, IndexVar], ...]:
    if isinstance(index, VarIndex):
        return ((1, index.var),) if index.var in loops else ()
    return tuple(term for term in as_affine(index)[0] if term[1] in loops)


def _count_in_group(
    group: _Group,
    indices: Sequence[AxisIndex],
    loops: Mapping[IndexVar, Range],
    dims: Sequence[int],
    max_tracing_dim: int,
) -> AccessCount:
    extents = [loops[var].extent for var in group.variables]
    if 0 in extents:
        return AccessCount(0, 0)
    if len(group.variables) == 1:
        covers_all = len(group.axes) == 1 and extents[0] >= dims[group.axes[0]]
        return AccessCount(int(covers_all), 1)
    cells = prod(dims[axis] for axis in group.axes)
    if prod(extents) <= MOST_ENUMERATED and cells <= MOST_ENUMERATED:
        histogram = _compute_histogram(group, indices, loops, dims)
        return (
            AccessCount(int(histogram.min()), int(histogram.max())) if cells else AccessCount(0, 0)
        )
    start = {
        var: Range(loops[var].low, min(loops[var].high, loops[var].low + max(1, max_tracing_dim)))
        for var in group.variables
    }
    return AccessCount(0, _sample_largest_count(group, indices, start), is_exact=False)


def _enumerate_positions(
    group: _Group, indices: Sequence[AxisIndex], loops: Mapping[IndexVar, Range]
) -> list[Counts]:
    """Return the positions along each axis of a group, one for each iteration of its loops."""
    grid = np.indices([loops[var].extent for var in group.variables], dtype=np.int64)
    values = {
        var: grid[place].reshape(-1) + loops[var].low for place, var in enumerate(group.variables)
    }
    size = prod(loops[var].extent for var in group.variables)
    positions = []
    for axis in group.axes:
        terms, offset = as_affine(indices[axis])
        along = [coefficient * values[var] for coefficient, var in terms if var in values]
        positions.append(reduce(np.add, along, np.full(size, offset, np.int64)))
    return positions


def _compute_histogram(
    group: _Group,
    indices: Sequence[AxisIndex],
    loops: Mapping[IndexVar, Range],
    dims: Sequence[int],
) -> Counts:
    """Count the accesses of each position along a group's axes, in row-major order."""
    extents = [dims[axis] for axis in group.axes]
    positions = _enumerate_positions(group, indices, loops)
    inside = np.ones(len(positions[0]), dtype=bool)
    places = np.zeros(len(positions[0]), dtype=np.int64)
    for position, extent in zip(positions, extents, strict=True):
        inside &= (position >= 0) & (position < extent)
        places = places * extent + position
    return np.bincount(places[inside], minlength=prod(extents)).astype(np.int64)


def _sample_largest_count(
    group: _Group, indices: Sequence[AxisIndex], loops: Mapping[IndexVar, Range]
) -> int:
    rows = np.stack(_enumerate_positions(group, indices, loops), axis=1)
    return int(np.unique(rows, axis=0, return_counts=True)[1].max(initial=0))
