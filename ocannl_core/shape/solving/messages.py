"""Error messages of shape inference."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimBelow,
    DimConstraint,
    DimEqual,
    RowBelow,
    RowEqual,
)
from ocannl_core.shape.language.shape_terms import DimVar, Row, Size


def place(cause: Constraint) -> str:
    """Return the place of a constraint: part of the operation, operation, user's line."""
    return narrow_origin(cause).place


def narrow_origin(cause: Constraint) -> Origin:
    """Return the origin of a constraint, down to the axis.

    output row of the second operand  -->  output axis -1 of the second operand
    """
    if not isinstance(cause, DimConstraint) or cause.axis is None:
        return cause.origin
    return cause.origin.at(cause.origin.detail.replace(" row", f" axis {cause.axis}"))


def _places(causes: Sequence[Constraint]) -> str:
    """Return the places of constraints, each once."""
    return "\n".join(dict.fromkeys(map(place, causes)))


_SHOWN_ORIGINS = 6


def _all(cause: Constraint, others: Sequence[Constraint]) -> str:
    """Return the places of constraints, one per line; the first ones if there are many."""
    lines = list(dict.fromkeys(each.origin.place for each in (cause, *others)))
    if len(lines) > _SHOWN_ORIGINS:
        lines[_SHOWN_ORIGINS:] = [f"and {len(lines) - _SHOWN_ORIGINS} more"]
    return "\n".join(lines)


def sizes_differ(
    one: Size,
    one_cause: Constraint,
    other: Size,
    other_cause: Constraint,
    sources: Sequence[Constraint] = (),
) -> ShapeError:
    """Return the error of two sizes, or two bases, that must be equal and differ."""
    where = _places(sources or (one_cause, other_cause))
    if one.extent is not other.extent:
        return ShapeError(
            "An extent at run time equals itself only: no number, and no other extent.",
            found=f"size {one} and size {other}"
            + (", two extents of one name" if str(one) == str(other) else ""),
            where=where,
            fix="give both axes the same extent; an axis that is 1 or missing is repeated as "
            "needed",
        )
    if one.n == other.n:
        return ShapeError(
            "Axes that meet must have the same basis.",
            found=f"basis {one.basis!r} (size {one.n}) and basis {other.basis!r} (size {other.n})",
            where=where,
            fix="convert one of the tensors, or leave the basis of one of them out",
        )
    if isinstance(one_cause, DimBelow) or isinstance(other_cause, DimBelow):
        rule = "Axes that meet must have the same size, unless the operand's size is 1."
        broadcast = "; an operand's axis that is 1 or missing is repeated as needed"
    else:
        rule, broadcast = "Axes that are the same must have the same size.", ""
    names = [name for name in _names(one_cause) if name in _names(other_cause)]
    found, fix = f"size {one} and size {other}", "change one of the sizes"
    if names:
        found += f" of `{names[0]}`"
        if one_cause.origin.at("") == other_cause.origin.at(""):
            fix += ", or give the axes different names"
    if one_cause is other_cause and _MEETING in one_cause.origin.detail:
        fix += ", or exchange inputs and outputs, as in `w.T @ x`"
    return ShapeError(rule, found=found, where=where, fix=fix + broadcast)


_MEETING = ", against "
"""Part of the detail of a constraint between the inputs and the outputs that a product sums."""


def _names(cause: Constraint) -> list[str]:
    """Return the names of axes in a constraint on sizes."""
    match cause:
        case DimEqual(left, right) | DimBelow(left, right):
            ends = left, right
        case _:
            return []
    return [dim.name for dim in ends if isinstance(dim, DimVar) and dim.name]


def too_small(
    size: Size,
    size_cause: Constraint,
    at_least: int,
    cause: Constraint,
    sources: Sequence[Constraint] = (),
) -> ShapeError:
    """Return the error of an axis without the position that is accessed."""
    if at_least == 1:
        rule = "An axis of which a position is accessed has positions."
    else:
        rule = (
            f"Position {at_least - 1} is accessed, so the axis needs at least {at_least} positions."
        )
    return ShapeError(
        rule,
        found=f"size {size}",
        where=_places(sources or (size_cause, cause)),
        fix="use a smaller index, or make the axis longer",
    )


def too_many_cells(shape: str, nbytes: int, where: str, name: str = "") -> ShapeError:
    """Return the error of a tensor that exceeds the address space."""
    each = f", of {nbytes} bytes each" if nbytes > 1 else ""
    return ShapeError(
        "A tensor has less than 2**63 bytes, or indices could not address it.",
        found=f"cells for the shape {shape}{each}" + (f", for {name}" if name else ""),
        where=where,
        fix="make an axis shorter, or reduce in the operation that makes the axes",
    )


def too_many_axes(
    result: Row, operand: Row, cause: RowBelow, others: Sequence[Constraint] = ()
) -> ShapeError:
    """Return the error of an operand with more axes than the fixed result."""
    axes, wanted = (_axes(row, cause.skipped, cause.ahead) for row in (operand, result))
    found = f"{axes} against {wanted}"
    if _MEETING in cause.origin.detail:
        fix = (
            "turn surplus output axes of the second operand into batch axes, as\n"
            "oc.tensor(array, batch_axes=1) and batch=[...] do, merge them with oc.reshape,\n"
            "or give the first operand as many input axes"
            if result.dims
            else "write the operand with input axes first, as in `w @ x`; the axes of an array or "
            "of a nested\nlist are outputs, except those of input_axes=: "
            "oc.tensor([[1, 2], [3, 4]], input_axes=1)\nis a matrix; use `*` if cells should meet "
            "one by one"
        )
        return ShapeError(
            "The outputs of an operand must not have more axes than the inputs that they meet.",
            found=found,
            where=_all(cause, others),
            fix=fix,
        )
    return ShapeError(
        "An operand must not have more axes than the result that it is repeated to.",
        found=found,
        where=_all(cause, others),
        fix="reduce the surplus axes with einsum, or give the result more axes;\n"
        "if the operand's outputs should meet inputs, use `@` rather than `*`",
    )


def position_is_missing(
    operand: Row, wanted: int, cause: RowBelow, others: Sequence[Constraint] = ()
) -> ShapeError:
    """Return the error of an operand without an axis at which a position is read."""
    return ShapeError(
        "An operand has the axis of which a position is read.",
        found=f"{_axes(operand, cause.skipped)} in place of {wanted + cause.skipped}",
        where=_all(cause, others),
        fix="give the operand this axis, or leave the position out",
    )


def axes_differ(
    left: Row, right: Row, cause: RowEqual, others: Sequence[Constraint] = ()
) -> ShapeError:
    """Return the error of two equal rows with different numbers of axes."""
    return ShapeError(
        "Rows that must be equal have different numbers of axes.",
        found=f"{_axes(left, cause.skipped)} and {_axes(right, cause.skipped)}",
        where=_all(cause, others),
        fix="give both rows the same number of axes"
        + ("; each index takes one batch axis" if "batch" in cause.origin.detail else ""),
    )


def self_reference(cause: Constraint, found: str, others: Sequence[Constraint] = ()) -> ShapeError:
    """Return the error of a row that contains itself (occurs check)."""
    return ShapeError(
        "A row cannot contain itself and further axes: it would have infinitely many.",
        found=found,
        where=_all(cause, others),
        fix="give the rows of this operation explicitly, or write an einsum that names its axes",
    )


def rank_cycle(cause: Constraint, circle: Sequence[Constraint] = ()) -> ShapeError:
    """Return the error of rows each longer than the next, in a cycle."""
    return ShapeError(
        "Rows that each need more axes than the next, in a circle, would have infinitely many.",
        found="a circle of operations in which a row gains axes",
        where=_all(cause, circle),
        fix="give the shape of one of the tensors involved explicitly",
    )


def out_of_steps(steps: int, cause: Constraint | None) -> ShapeError:
    """Return the error of inference that exceeds its budget."""
    return ShapeError(
        "Shape inference must come to an end within its step budget.",
        found=f"still working after {steps} steps",
        where=str(cause.origin) if cause else "",
        fix="give more shapes explicitly",
    )


def _axes(row: Row, skipped: int, ahead: int = 0) -> str:
    """Return the number of axes of a row whose outer axes may be omitted, and the row."""
    number = len(row.dims) + skipped + ahead
    if number == 0 and row.tail is None:
        return "no axes"
    count = "1 axis" if number == 1 else f"{number} axes"
    if row.tail is not None:
        count = f"at least {count}"
    text = re.sub(r"\$\d+", "?", str(row))  # the size plays no part
    shown = [*(["..."] if ahead else []), text, *(["..."] if skipped else [])]
    return f"{count} ({','.join(filter(None, shown))})"
