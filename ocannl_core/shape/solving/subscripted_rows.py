"""Solver of subscripts: rows from keys, and the lengths of slices from the sizes of axes.

Keys address axes by number, so a subscript waits until the rows that they count are known. A result
above closed operands needs no further axes; other rows are decided when shapes are closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import AffineIndex, StaticIndex, VarIndex, as_affine
from ocannl_core.shape.language.constraints import (
    AtLeast,
    DimEqual,
    RowEqual,
    SliceLength,
    Subscript,
)
from ocannl_core.shape.language.shape_terms import Dim, Row, RowKind, RowVar, Shape, Size
from ocannl_core.shape.language.subscripts import (
    AxisCount,
    AxisKey,
    Blocked,
    DynamicSlice,
    NewAxis,
    Position,
    RowKeys,
    StaticSlice,
    TooMany,
    address,
)
from ocannl_core.shape.solving import ranks, rows
from ocannl_core.shape.solving.state import SolverState


def solve_subscript(state: SolverState, constraint: Subscript) -> None:
    """Relate the axes of a subscripted tensor to the axes of the result, once they are counted.

    Raises:
        ShapeError: if there are more keys than axes.
    """
    while isinstance(found := addressed(state, constraint), Blocked):
        tail = state.flat(constraint.operand.row(found.kind)).tail
        assert tail is not None
        if not _needs_no_axes(state, tail):
            state.suspend(_flat(state, constraint))
            return
        rows.solve(state, tail, Row(), constraint)
    for kind, _ in constraint.operand.rows():
        _relate_row(state, constraint, kind, found[kind])


def addressed(state: SolverState, constraint: Subscript) -> dict[RowKind, RowKeys] | Blocked:
    """Return the keys of each row of the operand, or the row to be decided first.

    Raises:
        ShapeError: if there are more keys than axes.
    """
    counts: dict[RowKind, AxisCount] = {}
    for kind, row in constraint.operand.rows():
        flat = state.flat(row)
        counts[kind] = AxisCount(len(flat.leading), len(flat.trailing), flat.tail is not None)
    found = address(constraint.keys, counts)
    if isinstance(found, TooMany):
        raise _too_many_keys(state, constraint, found)
    return found


def _flat(state: SolverState, constraint: Subscript) -> Subscript:
    """Return the constraint with the solutions of its rows substituted."""

    def shape(stated: Shape) -> Shape:
        return Shape(*map(state.flat, (stated.batch, stated.input, stated.output)))

    return replace(constraint, result=shape(constraint.result), operand=shape(constraint.operand))


def _needs_no_axes(state: SolverState, tail: RowVar) -> bool:
    """Return True if all operand rows of a result row are closed."""
    together = ranks.group(state, tail)
    if not ranks.is_anchored(state, tail) or ranks.leaf_of(state, tail) is not None:
        return False
    is_above_open = any(
        each.opnd.tail not in together
        for one in together
        for each in ranks.open_operands(state, one)
    )
    may_be_scalar = any(
        each in state.scalars for one in together for each in state.suspended.get(one, ())
    )
    return not (is_above_open or may_be_scalar or ranks.missing_between(state, together))


def _relate_row(state: SolverState, constraint: Subscript, kind: RowKind, keys: RowKeys) -> None:
    """Relate one row of the operand to the same row of the result."""
    row = state.flat(constraint.operand.row(kind))
    leading, tail, trailing = row.leading, row.tail, row.trailing
    if tail is None:
        leading, trailing = trailing[: keys.first], trailing[keys.first :]
    kept = len(trailing) - keys.last
    whole = "the target" if constraint.is_written else "the operand"
    origin = constraint.origin.at(f"{kind.value} row of {whole}")
    ahead = _key_axes(state, constraint, keys.ahead, leading[: keys.first], origin)
    # positions at the right end are counted from the right in messages
    behind = _key_axes(state, constraint, keys.behind, trailing[kept:], origin, first=-keys.last)
    if tail is None:
        result = Row(trailing=(*ahead, *trailing[:kept], *behind))
    else:
        result = Row((*ahead, *leading[keys.first :]), tail, (*trailing[:kept], *behind))
    state.agenda.append(RowEqual(constraint.result.row(kind), result, origin))


def _key_axes(
    state: SolverState,
    constraint: Subscript,
    keys: Sequence[AxisKey | NewAxis],
    dims: Sequence[Dim],
    origin: Origin,
    first: int = 0,
) -> Iterator[Dim]:
    """Yield the sizes of the axes that keys leave, and constrain the sizes that they address."""
    axes = iter(enumerate(dims, start=first))
    for key in keys:
        if isinstance(key, NewAxis):
            yield Size(1)
            continue
        axis, dim = next(axes)
        yield from _key_axis(state, key, dim, constraint, origin, axis)


def _key_axis(
    state: SolverState, key: AxisKey, dim: Dim, constraint: Subscript, origin: Origin, axis: int
) -> Iterator[Dim]:
    agenda, is_written = state.agenda, constraint.is_written
    match key:
        case Position(int() as index):
            least = index + 1 if index >= 0 else -index
            agenda.append(AtLeast(dim, least, origin, axis, is_written and index >= 0))
        case Position(VarIndex(StaticIndex(name, extent))) if extent is not None:
            where = origin.at(f"the range of index {name}")
            agenda.append(AtLeast(dim, extent, where, axis, lengthens=True))
        case Position(index):
            least = 0 if isinstance(index, int) else _least(index)
            agenda.append(AtLeast(dim, least + 1, origin, axis))
        case StaticSlice() if key.is_whole:
            yield dim
        case StaticSlice():
            length = state.fresh.dim()
            agenda.append(SliceLength(length, dim, key, origin, axis))
            yield length
        case DynamicSlice(length=number):
            first = _least(key.start)
            agenda.append(AtLeast(dim, first + key.span if key.step > 0 else first, origin, axis))
            yield Size(number)
        case _:
            assert_never(key)


def _least(index: VarIndex | AffineIndex) -> int:
    """Return the least position that an index can have on an axis."""
    terms, least = as_affine(index)
    for coefficient, var in terms:
        if not isinstance(var, StaticIndex) or var.extent is None:
            return 0
        least += min(0, coefficient * (var.extent - 1))
    return max(0, least)


def solve_length(state: SolverState, constraint: SliceLength) -> None:
    """Compute the length of a slice from the size of the axis, or wait for it."""
    state.watch(constraint, (constraint.length, constraint.whole))
    size = state.size(constraint.whole)
    if size is None:
        state.wait(constraint, (constraint.length, constraint.whole))
        return
    state.undo_log.remove(state.open_formulas, constraint)
    number = len(constraint.slice.positions(size.n))
    length = Size(number, size.basis)
    state.agenda.append(DimEqual(constraint.length, length, constraint.origin, constraint.axis))


def _too_many_keys(state: SolverState, constraint: Subscript, found: TooMany) -> ShapeError:
    whole = constraint.operand
    shape = Shape(*map(state.current_row, (whole.batch, whole.input, whole.output)))
    axes = "1 axis" if found.axes == 1 else f"{found.axes} axes"
    keys = "1 key" if found.keys == 1 else f"{found.keys} keys"
    return ShapeError(
        "Every key addresses an axis of its own.",
        found=f"{keys} for the {axes} of shape {shape}",
        where=str(constraint.origin),
        fix="leave out a key; None inserts an axis"
        if found.axes
        else "state the axes of the tensor where it is made, as in batch=[...], output=[...]",
    )


def unknown_size(constraint: SliceLength) -> ShapeError:
    """Return the error for a slice of an axis of which nothing determines the size."""
    return ShapeError(
        "The size of a sliced axis is known.",
        found=f"nothing determines the size of the axis before {constraint.origin.operation}",
        where=str(constraint.origin),
        fix="state the axes of the tensor where it is made, as in output=[...]",
    )
