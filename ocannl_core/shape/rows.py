"""Solving constraints on rows.

Rows are compared from the right. A result is made longer when an operand has more known axes; what
an operand's variable stands for is left open until the rows below it are known, because it may be
any part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ocannl_core.errors import VerifyError
from ocannl_core.records import replace
from ocannl_core.shape import ranks
from ocannl_core.shape.constraints import (
    Constraint,
    DimBelow,
    DimEqual,
    Named,
    RowBelow,
    RowEqual,
)
from ocannl_core.shape.messages import axes_differ, self_reference, too_many_axes
from ocannl_core.shape.state import Flat, State, sides
from ocannl_core.shape.terms import Dim, Row, RowVar, Size

_EMPTY = Row()


def solve(state: State, var: RowVar, row: Row, cause: Constraint) -> None:
    """Decides what a row variable stands for, and wakes what waits for it.

    A variable is decided once, in terms of another one that is not decided. So no variable ever
    stands for a row that it is part of, and substitution ends.

    Raises:
        VerifyError: if the variable is decided already, or what it shall stand for is not open.
    """
    journal = state.journal
    tail = row.tail
    if var in state.rows or tail == var or tail in state.rows:
        raise VerifyError(
            "A row variable is decided once, by axes and a variable that is not decided.",
            found=f"{var} stands for {row}",
            where=str(cause.origin),
        )
    journal.put(state.rows, var, row)
    journal.put(state.row_causes, var, cause)
    journal.put(state.decided_rows, var, row)
    if tail is not None:
        for marks in (state.anchored, state.contracted):
            if marks.get(var):
                journal.put(marks, tail, True)
        ranks.record(state, var, tail, len(row.dims), cause)
        ranks.record(state, tail, var, -len(row.dims), cause)
        state.touched_rows[tail] = None
    state.touched_dims.update(dict.fromkeys(state.undecided(row.dims)))
    if (leaf := state.row_leaves.get(var)) is not None:
        for dim in row.dims:
            state.mark_dim(dim, leaf)
        if tail is not None:
            state.mark_row(tail, leaf)
    state.wake(var)


def extend(
    state: State, var: RowVar, number: int, cause: Constraint
) -> tuple[RowVar, tuple[Dim, ...]]:
    """Gives a row variable further axes at its right end; returns the rest, and the axes."""
    tail, dims = state.fresh.row(var.name), state.fresh.dims(number)
    ranks.born_within(state, tail, var, number)
    solve(state, var, Row((), tail, dims), cause)
    ranks.check_growth(state, tail, cause)
    return tail, dims


# ----- equations ----------------------------------------------------------------------------------


def equate(state: State, constraint: RowEqual) -> None:
    """Makes two rows the same.

    Raises:
        ShapeError: if they cannot have the same number of axes.
    """
    left, right = state.flat(constraint.left), state.flat(constraint.right)
    if left.tail is None and right.tail is None:
        if left.known != right.known:
            raise axes_differ(
                _shown(state, left),
                _shown(state, right),
                constraint,
                _decided_by(state, constraint),
            )
        _equate_axes(state, left.trailing, right.trailing, constraint, from_right=True)
    elif left.tail == right.tail:
        _equate_to_itself(state, left, right, constraint)
    elif left.tail is None or right.tail is None:
        closed, opened = (left, right) if left.tail is None else (right, left)
        if opened.known > closed.known:
            raise axes_differ(
                _shown(state, left),
                _shown(state, right),
                constraint,
                _decided_by(state, constraint),
            )
        _solve_against(state, opened, closed, constraint)
    else:
        _equate_open(state, left, right, constraint)


def _equate_to_itself(state: State, left: Flat, right: Flat, constraint: RowEqual) -> None:
    if left.known != right.known:
        found = f"{_row(left)} = {_row(right)}"
        raise self_reference(constraint, found, _decided_by(state, constraint))
    if len(left.leading) < len(right.leading):
        left, right = right, left
    first, last = len(right.leading), len(left.trailing)
    cut = len(right.trailing) - last
    _equate_axes(state, left.leading[:first], right.leading, constraint, from_right=False)
    _equate_axes(state, left.trailing, right.trailing[cut:], constraint, from_right=True)
    if not cut:
        return
    _equate_ends(state, left, right, constraint)
    ahead = _with_causes(state, left.leading[first:], constraint)
    behind = _with_causes(state, right.trailing[:cut], constraint)
    kept = RowEqual(
        Row(ahead, left.tail),
        Row((), left.tail, behind),
        constraint.origin,
        constraint.skipped + last,
    )
    if not state.is_suspended(kept):
        state.suspend(kept)


def _equate_open(state: State, left: Flat, right: Flat, constraint: RowEqual) -> None:
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


def _equate_crossing(state: State, left: Flat, right: Flat, constraint: RowEqual) -> None:
    """Equates rows of which one has more leading axes, the other more trailing ones.

    The surplus of one end over the other lies in a variable; the rest may be the same axes or
    different ones, which stays open.

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
    _keep_crossing(state, Row(ahead, left_tail), Row((), right_tail, behind), constraint, skipped)


def _equate_ends(state: State, left: Flat, right: Flat, constraint: RowEqual) -> None:
    """Equate the axes that rows are known to begin and to end with, by other equations, too.

    (w, c) = (b, u) where (w, c) = (a, v)  -->  a = b
    """
    for one in _left_forms(state, left):
        for other in _left_forms(state, right):
            number = min(len(one.leading), len(other.leading))
            ends = one.leading[:number], other.leading[:number]
            _equate_axes(state, *ends, constraint, from_right=False)
    for one in _right_forms(state, left):
        for other in _right_forms(state, right):
            number = min(len(one.trailing), len(other.trailing))
            ends = one.trailing[-number:], other.trailing[-number:]
            if number:
                _equate_axes(state, *ends, constraint, from_right=True)


def _grow(
    state: State,
    var: RowVar,
    leading: tuple[Dim, ...],
    trailing: tuple[Dim, ...],
    constraint: RowEqual,
) -> RowVar:
    """Gives a row variable known axes at its ends; returns the variable between them."""
    tail = state.fresh.row(var.name)
    ranks.born_within(state, tail, var, len(leading) + len(trailing))
    solve(state, var, Row(leading, tail, trailing), constraint)
    ranks.check_growth(state, tail, constraint)
    return tail


def _busier(state: State, left: Flat, right: Flat) -> bool:
    def waiting(row: Flat) -> int:
        return len(state.suspended.get(row.tail, ())) if row.tail is not None else 0

    return waiting(left) > waiting(right)


def _solve_against(state: State, shorter: Flat, longer: Flat, constraint: RowEqual) -> None:
    """Equates rows; the variable of the shorter one stands for what the longer one has there."""
    assert shorter.tail is not None
    leading, tail, trailing = longer
    if tail is None:
        leading, trailing = trailing[: len(shorter.leading)], trailing[len(shorter.leading) :]
    cut, keep = len(shorter.leading), len(trailing) - len(shorter.trailing)
    _equate_axes(state, shorter.leading, leading[:cut], constraint, from_right=False)
    _equate_axes(state, shorter.trailing, trailing[keep:], constraint, from_right=True)
    ahead, behind = (
        _with_causes(state, dims, constraint) for dims in (leading[cut:], trailing[:keep])
    )
    solve(state, shorter.tail, Row(ahead, tail, behind), constraint)


def _with_causes(
    state: State, dims: tuple[Dim, ...], constraint: RowEqual | RowBelow
) -> tuple[Dim, ...]:
    """Return axes with variables for known sizes.

    They remember where the sizes come from, and another equation may still tell their bases.
    """

    def opened(dim: Dim) -> Dim:
        if not isinstance(dim, Size) or dim.basis is not None:
            return dim
        var = state.fresh.dim()
        state.agenda.append(DimEqual(var, dim, constraint.origin))
        return var

    return tuple(map(opened, dims))


def _equate_axes(
    state: State,
    left: tuple[Dim, ...],
    right: tuple[Dim, ...],
    constraint: RowEqual,
    *,
    from_right: bool,
) -> None:
    for position, (one, other) in enumerate(zip(left, right, strict=True)):
        axis = position - len(left) - constraint.skipped if from_right else position
        state.agenda.append(DimEqual(one, other, constraint.origin, axis))


# ----- inequalities -------------------------------------------------------------------------------


def refine(state: State, constraint: RowBelow) -> None:
    """Solves `res ⊑ opnd`.

    Raises:
        ShapeError: if the result cannot have as many axes as the operand.
    """
    res, opnd = state.flat(constraint.res), state.flat(constraint.opnd)
    if res.tail is None and res.known < opnd.known:
        _refine_scalar(state, res, opnd, constraint)
        return
    if constraint.named.leading:
        _match_names(state, res, opnd, constraint)
        return
    if res.tail is not None and res.tail == opnd.tail:
        _refine_itself(state, res, opnd, constraint)
        return
    if res.tail is not None and res.known < opnd.known:
        if _may_be_scalars(state, res, opnd, constraint):
            _postpone(state, replace(constraint, res=_row(res), opnd=_row(opnd), skipped=0))
            return
        missing = opnd.known - res.known
        if opnd.tail is not None:
            ranks.record(state, res.tail, opnd.tail, missing, constraint)
        tail, dims = extend(state, res.tail, missing, constraint)
        res = Flat(res.leading, tail, dims + res.trailing)
    _name_right_end(state, res, opnd.known, constraint)
    paired = min(len(res.trailing), len(opnd.trailing))
    _refine_axes(state, res.trailing, opnd.trailing, constraint)
    res = Flat(res.leading, res.tail, res.trailing[: len(res.trailing) - paired])
    opnd = Flat(opnd.leading, opnd.tail, opnd.trailing[: len(opnd.trailing) - paired])
    _refine_rest(state, res, opnd, constraint, paired)


def _may_be_scalars(state: State, res: Flat, opnd: Flat, constraint: RowBelow) -> bool:
    """True while a result without axes would do for an operand that may be a single 1."""
    others = constraint.skipped + constraint.ahead
    if state.scalars_are_decided or res.known + others or opnd.known != 1:
        return False
    (dim,) = (*opnd.leading, *opnd.trailing)
    return state.may_be_one(dim)


def _postpone(state: State, constraint: RowBelow) -> None:
    """Waits for the result's row, the operand's size, or closing: see `decide_scalars`."""
    if constraint not in state.scalars:
        state.journal.put(state.scalars, constraint, None)
    if not state.is_suspended(constraint):
        state.suspend(constraint)


def decide_scalars(state: State, among: Iterable[RowVar]) -> None:
    """Gives rows that may be scalars the axis that their operands have."""
    state.scalars_are_decided = True
    for var in among:
        for constraint in state.suspended.get(var, ()):
            if constraint in state.scalars and sides(constraint)[0].tail == var:
                state.agenda.append(constraint)


def _refine_rest(state: State, res: Flat, opnd: Flat, constraint: RowBelow, paired: int) -> None:
    """Handles what is left when no more axes can be paired from the right."""
    skipped = constraint.skipped + paired
    named = Named(0, max(0, constraint.named.trailing - paired))
    rest = replace(constraint, res=_row(res), opnd=_row(opnd), skipped=skipped, named=named)
    for below in _right_forms(state, res):
        for above in _right_forms(state, opnd):
            _refine_axes(state, below.trailing, above.trailing, rest)
    if opnd.tail is None:
        if res.tail is not None:
            state.anchor(res.tail)
        if opnd.trailing:
            state.suspend(rest)
        return
    if res.tail is None:
        if res.known == opnd.known and skipped + constraint.ahead + res.known > 0:
            _refine_axes(state, res.trailing, opnd.leading, rest)
            solve(state, opnd.tail, _EMPTY, constraint)
            return
    else:
        ranks.record(state, res.tail, opnd.tail, opnd.known - res.known, constraint)
        if (
            not res.known
            and not opnd.known
            and state.is_suspended(RowBelow(rest.opnd, rest.res, constraint.origin))
        ):
            state.agenda.append(RowEqual(rest.res, rest.opnd, constraint.origin, skipped))
            return
    if not state.is_suspended(rest):
        state.suspend(rest)


# ----- axes that a specification names ------------------------------------------------------------


def pairs(state: State, constraint: RowBelow) -> Iterator[tuple[int, Dim, Dim]]:
    """Yield the axes that meet in closed rows: position, result's axis, operand's axis.

    (i, v, v) below (a, b)  -->  (v, b), (v, a)
    (i, v, v) below (a, b), where i is named  -->  (v, b), (i, a)
    """
    first, last = constraint.named
    res, opnd = state.flat(constraint.res).trailing, state.flat(constraint.opnd).trailing
    if first and len(opnd) >= first + last:
        yield from zip(range(first), res, opnd, strict=False)
        res, opnd = res[first:], opnd[first:]
    elif first:
        res = res[:first] + res[len(res) - last :]
    for axis, (below, above) in enumerate(zip(reversed(res), reversed(opnd), strict=False)):
        yield -1 - axis, below, above


def _match_names(state: State, res: Flat, opnd: Flat, constraint: RowBelow) -> None:
    """Solve `res ⊑ opnd` where a specification names axes before the row variable.

    The first ones of the operand have these names if the operand has at least as many axes as
    there are names; else names are matched from the right. That is left open until it is known.
    """
    first, last = constraint.named
    ahead, behind = _front(res)[:first], res.trailing[len(res.trailing) - last :]
    middle = _without_ends(res, first, last)
    assert middle is not None
    for form in _right_forms(state, opnd):
        _refine_axes(state, behind, form.trailing, constraint)
    if opnd.known >= first + last:
        for form in _left_forms(state, opnd):
            for axis, (below, above) in enumerate(zip(ahead, _front(form), strict=False)):
                state.agenda.append(DimBelow(below, above, constraint.origin, axis))
        inner = _without_ends(opnd, first, last)
        if inner is not None:
            skipped, left = constraint.skipped + last, constraint.ahead + first
            inside = RowBelow(middle, inner, constraint.origin, skipped=skipped, ahead=left)
            state.agenda.append(inside)
            return
    elif opnd.tail is None:
        _refine_axes(state, ahead + behind, opnd.trailing, constraint)
        if middle.tail is not None:
            state.anchor(middle.tail)
        return
    _wait_for_names(state, res, opnd, constraint)


def _wait_for_names(state: State, res: Flat, opnd: Flat, constraint: RowBelow) -> None:
    """Keep a constraint until it is known which axes of the operand have the names."""
    assert opnd.tail is not None
    if res.tail is not None:
        ranks.record(state, res.tail, opnd.tail, opnd.known - res.known, constraint)
    first, last = constraint.named
    paired = min(last, len(opnd.trailing))
    kept = replace(
        constraint,
        res=Row(res.leading, res.tail, res.trailing[: len(res.trailing) - paired]),
        opnd=Row(opnd.leading, opnd.tail, opnd.trailing[: len(opnd.trailing) - paired]),
        skipped=constraint.skipped + paired,
        named=Named(first, last - paired),
    )
    if not state.is_suspended(kept):
        state.suspend(kept)


def _front(row: Flat) -> tuple[Dim, ...]:
    """Return the axes at the left end of a row."""
    return row.leading if row.tail is not None else row.trailing


def _without_ends(row: Flat, first: int, last: int) -> Row | None:
    """Return a row without its outer axes; None if it is not known which these are."""
    if row.tail is None:
        return Row(trailing=row.trailing[first : len(row.trailing) - last])
    if len(row.leading) < first or len(row.trailing) < last:
        return None
    return Row(row.leading[first:], row.tail, row.trailing[: len(row.trailing) - last])


# ----- rows known at either end -------------------------------------------------------------------


def _right_forms(state: State, row: Flat) -> Iterator[Flat]:
    """Yield a row, and the same row with more axes at its right end by equations of rows.

    (a, v) where (a, v) = (w, c)  -->  (a, v), (w, c)
    """
    return _forms(state, row, lambda each: each, frozenset())


def _left_forms(state: State, row: Flat) -> Iterator[Flat]:
    """Yield a row, and the same row with more axes at its left end by equations of rows.

    (w, c) where (a, v) = (w, c)  -->  (w, c), (a, v)
    """
    return map(_mirrored, _forms(state, _mirrored(row), _mirrored, frozenset()))


def _mirrored(row: Flat) -> Flat:
    return Flat(row.trailing[::-1], row.tail, row.leading[::-1])


def _forms(
    state: State, row: Flat, view: Callable[[Flat], Flat], seen: frozenset[RowVar]
) -> Iterator[Flat]:
    """Yield a row, and the same row with more axes at its right end by equations of rows, which
    are read through a function that may mirror them.
    """
    yield row
    if row.tail is None or row.tail in seen:
        return
    for constraint in state.suspended.get(row.tail, ()):
        if not isinstance(constraint, RowEqual):
            continue
        left, right = view(state.flat(constraint.left)), view(state.flat(constraint.right))
        for one, other in ((left, right), (right, left)):
            cut = len(row.leading) - len(one.leading)
            ahead = map(state.current, row.leading[max(cut, 0) :])
            is_end = one.tail == row.tail and not one.trailing and not other.leading and cut >= 0
            if is_end and other.trailing and tuple(ahead) == tuple(map(state.current, one.leading)):
                form = Flat(row.leading[:cut], other.tail, other.trailing + row.trailing)
                yield from _forms(state, form, view, seen | {row.tail})


def _name_right_end(state: State, res: Flat, number: int, constraint: RowBelow) -> None:
    """Gives as many axes at the right end of a result a name as it is to be compared with.

    Axes that are counted from the left may be among them.

    (a, v) below (c)  -->  (a, v) = (w, d) is kept, so that d below c
    """
    if not res.leading or res.tail is None:
        return
    form = max(_right_forms(state, res), key=lambda each: len(each.trailing))
    unnamed = min(number - len(form.trailing), len(form.leading))
    if unnamed <= 0 or form.tail is None:
        return
    tail, dims = state.fresh.row(form.tail.name), state.fresh.dims(unnamed)
    ranks.born_within(state, tail, form.tail, 0)
    ahead = form.leading[len(form.leading) - unnamed :]
    _keep_crossing(state, Row(ahead, form.tail), Row((), tail, dims), constraint)


def _keep_crossing(
    state: State, left: Row, right: Row, cause: RowEqual | RowBelow, skipped: int = 0
) -> None:
    """Keeps an equation of a row that begins with axes and one that ends with as many."""
    assert left.tail is not None
    assert right.tail is not None
    ranks.record(state, left.tail, right.tail, 0, cause)
    ranks.record(state, right.tail, left.tail, 0, cause)
    ahead = _with_causes(state, left.leading, cause)
    behind = _with_causes(state, right.trailing, cause)
    kept = RowEqual(Row(ahead, left.tail), Row((), right.tail, behind), cause.origin, skipped)
    if state.is_suspended(kept):
        return
    state.suspend(kept)
    for tail in (left.tail, right.tail):
        compared = state.suspended.get(tail, ())
        state.agenda.extend(each for each in compared if isinstance(each, RowBelow))


def _refine_axes(
    state: State, res: tuple[Dim, ...], opnd: tuple[Dim, ...], constraint: RowBelow
) -> None:
    """Pairs axes from the right, as far as both sides go."""
    axis = -1 - constraint.skipped
    for below, above in zip(reversed(res), reversed(opnd), strict=False):
        state.agenda.append(DimBelow(below, above, constraint.origin, axis))
        axis -= 1


def _refine_scalar(state: State, res: Flat, opnd: Flat, constraint: RowBelow) -> None:
    """An empty result takes an operand of one axis of size 1: both are scalars.

    Raises:
        ShapeError: if the result is not empty, or the operand has more axes.
    """
    if res.known + constraint.skipped + constraint.ahead or opnd.known != 1:
        raise too_many_axes(
            _shown(state, res), _shown(state, opnd), constraint, _decided_by(state, constraint)
        )
    (dim,) = (*opnd.leading, *opnd.trailing)
    size = state.size(dim)
    if size is not None and size.n != 1:
        raise too_many_axes(
            _shown(state, res), _shown(state, opnd), constraint, _decided_by(state, constraint)
        )
    state.agenda.append(DimEqual(dim, Size(1), constraint.origin, -1))
    if opnd.tail is not None:
        solve(state, opnd.tail, _EMPTY, constraint)


def _refine_itself(state: State, res: Flat, opnd: Flat, constraint: RowBelow) -> None:
    if res.known < opnd.known:
        found = f"{_row(res)} has at least the axes of {_row(opnd)}"
        raise self_reference(constraint, found, _decided_by(state, constraint))
    if res.known == opnd.known and len(res.leading) == len(opnd.leading):
        _refine_axes(state, res.trailing, opnd.trailing, constraint)
        for position, (below, above) in enumerate(zip(res.leading, opnd.leading, strict=True)):
            state.agenda.append(DimBelow(below, above, constraint.origin, position))
    else:
        state.suspend(replace(constraint, res=_row(res), opnd=_row(opnd)))


def _decided_by(state: State, constraint: RowEqual | RowBelow) -> list[Constraint]:
    """Returns what gave the rows of a constraint the axes that they have."""
    return [cause for row in sides(constraint) for cause in state.causes(row)]


def _shown(state: State, flat: Flat) -> Row:
    """Returns the row with the sizes that are known."""
    leading, trailing = (tuple(map(state.current, dims)) for dims in (flat.leading, flat.trailing))
    return Row(leading, flat.tail, trailing)


def _row(flat: Flat) -> Row:
    return Row(*flat)
