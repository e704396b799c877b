"""State of one closing: the undecided variables connected with the shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimEqual,
    Formula,
    RowConstraint,
    RowEqual,
    SliceLength,
    Strided,
    TotalElements,
)
from ocannl_core.shape.language.shape_terms import Dim, DimVar, Row, RowVar, Shape, Size
from ocannl_core.shape.solving import dims, ranks, rows, solver, underdetermined
from ocannl_core.shape.solving.state import Guessed, Known, LeafTensor, SolverState, sides
from ocannl_core.shape.solving.subscripted_rows import unknown_size

_Variable = TypeVar("_Variable", DimVar, RowVar)


class OperandReader(Generic[_Variable]):
    """A reader of a log of variables, which takes each entry once."""

    def __init__(self, log: list[_Variable]) -> None:
        self._log: list[_Variable] = log
        self._position = 0

    def take(self) -> dict[_Variable, None]:
        """Return the variables logged since the last call, without duplicates and in order."""
        news = dict.fromkeys(self._log[self._position :])
        self._position = len(self._log)
        return news


class Closing:
    """One closing: the state of the solver and the undecided variables concerned.

    The logs start with all variables, and name each variable again when a constraint on it changes.
    Stages read the logs, so that they revisit changed variables only.
    """

    def __init__(
        self, state: SolverState, shapes: Iterable[Shape], origin: Origin, *, has_defaults: bool
    ) -> None:
        self.state = state
        self._has_defaults = has_defaults
        self._ended: list[LeafTensor] = []
        self._origin = origin
        self._dims, self._rows = connected(state, shapes)
        self._formulas: dict[Formula, None] = {}
        self._dim_log: list[DimVar] = []
        self._row_log: list[RowVar] = []
        self._collect_formulas(self._dims, self._rows)
        state.touched_dims.clear()
        state.touched_rows.clear()

    def finish(self) -> None:
        """Refuse the defaults that may not be taken."""
        if not self._has_defaults:
            for leaf in self._ended:
                underdetermined.refuse_scalar(self.state, leaf)

    def start_stage(self) -> bool:
        """Reset the logs; return True if there are undecided variables."""
        self._dims = dict.fromkeys(self.open_dims())
        self._rows = dict.fromkeys(self.open_rows())
        self._dim_log = list(self._dims)
        self._row_log = list(self._rows)
        return bool(self._dims or self._rows)

    def dim_reader(self) -> OperandReader[DimVar]:
        """Return a reader of the sizes with new information."""
        return OperandReader(self._dim_log)

    def row_reader(self) -> OperandReader[RowVar]:
        """Return a reader of the row variables with new information."""
        return OperandReader(self._row_log)

    def open_dims(self, among: Iterable[DimVar] | None = None) -> list[DimVar]:
        """Return the undecided sizes among the given or all concerned ones, as representatives."""
        candidates = self._dims if among is None else among
        return list(dict.fromkeys(self.state.undecided(candidates)))

    def open_rows(self, among: Iterable[RowVar] | None = None) -> list[RowVar]:
        """Return the undecided row variables among the given or all concerned ones."""
        candidates = self._rows if among is None else among
        return [var for var in candidates if var not in self.state.rows]

    def formulas(self) -> list[Formula]:
        """Return the open formulas of the variables concerned."""
        open_formulas = self.state.open_formulas
        self._formulas = {each: None for each in self._formulas if each in open_formulas}
        return list(self._formulas)

    def _collect_formulas(self, dims: Iterable[DimVar], rows: Iterable[RowVar]) -> None:
        """Add the formulas of undecided sizes and row variables."""
        state = self.state
        for dim in dims:
            self._formulas.update(dict.fromkeys(state.formulas.get(dim, ())))
        for tail in rows:
            for each in state.suspended.get(tail, ()):
                if isinstance(each, TotalElements):
                    self._formulas[each] = None

    def decide_rows(self, guesses: Mapping[RowVar, int], stage: str) -> bool:
        """Decide the numbers of axes of row variables at once; return True if there were any."""
        state, origin = self.state, self.guess_origin(stage)
        self._note(guesses, stage)
        for var, number in guesses.items():
            if number == 0 and (leaf := ranks.leaf_of(state, var)) is not None:
                self._ended.append(leaf)
            row = Row(trailing=state.fresh.dims(number))
            rows.solve(state, var, row, RowEqual(Row(tail=var), row, origin))
        self.run()
        return bool(guesses)

    def decide_dims(self, guesses: Mapping[DimVar, Size], stage: str) -> bool:
        """Decide sizes, all at once; return True if there were any."""
        state = self.state
        self._note(guesses, stage)
        for dim, size in guesses.items():
            ceiling = state.ceilings.get(dim)
            if ceiling is None and dim not in state.units:
                self._refuse_sliced(dim)
                if not self._has_defaults:
                    underdetermined.refuse_default_size(state, dim)
            if ceiling is not None and ceiling.size == size:
                dims.decide(state, dim, ceiling)
            else:
                leaf = state.dim_leaves.get(dim)
                origin = leaf.origin if leaf else self.guess_origin(stage)
                unit, floor = state.units.get(dim), state.floors.get(dim)
                is_stated = size.n > 1 or (size.n == 1 and unit is not None and unit.stated)
                is_refused = floor is not None and floor.n > size.n
                blame = unit.cause if is_refused and unit is not None else None
                dims.decide(
                    state, dim, Known(size, True, DimEqual(dim, size, origin), is_stated), blame
                )
        self.run()
        return bool(guesses)

    def _refuse_sliced(self, dim: DimVar) -> None:
        """Refuse to guess the size of a sliced axis."""
        for formula in self.state.formulas.get(dim, ()):
            if isinstance(formula, SliceLength) and formula in self.state.open_formulas:
                raise unknown_size(formula)

    def note_guess(self, equation: DimEqual | RowEqual, stage: str) -> None:
        """Record the guess of a stage that two variables are equal."""
        for side in (equation.left, equation.right):
            var = side.tail if isinstance(side, Row) else side
            if isinstance(var, DimVar | RowVar):
                self._note((var,), stage)

    def guess_origin(self, stage: str) -> Origin:
        """Return the origin of a guess for messages."""
        return Origin(f"closing {stage}", self._origin.location)

    def _note(self, guessed: Iterable[DimVar | RowVar], stage: str) -> None:
        guess = Guessed(stage, self._origin)
        for var in guessed:
            self.state.undo_log.put(self.state.guesses, var, guess)

    def add_constraints(self, constraints: Iterable[Constraint]) -> None:
        """Add constraints and run the solver."""
        self.state.agenda.extend(constraints)
        self.run()

    def run(self) -> None:
        """Run the solver, and log the variables with new information."""
        state = self.state
        solver.run(state)
        new_dims = self.open_dims(state.touched_dims)
        new_rows = self.open_rows(state.touched_rows)
        self._dim_log += new_dims
        self._row_log += new_rows
        self._dims.update(dict.fromkeys(new_dims))
        self._rows.update(dict.fromkeys(new_rows))
        self._collect_formulas(new_dims, new_rows)
        state.touched_dims.clear()
        state.touched_rows.clear()


def connected(
    state: SolverState, shapes: Iterable[Shape]
) -> tuple[dict[DimVar, None], dict[RowVar, None]]:
    """Return the undecided variables connected with some shapes."""
    found_dims: dict[DimVar, None] = {}
    found_rows: dict[RowVar, None] = {}
    visited = IdentityMap[RowConstraint, None]()  # hashing takes longer than a repetition
    pending = _variables(state, [row for shape in shapes for _, row in shape.rows()])
    while pending:
        var = pending.pop()
        if isinstance(var, RowVar):
            if var not in found_rows:
                found_rows[var] = None
                waiting = [c for c in state.suspended.get(var, ()) if c not in visited]
                for each in waiting:
                    visited[each] = None
                pending += _mentioned(state, waiting)
                pending += state.undecided(counted_by(waiting))
        elif var not in found_dims:
            found_dims[var] = None
            for edges in (state.results, state.operands):
                pending += state.undecided(edges.get(var, ()))
            mentions = state.within.get(var, {})
            pending += _mentioned(state, [c for c in mentions if state.is_suspended(c)])
            formulas = [f for f in state.formulas.get(var, ()) if f in state.open_formulas]
            counts = [f for f in formulas if isinstance(f, TotalElements)]
            pending += _mentioned(state, counts)
            pending += state.undecided(counted_by(counts))
            for formula in formulas:
                if isinstance(formula, DimEqual):
                    pending += state.undecided((formula.left, formula.right))
                elif isinstance(formula, SliceLength):
                    pending += state.undecided((formula.length, formula.whole))
    return found_dims, found_rows


def counted_by(constraints: Iterable[RowConstraint]) -> Iterator[Dim]:
    """Yield the sizes outside of rows in constraints on numbers of cells."""
    for constraint in constraints:
        if isinstance(constraint, TotalElements):
            yield from constraint.divided_by
            if isinstance(constraint.count, Strided):
                yield constraint.count.dim


def _mentioned(state: SolverState, constraints: Iterable[RowConstraint]) -> list[DimVar | RowVar]:
    return _variables(state, [row for each in constraints for row in sides(each)])


def _variables(state: SolverState, rows: Iterable[Row]) -> list[DimVar | RowVar]:
    """Return the undecided variables of rows."""
    found: list[DimVar | RowVar] = []
    for row in rows:
        tail, undecided = state.unknowns(row)
        if tail is not None:
            found.append(tail)
        found += undecided
    return found
