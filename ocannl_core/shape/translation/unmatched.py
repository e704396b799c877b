"""Axes named by a spec that an operand lacks, or that no operand gives a size.

Without a warning both would be broadcast silently: inference takes either for an axis of size 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ocannl_core.base import settings
from ocannl_core.base.errors import ShapeError, ShapeWarning, SpecError, SpecWarning
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Location, Origin, caller_location
from ocannl_core.base.undo_log import UndoLog
from ocannl_core.shape.language.einsum_ast import RowSpec, Spec, axis_names
from ocannl_core.shape.language.shape_terms import DimVar, Row, RowKind, RowVar, Shape
from ocannl_core.shape.solving.derivations import derivation, row_derivation
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.translation.einsum import operand_name


@dataclass(frozen=True, slots=True)
class EinsumApplication:
    """An application of a spec to operands."""

    spec: Spec
    operands: tuple[Shape, ...]
    unsized: tuple[tuple[str, DimVar | RowVar], ...]
    """The axes and row variables that only the result names, and that have no value."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class DoubtfulBroadcast:
    """A warning about a doubtful broadcast."""

    rule: str
    """The rule of strict programs."""
    found: str
    fix: str
    origin: Origin


def application_of(
    spec: Spec,
    operands: Sequence[Shape],
    labels: Mapping[str, DimVar | RowVar],
    values: Sequence[str],
    origin: Origin,
) -> EinsumApplication:
    """Return an application of a spec.

    Args:
        labels: The variables of the labels of the spec.
        values: The names with values.
    """
    rows = [row for operand in spec.operands for row in operand.rows]
    sized = {*values, *(name for operand in spec.operands for name in operand.names)}
    sized.update(row.variable for row in rows if row.variable)
    named = [row.variable for row in spec.result.rows if row.variable and not row.ellipsis]
    new = dict.fromkeys(name for name in (*spec.result.names, *named) if name not in sized)
    unsized = tuple((name, labels[name]) for name in new)
    return EinsumApplication(spec, tuple(operands), unsized, origin)


def find_remarks(
    state: SolverState, application: EinsumApplication
) -> tuple[list[DoubtfulBroadcast], bool]:
    """Return the remarks on an application, and True if unknown shapes may add others."""
    found: list[DoubtfulBroadcast] = []
    is_open = False
    for position, (written, shape) in enumerate(
        zip(application.spec.operands, application.operands, strict=True)
    ):
        ranks = _ranks(state, shape)
        if ranks is None:
            is_open = True
        elif not _is_scalar(state, shape):
            rows = [written.row(kind) for kind, _ in shape.rows()]
            is_elsewhere = any(map(_has_surplus, rows, ranks))
            text = str(Shape(*map(state.current_row, (shape.batch, shape.input, shape.output))))
            for (kind, _), row, rank in zip(shape.rows(), rows, ranks, strict=True):
                missing = [] if row is None else _missing(row, rank)
                if missing:
                    remark = _lacking(application, missing, position, kind, text)
                    fix = f"{remark.fix}; `|` follows batch axes, and `->` input axes"
                    found.append(replace(remark, fix=fix) if is_elsewhere else remark)
    for name, var in application.unsized:
        if isinstance(var, RowVar):
            stated = Row(tail=var)
            flat = state.flat(stated)
            is_open |= flat.tail is not None
            if flat == Row() and row_derivation(state, stated)[1]:
                found.append(_without_axes(application, name))
            continue
        size = state.size(var)
        if size is None:
            is_open = True
        elif size.n <= 1 and derivation(state, var)[1]:
            found.append(_unsized(application, name, size.n))
    return found, is_open


def _ranks(state: SolverState, shape: Shape) -> list[int] | None:
    """Return the numbers of axes of the rows; None while they are unknown."""
    flat = [state.flat(row) for _, row in shape.rows()]
    return None if any(row.tail is not None for row in flat) else [row.known for row in flat]


def _is_scalar(state: SolverState, shape: Shape) -> bool:
    """Return True if every row is empty or one axis of size 1."""
    rows = [state.flat(row).trailing for _, row in shape.rows()]
    return all(len(row) <= 1 and all(map(state.may_be_one, row)) for row in rows)


def _missing(row: RowSpec, rank: int) -> list[str]:
    """Return the named axes that a row of a given number of axes lacks."""
    lacking = row.axes[: max(0, len(row.axes) - rank)]
    return [str(axis) for axis in lacking if axis_names(axis)]


def _has_surplus(row: RowSpec | None, rank: int) -> bool:
    """Return True if a row of a given number of axes has some that the spec does not name."""
    return rank > 0 if row is None else row.variable is None and rank > len(row.axes)


def _lacking(
    application: EinsumApplication, missing: Sequence[str], position: int, kind: RowKind, shape: str
) -> DoubtfulBroadcast:
    axes = ", ".join(f"`{each}`" for each in missing)
    number, them = ("axis", "it") if len(missing) == 1 else ("axes", "them")
    return DoubtfulBroadcast(
        "An operand has the axes that a specification names.",
        f"{operand_name(position)} of {_text(application)} has no {number} {axes} in its "
        f"{kind.value} row, of its shape {shape}, and is repeated along {them}",
        f"give it the {number}, or leave {them} out of this operand in the specification",
        application.origin,
    )


def _unsized(application: EinsumApplication, name: str, size: int) -> DoubtfulBroadcast:
    return DoubtfulBroadcast(
        "Every axis of a result has a size that something gives.",
        f"the size of `{name}` in {_text(application)} is undetermined, and so it is {size}",
        f"give its size, values={{{name!r}: ...}}, or write 0 in place of it for an axis of size 1",
        application.origin,
    )


def _without_axes(application: EinsumApplication, name: str) -> DoubtfulBroadcast:
    return DoubtfulBroadcast(
        "Every row variable of a result has axes that something gives.",
        f"the axes of `..{name}..` in {_text(application)} are undetermined, and so there are none",
        "name a row variable of an operand, or leave it out",
        application.origin,
    )


def _text(application: EinsumApplication) -> str:
    return application.spec.text or str(application.spec)


_registries: dict[str, dict[Any, Any]] = {}
"""For each file, the warnings that were shown, as `warnings.warn` keeps them in modules."""


def report(
    remark: DoubtfulBroadcast,
    reported: set[tuple[Location | None, str]],
    undo_log: UndoLog,
    *,
    of_spec: bool = True,
) -> None:
    """Warn about a remark at the line of its operation, once per line; or refuse it, depending on
    the settings.

    Args:
        of_spec: True for a remark about a spec, False for one about shapes.

    Raises:
        SpecError: if the setting `missing_axes` is `error`; a ShapeError for shapes.
    """
    mode = settings.current().missing_axes
    place = remark.origin.location or caller_location()
    if mode == "allow" or (place, remark.found) in reported:
        return
    if mode == "error":
        error = SpecError if of_spec else ShapeError
        raise error(remark.rule, found=remark.found, where=str(remark.origin), fix=remark.fix)
    text = (
        f"{remark.found[0].upper()}{remark.found[1:]}.\n"
        f"  where  {remark.origin}\n"
        f"  try    {remark.fix}; the setting missing_axes=allow ends these warnings, and "
        "missing_axes=error makes them errors"
    )
    file, line = (place.file, place.line) if place is not None else ("<unknown>", 1)
    registry = _registries.setdefault(file, {})
    category = SpecWarning if of_spec else ShapeWarning
    warnings.warn_explicit(text, category, file, line, registry=registry)
    undo_log.add(reported, (place, remark.found))
