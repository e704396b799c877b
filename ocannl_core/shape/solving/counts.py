"""Solver of constraints on whole rows: numbers of cells, exact axes, reversal."""

from __future__ import annotations

from math import prod

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.language import constraints
from ocannl_core.shape.language.shape_terms import Dim, DimVar, Row, RowVar, Size
from ocannl_core.shape.solving import dims, rows
from ocannl_core.shape.solving.messages import count_fails, counted_extent, counts_differ
from ocannl_core.shape.solving.state import Known, SolverState


class Count:
    """A constraint on a number of cells after substitution of the known sizes.

    known * product(unknown) * cells(tails) = factor * var

    Attributes:
        constraint: The constraint, with the solutions of its rows substituted.
        known: The product of the known sizes, and of the denominator.
        factor: The known part of the count.
        var: The undecided size in the count, if any.
    """

    def __init__(self, state: SolverState, constraint: constraints.TotalElements) -> None:
        flat = tuple(state.flat(row) for row in constraint.rows)
        count, divided_by = constraint.count, constraint.divided_by
        self.constraint = constraints.TotalElements(flat, count, constraint.origin, divided_by)
        self.tails: list[RowVar] = [row.tail for row in flat if row.tail is not None]
        self.known = count.denominator if isinstance(count, constraints.Strided) else 1
        self.unknown: list[Dim] = []
        for dim in (*(dim for row in flat for dim in row.dims), *divided_by):
            size = state.size(dim)
            if size is None:
                self.unknown.append(state.current(dim))
            elif size.extent is not None:
                raise counted_extent(constraint, size.extent)
            else:
                self.known *= size.n
        self.factor, self.var = _split_count(state, count)
        if self.var is not None and self.var in self.unknown:
            self.unknown.remove(self.var)
            self.var = None

    def text(self) -> str:
        """Return both sides for error messages."""
        sizes = "·".join([str(self.known), *map(str, self.unknown), *map(str, self.tails)])
        return f"{sizes} cells in place of {self.factor}" + (f"·{self.var}" if self.var else "")


def _split_count(state: SolverState, count: int | constraints.Strided) -> tuple[int, DimVar | None]:
    if isinstance(count, int):
        return count, None
    size = state.size(count.dim)
    if size is not None:
        return count.coefficient * size.n, None
    current = state.current(count.dim)
    assert isinstance(current, DimVar), "counts grow with plain sizes"
    return count.coefficient, current


def solve_count(state: SolverState, constraint: constraints.TotalElements) -> None:
    """Solve a constraint on the number of cells of rows, as far as its factors are known.

    Raises:
        ShapeError: if no sizes give this number.
    """
    count = Count(state, constraint)
    if count.constraint != constraint:
        state.undo_log.remove(state.open_formulas, constraint)
    constraint = count.constraint
    mentioned = [dim for row in constraint.rows for dim in row.dims]
    mentioned += constraint.divided_by
    if isinstance(constraint.count, constraints.Strided):
        mentioned.append(constraint.count.dim)
    state.watch(constraint, tuple(mentioned))
    if count.var is None and not _divides(count.known, count.factor):
        raise count_fails(constraint, count.text())
    if not count.known:  # there are no cells, for all values of the unknowns
        state.undo_log.remove(state.open_formulas, constraint)
        if count.var is not None:
            _decide_size(state, count.var, 0, constraint)
    elif count.tails:
        state.wait(constraint)
        state.suspend(constraint)
        _compare_counts(state, count)
    elif not count.unknown:
        state.undo_log.remove(state.open_formulas, constraint)
        _check_or_solve(state, count)
    elif len(count.unknown) == 1 and count.var is None and count.known:
        state.undo_log.remove(state.open_formulas, constraint)
        _decide_size(state, count.unknown[0], count.factor // count.known, constraint)
    else:
        state.wait(constraint, tuple(count.unknown))


def _check_or_solve(state: SolverState, count: Count) -> None:
    """Check a count without unknown sizes, or solve it for its own size."""
    if count.var is None:
        if count.known != count.factor:
            raise count_fails(count.constraint, count.text())
        return
    if not _divides(count.factor, count.known):
        raise count_fails(count.constraint, count.text())
    if count.factor:
        _decide_size(state, count.var, count.known // count.factor, count.constraint)


def _compare_counts(state: SolverState, count: Count) -> None:
    """Combine a count with other counts of the same row variables."""
    constraint = count.constraint
    counted = [state.cells[tail] for tail in count.tails if tail in state.cells]
    uncounted = [tail for tail in count.tails if tail not in state.cells]
    known = count.known * prod(cells for cells, _ in counted)
    if count.var is not None:
        if not uncounted and not count.unknown and count.factor:
            if known % count.factor:
                raise counts_differ(constraint, count.text(), [cause for _, cause in counted])
            _decide_size(state, count.var, known // count.factor, constraint)
        return
    missing = len(uncounted) + len(count.unknown)
    if missing > 1 or (missing == 1 and not known):
        return
    if count.factor % known if missing else count.factor != known:
        raise counts_differ(constraint, count.text(), [cause for _, cause in counted])
    if uncounted:
        (tail,) = uncounted
        state.undo_log.put(state.cells, tail, (count.factor // known, constraint))
        state.agenda.extend(
            other
            for other in state.suspended.get(tail, ())
            if isinstance(other, constraints.TotalElements)
        )
    elif count.unknown:
        _decide_size(state, count.unknown[0], count.factor // known, constraint)


def _divides(divisor: int, number: int) -> bool:
    return number % divisor == 0 if divisor else number == 0


def _decide_size(state: SolverState, dim: Dim, n: int, cause: constraints.TotalElements) -> None:
    if isinstance(dim, DimVar):
        dims.decide(state, dim, Known(Size(n), True, cause))
    else:
        state.agenda.append(constraints.DimEqual(dim, Size(n), cause.origin))


def solve_exact(state: SolverState, constraint: constraints.Exact) -> None:
    """Solve a constraint that lists the axes of consecutive rows.

    Raises:
        ShapeError: if the rows cannot have this number of axes.
    """
    flat = [state.flat(row) for row in constraint.rows]
    tails = [row.tail for row in flat if row.tail is not None]
    missing = len(constraint.dims) - sum(row.known for row in flat)
    if missing < 0 or (missing and not tails):
        raise _wrong_axes(constraint, flat)
    if not tails:
        axes = [dim for row in flat for dim in (*row.leading, *row.trailing)]
        for position, (one, other) in enumerate(zip(axes, constraint.dims, strict=True)):
            if not state.is_stated_as(one, other):
                axis = position - len(constraint.dims)
                state.agenda.append(constraints.DimEqual(one, other, constraint.origin, axis))
        return
    if missing and len(set(tails)) > 1:
        state.suspend(constraints.Exact(tuple(flat), constraint.dims, constraint.origin))
        return
    if missing % len(tails):
        raise _wrong_axes(constraint, flat)
    for tail in dict.fromkeys(tails):
        added = Row(trailing=state.fresh.dims(missing // len(tails)))
        rows.solve(state, tail, added, constraint)
    solve_exact(state, constraint)


def _wrong_axes(constraint: constraints.Exact, found: list[Row]) -> ShapeError:
    return ShapeError(
        "The axes must be exactly those that are given.",
        found=f"{' | '.join(map(str, found))} in place of {Row(trailing=constraint.dims)}",
        where=str(constraint.origin),
        fix="change the shape, or the axes that are given",
    )


def count_cells(state: SolverState, row: Row) -> int | None:
    """Return the number of cells of a closed row; None for others."""
    flat = state.flat(row)
    sizes = [state.size(dim) for dim in flat.trailing]
    if flat.tail is not None or None in sizes:
        return None
    return prod(size.n for size in sizes if size is not None)
