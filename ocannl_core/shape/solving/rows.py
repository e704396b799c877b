"""Solutions of row variables, and the known axes at the ends of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ocannl_core.base.errors import VerifyError
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimEqual,
    RowBelow,
    RowEqual,
    RowEquation,
)
from ocannl_core.shape.language.shape_terms import Dim, Row, RowVar, Size
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.state import SolverState, sides


def solve(
    state: SolverState, var: RowVar, row: Row, cause: Constraint, *, is_split: bool = False
) -> None:
    """Solve a row variable, and wake the constraints that wait for it.

    A variable is solved once, in terms of another one that is unsolved. So no variable occurs in
    its own solution, and substitution terminates.

    Args:
        is_split: True if the tail of the solution is made as a part of the variable.

    Raises:
        VerifyError: if the variable is solved already, or the tail of its solution is.
    """
    undo_log = state.undo_log
    tail = row.tail
    if var in state.rows or tail == var or tail in state.rows:
        raise VerifyError(
            "A row variable is decided once, by axes and a variable that is not decided.",
            found=f"{var} stands for {row}",
            where=str(cause.origin),
        )
    undo_log.put(state.rows, var, row)
    undo_log.put(state.decided_rows, var, (row, cause))
    if tail is not None:
        for marks in (state.anchored, state.contracted):
            if marks.get(var):
                undo_log.put(marks, tail, True)
        if not is_split:
            ranks.record(state, var, tail, row.known, cause)
            ranks.record(state, tail, var, -row.known, cause)
        state.touched_rows[tail] = None
    if row.known:
        state.touched_dims.update(dict.fromkeys(state.undecided(row.dims)))
    if (leaf := state.row_leaves.get(var)) is not None:
        for dim in row.dims:
            state.mark_dim(dim, leaf)
        if tail is not None:
            state.mark_row(tail, leaf)
    state.wake(var)


def extend(state: SolverState, var: RowVar, dims: tuple[Dim, ...], cause: Constraint) -> RowVar:
    """Append axes to the right end of a row variable; return the rest."""
    tail = state.fresh.row(var.name)
    ranks.record_part(state, tail, var, len(dims))
    solve(state, var, Row((), tail, dims), cause, is_split=True)
    ranks.check_growth(state, tail, cause)
    return tail


def right_forms(state: SolverState, row: Row) -> Iterator[Row]:
    """Yield a row, and its rewritings with more axes at the right end by equations of rows.

    (a, v) where (a, v) = (w, c)  -->  (a, v), (w, c)
    """
    return _forms(state, row, lambda each: each, frozenset())


def left_forms(state: SolverState, row: Row) -> Iterator[Row]:
    """Yield a row, and its rewritings with more axes at the left end by equations of rows.

    (w, c) where (a, v) = (w, c)  -->  (w, c), (a, v)
    """
    return map(_mirror, _forms(state, _mirror(row), _mirror, frozenset()))


def _mirror(row: Row) -> Row:
    return Row(row.trailing[::-1], row.tail, row.leading[::-1])


def _forms(
    state: SolverState, row: Row, view: Callable[[Row], Row], seen: frozenset[RowVar]
) -> Iterator[Row]:
    """Yield a row, and its rewritings with more axes at the right end by equations of rows, which
    are read through a function that may mirror them.
    """
    yield row
    if row.tail is None or row.tail in seen:
        return
    for constraint in state.equations.get(row.tail, ()):
        left, right = view(state.flat(constraint.left)), view(state.flat(constraint.right))
        for one, other in ((left, right), (right, left)):
            cut = len(row.leading) - len(one.leading)
            ahead = map(state.current, row.leading[max(cut, 0) :])
            is_end = one.tail == row.tail and not one.trailing and not other.leading and cut >= 0
            if is_end and other.trailing and tuple(ahead) == tuple(map(state.current, one.leading)):
                form = Row(row.leading[:cut], other.tail, other.trailing + row.trailing)
                yield from _forms(state, form, view, seen | {row.tail})


def keep_crossing(
    state: SolverState, left: Row, right: Row, cause: RowEqual | RowBelow, skipped: int = 0
) -> None:
    """Suspend an equation of a row with leading axes and one with as many trailing axes."""
    assert left.tail is not None
    assert right.tail is not None
    ranks.record(state, left.tail, right.tail, 0, cause)
    ranks.record(state, right.tail, left.tail, 0, cause)
    ahead = with_causes(state, left.leading, cause)
    behind = with_causes(state, right.trailing, cause)
    kept = RowEqual(Row(ahead, left.tail), Row((), right.tail, behind), cause.origin, skipped)
    if not state.suspend(kept):
        return
    for tail in (left.tail, right.tail):
        compared = state.suspended.get(tail, ())
        state.agenda.extend(each for each in compared if isinstance(each, RowBelow))


def with_causes(
    state: SolverState, dims: tuple[Dim, ...], constraint: RowEqual | RowBelow
) -> tuple[Dim, ...]:
    """Return axes with variables for known sizes.

    The variables record the causes of the sizes, and later equations may determine their bases.
    """

    def opened(dim: Dim) -> Dim:
        if not isinstance(dim, Size) or dim.basis is not None:
            return dim
        var = state.fresh.dim()
        state.agenda.append(DimEqual(var, dim, constraint.origin))
        return var

    return tuple(map(opened, dims))


def solution_causes(state: SolverState, constraint: RowEquation | RowBelow) -> list[Constraint]:
    """Return the causes of the solutions in the rows of a constraint."""
    return [cause for row in sides(constraint) for cause in state.causes(row)]
