"""From closed shapes to loops: which position of each operand every iteration touches.

Every occurrence of an axis gets an identity of its own, and the operation's constraints are solved
anew, so that nothing learned elsewhere can tie axes together. Axes that the constraints pair are
then traversed by one variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import assert_never

from ocannl_core.errors import ShapeError, VerifyError
from ocannl_core.indexing import (
    AxisIndex,
    FixedIndex,
    IndexMap,
    LoopVar,
    Projections,
    StaticIndex,
    VarIndex,
    fresh_var,
)
from ocannl_core.origin import Origin
from ocannl_core.shape import solver
from ocannl_core.shape.close import close
from ocannl_core.shape.constraints import (
    AtLeast,
    Constraint,
    DimBelow,
    DimEqual,
    RowBelow,
    RowEqual,
)
from ocannl_core.shape.logic import Logic, relation_of
from ocannl_core.shape.messages import place
from ocannl_core.shape.state import State, sides
from ocannl_core.shape.terms import Dim, DimVar, Row, RowKind, Shape, Size

_HINTS = {RowKind.BATCH: "b", RowKind.OUTPUT: "o", RowKind.INPUT: "i"}

Axis = int | DimVar
"""An axis of a tensor, by its identity, or an axis of a spec."""


def project(logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin) -> Projections:
    """Returns the domain and the index maps of an operation on closed shapes.

    Args:
        logic: How the axes correspond.
        result: The result's shape.
        operands: The operands' shapes.
        origin: The operation.

    Raises:
        ShapeError: if the shapes contradict the operation, or one axis would be accessed in two
            ways.
        SpecError: if the operation's specification does not fit.
    """
    ids = count()
    result = _identified(result, ids)
    operands = [_identified(operand, ids) for operand in operands]
    state = State()
    relation = relation_of(logic, result, operands, origin, state.fresh)
    state.agenda.extend(relation.constraints)
    solver.run(state)
    close(state, [Shape(output=row) for c in relation.constraints for row in _rows(c)])
    axes = _Axes(state)
    for dim, index in relation.pins.items():
        axes.pin(dim, index)
    for constraint in relation.constraints:
        for pair in _paired(state, constraint):
            axes.meet(pair)
    return axes.projections(result, operands)


def _identified(shape: Shape, ids: Iterator[int]) -> Shape:
    """Returns the shape with a fresh identity for every axis."""
    if not shape.is_closed:
        raise VerifyError("Projections are derived from closed shapes.", found=str(shape))
    for kind, row in shape.rows():
        sizes = (Size(d.n, d.basis, next(ids)) for d in row.trailing if isinstance(d, Size))
        shape = shape.with_row(kind, Row(trailing=tuple(sizes)))
    return shape


def _rows(constraint: Constraint) -> tuple[Row, ...]:
    match constraint:
        case RowBelow() | RowEqual():
            return sides(constraint)
        case DimEqual(left, right):
            return (Row(trailing=(left, right)),)
        case DimBelow(res, opnd):
            return (Row(trailing=(res, opnd)),)
        case AtLeast(dim):
            return (Row(trailing=(dim,)),)
        case _:
            assert_never(constraint)


def _paired(state: State, constraint: Constraint) -> Iterator[DimBelow | DimEqual]:
    """Yields the constraint axis by axis."""
    match constraint:
        case RowBelow(res, opnd, origin):
            pairs = zip(_reversed(state, res), _reversed(state, opnd), strict=False)
            for axis, (below, above) in enumerate(pairs, start=1):
                yield DimBelow(below, above, origin, -axis)
        case RowEqual(left, right, origin):
            pairs = zip(_reversed(state, left), _reversed(state, right), strict=True)
            for axis, (one, other) in enumerate(pairs, start=1):
                yield DimEqual(one, other, origin, -axis)
        case DimBelow() | DimEqual():
            yield constraint
        case AtLeast():
            pass
        case _:
            assert_never(constraint)


def _reversed(state: State, row: Row) -> Iterator[Dim]:
    return reversed(state.flat(row).trailing)


class _Axes:
    """Classes of axes that one loop variable traverses (union-find)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._parents: dict[Axis, Axis] = {}
        self._pins: dict[Axis, AxisIndex] = {}
        self._hints: dict[Axis, str] = {}
        self._vars: dict[Axis, LoopVar] = {}

    def pin(self, dim: DimVar, index: AxisIndex) -> None:
        """Accesses an axis at one position only."""
        self._pins[self._state.find(dim)] = index

    def meet(self, pair: DimBelow | DimEqual) -> None:
        """Traverses two axes together, unless one of them is repeated along the other."""
        left, right = (
            (pair.res, pair.opnd) if isinstance(pair, DimBelow) else (pair.left, pair.right)
        )
        one, other = self._axis(left), self._axis(right)
        if one is None or other is None:
            return
        repeated = isinstance(pair, DimBelow) and self._size(right) == 1 != self._size(left)
        if not repeated or self._find(other) in self._pins:
            self._join(one, other, pair)

    def projections(self, result: Shape, operands: Sequence[Shape]) -> Projections:
        """Returns the index maps; the domain lists variables in order of first appearance."""
        domain: dict[LoopVar, int] = {}
        lhs = self._index_map(result, domain)
        rhs = tuple(self._index_map(operand, domain) for operand in operands)
        return Projections(
            domain=tuple(domain.items()),
            lhs=lhs,
            rhs=rhs,
            lhs_dims=result.dims,
            rhs_dims=tuple(operand.dims for operand in operands),
        )

    def _axis(self, dim: Dim) -> Axis | None:
        if isinstance(dim, DimVar):
            var = self._state.find(dim)
            if dim.name:
                self._hints.setdefault(self._find(var), dim.name)
            return var
        return dim.axis_id if isinstance(dim, Size) else None

    def _size(self, dim: Dim) -> int:
        size = self._state.size(dim)
        if size is None:
            raise VerifyError(
                "Every axis of an operation on closed shapes has a size.", found=str(dim)
            )
        return size.n

    def _find(self, axis: Axis) -> Axis:
        while (parent := self._parents.get(axis)) is not None:
            axis = parent
        return axis

    def _join(self, left: Axis, right: Axis, pair: DimBelow | DimEqual) -> None:
        one, other = self._find(left), self._find(right)
        if one == other:
            return
        first, second = self._pins.get(one), self._pins.get(other)
        if first is not None and second is not None and first != second:
            raise ShapeError(
                "An axis is accessed either at one position or at another.",
                found=f"position {_position(first)} and position {_position(second)}",
                where=place(pair),
                fix="use two operations",
            )
        self._parents[one] = other
        pin = first if first is not None else second
        if pin is not None:
            self._pins[other] = pin
        hint = self._hints.get(one)
        if hint is not None:
            self._hints.setdefault(other, hint)

    def _index_map(self, shape: Shape, domain: dict[LoopVar, int]) -> IndexMap:
        return tuple(
            self._index(dim, kind, domain) for kind, row in shape.rows() for dim in row.trailing
        )

    def _index(self, dim: Dim, kind: RowKind, domain: dict[LoopVar, int]) -> AxisIndex:
        axis, extent = self._axis(dim), self._size(dim)
        assert axis is not None
        root = self._find(axis)
        pin = self._pins.get(root)
        if pin is not None:
            return pin
        if extent == 1:
            return FixedIndex(0)
        if root not in self._vars:
            self._vars[root] = fresh_var(self._hints.get(root, _HINTS[kind]))
        var = self._vars[root]
        if domain.setdefault(var, extent) != extent:
            raise VerifyError(
                "Axes traversed together have one size.", found=f"{domain[var]} and {extent}"
            )
        return VarIndex(var)


def _position(index: AxisIndex) -> str:
    match index:
        case FixedIndex(value):
            return str(value)
        case VarIndex(StaticIndex(name=name)):
            return name
        case _:
            return str(index)
