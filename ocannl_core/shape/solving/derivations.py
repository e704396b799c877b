"""Derivations of shapes, and bounds of their open parts.

A read-only view of the solver's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import assert_never

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language import constraints
from ocannl_core.shape.language.shape_terms import (
    Dim,
    DimVar,
    Row,
    RowKind,
    RowVar,
    Shape,
    Size,
    dim_variables,
)
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.messages import narrow_origin, substitute_known
from ocannl_core.shape.solving.state import SolverState, sides


class Certainty(Enum):
    """The certainty of a size or of a number of axes."""

    STATED = "stated"
    INFERRED = "inferred"
    GUESSED = "guessed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Guess:
    """A decision that the constraints left open."""

    stage: str
    reason: str

    def __str__(self) -> str:
        return f"stage `{self.stage}`: {self.reason}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of an open size or row."""

    text: str
    origin: Origin | None = None
    """The operation that imposes it; None for a rule of inference itself."""

    def __str__(self) -> str:
        return f"{self.text} [{self.origin}]" if self.origin else self.text


@dataclass(frozen=True, slots=True)
class AxisReport:
    """One axis of a row."""

    axis: int
    """The position: from the right, -1 is the last axis; from the left, 0 is the first one, for
    axes to the left of a part that is still open.
    """
    dim: Dim
    """The size, or its variable."""
    certainty: Certainty
    """Stated, inferred, guessed or open."""
    because: tuple[Origin, ...] = ()
    """The constraints that decided it: the direct ones first, then their causes."""
    guesses: tuple[Guess, ...] = ()
    """The guesses that it depends on."""
    bounds: tuple[Bound, ...] = ()
    """The bounds of an open size."""


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row of a shape. The other attributes are as in `AxisReport`, for its number of axes."""

    kind: RowKind
    row: Row
    """The row as far as it is known."""
    axes: tuple[AxisReport, ...]
    """Its axes, left to right."""
    certainty: Certainty
    because: tuple[Origin, ...] = ()
    guesses: tuple[Guess, ...] = ()
    bounds: tuple[Bound, ...] = ()


def explain(state: SolverState, shape: Shape) -> tuple[RowReport, ...]:
    """Return the operations and user statements that decided each row and axis of a shape, whose
    rows are in the order batch, input, output.
    """
    return tuple(_row(state, kind, shape.row(kind)) for kind in RowKind)


_REASONS = {
    "circles": "variables in a cycle of refinements are equal, and so are a size and its only "
    "operand, if that has no other use",
    "rows of leaves": "a tensor that no operation computes has as many axes as its uses allow or "
    "imply; none without informative uses",
    "sizes of leaves": "a tensor that no operation computes takes sizes from its uses; 1 without "
    "informative uses",
    "parts of concatenated axes": "equally many parts on both sides of an equation are equal, one "
    "by one",
    "rows with a number of cells": "a row of which only the number of cells is known has one axis, "
    "or none for one cell",
    "numbers of cells": "a size is the smallest that satisfies the number of cells",
    "rows": "a row has no more axes than its operands and uses require",
    "sizes": "a size is 1 like an operand's, else as in its uses",
    "remaining sizes": "a size is as small as the accessed positions allow",
}


def _guesses(state: SolverState, guessed: Iterable[DimVar | RowVar]) -> tuple[Guess, ...]:
    """Return the guesses about variables, one of each stage."""
    stages = dict.fromkeys(state.guesses[var].stage for var in guessed)
    kept_small = "variables that the constraints leave open are kept small"
    return tuple(Guess(stage, _REASONS.get(stage, kept_small)) for stage in stages)


_CLOSING = "closing "


def _unique_origins(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return origins in the user's program, each once; origins of guesses are left out."""
    stated = (origin for origin in origins if not origin.operation.startswith(_CLOSING))
    return tuple(dict.fromkeys(stated))


def _row(state: SolverState, kind: RowKind, stated: Row) -> RowReport:
    flat = state.flat(stated)
    row = state.current_row(stated)
    leading, trailing = flat.leading, flat.trailing
    axes = [_axis(state, position, dim) for position, dim in enumerate(leading)]
    axes += [_axis(state, at - len(trailing), dim) for at, dim in enumerate(trailing)]
    origins, guessed = row_derivation(state, stated)
    because, guesses = _unique_origins(origins), _guesses(state, guessed)
    if flat.tail is not None:
        certainty = Certainty.OPEN
    elif stated.tail is None:
        certainty = Certainty.STATED
    else:
        own = _solutions(state, stated.tail)
        is_guessed = any(var in state.guesses for var in own)
        certainty = Certainty.GUESSED if is_guessed else Certainty.INFERRED
    bounds = tuple(_row_bounds(state, flat.tail)) if flat.tail is not None else ()
    return RowReport(kind, row, tuple(axes), certainty, because, guesses, bounds)


def _solutions(state: SolverState, var: RowVar) -> list[RowVar]:
    """Yield a variable, then the one that remains in its solution, and so on."""
    found = [var]
    while (decided := state.decided_rows.get(found[-1])) is not None:
        tail = decided[0].tail
        if tail is None:
            break
        found.append(tail)
    return found


def row_derivation(state: SolverState, row: Row) -> tuple[list[Origin], list[RowVar]]:
    """Return the constraints that decided a row's number of axes, and guesses among them."""
    origins: list[Origin] = []
    guessed: list[RowVar] = []
    pending = [row.tail] if row.tail is not None else []
    seen: set[RowVar] = set()
    for var in pending:
        if var in seen:
            continue
        seen.add(var)
        if var in state.guesses:
            guessed.append(var)
        if var not in state.decided_rows:
            continue
        solution, cause = state.decided_rows[var]
        origins.append(cause.origin)
        rows = [solution]
        if not isinstance(cause, constraints.DimConstraint):
            rows += sides(cause)
        pending += [other.tail for other in rows if other.tail is not None]
    return origins, guessed


def _row_bounds(state: SolverState, var: RowVar) -> Iterator[Bound]:
    for constraint in state.suspended.get(var, ()):
        yield Bound(_statement(state, constraint), constraint.origin)
    if ranks.is_anchored(state, var):
        yield Bound("an operand has no further axes, so that none are needed")
    yield from _leaf_bound(ranks.leaf_of(state, var) is not None)


def _statement(state: SolverState, constraint: constraints.RowConstraint) -> str:
    return statement(constraint, [state.current_row(row) for row in sides(constraint)], state)


def statement(
    constraint: constraints.RowConstraint, known: Iterable[Row], state: SolverState
) -> str:
    """Return a constraint on rows as a sentence, with the rows as far as they are known."""
    rows = [str(row) or "()" for row in known]
    match constraint:
        case constraints.RowBelow():
            return f"{rows[0]} has at least the axes of {rows[1]}"
        case constraints.RowEqual():
            return f"{rows[0]} equals {rows[1]}"
        case constraints.ReverseEqual():
            return f"{rows[0]} equals {rows[1]} reversed"
        case constraints.Selection(axis=axis):
            return f"axis {axis} of {', '.join(rows[:3])} is selected from"
        case constraints.RowJoin():
            return f"{rows[0]} is {' then '.join(rows[1:])}"
        case constraints.Exact(dims=dims):
            axes = ",".join(str(state.current(dim)) for dim in dims) or "none"
            return f"the axes of {' and '.join(rows)} are {axes}"
        case constraints.TotalElements(count=count, divided_by=divided_by):
            number = str(count) if isinstance(count, int) else "a known number"
            share = "".join(f"/{state.current(dim)}" for dim in divided_by)
            return f"{' times '.join(rows)} has {number}{share} cells"
        case constraints.Subscript():
            return f"{', '.join(rows[:3])} are the rows of a subscript of {', '.join(rows[3:])}"
        case _:
            assert_never(constraint)


def _axis(state: SolverState, axis: int, dim: Dim) -> AxisReport:
    current = state.current(dim)
    if isinstance(dim, Size):
        return AxisReport(axis, current, Certainty.STATED)
    origins, guessed = derivation(state, dim)
    because, guesses = _unique_origins(origins), _guesses(state, guessed)
    if isinstance(current, Size):
        is_guessed = isinstance(dim, DimVar) and any(
            var in state.guesses for var in _representatives(state, dim)
        )
        certainty = Certainty.GUESSED if is_guessed else Certainty.INFERRED
        return AxisReport(axis, current, certainty, because, guesses)
    bounds = tuple(dict.fromkeys(_bounds(state, current))) if isinstance(current, DimVar) else ()
    return AxisReport(axis, current, Certainty.OPEN, because, guesses, bounds)


def _representatives(state: SolverState, var: DimVar) -> Iterator[DimVar]:
    """Yield a variable, then its parent in the union-find forest, and so on."""
    yield var
    while (parent := state.parents.get(var)) is not None:
        yield parent
        var = parent


def sources(state: SolverState, *causes: constraints.Constraint) -> list[constraints.Constraint]:
    """Return constraints, each followed by the ultimate source of its size."""
    found: list[constraints.Constraint] = []
    for cause in causes:
        found.append(cause)
        seen: set[DimVar] = set()
        pending = [cause]
        for one in pending:
            for dim in dims_of(one):
                for var in _representatives(state, dim) if isinstance(dim, DimVar) else ():
                    if var not in seen:
                        seen.add(var)
                        known = state.values.get(var)
                        pending += [known.cause] if known else []
        found.append(pending[-1])
    return found


def derivation(state: SolverState, dim: Dim) -> tuple[list[Origin], list[DimVar]]:
    """Return the constraints that decided a size, and the guessed variables among them."""
    origins: list[Origin] = []
    guessed: list[DimVar] = []
    seen: set[DimVar] = set()
    # True beside a variable if its uses count, as in a guess
    pending: list[tuple[Dim, bool]] = [(dim, False)]
    for one, by_use in pending:
        if not isinstance(one, DimVar):
            pending += [(var, by_use) for var in dim_variables(one)]
            continue
        for var in _representatives(state, one):
            if var in seen:
                continue
            seen.add(var)
            if var in state.guesses:
                guessed.append(var)
                by_use = True
            for cause in _causes(state, var, by_use=by_use):
                origins.append(narrow_origin(cause))
                pending += [(other, by_use) for other in dims_of(cause)]
    return origins, guessed


def _causes(state: SolverState, var: DimVar, *, by_use: bool) -> Iterator[constraints.Constraint]:
    if var in state.joins:
        yield state.joins[var]
    if (known := state.values.get(var)) is not None:
        yield known.cause
    if by_use and (ceiling := state.ceilings.get(var)) is not None:
        yield ceiling.cause


def dims_of(cause: constraints.Constraint) -> tuple[Dim, ...]:
    """Return the sizes that a constraint relates."""
    match cause:
        case constraints.DimEqual(left, right):
            return (left, right)
        case constraints.DimBelow(res, opnd):
            return (res, opnd)
        case constraints.AtLeast(dim):
            return (dim,)
        case constraints.SliceLength(length, whole):
            return (length, whole)
        case (
            constraints.RowBelow()
            | constraints.RowEqual()
            | constraints.ReverseEqual()
            | constraints.RowJoin()
            | constraints.Subscript()
        ):
            return ()  # the relation of their axes has constraints of its own
        case constraints.Exact(dims=dims):
            return dims
        case constraints.Selection(extent=extent):
            return (extent,)
        case constraints.TotalElements(rows=rows, count=count, divided_by=divided_by):
            counted = () if isinstance(count, int) else (count.dim,)
            return (*(dim for row in rows for dim in row.dims), *counted, *divided_by)
        case _:
            assert_never(cause)


def _bounds(state: SolverState, var: DimVar) -> Iterator[Bound]:
    if (ceiling := state.ceilings.get(var)) is not None:
        yield Bound(f"{ceiling.size} or 1", narrow_origin(ceiling.cause))
    if (floor := state.floors.get(var)) is not None:
        yield Bound(f"at least {floor.n}", narrow_origin(floor.cause))
    if (unit := state.units.get(var)) is not None:
        yield Bound(
            "an operand has size 1, so that it need not be larger", narrow_origin(unit.cause)
        )
    for other, cause in state.results.get(var, {}).items():
        yield Bound(f"{_size_text(state, other)} or 1", narrow_origin(cause))
    for other, cause in state.operands.get(var, {}).items():
        if state.size(other) is None:
            yield Bound(f"equal to {state.current(other)}, unless that is 1", narrow_origin(cause))
    for formula in state.formulas.get(var, {}):
        if formula in state.open_formulas:
            yield Bound(formula_text(state, formula), narrow_origin(formula))
    yield from _leaf_bound(state.dim_leaves.get(var) is not None)


def formula_text(state: SolverState, formula: constraints.Formula) -> str:
    if isinstance(formula, constraints.TotalElements):
        return _statement(state, formula)
    if isinstance(formula, constraints.SliceLength):
        length, whole = (substitute_known(state, d) for d in (formula.length, formula.whole))
        return f"{length} is the length of a slice of {whole}"
    left, right = (substitute_known(state, side) for side in (formula.left, formula.right))
    return f"{left} = {right}"


def _size_text(state: SolverState, dim: DimVar) -> str:
    current = state.current(dim)
    floor = state.floors.get(current) if isinstance(current, DimVar) else None
    return f"{current} (at least {floor.n})" if floor and floor.n > 1 else str(current)


def _leaf_bound(is_leaf: bool) -> Iterator[Bound]:
    if is_leaf:
        yield Bound("no operation computes the tensor: closing takes this from its uses")
