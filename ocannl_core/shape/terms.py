"""The terms of shape inference: dimensions, rows of axes, shapes.

A shape is three rows: batch, input, output. A row is known leading axes, an optional row variable
that stands for axes not known yet, and known trailing axes. All terms are frozen; solutions live in
the solver's environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from enum import Enum
from itertools import zip_longest
from math import prod
from typing import assert_never

from ocannl_core.fast_dataclass import dataclass, replace


class RowKind(Enum):
    """The three rows of a shape."""

    BATCH = "batch"
    INPUT = "input"
    OUTPUT = "output"


BUFFER_ORDER = (RowKind.BATCH, RowKind.OUTPUT, RowKind.INPUT)
"""The order of a shape's rows in memory; the last axis is contiguous."""


# ----- dimensions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DimVar:
    """An unknown axis size."""

    id: int
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or f"${self.id}"


@dataclass(frozen=True, slots=True)
class Size:
    """A known axis size.

    Attributes:
        n: The number of positions.
        basis: What the positions mean, such as `rgb`; None adopts the other side's.
        axis_id: Identifies the axis during projection inference; not part of equality.
    """

    n: int
    basis: str | None = None
    axis_id: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.n}:{self.basis}" if self.basis else str(self.n)


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over an axis.

    Attributes:
        kernel: The window's size.
        dilation: Distance between the window's positions.
        padded: True when the window may reach into margins, so that only the stride relates the
            sizes.
    """

    kernel: Dim
    dilation: int = 1
    padded: bool = False


@dataclass(frozen=True, slots=True)
class AffineDim:
    """The size of an axis addressed at `stride * position + dilation * window position + offset`.

    Attributes:
        stride: Positive distance between consecutive positions.
        over: The size of the axis of positions.
        window: The sliding window, if any.
        offset: `0 <= offset < stride`; never matters for sizes.
    """

    stride: int
    over: Dim
    window: Window | None = None
    offset: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.stride}*{self.over}"
            if self.stride != 1 or self.window is None
            else str(self.over)
        )
        if self.window is not None:
            mark = "=" if self.window.padded else "<"
            dilation = f"{self.window.dilation}*" if self.window.dilation != 1 else ""
            text += f"{mark}+{dilation}{self.window.kernel}"
        return text + (f"+{self.offset}" if self.offset else "")


@dataclass(frozen=True, slots=True)
class ConcatDim:
    """The size of an axis made of parts that follow each other: the sum of their sizes."""

    parts: tuple[Dim, ...]

    def __str__(self) -> str:
        return "^".join(map(str, self.parts))


Dim = DimVar | Size | AffineDim | ConcatDim

ONE_WRITTEN = ConcatDim((Size(1),))
"""The axis that `0` stands for in the result of a specification."""


def dim_variables(dim: Dim) -> Iterator[DimVar]:
    """Yield the unknown sizes that a size depends on."""
    match dim:
        case DimVar():
            yield dim
        case Size():
            return
        case AffineDim(over=over, window=window):
            yield from dim_variables(over)
            if window is not None:
                yield from dim_variables(window.kernel)
        case ConcatDim(parts):
            for part in parts:
                yield from dim_variables(part)
        case _:
            assert_never(dim)


# ----- rows and shapes ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowVar:
    """Unknown axes between the leading and the trailing ones of a row."""

    id: int
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"..{self.name or f'${self.id}'}.."


@dataclass(frozen=True, slots=True)
class Row:
    """A row of axes.

    Attributes:
        leading: Axes anchored to the left end.
        tail: Stands for the axes between; None when there are no more.
        trailing: Axes anchored to the right end. A row without a variable keeps all its axes here.
    """

    leading: tuple[Dim, ...] = ()
    tail: RowVar | None = None
    trailing: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        if self.tail is None and self.leading:
            object.__setattr__(self, "trailing", self.leading + self.trailing)
            object.__setattr__(self, "leading", ())

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The known axes, left to right."""
        return self.leading + self.trailing

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of a closed row.

        Raises:
            ValueError: if anything is unknown.
        """
        if self.tail is not None:
            raise ValueError(f"row {self} is open")
        return tuple(_size(dim) for dim in self.trailing)

    @property
    def is_closed(self) -> bool:
        """True when every axis is known."""
        return self.tail is None and all(isinstance(dim, Size) for dim in self.trailing)

    def __str__(self) -> str:
        parts = [
            *map(str, self.leading),
            *([str(self.tail)] if self.tail else []),
            *map(str, self.trailing),
        ]
        return ",".join(parts)


def _size(dim: Dim) -> int:
    if not isinstance(dim, Size):
        raise ValueError(f"dimension {dim} is unknown")
    return dim.n


LARGEST_INDEX = 2**63 - 1
"""What the indices of generated code and of NumPy can hold."""


def exceeds(sizes: Iterable[int], nbytes: int = 1) -> bool:
    """Return True for sizes of a tensor whose cells, of so many bytes each, have no addresses.

    Axes of size 0 do not help: strides are products of the others.
    """
    return prod(size for size in sizes if size) * nbytes > LARGEST_INDEX


def closed_row(*sizes: int) -> Row:
    """Return a row of known axes."""
    return Row(trailing=tuple(Size(n) for n in sizes))


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of a tensor, written `batch|input->output`."""

    batch: Row = Row()
    input: Row = Row()
    output: Row = Row()

    def row(self, kind: RowKind) -> Row:
        match kind:
            case RowKind.BATCH:
                return self.batch
            case RowKind.INPUT:
                return self.input
            case RowKind.OUTPUT:
                return self.output

    def with_row(self, kind: RowKind, row: Row) -> Shape:
        """Return the shape with one row replaced."""
        match kind:
            case RowKind.BATCH:
                return replace(self, batch=row)
            case RowKind.INPUT:
                return replace(self, input=row)
            case RowKind.OUTPUT:
                return replace(self, output=row)

    def rows(self) -> Iterator[tuple[RowKind, Row]]:
        """Yield the rows in buffer order."""
        for kind in BUFFER_ORDER:
            yield kind, self.row(kind)

    @property
    def is_closed(self) -> bool:
        return self.batch.is_closed and self.input.is_closed and self.output.is_closed

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes of all axes in buffer order (batch, output, input).

        Raises:
            ValueError: if anything is unknown.
        """
        return self.batch.sizes + self.output.sizes + self.input.sizes

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.dims)

    def __str__(self) -> str:
        text = str(self.output)
        if str(self.input):
            text = f"{self.input}->{text}"
        if str(self.batch):
            text = f"{self.batch}|{text}"
        return text or "()"

    def __repr__(self) -> str:
        return f"<shape {self}>"


def closed_shape(
    batch: tuple[int, ...] = (), input: tuple[int, ...] = (), output: tuple[int, ...] = ()
) -> Shape:
    """Return a shape of known sizes."""
    return Shape(closed_row(*batch), closed_row(*input), closed_row(*output))


def broadcast_shape(one: Shape, other: Shape) -> Shape:
    """Return the closed shape that two closed shapes are repeated to, row by row from the right.

    Axes of size 1 are repeated; sizes that contradict each other are not looked for.
    """
    rows = {}
    for kind, row in one.rows():
        left, right = row.sizes[::-1], other.row(kind).sizes[::-1]
        sizes = [b if a == 1 else a for a, b in zip_longest(left, right, fillvalue=1)]
        rows[kind] = closed_row(*reversed(sizes))
    return Shape(rows[RowKind.BATCH], rows[RowKind.INPUT], rows[RowKind.OUTPUT])
