"""The terms of shape inference: dimensions, rows of axes, shapes, fresh variables.

A shape is three rows: batch, input, output. A row is known leading axes, an optional row variable
for unknown axes, and known trailing axes. All terms are frozen; solutions are in the state of the
solver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from enum import Enum
from itertools import zip_longest
from math import prod
from typing import Any, SupportsIndex, overload

from ocannl_core.base.ephemerons import EphemeronKey
from ocannl_core.base.errors import ShapeError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.undo_log import Ordinals
from ocannl_core.ir.indexing import StaticExtent


class RowKind(Enum):
    """The three rows of a shape."""

    BATCH = "batch"
    INPUT = "input"
    OUTPUT = "output"


BUFFER_ORDER = (RowKind.BATCH, RowKind.OUTPUT, RowKind.INPUT)
"""The order of a shape's rows in memory; the last axis is contiguous."""


@dataclass(frozen=True, slots=True, eq=False)
class DimVar(EphemeronKey):
    """An unknown axis size."""

    id: int
    name: str = ""

    def __str__(self) -> str:
        return self.name or f"${self.id}"


@dataclass(frozen=True, slots=True)
class Size:
    """A known axis size.

    Attributes:
        n: The number of positions; the greatest number for an extent at run time.
        basis: The meaning of the positions, such as `rgb`; None unifies with any basis.
        axis_id: Identifies the axis during projection inference; not part of equality.
        extent: The positions at run time. It is rigid: it equals itself, and no number.
    """

    n: int
    basis: str | None = None
    axis_id: int | None = field(default=None, compare=False)
    extent: StaticExtent | None = None

    def __str__(self) -> str:
        text = str(self.n) if self.extent is None else str(self.extent)
        return f"{text}:{self.basis}" if self.basis else text


def stated_size(axis: int | Size | StaticExtent) -> Size:
    """Return the size that a number, a size or an extent states."""
    match axis:
        case Size():
            return axis
        case StaticExtent():
            return Size(axis.maximum, extent=axis)
        case _:
            return Size(int(axis))


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over an axis."""

    kernel: Dim
    """The window's size."""
    dilation: int = 1
    """Distance between the window's positions."""
    padded: bool = False
    """True if the window may reach into margins, so that only the stride counts."""


@dataclass(frozen=True, slots=True)
class AffineDim:
    """The size of an axis indexed at `stride * position + dilation * window position + offset`."""

    stride: int
    """Positive distance between consecutive positions."""
    over: Dim
    """The size of the axis of positions."""
    window: Window | None = None
    """The sliding window, if any."""
    offset: int = 0
    """`0 <= offset < stride`, or up to `stride` for a padded window; irrelevant for sizes."""

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
    """The size of a concatenated axis: the sum of the sizes of its parts."""

    parts: tuple[Dim, ...]

    def __str__(self) -> str:
        return "^".join(map(str, self.parts))


Dim = DimVar | Size | AffineDim | ConcatDim

ONE_WRITTEN = ConcatDim((Size(1),))
"""The size of an axis that a spec writes at position 0 only."""


def plain_dims(dim: Dim) -> list[DimVar | Size]:
    """Return the sizes that a size is computed from."""
    match dim:
        case AffineDim(over=over, window=window):
            return plain_dims(over) + ([] if window is None else plain_dims(window.kernel))
        case ConcatDim(parts):
            return [each for part in parts for each in plain_dims(part)]
        case _:
            return [dim]


def with_plain_dims(dim: Dim, change: Callable[[DimVar | Size], Dim]) -> Dim:
    """Return a size with others in place of those that it is computed from."""
    match dim:
        case AffineDim(over=over, window=window):
            if window is not None:
                window = replace(window, kernel=with_plain_dims(window.kernel, change))
            return replace(dim, over=with_plain_dims(over, change), window=window)
        case ConcatDim(parts):
            return ConcatDim(tuple(with_plain_dims(part, change) for part in parts))
        case _:
            return change(dim)


def dim_variables(dim: Dim) -> list[DimVar]:
    """Return the size variables in a size."""
    if isinstance(dim, DimVar):
        return [dim]
    return [each for each in plain_dims(dim) if isinstance(each, DimVar)]


@dataclass(frozen=True, slots=True, eq=False)
class RowVar(EphemeronKey):
    """Unknown axes between the leading and the trailing ones of a row."""

    id: int
    name: str = ""

    def __str__(self) -> str:
        return f"..{self.name or f'${self.id}'}.."


class FreshVariables:
    """A supply of fresh variables; names are for messages only."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Ordinals | None = None) -> None:
        self._ids = ids or Ordinals()

    @property
    def number(self) -> int:
        """The number of variables made so far."""
        return self._ids.next

    def dim(self, name: str = "") -> DimVar:
        """Return a fresh size variable."""
        return DimVar(self._ids.take(), name)

    def row(self, name: str = "") -> RowVar:
        """Return a fresh row variable."""
        return RowVar(self._ids.take(), name)

    def dims(self, number: int) -> tuple[DimVar, ...]:
        """Return fresh size variables without names."""
        return tuple([self.dim() for _ in range(number)]) if number else ()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of axes."""

    leading: tuple[Dim, ...]
    """Axes at the left end."""
    tail: RowVar | None
    """The variable of the axes between; None for a row of known length."""
    trailing: tuple[Dim, ...]
    """Axes at the right end. A row without a variable has all its axes here."""
    known: int = field(init=False, compare=False, repr=False)
    """The number of known axes."""

    # written out, as rows are made all the time: `__post_init__` would be another call
    def __init__(
        self,
        leading: tuple[Dim, ...] = (),
        tail: RowVar | None = None,
        trailing: tuple[Dim, ...] = (),
    ) -> None:
        if tail is None and leading:
            leading, trailing = (), leading + trailing
        _SET_LEADING(self, leading)
        _SET_TAIL(self, tail)
        _SET_TRAILING(self, trailing)
        _SET_KNOWN(self, len(leading) + len(trailing))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The known axes, left to right."""
        return self.leading + self.trailing

    @property
    def unknowns(self) -> list[DimVar | RowVar]:
        """The variables in the row."""
        found: list[DimVar | RowVar] = [*dim_variables(ConcatDim(self.dims))]
        return found if self.tail is None else [*found, self.tail]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of a closed row.

        Raises:
            ValueError: if a size is unknown.
        """
        known = [dim.n for dim in self.trailing if isinstance(dim, Size)]
        if self.tail is not None or len(known) < len(self.trailing):
            raise ValueError(f"row {self} is open")
        return tuple(known)

    @property
    def is_closed(self) -> bool:
        """Return True if every axis is known."""
        return self.tail is None and [*map(type, self.trailing)].count(Size) == len(self.trailing)

    def __str__(self) -> str:
        parts = [
            *map(str, self.leading),
            *([str(self.tail)] if self.tail else []),
            *map(str, self.trailing),
        ]
        return ",".join(parts)


_SET_LEADING, _SET_TAIL, _SET_TRAILING, _SET_KNOWN = (
    vars(Row)[name].__set__ for name in ("leading", "tail", "trailing", "known")
)
_EMPTY = Row()

LARGEST_INDEX = 2**63 - 1
"""The largest index of generated code and of NumPy."""


def exceeds_address_space(sizes: Iterable[int], nbytes: int = 1) -> bool:
    """Return True if the cells of a tensor, of a given number of bytes each, exceed the address
    space.

    Axes of size 0 count as well, because strides are products of the other sizes.
    """
    return prod([size for size in sizes if size]) * nbytes > LARGEST_INDEX


def closed_row(*sizes: int) -> Row:
    """Return a row of known axes."""
    return Row(trailing=tuple([Size(n) for n in sizes])) if sizes else _EMPTY


@dataclass(frozen=True, slots=True)
class Shape(EphemeronKey):
    """The axes of a tensor, written `batch|input->output`."""

    batch: Row = Row()
    input: Row = Row()
    output: Row = Row()

    def row(self, kind: RowKind) -> Row:
        found: Row = getattr(self, kind._value_)
        return found

    def with_row(self, kind: RowKind, row: Row) -> Shape:
        """Return the shape with one row replaced."""
        return replace(self, **{kind.value: row})

    def rows(self) -> tuple[tuple[RowKind, Row], ...]:
        """Return the rows in buffer order, with their kinds."""
        batch, output, input = BUFFER_ORDER
        return (batch, self.batch), (output, self.output), (input, self.input)

    @property
    def is_closed(self) -> bool:
        return self.batch.is_closed and self.input.is_closed and self.output.is_closed

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes of all axes in buffer order (batch, output, input).

        Raises:
            ValueError: if a size is unknown.
        """
        return self.batch.sizes + self.output.sizes + self.input.sizes

    @property
    def extents(self) -> tuple[StaticExtent | None, ...]:
        """The extent at run time of each axis in buffer order; empty if all sizes are constant."""
        dims = (*self.batch.trailing, *self.output.trailing, *self.input.trailing)
        found = tuple([dim.extent for dim in dims if isinstance(dim, Size)])
        return found if any(found) else ()

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.dims)

    def __len__(self) -> int:
        """Return the number of axes.

        Raises:
            ShapeError: if it is not known.
        """
        if any(row.tail is not None for _, row in self.rows()):
            raise _not_known("number of axes", self)
        return sum(len(row.trailing) for _, row in self.rows())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        """Yield the sizes of all axes in buffer order."""
        return iter(self._known_sizes())

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """Return the size of an axis in buffer order, or several: integers, and the extents at run
        time themselves.

        Raises:
            ShapeError: if there is no such axis, or a size is not known.
        """
        sizes = self._known_sizes()
        try:
            return sizes[key]
        except IndexError:
            raise ShapeError.at_caller(
                "A shape has a size for each axis.",
                found=f"shape[{key}] of {self}",
                fix="axes are ordered as in ctx[x]: batch, output, input",
            ) from None

    def _known_sizes(self) -> tuple[int | StaticExtent, ...]:
        if not self.is_closed:
            raise _not_known("size of each axis", self)
        extents = self.extents or (None,) * len(self)
        return tuple(extent or n for n, extent in zip(self.dims, extents, strict=True))

    def __str__(self) -> str:
        text = str(self.output)
        if str(self.input):
            text = f"{self.input}->{text}"
        if str(self.batch):
            text = f"{self.batch}|{text}"
        return text or "()"

    def __repr__(self) -> str:
        return f"<shape {self}>"


def _not_known(what: str, shape: Shape) -> ShapeError:
    return ShapeError.at_caller(
        f"The {what} is read where it is known.",
        found=f"the shape {shape}",
        fix="state sizes where tensors are made, or compile the code first; oc.dim captures a size "
        "that is inferred",
    )


def rows_in_buffer_order(shape: Shape) -> tuple[Row, Row, Row]:
    """Return the rows of a shape: batch, output, input."""
    return shape.batch, shape.output, shape.input


def closed_shape(
    batch: tuple[int, ...] = (), input: tuple[int, ...] = (), output: tuple[int, ...] = ()
) -> Shape:
    """Return a shape of known sizes."""
    return Shape(closed_row(*batch), closed_row(*input), closed_row(*output))


def extents_in(dims: Iterable[Dim]) -> Iterator[StaticExtent]:
    """Yield the extents at run time among sizes."""
    for dim in dims:
        if isinstance(dim, Size) and dim.extent is not None:
            yield dim.extent


def broadcast_shape(one: Shape, other: Shape) -> Shape:
    """Return the closed shape to which two closed shapes broadcast, row by row from the right.

    Contradictory sizes are not detected.
    """
    rows = {}
    for kind, row in one.rows():
        left, right = row.trailing[::-1], other.row(kind).trailing[::-1]
        pairs = zip_longest(left, right, fillvalue=Size(1))
        axes = [_without_basis(b if _without_basis(a).n == 1 else a) for a, b in pairs]
        rows[kind] = Row(trailing=tuple(reversed(axes)))
    return Shape(rows[RowKind.BATCH], rows[RowKind.INPUT], rows[RowKind.OUTPUT])


def _without_basis(dim: Dim) -> Size:
    assert isinstance(dim, Size)
    return Size(dim.n, extent=dim.extent)
