"""Ends at run time of the loops of a schedule.

Registers hold whole blocks of results: cells beyond the extent of an axis are undefined, and
computing them does no harm. So loops over registers and their lanes run as a whole, and the loops
around end with the block that the extent is in. Terms beyond the end of a reduction are left out,
lane by lane where lanes run over terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ocannl_core.ir.indexing import FixedIndex
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.kernels.transforms import Pair, Schedule, TileMatrix, Unroll, Vectorize
from ocannl_core.ir.loops.nodes import AxisKind, LoopBound
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region

WHOLE_KINDS = frozenset({AxisKind.VECTOR, AxisKind.UNROLLED, AxisKind.PAIR, AxisKind.TILE})
"""Loops over registers and their lanes, which always run as a whole."""


def loop_end(name: str, kind: AxisKind, inside: Region) -> LoopBound | None:
    """Return the end at run time of a loop; None for one that runs as a whole."""
    bound = inside.bound(name)
    if bound is None or kind is AxisKind.VECTOR:
        return None
    is_first = bound.index == FixedIndex(0)
    if not inside.tree.is_reduced(name):
        return None if kind in WHOLE_KINDS or is_first else bound
    has_loop_inside = f"{name[:-1]}1" in inside.extents and name.endswith("0")
    return None if has_loop_inside and is_first else bound


def lane_end(lane: str, kinds: Mapping[str, AxisKind], inside: Region) -> LoopBound | None:
    """Return the end at run time of the terms in the lanes of a vector, if they have one."""
    is_lane = kinds[lane] is AxisKind.VECTOR and inside.tree.is_reduced(lane)
    return inside.bound(lane) if is_lane else None


def joint_terms(tree: AxisTree, kinds: Mapping[str, AxisKind]) -> str:
    """Return the loop over terms that one instruction adds although their axis ends at run time, or
    "".
    """
    joint = (name for name, kind in kinds.items() if kind in (AxisKind.PAIR, AxisKind.TILE))
    ends = (name for name in joint if tree.axes[name[0]].bound and tree.is_reduced(name))
    return next(ends, "")


def whole_block(axes: Iterable[LoopAxis], schedule: Schedule, axis: str) -> int:
    """Return the most iterations of an axis that run as a whole, whatever its end at run time."""
    tree = AxisTree.of(axes, schedule)
    whole: set[str] = set()
    for transform in schedule:
        match transform:
            case Unroll(name) | Vectorize(name) | Pair(name):
                whole.add(name)
            case TileMatrix(rows, lanes, terms):
                whole |= {rows, lanes, terms}
            case _:
                pass
    return prod(tree.max_extent(leaf) for leaf in tree.leaves(axis) if leaf in whole)


def is_valid_pair(
    tree: AxisTree, order: Sequence[str], pairs: list[str], vectors: list[str]
) -> bool:
    """Return True if loops over pairs are the inside of a reduced axis split by two, innermost."""
    split = tree.splits.get(pairs[0][:-1])
    return (
        pairs == [order[-1]]
        and bool(vectors)
        and pairs[0].endswith("1")
        and split is not None
        and (split.size, split.evenly) == (2, False)
        and tree.is_reduced(pairs[0])
    )
