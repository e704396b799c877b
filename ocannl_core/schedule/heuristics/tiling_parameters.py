"""What is decided about the schedule of a reduction, and the transforms that all of them have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.kernels.transforms import Split, Transform, Unroll, Vectorise
from ocannl_core.schedule.heuristics.cost_model import ReductionModel

_MOST_IDLE = 16
"""Threads may wait for one part in so many of their time."""


@dataclass(frozen=True, slots=True)
class BlockedAxis:
    """An axis of which blocks are inside.

    Attributes:
        axis: The whole axis.
        number: The loop over blocks; None if one block is all.
        inner: The inside of a block.
    """

    axis: str
    outer: str | None
    inner: str


@dataclass(frozen=True, slots=True)
class VectorAxis:
    """The axis of the lanes, of which blocks are inside.

    Attributes:
        axis: The whole axis.
        outside: The loop over blocks, or over groups of them, outside of blocks of rows; None if
            there is none.
        inside: The loop over the blocks of a group, inside of a block of rows; None if that is one.
        inner: The inside of a block.
    """

    axis: str
    outer: str | None
    middle: str | None
    inner: str


@dataclass(frozen=True, slots=True)
class ThreadedAxis:
    """An axis of cells of which threads have equal shares.

    Attributes:
        axis: The whole axis.
        size: How many iterations a share has at most.
    """

    axis: str
    size: int

    @property
    def outer(self) -> str:
        """The loop over shares."""
        return f"{self.axis}0"

    @property
    def inner(self) -> str:
        """The inside of a share."""
        return f"{self.axis}1"


class PackingLayout(Enum):
    """How an operand lies in its buffer."""

    NONE = "not at all"
    PANELS = "in the order in which blocks of registers read it"
    ROWS = "row by row"


@dataclass(frozen=True, slots=True)
class TilingParameters:
    """What is decided about the schedule of a reduction; None leaves it to the model.

    Attributes:
        lane: The axis of the lanes.
        vectors: Vectors of lanes in a block of registers; with lanes along a reduced axis, the
            vectors of accumulators of each cell.
        rows: Rows of a block of registers; with lanes along a reduced axis, the most along an axis.
        outside: How many reduced axes run outside of the cells, which hold partial results then.
        pieces: Into how many pieces the first of the other reduced axes is cut, likewise.
        copies: How operands are packed, by position.
        together: How many blocks of lanes run inside of a block of rows, one after the other; 1 if
            the loop over blocks of lanes is outside of that over blocks of rows.
        fetching: True if cells come near while sums run that are combined with them.
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
        """Returns how an operand is packed, if that is decided."""
        return dict(self.layouts).get(position)


CHOSEN_BY_MODEL = TilingParameters()


def split_axis(
    splits: list[Transform], model: ReductionModel, axis: str, size: int, evenly: bool
) -> BlockedAxis:
    """Returns an axis cut into blocks of a size; adds the split if it needs one."""
    if size >= model.extents[axis]:
        return BlockedAxis(axis, None, axis)
    splits.append(Split(axis, size, evenly))
    return BlockedAxis(axis, f"{axis}0", f"{axis}1")


def split_vector_axis(
    splits: list[Transform], model: ReductionModel, axis: str, size: int, vector_blocks: int
) -> VectorAxis:
    """Returns an axis cut into groups of so many blocks of a size; adds the splits it needs."""
    group = split_axis(splits, model, axis, size * vector_blocks, evenly=False)
    if vector_blocks == 1 or size >= model.extents[axis]:
        return VectorAxis(axis, group.outer, None, group.inner)
    splits.append(Split(group.inner, size))
    return VectorAxis(axis, group.outer, f"{group.inner}0", f"{group.inner}1")


def is_unbalanced(units: int, threads: int) -> bool:
    """True if threads that take whole units of work would wait for each other."""
    return -units % threads * _MOST_IDLE > units


def split_lanes(splits: list[Transform], name: str, block: int, width: int) -> list[str]:
    """Returns the loops over the vectors of a block and over the lanes of each."""
    if width in (1, block):
        return [name]
    splits.append(Split(name, width))
    return [f"{name}0", f"{name}1"]


def unroll_tile(model: ReductionModel, kept: Sequence[str]) -> Iterator[Transform]:
    """Yields how the loops of a block of registers run."""
    yield from (Unroll(name) for name in kept[:-1])
    yield Vectorise(kept[-1]) if model.lanes > 1 else Unroll(kept[-1])
