"""What operations demand of shapes.

`res ⊑ opnd` (below) reads: the result refines the operand. For sizes, the two are equal or the
operand's is 1. For rows, the result has at least the operand's axes, and aligned from the right
each pair of sizes is so ordered. An empty row and a row of one axis of size 1 count as the same
operand: a scalar.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.origin import Origin
from ocannl_core.shape.terms import Dim, Row


@dataclass(frozen=True, slots=True)
class DimEqual:
    """Two sizes are the same.

    Attributes:
        left: One size.
        right: The other one.
        origin: What demands it.
        axis: The position in the origin's row, counted from the right: -1 is the last axis; None if
            there is no row.
    """

    left: Dim
    right: Dim
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class DimBelow:
    """`res ⊑ opnd` for sizes: equal, or the operand's is 1."""

    res: Dim
    opnd: Dim
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A size is at least `n`, because position `n - 1` is accessed.

    Attributes:
        dim: The size.
        n: The lower bound.
        origin: What demands it.
        axis: As in `DimEqual`.
        is_written: True if the position is written, so that the axis has it. An axis is not made
            longer for a position that is read.
    """

    dim: Dim
    n: int
    origin: Origin = field(compare=False)
    axis: int | None = field(default=None, compare=False)
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class RowEqual:
    """Two rows have the same axes.

    Attributes:
        left: One row.
        right: The other one.
        origin: What demands it.
        skipped: How many axes to the right of these rows are compared already.
    """

    left: Row
    right: Row
    origin: Origin = field(compare=False)
    skipped: int = field(default=0, compare=False)


class NamedAxis(NamedTuple):
    """How many axes at the ends of a row a specification names.

    Attributes:
        leading: Those before the row variable.
        trailing: Those after it, or all of them if there is none.
    """

    leading: int = 0
    trailing: int = 0


@dataclass(frozen=True, slots=True)
class RowBelow:
    """`res ⊑ opnd` for rows.

    Attributes:
        res: The result's row.
        opnd: The operand's row.
        origin: What demands it.
        skipped: How many axes to the right of these rows are compared already.
        ahead: How many axes to the left of these rows are compared already.
        named: The axes of the result's row that a specification names for the operand. They are
            matched before those that the row variable stands for: with `i...`, an operand of one
            axis has `i`.
        is_written: True if the operand's row is what a specification writes for the result: the
            axes that it names first are the first ones of the result.
    """

    res: Row
    opnd: Row
    origin: Origin = field(compare=False)
    skipped: int = field(default=0, compare=False)
    ahead: int = field(default=0, compare=False)
    named: NamedAxis = NamedAxis()
    is_written: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Strided:
    """A count that grows with a size: `coefficient * size / denominator`."""

    coefficient: int
    dim: Dim
    denominator: int = 1


@dataclass(frozen=True, slots=True)
class TotalElements:
    """Rows have so many cells together.

    Attributes:
        rows: The rows; the one that takes what the others leave comes last.
        count: The number of cells.
        origin: What demands it.
        divided_by: Sizes by which the count is divided.
    """

    rows: tuple[Row, ...]
    count: int | Strided
    origin: Origin = field(compare=False)
    divided_by: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Exact:
    """Rows, one after the other, have exactly these axes."""

    rows: tuple[Row, ...]
    dims: tuple[Dim, ...]
    origin: Origin = field(compare=False)


@dataclass(frozen=True, slots=True)
class ReverseEqual:
    """A row has the axes of another one in reverse order.

    No operation of this package asks for it; custom operations that turn whole rows around do.
    """

    left: Row
    right: Row
    origin: Origin = field(compare=False)


DimConstraint = DimEqual | DimBelow | AtLeast
RowConstraint = RowEqual | RowBelow | TotalElements | Exact | ReverseEqual
Formula = DimEqual | TotalElements
"""What relates sizes by arithmetic."""
Constraint = DimConstraint | RowConstraint
