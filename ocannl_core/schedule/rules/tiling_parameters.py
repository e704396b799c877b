"""Tiling parameters of a reduction, and the transforms that both ways to vectorize it share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels.transforms import Splits, Transform, set_kinds
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.schedule.rules.reduction_model import ReductionModel

_MAX_IDLE = 16
"""Threads may idle for one part in this many of their time."""


@dataclass(frozen=True, slots=True)
class BlockedAxis:
    """An axis split into blocks."""

    axis: str
    outer: str | None
    """The loop over blocks; None if there is one block."""
    inner: str


@dataclass(frozen=True, slots=True)
class VectorAxis:
    """The vector axis, split into blocks, and these maybe into groups."""

    axis: str
    outer: str | None
    """The loop over blocks or groups of them, outside of blocks of rows, or None."""
    middle: str | None
    """The loop over the blocks of a group, inside of a block of rows, or None."""
    inner: str


@dataclass(frozen=True, slots=True)
class ThreadedAxis:
    """An output axis split into equal shares for threads."""

    axis: str
    size: int
    """The most iterations of a share."""
    outer: str
    """The loop over shares."""
    inner: str
    """The axis inside a share."""


class PackingLayout(Enum):
    """The layout of a packed operand."""

    NONE = "not at all"
    PANELS = "in the order in which blocks of registers read it"
    ROWS = "row by row"


@dataclass(frozen=True, slots=True)
class TilingParameters:
    """The parameters of a reduction's schedule; None leaves one to the cost model.

    Attributes:
        vector_axis: The axis that is vectorized.
        vectors: Vectors of a register tile along the vector axis; for a reduced vector axis, the
            vectors of accumulators of each result.
        rows: Rows of a register tile; for a reduced vector axis, the most along one output axis.
        outer_reductions: The number of reduced axes outside, whose results are partial then.
        reduction_blocks: The number of blocks of the first of the other reduced axes, likewise.
        layouts: The layouts of packed operands, by position.
        vector_blocks: The number of blocks of the vector axis that run inside of a block of rows,
            one after the other; 1 for a loop over blocks outside of that over blocks of rows.
        prefetches: True if the operands of the epilogue are prefetched during the reduction.
    """

    vector_axis: str | None = None
    vectors: int | None = None
    rows: int | None = None
    outer_reductions: int | None = None
    reduction_blocks: int | None = None
    layouts: tuple[tuple[int, PackingLayout], ...] = ()
    vector_blocks: int | None = None
    prefetches: bool | None = None

    def layout(self, position: int) -> PackingLayout | None:
        """Return the layout of an operand, if it is given."""
        return dict(self.layouts).get(position)


CHOSEN_BY_MODEL = TilingParameters()


def split_axis(
    splits: Splits, model: ReductionModel, axis: str, size: int, evenly: bool
) -> BlockedAxis:
    """Split an axis into blocks of a size; add the split if there are several blocks."""
    if size >= model.extents[axis]:
        return BlockedAxis(axis, None, axis)
    return BlockedAxis(axis, *splits.cut(axis, size, evenly=evenly))


def split_vector_axis(
    splits: Splits, model: ReductionModel, axis: str, size: int, vector_blocks: int
) -> VectorAxis:
    """Split the vector axis into groups of blocks of a size; add the splits that this takes."""
    group = split_axis(splits, model, axis, size * vector_blocks, evenly=False)
    if vector_blocks == 1 or size >= model.extents[axis]:
        return VectorAxis(axis, group.outer, None, group.inner)
    return VectorAxis(axis, group.outer, *splits.cut(group.inner, size))


def is_unbalanced(units: int, threads: int) -> bool:
    """Return True if threads that take whole units of work would idle too long."""
    return -units % threads * _MAX_IDLE > units


def split_lanes(splits: Splits, name: str, block: int, width: int) -> list[str]:
    """Return the loops over the vectors of a block and over the lanes of each."""
    if width in (1, block):
        return [name]
    return list(splits.cut(name, width))


def unroll_tile(model: ReductionModel, kept: Sequence[str]) -> Iterator[Transform]:
    """Yield the transforms that unroll a register tile and vectorize its innermost loop."""
    yield from set_kinds(AxisKind.UNROLLED, kept[:-1])
    yield from set_kinds(AxisKind.VECTOR if model.lanes > 1 else AxisKind.UNROLLED, kept[-1:])
