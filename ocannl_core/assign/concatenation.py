"""Traversals of concatenated axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ocannl_core.indexing import (
    AxisIndex,
    ConcatIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Projections,
    affine,
    variables,
)

Traversal = tuple[tuple[tuple[LoopVar, int], ...], tuple[IndexMap, ...]]
"""A domain, and the index maps of the result and the operands over it."""


def traversals(projections: Projections) -> Iterator[Traversal]:
    """Yield a domain and index maps for each choice of one part of every concatenated axis.

    Axes that share a part choose it together: `a^b => b^a` exchanges two parts. Choices that leave
    a variable of an index map unbound are skipped: `a^b => a` reads the first part only. Parts
    given as numbers are never visited. Without concatenated axes there is one traversal.

    x[i^j] over i:2, j:3  -->  x[i] over i:2;  x[j + 2] over j:3
    """
    maps = (projections.lhs, *projections.rhs)
    axes = dict.fromkeys(i for index_map in maps for i in index_map if isinstance(i, ConcatIndex))
    extents = projections.extents
    parts: set[IndexVar] = {part for axis in axes for part in axis.variables}
    for choice in product(*(axis.stretches(extents) for axis in axes)):
        active = {part for part, _ in choice}
        if any(len(active.intersection(axis.variables)) > 1 for axis in axes):
            continue
        idle = parts - active
        chosen: dict[AxisIndex, AxisIndex] = {}
        for axis, (part, start) in zip(axes, choice, strict=True):
            chosen[axis] = affine([(1, part)], start)
        chosen_maps = tuple(tuple(chosen.get(i, i) for i in index_map) for index_map in maps)
        if idle.isdisjoint(v for index_map in chosen_maps for i in index_map for v in variables(i)):
            yield tuple((v, n) for v, n in projections.domain if v not in idle), chosen_maps
