"""The constraints that operations impose on shapes.

`res ⊑ opnd` ("below") reads: the result refines the operand. For sizes: the two are equal, or the
operand is 1. For rows: the result has at least the operand's axes, and each pair of sizes, aligned
from the right, is so ordered. As operands, an empty row and a row of one axis of size 1 are both
scalars.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.shape_terms import Dim, Row, Shape
from ocannl_core.shape.language.subscripts import Keys, StaticSlice


@dataclass(frozen=True, slots=True)
class DimEqual:
    """Equality of two sizes."""

    left: Dim
    right: Dim
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)
    """The position in the origin's row, counted from the right: -1 is the last axis; None if there
    is no row.
    """


@dataclass(frozen=True, slots=True)
class DimBelow:
    """`res ⊑ opnd` for sizes: equal, or the operand's is 1."""

    res: Dim
    opnd: Dim
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A lower bound `n` of a size, because position `n - 1` is accessed."""

    dim: Dim
    n: int
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)
    lengthens: bool = False
    """True if an open axis takes this size: the position is written, or is one of an index with a
    range. Other reads do not lengthen an axis.
    """


@dataclass(frozen=True, slots=True)
class RowEqual:
    """Equality of two rows."""

    left: Row
    right: Row
    origin: Origin = field(compare=False)
    skipped: int = field(default=0, compare=False)
    """The number of axes to the right of these rows that are compared already."""


class NamedAxis(NamedTuple):
    """The numbers of axes at the ends of a row that a spec names."""

    leading: int = 0
    trailing: int = 0


@dataclass(frozen=True, slots=True)
class RowBelow:
    """`res ⊑ opnd` for rows.

    Attributes:
        skipped: The number of axes to the right of these rows that are compared already.
        ahead: The number of axes to the left of these rows that are compared already.
        named: The axes of the result's row that a spec names for the operand. They are matched
            before the axes of the row variable: with `i...`, an operand of one axis has `i`.
        is_written: True if the operand's row is the one that a spec writes for the result: its
            leading named axes are the first ones of the result.
    """

    res: Row
    opnd: Row
    origin: Origin = field(compare=False)
    skipped: int = field(default=0, compare=False)
    ahead: int = field(default=0, compare=False)
    named: NamedAxis = NamedAxis()
    is_written: bool = field(default=False, compare=False)

    def __hash__(self) -> int:
        """Return a hash of the variables and the numbers of axes, which tell most rows apart."""
        below, above = self.res.tail, self.opnd.tail
        ends = -1 if below is None else below.id, -1 if above is None else above.id
        return hash((*ends, len(self.res.trailing), len(self.opnd.trailing)))


@dataclass(frozen=True, slots=True)
class Strided:
    """A count proportional to a size: `coefficient * size / denominator`."""

    coefficient: int
    dim: Dim
    denominator: int = 1


@dataclass(frozen=True, slots=True)
class TotalElements:
    """The total number of cells of rows."""

    rows: tuple[Row, ...]
    """The rows; the one that takes the remaining factor comes last."""
    count: int | Strided
    origin: Origin = field(compare=False)
    divided_by: tuple[Dim, ...] = ()
    """Divisors of the count."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The exact axes of consecutive rows."""

    rows: tuple[Row, ...]
    dims: tuple[Dim, ...]
    origin: Origin = field(compare=False)


@dataclass(frozen=True, slots=True)
class ReverseEqual:
    """Equality of a row with the reverse of another one.

    No built-in operation imposes it; custom operations that reverse whole rows do.
    """

    left: Row
    right: Row
    origin: Origin = field(compare=False)


Rows = tuple[Row, Row, Row]
"""The rows of a shape in buffer order: batch, output, input."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of positions along one axis of a source.

    Attributes:
        source: The rows with the selected axis.
        result: The rows with the axes of the positions in the place of the selected axis.
        axis: The selected axis, counted over the source's axes, from the end if negative.
        is_along: True if source and positions line up with the result along the other axes, as in
            `numpy.take_along_axis`.
        is_inserted: True if the result determines the source: the positions have axes of one kind,
            in whose place the source has the selected axis.
    """

    source: Rows
    positions: Rows
    result: Rows
    axis: int
    extent: Dim
    origin: Origin = field(compare=False)
    is_along: bool = False
    is_inserted: bool = False


@dataclass(frozen=True, slots=True)
class RowJoin:
    """A row that consists of other rows, one after the other."""

    whole: Row
    parts: tuple[Row, ...]
    origin: Origin = field(compare=False)


@dataclass(frozen=True, slots=True)
class SliceLength:
    """The number of positions of a slice, which is known when the size of the axis is."""

    length: Dim
    whole: Dim
    slice: StaticSlice
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Subscript:
    """The axes that keys take from a tensor. It waits for the numbers of axes that decide the rows
    of the keys.
    """

    result: Shape
    """The shape of `x[keys]`."""
    operand: Shape
    """The shape of `x`."""
    keys: Keys
    origin: Origin = field(compare=False)
    is_written: bool = False
    """True if the positions are written, which lengthens axes of open size."""


DimConstraint = DimEqual | DimBelow | AtLeast | SliceLength
RowConstraint = (
    RowEqual | RowBelow | TotalElements | Exact | ReverseEqual | Selection | RowJoin | Subscript
)
RowEquation = RowEqual | ReverseEqual
"""A constraint that makes two rows equally long."""
Formula = DimEqual | TotalElements | SliceLength
"""A constraint that relates sizes by arithmetic."""
Constraint = DimConstraint | RowConstraint


def equal_shapes(
    one: Shape, other: Shape, origin: Origin, before: str = "", after: str = ""
) -> list[Constraint]:
    """Return the equalities of the rows of two shapes.

    Args:
        before: The text before "batch row" in messages.
        after: The text after it.
    """
    return [
        RowEqual(row, other.row(kind), origin.at(f"{before}{kind.value} row{after}"))
        for kind, row in one.rows()
    ]
