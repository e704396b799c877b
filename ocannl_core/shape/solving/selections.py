"""Solver of selections: positions along one axis, given by the cells of another tensor.

    source    batch A1 -> output A2, n, B2 -> input B3
    positions batch P1 -> output P2        -> input P3
    result    batch A1, P1 -> output A2, P2, B2 -> input P3, B3

The axes of the positions keep their kinds. In the row of the selected axis `n` they take its place;
in rows before it, in buffer order, they follow the source's axes, and in rows after it they precede
them. Positions with axes of the selected axis' kind alone give the axes of `numpy.take`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimBelow,
    DimEqual,
    RowBelow,
    RowEqual,
    RowJoin,
    Rows,
    Selection,
)
from ocannl_core.shape.language.shape_terms import BUFFER_ORDER, Dim, Row, RowVar, Shape
from ocannl_core.shape.solving.ranks import made_rows
from ocannl_core.shape.solving.state import SolverState

_OUTPUT = 1
"""The place of the output row in buffer order."""


class _Place(NamedTuple):
    """The place of the selected axis."""

    row: int
    """The number of its row in buffer order."""
    before: Row
    dim: Dim
    after: Row


def solve_selection(state: SolverState, constraint: Selection) -> None:
    """Split a selection into constraints on rows as soon as the selected axis is located.

    Raises:
        ShapeError: if there is no such axis, or it cannot be located once all axes are known.
    """
    flat = replace(
        constraint,
        source=_flat(state, constraint.source),
        positions=_flat(state, constraint.positions),
        result=_flat(state, constraint.result),
    )
    if flat.is_inserted:
        found = _split_inserted(flat)
    elif (place := _locate(flat)) is None:
        found = None
    else:
        found = _aligned(state, place, flat) if flat.is_along else _joined(place, flat)
    if found is None:
        state.suspend(flat)
    else:
        state.agenda.extend(found)


def _flat(state: SolverState, rows: Rows) -> Rows:
    """Return rows with the solutions of their variables substituted."""
    batch, output, input = map(state.flat, rows)
    return batch, output, input


def _locate(constraint: Selection) -> _Place | None:
    """Return the place of the axis of a number; None as long as it is unknown."""
    source = constraint.source
    backwards = constraint.axis < 0
    left = -constraint.axis - 1 if backwards else constraint.axis
    numbers = range(len(source))[:: -1 if backwards else 1]
    for number in numbers:
        row = source[number]
        leading, tail, trailing = row.leading, row.tail, row.trailing
        near = trailing if tail is None or backwards else leading
        if left < len(near):
            at = len(near) - 1 - left if backwards else left
            before, dim, after = near[:at], near[at], near[at + 1 :]
            if tail is None:
                return _Place(number, Row(trailing=before), dim, Row(trailing=after))
            if backwards:
                return _Place(number, Row(leading, tail, before), dim, Row(trailing=after))
            return _Place(number, Row(trailing=before), dim, Row(after, tail, trailing))
        if tail is not None:
            return None
        left -= len(near)
    raise ShapeError(
        "The axis that is selected from is one of the tensor's, counted in buffer order: batch, "
        "output, input axes.",
        found=f"axis {constraint.axis} of a tensor of {sum(row.known for row in source)} axes, "
        f"{_shape_text(source)}",
        where=str(constraint.origin),
        fix="state the shape of the tensor, or another axis",
    )


def _joined(place: _Place, constraint: Selection) -> list[Constraint]:
    """Return the constraints by which the axes of the positions replace the selected one."""
    found: list[Constraint] = [DimEqual(place.dim, constraint.extent, constraint.origin)]
    for number, kind in enumerate(BUFFER_ORDER):
        own, given = constraint.source[number], constraint.positions[number]
        if number == place.row:
            parts: tuple[Row, ...] = (place.before, given, place.after)
        else:
            parts = (own, given) if number < place.row else (given, own)
        origin = constraint.origin.at(f"{kind.value} row of the result")
        found.append(RowJoin(constraint.result[number], parts, origin))
    return found


def _aligned(state: SolverState, place: _Place, constraint: Selection) -> list[Constraint] | None:
    """Return the constraints by which source and positions line up, but for the selected axis."""
    if place.before.tail is not None or place.after.tail is not None:
        return None
    at, count = len(place.before.dims), len(place.before.dims) + 1 + len(place.after.dims)
    given, made = state.fresh.dims(count), state.fresh.dims(count)
    own = (*place.before.dims, place.dim, *place.after.dims)
    found: list[Constraint] = []
    for number, kind in enumerate(BUFFER_ORDER):
        origin = constraint.origin
        rows = constraint.positions[number], constraint.result[number]
        if number != place.row:
            where = origin.at(f"{kind.value} row of the first operand")
            found.append(RowBelow(rows[1], constraint.source[number], where))
            where = origin.at(f"{kind.value} row of the positions")
            found.append(RowBelow(rows[1], rows[0], where))
            continue
        where = origin.at(f"{kind.value} row of the positions")
        found.append(RowEqual(rows[0], Row(trailing=given), where))
        where = origin.at(f"{kind.value} row of the result")
        found.append(RowEqual(rows[1], Row(trailing=made), where))
        for axis in range(count):
            if axis == at:
                found.append(DimEqual(made[axis], given[axis], origin))
                continue
            found += [DimBelow(made[axis], each, origin) for each in (own[axis], given[axis])]
    return found


def _split_inserted(constraint: Selection) -> list[Constraint] | None:
    """Return the constraints by which one axis replaces the axes of the positions; None as long as
    their place is unknown.

    Here `result` has the axes of the positions, and `source` the one in their place.
    """
    source, positions, result = constraint.source, constraint.positions, constraint.result
    filled = [number for number, row in enumerate(positions) if row.known]
    if len(filled) > 1:
        raise ShapeError(
            "The axes of positions to scatter to are of one kind.",
            found=f"positions of shape {_shape_text(positions)}",
            where=str(constraint.origin),
            fix="flatten them into one row",
        )
    if any(row.tail is not None for row in positions):
        return None
    here = filled[0] if filled else _OUTPUT
    backwards = constraint.axis < 0
    passed = result[here + 1 :] if backwards else result[:here]
    if any(row.tail is not None for row in passed):
        return None
    left = (-constraint.axis - 1 if backwards else constraint.axis) - sum(r.known for r in passed)
    width, own = positions[here].known, result[here]
    leading, tail, trailing = own.leading, own.tail, own.trailing
    near = trailing if tail is None or backwards else leading
    if left < 0 or (tail is None and left + width > len(near)):
        raise ShapeError(
            "Updates have the axes of the positions where the result has the axis that they "
            "select.",
            found=f"positions {_shape_text(positions)} at axis {constraint.axis} of updates "
            f"{_shape_text(result)}",
            where=str(constraint.origin),
            fix="move the axes of the updates, or state another axis",
        )
    if left + width > len(near):
        return None
    end = len(near) - left if backwards else left + width
    before, middle, after = near[: end - width], near[end - width : end], near[end:]
    if tail is None:
        row = Row(trailing=(*before, constraint.extent, *after))
    elif backwards:
        row = Row(leading, tail, (*before, constraint.extent, *after))
    else:
        row = Row((*before, constraint.extent, *after), tail, trailing)
    origin = constraint.origin
    found: list[Constraint] = [
        RowEqual(
            positions[here],
            Row(trailing=middle),
            origin.at(f"{BUFFER_ORDER[here].value} row of the positions"),
        )
    ]
    for number, kind in enumerate(BUFFER_ORDER):
        made = row if number == here else result[number]
        where = origin.at(f"{kind.value} row of the result")
        found.append(RowEqual(source[number], made, where))
    return found


def solve_join(state: SolverState, constraint: RowJoin) -> None:
    """Solve a row that is several rows one after the other, as soon as one at most is open."""
    whole = state.flat(constraint.whole)
    parts = [state.flat(part) for part in constraint.parts]
    tails = [part.tail for part in parts if part.tail is not None]
    known = sum(part.known for part in parts)
    if len(tails) <= 1:
        before: list[Dim] = []
        after: list[Dim] = []
        side = before
        for part in parts:
            side += part.leading
            if part.tail is not None:
                side = after
            side += part.trailing
        joined = Row(tuple(before), tails[0] if tails else None, tuple(after))
        state.agenda.append(RowEqual(whole, joined, constraint.origin))
    elif whole.tail is None and whole.known <= known:  # all open ones are empty
        empty = [
            RowEqual(Row(tail=tail), Row(), constraint.origin) for tail in dict.fromkeys(tails)
        ]
        state.agenda.extend([*empty, constraint])
    else:
        state.suspend(RowJoin(whole, tuple(parts), constraint.origin))


def selected_rows(state: SolverState, among: Iterable[RowVar]) -> list[RowVar]:
    """Return the open rows that suspended constraints derive from other open rows."""
    waiting = [each for var in among for each in state.suspended.get(var, ())]
    selections = dict.fromkeys(c for c in waiting if isinstance(c, RowJoin | Selection))
    flat = [state.flat(row) for each in selections for row in made_rows(each)]
    return [row.tail for row in flat if row.tail is not None]


def made_from(state: SolverState, var: RowVar) -> list[RowVar]:
    """Return the open rows of which suspended selections and joins make a row, in the order in
    which these wait for them.
    """
    found: list[Row] = []
    for each in state.suspended.get(var, ()):
        if isinstance(each, RowJoin | Selection) and any(
            state.flat(row).tail == var for row in made_rows(each)
        ):
            if isinstance(each, RowJoin):
                found += each.parts
            else:
                taken = each.result if each.is_inserted else each.source
                found += [*(taken[::-1] if each.axis < 0 else taken), *each.positions]
    tails = [state.flat(row).tail for row in found]
    return [tail for tail in tails if tail is not None]


def _shape_text(rows: Rows) -> str:
    batch, output, input = rows
    return str(Shape(batch, input, output))
