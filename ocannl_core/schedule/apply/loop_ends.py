"""Ends of the loops of a schedule: at run time, and of equal blocks that exceed an axis.

Registers hold whole blocks of results: cells beyond the extent of an axis are undefined, and
computing them does no harm. So loops over registers and their lanes run as a whole, and the loops
around end with the block that the extent is in. Terms beyond the end of a reduction are left out,
lane by lane where lanes run over terms.

Equal blocks have a guard at the innermost loop of their axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocannl_core.ir.indexing import FixedIndex
from ocannl_core.ir.kernels.transforms import inner_of, is_inner, is_outer, parent_of, root_of
from ocannl_core.ir.loops.nodes import AxisKind, LoopBound
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region


def loop_end(name: str, kind: AxisKind, inside: Region) -> LoopBound | None:
    """Return the end of a loop before its stop; None for one that runs as a whole."""
    root = root_of(name)
    if inside.tree.is_rounded:
        return inside.guard(root) if inside.is_complete(root) else None
    bound = inside.bound(name)
    if bound is None or kind is AxisKind.VECTOR:
        return None
    is_first = bound.index == FixedIndex(0)
    if not inside.tree.is_reduced(name):
        return None if kind.is_whole or is_first else bound
    has_loop_inside = is_outer(name) and inner_of(parent_of(name)) in inside.extents
    return None if has_loop_inside and is_first else bound


def lane_end(lane: str, kinds: Mapping[str, AxisKind], inside: Region) -> LoopBound | None:
    """Return the end at run time of the terms in the lanes of a vector, if they have one."""
    is_lane = kinds[lane] is AxisKind.VECTOR and inside.tree.is_reduced(lane)
    return inside.bound(lane) if is_lane else None


def joint_terms(tree: AxisTree, kinds: Mapping[str, AxisKind]) -> str:
    """Return the loop over terms of one instruction whose axis ends at run time, or ""."""
    joint = (name for name, kind in kinds.items() if kind in (AxisKind.DOT, AxisKind.TILE))
    ends = (name for name in joint if tree.axes[root_of(name)].bound and tree.is_reduced(name))
    return next(ends, "")


def is_valid_dot(tree: AxisTree, order: Sequence[str], dots: list[str], vectors: list[str]) -> bool:
    """Return True if loops over terms of dot products are the innermost of a reduced axis."""
    split = tree.splits.get(parent_of(dots[0]))
    return (
        dots == [order[-1]]
        and bool(vectors)
        and is_inner(dots[0])
        and split is not None
        and split.size in (2, 4)
        and not split.evenly
        and tree.is_reduced(dots[0])
    )
