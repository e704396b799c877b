"""Index maps of selections: one axis of an operand is indexed by the cells of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, assert_never

from ocannl_core.base.errors import VerifyError
from ocannl_core.ir import indexing
from ocannl_core.shape.language.shape_terms import Dim, Row, Shape, Size, rows_in_buffer_order
from ocannl_core.shape.projections.axis_classes import HINTS
from ocannl_core.shape.translation.logic import PlaceRows, ScatterRows, Take, TakeAlong

_HOLDER = 1
"""The number of the operand that holds the positions."""


def project_selection(
    logic: Take | TakeAlong | ScatterRows | PlaceRows, result: Shape, operands: Sequence[Shape]
) -> indexing.Projections:
    """Return the projections of a selection on closed shapes."""
    first, positions = operands
    match logic:
        case Take(axis):
            found = _selected_cell(first, positions, result, axis)
            maps = (found.result, (found.source, found.positions))
        case TakeAlong(axis):
            return _selected_along(first, positions, result, axis)
        case ScatterRows(axis):
            found = _selected_cell(result, positions, first, axis)
            maps = (found.source, (found.result, found.positions))
        case PlaceRows(axis):
            whole = _selected_shape(result, positions, axis)
            found = _selected_cell(result, positions, whole, axis)
            placed = _broadcast(first, whole, found.rows)
            maps = (found.source, (placed, found.positions))
        case _:
            assert_never(logic)
    return indexing.Projections(found.domain, *maps, result.dims, (first.dims, positions.dims))


class _SelectedCell(NamedTuple):
    """The loops of a selection and the index maps over them."""

    domain: tuple[tuple[indexing.LoopVar, int], ...]
    """The loops over the axes of the result."""
    source: indexing.IndexMap
    positions: indexing.IndexMap
    result: indexing.IndexMap
    rows: Sequence[Sequence[indexing.AxisIndex]]
    """The index map of each row of the result."""


def _selected_cell(source: Shape, positions: Shape, result: Shape, axis: int) -> _SelectedCell:
    """Return the loops and index maps of a selection on closed shapes.

    Args:
        axis: The selected axis, counted in buffer order, from the end if negative.
    """
    domain, made = loops_over(result)
    own: list[list[indexing.AxisIndex]] = []
    given: list[list[indexing.AxisIndex]] = []
    here, at = _find_axis(source, axis)
    for number, (row, indices) in enumerate(zip(rows_in_buffer_order(source), made, strict=True)):
        width = len(rows_in_buffer_order(positions)[number].sizes)
        cut = at if number == here else len(row.sizes) if number < here else 0
        given.append(indices[cut : cut + width])
        own.append([*indices[:cut], *indices[cut + width :]])
    at_positions = tuple(each for row in given for each in row)
    own[here].insert(at, indexing.ComputedIndex(_HOLDER, at_positions))
    return _SelectedCell(
        domain,
        tuple(each for row in own for each in row),
        at_positions,
        tuple(each for row in made for each in row),
        made,
    )


def _selected_shape(source: Shape, positions: Shape, axis: int) -> Shape:
    """Return the shape with the axes of the positions in the place of one axis of the source."""
    here, at = _find_axis(source, axis)
    rows: list[tuple[Dim, ...]] = []
    for number, row in enumerate(rows_in_buffer_order(source)):
        sizes, given = row.trailing, rows_in_buffer_order(positions)[number].trailing
        if number == here:
            rows.append((*sizes[:at], *given, *sizes[at + 1 :]))
        else:
            rows.append((*sizes, *given) if number < here else (*given, *sizes))
    batch, output, input = (Row(trailing=sizes) for sizes in rows)
    return Shape(batch, input, output)


def _find_axis(shape: Shape, axis: int) -> tuple[int, int]:
    """Return the row of an axis, in buffer order, and its place there."""
    left = axis + len(shape.dims) if axis < 0 else axis
    for number, row in enumerate(rows_in_buffer_order(shape)):
        if left < len(row.sizes):
            return number, left
        left -= len(row.sizes)
    raise VerifyError("A selection is from an axis of its source.", found=f"{axis} of {shape}")


def _selected_along(
    source: Shape, positions: Shape, result: Shape, axis: int
) -> indexing.Projections:
    """Return the projections of a selection along an axis, whose operands line up with the result;
    for the arguments see `_selected_cell`.
    """
    domain, made = loops_over(result)
    wanted = axis + len(source.dims) if axis < 0 else axis
    at_positions = _broadcast(positions, result, made)
    own = list(_broadcast(source, result, made, keep=wanted))
    own[wanted] = indexing.ComputedIndex(_HOLDER, at_positions)
    lhs = tuple(each for row in made for each in row)
    return indexing.Projections(
        domain, lhs, (tuple(own), at_positions), result.dims, (source.dims, positions.dims)
    )


def _broadcast(
    operand: Shape, result: Shape, made: Sequence[Sequence[indexing.AxisIndex]], keep: int = -1
) -> indexing.IndexMap:
    """Return the index map of an operand whose rows line up with the rows of the result.

    Axes of size 1 are broadcast, but for the axis with the number `keep`.
    """
    found: list[indexing.AxisIndex] = []
    for row, whole, indices in zip(
        rows_in_buffer_order(operand), rows_in_buffer_order(result), made, strict=True
    ):
        skipped = len(whole.sizes) - len(row.sizes)
        for size, index in zip(row.sizes, indices[skipped:], strict=True):
            is_repeated = size == 1 and len(found) != keep
            found.append(indexing.FixedIndex(0) if is_repeated else index)
    return tuple(found)


def loops_over(
    shape: Shape,
) -> tuple[tuple[tuple[indexing.LoopVar, int], ...], list[list[indexing.AxisIndex]]]:
    """Return loops over the axes of a shape, and the indices of each row."""
    domain: list[tuple[indexing.LoopVar, int]] = []
    rows: list[list[indexing.AxisIndex]] = []
    for kind, row in shape.rows():
        rows.append([])
        for size in row.trailing:
            assert isinstance(size, Size), "shapes are closed"
            if size.n == 1:
                rows[-1].append(indexing.FixedIndex(0))
                continue
            var = indexing.fresh_var(HINTS[kind], size.extent)
            domain.append((var, size.n))
            rows[-1].append(indexing.VarIndex(var))
    return tuple(domain), rows
