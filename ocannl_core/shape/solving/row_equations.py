"""Solver of equations of rows, which are compared from both ends."""

from __future__ import annotations

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.language.constraints import DimEqual, ReverseEqual, RowEqual
from ocannl_core.shape.language.shape_terms import Dim, Row, RowVar
from ocannl_core.shape.solving import ranks, rows
from ocannl_core.shape.solving.messages import axes_differ, self_reference
from ocannl_core.shape.solving.state import SolverState


def equate(state: SolverState, constraint: RowEqual) -> None:
    """Unify two rows.

    Raises:
        ShapeError: if they cannot have the same number of axes.
    """
    left, right = state.flat(constraint.left), state.flat(constraint.right)
    if left.tail is None and right.tail is None:
        if left.known != right.known:
            raise _axes_differ(state, constraint)
        _equate_axes(state, left.trailing, right.trailing, constraint, from_right=True)
    elif left.tail == right.tail:
        _equate_to_itself(state, left, right, constraint)
    elif left.tail is None or right.tail is None:
        closed, opened = (left, right) if left.tail is None else (right, left)
        if opened.known > closed.known:
            raise _axes_differ(state, constraint)
        _solve_against(state, opened, closed, constraint)
    else:
        _equate_open(state, left, right, constraint)


def equate_reversed(state: SolverState, constraint: ReverseEqual) -> None:
    """Equate a row with the reverse of another one: the known axes of one of them, and the mirror
    of its row variable, are those of the other.

    (a, v) reversed = w  -->  w = (u, a), and v reversed = u is kept
    """
    left, right = state.flat(constraint.left), state.flat(constraint.right)
    if _cost_of_mirror(state, right) < _cost_of_mirror(state, left):
        left, right = right, left
    if left.tail is not None and left.tail == right.tail and left.known != right.known:
        found = f"{left} reversed = {right}"
        raise self_reference(constraint, found, rows.solution_causes(state, constraint))
    tail = left.tail and _mirror_of(state, left.tail)
    if left.tail is not None and tail is None:
        if not left.known and not right.known:
            _keep_reversed(state, left, right, constraint)
            return
        tail = state.fresh.row(left.tail.name)
        ranks.record_part(state, tail, left.tail, 0)
        ranks.check_growth(state, tail, constraint)
        _keep_reversed(state, Row(tail=left.tail), Row(tail=tail), constraint)
    mirrored = Row(left.trailing[::-1], tail, left.leading[::-1])
    state.agenda.append(RowEqual(mirrored, right, constraint.origin))


def _cost_of_mirror(state: SolverState, row: Row) -> int:
    """Return a rank of rows to read in reverse order: first those that need no fresh variable, then
    those with known axes.
    """
    if row.tail is None or _mirror_of(state, row.tail) is not None:
        return 0
    return 1 if row.known else 2


def _mirror_of(state: SolverState, var: RowVar) -> RowVar | None:
    """Return the variable whose axes are those of another one in reverse order, if there is one."""
    for each in state.equations.get(var, ()):
        if isinstance(each, ReverseEqual):
            return each.right.tail if each.left.tail == var else each.left.tail
    return None


def _keep_reversed(state: SolverState, left: Row, right: Row, constraint: ReverseEqual) -> None:
    """Suspend a constraint on two row variables, which are equally long."""
    assert left.tail is not None
    assert right.tail is not None
    ranks.record(state, left.tail, right.tail, 0, constraint)
    ranks.record(state, right.tail, left.tail, 0, constraint)
    state.suspend(ReverseEqual(left, right, constraint.origin))


def _axes_differ(state: SolverState, constraint: RowEqual) -> ShapeError:
    left, right = map(state.current_row, (constraint.left, constraint.right))
    return axes_differ(left, right, constraint, rows.solution_causes(state, constraint))


def _equate_to_itself(state: SolverState, left: Row, right: Row, constraint: RowEqual) -> None:
    if left.known != right.known:
        found = f"{left} = {right}"
        raise self_reference(constraint, found, rows.solution_causes(state, constraint))
    if len(left.leading) < len(right.leading):
        left, right = right, left
    first, last = len(right.leading), len(left.trailing)
    cut = len(right.trailing) - last
    _equate_axes(state, left.leading[:first], right.leading, constraint, from_right=False)
    _equate_axes(state, left.trailing, right.trailing[cut:], constraint, from_right=True)
    if not cut:
        return
    _equate_ends(state, left, right, constraint)
    ahead = rows.with_causes(state, left.leading[first:], constraint)
    behind = rows.with_causes(state, right.trailing[:cut], constraint)
    kept = RowEqual(
        Row(ahead, left.tail),
        Row((), left.tail, behind),
        constraint.origin,
        constraint.skipped + last,
    )
    state.suspend(kept)


def _equate_open(state: SolverState, left: Row, right: Row, constraint: RowEqual) -> None:
    ahead = len(left.leading) - len(right.leading)
    behind = len(left.trailing) - len(right.trailing)
    if ahead >= 0 and behind >= 0 and (ahead or behind or _busier(state, left, right)):
        _solve_against(state, right, left, constraint)
    elif ahead <= 0 and behind <= 0:
        _solve_against(state, left, right, constraint)
    elif ahead > 0:
        _equate_crossing(state, left, right, constraint)
    else:
        _equate_crossing(state, right, left, constraint)


def _equate_crossing(state: SolverState, left: Row, right: Row, constraint: RowEqual) -> None:
    """Unify rows of which one has more leading and the other more trailing axes.

    A variable absorbs the surplus of one end over the other; the rest may overlap or not, which
    stays open.

    (a, b, v) = (w, c)  -->  w = (a, u), and (b, v) = (u, c) is kept
    """
    assert left.tail is not None
    assert right.tail is not None
    _equate_ends(state, left, right, constraint)
    first = len(right.leading)
    last = len(right.trailing) - len(left.trailing)
    ahead, behind = left.leading[first:], right.trailing[:last]
    _equate_axes(state, left.leading[:first], right.leading, constraint, from_right=False)
    _equate_axes(state, left.trailing, right.trailing[last:], constraint, from_right=True)
    surplus = len(ahead) - len(behind)
    left_tail, right_tail = left.tail, right.tail
    if surplus > 0:
        right_tail = _grow(state, right_tail, ahead[:surplus], (), constraint)
        ahead = ahead[surplus:]
    elif surplus < 0:
        left_tail = _grow(state, left_tail, (), behind[surplus:], constraint)
        behind = behind[:surplus]
    skipped = constraint.skipped + len(left.trailing) + max(0, -surplus)
    rows.keep_crossing(
        state, Row(ahead, left_tail), Row((), right_tail, behind), constraint, skipped
    )


def _equate_ends(state: SolverState, left: Row, right: Row, constraint: RowEqual) -> None:
    """Unify the known axes at the ends of rows, including axes from other equations.

    (w, c) = (b, u) where (w, c) = (a, v)  -->  a = b
    """
    for one in rows.left_forms(state, left):
        for other in rows.left_forms(state, right):
            number = min(len(one.leading), len(other.leading))
            ends = one.leading[:number], other.leading[:number]
            _equate_axes(state, *ends, constraint, from_right=False)
    for one in rows.right_forms(state, left):
        for other in rows.right_forms(state, right):
            number = min(len(one.trailing), len(other.trailing))
            ends = one.trailing[-number:], other.trailing[-number:]
            if number:
                _equate_axes(state, *ends, constraint, from_right=True)


def _grow(
    state: SolverState,
    var: RowVar,
    leading: tuple[Dim, ...],
    trailing: tuple[Dim, ...],
    constraint: RowEqual,
) -> RowVar:
    """Add known axes to the ends of a row variable; return the variable between them."""
    tail = state.fresh.row(var.name)
    ranks.record_part(state, tail, var, len(leading) + len(trailing))
    rows.solve(state, var, Row(leading, tail, trailing), constraint, is_split=True)
    ranks.check_growth(state, tail, constraint)
    return tail


def _busier(state: SolverState, left: Row, right: Row) -> bool:
    def waiting(row: Row) -> int:
        return len(state.suspended.get(row.tail, ())) if row.tail is not None else 0

    return waiting(left) > waiting(right)


def _solve_against(state: SolverState, shorter: Row, longer: Row, constraint: RowEqual) -> None:
    """Unify rows; the variable of the shorter one takes the surplus of the longer one."""
    assert shorter.tail is not None
    leading, tail, trailing = longer.leading, longer.tail, longer.trailing
    if tail is None:
        leading, trailing = trailing[: len(shorter.leading)], trailing[len(shorter.leading) :]
    cut, keep = len(shorter.leading), len(trailing) - len(shorter.trailing)
    _equate_axes(state, shorter.leading, leading[:cut], constraint, from_right=False)
    _equate_axes(state, shorter.trailing, trailing[keep:], constraint, from_right=True)
    ahead, behind = (
        rows.with_causes(state, dims, constraint) for dims in (leading[cut:], trailing[:keep])
    )
    rows.solve(state, shorter.tail, Row(ahead, tail, behind), constraint)


def _equate_axes(
    state: SolverState,
    left: tuple[Dim, ...],
    right: tuple[Dim, ...],
    constraint: RowEqual,
    *,
    from_right: bool,
) -> None:
    for position, (one, other) in enumerate(zip(left, right, strict=True)):
        axis = position - len(left) - constraint.skipped if from_right else position
        state.agenda.append(DimEqual(one, other, constraint.origin, axis))
