"""Projections: from closed shapes to the loops and index maps of an operation.

Each occurrence of an axis gets an identity of its own, and the constraints of the operation are
solved anew, so that no other operation can unify axes. An axis that a selection indexes takes its
places from the cells of another operand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import count
from typing import NamedTuple, assert_never

from ocannl_core.base.errors import ShapeError, VerifyError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir import indexing
from ocannl_core.shape.language import subscripts
from ocannl_core.shape.language.shape_terms import Dim, Row, Shape, Size, rows_in_buffer_order
from ocannl_core.shape.projections.axis_classes import HINTS, derive
from ocannl_core.shape.solving import solver
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.translation.logic import (
    Adjoint,
    Logic,
    NumbersOfWords,
    PlaceAlong,
    PlaceRows,
    ScatterRows,
    SelectingLogic,
    Slice,
    SliceUpdate,
    Take,
    TakeAlong,
    relation_of,
)

_HOLDER = 1
"""The number of the operand that holds the positions."""


def project_selection(
    logic: SelectingLogic, result: Shape, operands: Sequence[Shape]
) -> indexing.Projections:
    """Return the projections of a selection on closed shapes."""
    first, positions = operands
    match logic:
        case Take(axis):
            found = _selected_cell(first, positions, result, axis)
            maps = (found.result, (found.source, found.positions))
        case TakeAlong(axis):
            found = _selected_along(first, positions, result, axis)
            maps = (found.result, (found.source, found.positions))
        case ScatterRows(axis):
            found = _selected_cell(result, positions, first, axis)
            maps = (found.source, (found.result, found.positions))
        case PlaceRows(axis):
            whole = _selected_shape(result, positions, axis)
            found = _selected_cell(result, positions, whole, axis)
            placed = _broadcast(first, whole, found.rows)
            maps = (found.source, (placed, found.positions))
        case PlaceAlong(axis):
            whole = _with_axis_of(result, positions, axis)
            found = _selected_along(result, positions, whole, axis)
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


def _with_axis_of(source: Shape, positions: Shape, axis: int) -> Shape:
    """Return the shape of a source with one axis as long as that axis of the positions."""
    number, at = _find_axis(source, axis)
    rows = [list(row.trailing) for row in rows_in_buffer_order(source)]
    rows[number][at] = rows_in_buffer_order(positions)[number].trailing[at]
    batch, output, input = (Row(trailing=tuple(sizes)) for sizes in rows)
    return Shape(batch, input, output)


def _selected_along(source: Shape, positions: Shape, result: Shape, axis: int) -> _SelectedCell:
    """Return the loops and index maps of a selection along an axis, whose operands line up with the
    result; for the arguments see `_selected_cell`.
    """
    domain, made = loops_over(result)
    wanted = axis + len(source.dims) if axis < 0 else axis
    at_positions = _broadcast(positions, result, made)
    own = list(_broadcast(source, result, made, keep=wanted))
    own[wanted] = indexing.ComputedIndex(_HOLDER, at_positions)
    lhs = tuple(each for row in made for each in row)
    return _SelectedCell(domain, tuple(own), at_positions, lhs, made)


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


def project(
    logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin
) -> indexing.Projections:
    """Return the domain and the index maps of an operation on closed shapes.

    An axis `a^b` of which one part is taken, as in `a^b => b`, has the part's index plus the sizes
    of the parts before it, and no loop goes over the others. Otherwise its index is a
    `ConcatIndex`, of which lowering makes one nest per part. For an operation like `a; b => a^b`
    the caller emits one assignment per operand, with that operand's index map alone and a domain
    restricted to the variables of the result and of this operand: the first one resets the
    result, the others do not. Only the nest of the operand's own part is then generated.

    Raises:
        ShapeError: if the shapes contradict the operation, one axis is indexed in two ways, or the
            size of a window is unknown.
        SpecError: if the spec of the operation does not fit.
    """
    if isinstance(logic, NumbersOfWords):
        return _project_words(logic.per_word, result, operands[0])
    if isinstance(logic, Adjoint):
        found = project(logic.logic, logic.shapes[0], logic.shapes[1:], origin)
        return indexing.exchange_roles(found, logic.target, logic.sources)
    if isinstance(logic, SelectingLogic):
        return project_selection(logic, result, operands)
    if isinstance(logic, (Slice, SliceUpdate)):
        _refuse_run_time_sizes(
            logic.keys, operands[0] if isinstance(logic, Slice) else result, origin
        )
    if isinstance(logic, Slice):
        return _project_slice(logic, result, operands[0], origin)
    if isinstance(logic, SliceUpdate):
        return _project_update(logic, result, operands, origin)
    key = _key_of((result, *operands))
    case = _Case(logic, key, result, tuple(operands), origin)
    return case.solve() if key is None else _with_fresh_variables(_solved(case))


@dataclass(frozen=True, slots=True)
class _Case:
    """An operation on closed shapes, which determines its projections but for their variables."""

    logic: Logic
    key: tuple[object, ...] | None
    """The sizes and bases of the shapes, which are part of equality in their place."""
    result: Shape = field(compare=False)
    operands: tuple[Shape, ...] = field(compare=False)
    origin: Origin = field(compare=False)
    """The operation, for messages; not part of equality."""

    def solve(self) -> indexing.Projections:
        ids = count()
        result = _with_identities(self.result, ids)
        operands = [_with_identities(operand, ids) for operand in self.operands]
        state = SolverState()
        relation = relation_of(self.logic, result, operands, self.origin, state.fresh)
        return derive(state, relation, result, operands)


@lru_cache(maxsize=2048)
def _solved(case: _Case) -> indexing.Projections:
    """Return the projections of an operation, solved once: programs repeat few operations."""
    return case.solve()


def _with_fresh_variables(found: indexing.Projections) -> indexing.Projections:
    fresh = {var: indexing.fresh_var(var.hint, var.size) for var, _ in found.domain}
    values: dict[indexing.IndexVar, indexing.AxisIndex] = {
        old: indexing.VarIndex(new) for old, new in fresh.items()
    }

    def renamed(index_map: indexing.IndexMap) -> indexing.IndexMap:
        return tuple(
            [
                values.get(index.var, index)
                if isinstance(index, indexing.VarIndex)
                else indexing.substitute(index, values)
                for index in index_map
            ]
        )

    return indexing.Projections(
        tuple([(fresh[var], extent) for var, extent in found.domain]),
        renamed(found.lhs),
        tuple([renamed(each) for each in found.rhs]),
        found.lhs_dims,
        found.rhs_dims,
        found.margins,
        found.lhs_margins,
    )


def _key_of(shapes: Sequence[Shape]) -> tuple[object, ...] | None:
    """Return sizes and bases that are equal for equal shapes; None if an extent is among them."""
    found: list[object] = []
    for shape in shapes:
        for row in (shape.batch, shape.input, shape.output):
            for dim in row.trailing:
                assert isinstance(dim, Size)
                if dim.extent is not None:
                    return None
                found += (dim.n, dim.basis)
            found.append(None)  # the end of a row
    return tuple(found)


def _project_words(per_word: int, result: Shape, words: Shape) -> indexing.Projections:
    """Return the projections of words that expand to runs of cells. The left-hand side is the start
    of each run, in row-major order.
    """
    word = indexing.fresh_var("w")
    (length,) = words.dims
    start = (indexing.affine([(per_word, word)]),) if result.dims else ()
    lhs = (*(indexing.SubAxis() for _ in result.dims[1:]), *start)
    return indexing.Projections(
        ((word, length),), lhs, ((indexing.VarIndex(word),),), result.dims, (words.dims,)
    )


def _project_slice(
    logic: Slice, result: Shape, operand: Shape, origin: Origin
) -> indexing.Projections:
    """Return the projections of a subscript: loops over its result, and affine positions."""
    state = SolverState()
    relation_of(logic, result, [operand], origin, state.fresh).enter(state)
    solver.run(state)  # refuses shapes that contradict the keys
    domain, rows = loops_over(result)
    lhs = tuple(index for row in rows for index in row)
    rhs = (subscripts.operand_index(logic.keys, operand, lhs),)
    return indexing.Projections(domain, lhs, rhs, result.dims, (operand.dims,))


def _refuse_run_time_sizes(keys: subscripts.Keys, whole: Shape, origin: Origin) -> None:
    """Refuse keys whose positions depend on a size that is given at run time."""
    for key, size in subscripts.depends_on_size(keys, whole):
        part, taken = "a part", 'oc.arange(5, dtype="int32")'
        if isinstance(key, subscripts.Position):
            name = "n" if size.extent is None else size.extent.name
            part, taken = f"position {key.index}", f'oc.number({name}, dtype="int32") - 1'
        raise ShapeError(
            "Positions counted from the end, and parts of an axis, need its size.",
            found=f"{part} of an axis of size {size}, which calls give",
            where=str(origin),
            fix=f"keep the axis whole, or take positions: oc.take(x, {taken}, axis=0)",
        )


def _project_update(
    logic: SliceUpdate, result: Shape, operands: Sequence[Shape], origin: Origin
) -> indexing.Projections:
    """Return the projections of a write to a part of the result."""
    found = project(logic.logic, subscripts.sliced_shape(logic.keys, result), operands, origin)
    if any(isinstance(index, indexing.ConcatIndex) for index in found.lhs) or found.lhs_margins:
        raise ShapeError(
            "A slice is written at single positions, not in concatenated parts or windows.",
            found=f"the logic of {origin.operation}",
            where=str(origin),
            fix="assign the value to a declared tensor first, and that to the slice",
        )
    lhs = subscripts.operand_index(logic.keys, result, found.lhs)
    return replace(found, lhs=lhs, lhs_dims=result.dims)


def _with_identities(shape: Shape, ids: Iterator[int]) -> Shape:
    """Return the shape with a fresh identity for every axis."""
    if not shape.is_closed:
        raise VerifyError("Projections are derived from closed shapes.", found=str(shape))
    for kind, row in shape.rows():
        sizes = (replace(d, axis_id=next(ids)) for d in row.trailing if isinstance(d, Size))
        shape = shape.with_row(kind, Row(trailing=tuple(sizes)))
    return shape
