"""The equations of a principal shape: each computed row is the least one above its operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.constraints import Constraint, DimEqual, RowBelow, RowEqual
from ocannl_core.shape.language.shape_terms import (
    Dim,
    DimVar,
    Row,
    RowVar,
    Shape,
    Size,
    dim_variables,
    with_plain_dims,
)
from ocannl_core.shape.solving import ranks, solver
from ocannl_core.shape.solving.derivations import formula_text, statement
from ocannl_core.shape.solving.state import SolverState, sides

_ORIGIN = Origin("the principal shape")


def equate_with_least(state: SolverState, arguments: Iterable[Shape]) -> None:
    """Solve the open rows and sizes that are neither an argument's nor a join of several operands.

    A result equals its only open operand, a parameter its only use; a row with neither is empty.
    """
    shapes = tuple(arguments)
    for rule in (_cycles, _operands, _uses, _nothing):
        while equations := _first(rule, state, shapes):
            state.agenda.append(equations)
            solver.run(state)
            if rule not in (_cycles, _operands):
                equate_with_least(state, shapes)
                return


def _first(rule: object, state: SolverState, arguments: tuple[Shape, ...]) -> Constraint | None:
    rows, dims = _variables(state, arguments)
    assert callable(rule)
    found: Iterator[Constraint] = rule(state, rows, dims)
    return next(found, None)


def _variables(
    state: SolverState, arguments: tuple[Shape, ...]
) -> tuple[list[RowVar], list[DimVar]]:
    """Return the open variables that are not an argument's, in order of creation."""
    known_rows: set[RowVar] = set()
    known_dims: set[DimVar] = set()
    for shape in arguments:
        for _, row in shape.rows():
            tail, sizes = state.unknowns(row)
            known_dims.update(sizes)
            if tail is not None:
                known_rows.add(tail)
    rows = {v for v in state.suspended if v not in state.rows} - known_rows
    dims = {state.find(v) for each in (state.operands, state.results) for v in each} - known_dims
    undecided = (v for v in dims if v not in state.values)
    return sorted(rows, key=lambda v: v.id), sorted(undecided, key=lambda v: v.id)


def _bounds(state: SolverState, var: RowVar, *, below: bool) -> list[Row]:
    """Return the operands of a row variable, or the results above it, each once."""
    found: dict[Row, None] = {}
    for constraint in state.suspended.get(var, ()):
        if not isinstance(constraint, RowBelow):
            continue
        res, opnd = state.current_row(constraint.res), state.current_row(constraint.opnd)
        one, other = (res, opnd) if below else (opnd, res)
        if one == Row(tail=var) and other.tail != var:
            found[other] = None
    return list(found)


def _cycles(state: SolverState, rows: list[RowVar], dims: list[DimVar]) -> Iterator[Constraint]:
    """Yield equations between rows above each other: the order of rows is antisymmetric."""
    for row in rows:
        above: dict[RowVar, RowVar] = {}
        pending = [row]
        for each in pending:
            for bound in _bounds(state, each, below=True):
                if bound.tail is None or bound.dims or bound.tail in above:
                    continue
                above[bound.tail] = each
                pending.append(bound.tail)
        if row in above:
            yield RowEqual(Row(tail=row), Row(tail=above[row]), _ORIGIN)


def _operands(state: SolverState, rows: list[RowVar], dims: list[DimVar]) -> Iterator[Constraint]:
    for row in rows:
        bounds = _bounds(state, row, below=True)
        if len(bounds) == 1:
            is_leaf = ranks.leaf_of(state, row) is not None
            bound = _with_any_sizes(state, bounds[0]) if is_leaf else bounds[0]
            yield RowEqual(Row(tail=row), bound, _ORIGIN)
    for dim in dims:
        operands = {state.current(each) for each in state.operands.get(dim, ())}
        if len(operands) == 1:
            operand = operands.pop()
            is_repeated = isinstance(operand, Size) and operand.n == 1
            if not (is_repeated and dim in state.dim_leaves):  # then it can be any size
                yield DimEqual(dim, operand, _ORIGIN)


def _with_any_sizes(state: SolverState, row: Row) -> Row:
    """Return the row of a parameter above an operand, whose axes of size 1 are repeated."""

    def any_size(dim: Dim) -> Dim:
        size = state.size(dim)
        return state.fresh.dim() if size is not None and size.n == 1 else dim

    return Row(tuple(map(any_size, row.leading)), row.tail, tuple(map(any_size, row.trailing)))


def _uses(state: SolverState, rows: list[RowVar], dims: list[DimVar]) -> Iterator[Constraint]:
    for row in rows:
        results = _bounds(state, row, below=False)
        is_leaf = ranks.leaf_of(state, row) is not None
        if is_leaf and len(results) == 1 and not _bounds(state, row, below=True):
            # as in closing, the axes that a use is known to have are enough
            known = results[0].dims
            yield RowEqual(Row(tail=row), Row(trailing=known) if known else results[0], _ORIGIN)
    for dim in dims:
        if dim in state.dim_leaves and not state.operands.get(dim):
            above = {state.current(each) for each in state.results.get(dim, ())}
            if dim in state.ceilings:
                yield DimEqual(dim, state.ceilings[dim].size, _ORIGIN)
            elif len(above) == 1:
                yield DimEqual(dim, above.pop(), _ORIGIN)


def _nothing(state: SolverState, rows: list[RowVar], dims: list[DimVar]) -> Iterator[Constraint]:
    for row in rows:
        is_related = any(not isinstance(each, RowBelow) for each in state.suspended.get(row, ()))
        is_whole = state.root(row)[1] == 0
        is_hidden = is_whole and any(state.contracted.get(v) for v in ranks.group(state, row))
        if not (is_related or is_hidden) and not _bounds(state, row, below=True):
            yield RowEqual(Row(tail=row), Row(), _ORIGIN)


class SchemeNames:
    """Names of the variables of a scheme, each after the first row in which it occurs.

    Args:
        shapes: Shapes as far as they are known, by name; the first ones are the arguments.
        arguments: The number of arguments. A single one lends its rows their bare names.
    """

    def __init__(self, shapes: Mapping[str, Shape], arguments: int) -> None:
        self._rows: dict[RowVar, RowVar] = {}
        self._dims: dict[DimVar, DimVar] = {}
        taken: set[str] = set()
        for position, (title, shape) in enumerate(shapes.items()):
            prefix = "" if arguments == 1 and position == 0 else f"{title}."
            for kind, row in shape.rows():
                if row.tail is not None and row.tail not in self._rows:
                    self._rows[row.tail] = RowVar(row.tail.id, f"{prefix}{kind.value}")
                for dim in (var for each in row.dims for var in dim_variables(each)):
                    if dim not in self._dims:
                        name = dim.name if dim.name and dim.name not in taken else _fresh(taken)
                        taken.add(name)
                        self._dims[dim] = DimVar(dim.id, name)

    def shape(self, shape: Shape) -> Shape:
        """Return a shape with named variables."""
        return Shape(*map(self.row, (shape.batch, shape.input, shape.output)))

    def row(self, row: Row) -> Row:
        """Return a row with named variables."""
        tail = None if row.tail is None else self._rows.get(row.tail, row.tail)
        leading, trailing = (tuple(map(self._dim, dims)) for dims in (row.leading, row.trailing))
        return Row(leading, tail, trailing)

    def _dim(self, dim: Dim) -> Dim:
        names = self._dims
        return with_plain_dims(
            dim, lambda each: names.get(each, each) if isinstance(each, DimVar) else each
        )

    def conditions(self, state: SolverState) -> tuple[str, ...]:
        """Return the relations between the variables that no equation states."""
        found: dict[str, None] = {}
        pending = list(self._rows)
        for var in pending:
            for constraint in state.suspended.get(var, ()):
                rows = [state.current_row(row) for row in sides(constraint)]
                joins = {row.tail for row in rows if row.tail is not None} - self._rows.keys()
                for each in sorted(joins, key=lambda v: v.id):  # of several operands
                    self._rows[each] = each
                    pending.append(each)
                if not (isinstance(constraint, RowBelow) and rows[0] == rows[1]):
                    found[statement(constraint, map(self.row, rows), state)] = None
        for dim, name in self._dims.items():
            if (ceiling := state.ceilings.get(dim)) is not None:
                found[f"{name} is {ceiling.size} or 1"] = None
            if (floor := state.floors.get(dim)) is not None:
                found[f"{name} is at least {floor.n}"] = None
            for other in state.operands.get(dim, {}):
                if (current := state.current(other)) in self._dims:
                    found[f"{name} equals {self._dim(current)}, unless that is 1"] = None
            for formula in state.formulas.get(dim, {}):
                if formula in state.open_formulas:
                    found[formula_text(state, formula)] = None
        return tuple(found)


def _fresh(taken: set[str]) -> str:
    return next(name for name in (f"n{i}" for i in count()) if name not in taken)
