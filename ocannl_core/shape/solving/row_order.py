"""Solver of refinements of rows.

Rows are compared from the right. A result is lengthened if an operand has more known axes. The
variable of an operand stays open until the rows below it are known, because it may be any part of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.shape.language.constraints import DimBelow, DimEqual, NamedAxis, RowBelow, RowEqual
from ocannl_core.shape.language.shape_terms import Dim, Row, RowVar, Size
from ocannl_core.shape.solving import ranks, rows
from ocannl_core.shape.solving.messages import position_is_missing, self_reference, too_many_axes
from ocannl_core.shape.solving.state import SolverState

_EMPTY = Row()


def refine(state: SolverState, constraint: RowBelow) -> None:
    """Solve `res ⊑ opnd`.

    Raises:
        ShapeError: if the result cannot have as many axes as the operand.
    """
    res, opnd = constraint.res, constraint.opnd
    if res.tail in state.rows:
        res = state.flat(res)
    if opnd.tail in state.rows:
        opnd = state.flat(opnd)
    if opnd.tail is None and not opnd.trailing and not any(constraint.named):
        if res.tail is not None:
            state.anchor(res.tail)
        return
    missing = opnd.known - res.known
    if res.tail is None and missing > 0:
        _refine_scalar(state, res, opnd, constraint)
        return
    if constraint.named.leading:
        _match_names(state, res, opnd, constraint)
        return
    if res.tail is not None and res.tail == opnd.tail:
        _refine_itself(state, res, opnd, constraint)
        return
    if res.tail is not None and missing > 0:
        if _may_be_scalars(state, res, opnd, constraint):
            _postpone(state, replace(constraint, res=res, opnd=opnd, skipped=0))
            return
        if opnd.tail is not None:
            ranks.record(state, res.tail, opnd.tail, missing, constraint)
        dims = _added_axes(state, res, opnd, missing)
        res = Row(res.leading, rows.extend(state, res.tail, dims, constraint), dims + res.trailing)
    if res.leading and res.tail is not None:
        _name_right_end(state, res, opnd.known, constraint)
    paired = min(len(res.trailing), len(opnd.trailing))
    if paired:
        _refine_axes(state, res.trailing, opnd.trailing, constraint)
        res = Row(res.leading, res.tail, res.trailing[: len(res.trailing) - paired])
        opnd = Row(opnd.leading, opnd.tail, opnd.trailing[: len(opnd.trailing) - paired])
    _refine_rest(state, res, opnd, constraint, paired)


def _added_axes(state: SolverState, res: Row, opnd: Row, number: int) -> tuple[Dim, ...]:
    """Return new axes of a result. An axis of the operand whose size is known and not 1 is shared,
    since the result cannot have another size; in place of other axes there are fresh variables.
    """
    if res.leading or opnd.leading:
        return state.fresh.dims(number)
    dims = opnd.trailing[:number]
    return tuple([dim if state.is_never_broadcast(dim) else state.fresh.dim() for dim in dims])


def _may_be_scalars(state: SolverState, res: Row, opnd: Row, constraint: RowBelow) -> bool:
    """Return True while an empty result is compatible with an operand that may be a single 1."""
    others = constraint.skipped + constraint.ahead
    if state.scalars_are_decided or res.known + others or opnd.known != 1:
        return False
    (dim,) = (*opnd.leading, *opnd.trailing)
    return state.may_be_one(dim)


def _postpone(state: SolverState, constraint: RowBelow) -> None:
    """Suspend the constraint until the result's row, the operand's size, or closing decides it."""
    if constraint not in state.scalars:
        state.undo_log.put(state.scalars, constraint, None)
    state.suspend(constraint)


def decide_scalars(state: SolverState, among: Iterable[RowVar]) -> None:
    """Give rows that may be scalars the axes of their operands."""
    state.scalars_are_decided = True
    for var in among if state.scalars else ():
        for constraint in state.suspended.get(var, ()):
            if not isinstance(constraint, RowBelow) or constraint.res.tail != var:
                continue
            if constraint.opnd.known == 1 and constraint in state.scalars:
                state.agenda.append(constraint)


def _refine_rest(
    state: SolverState, res: Row, opnd: Row, constraint: RowBelow, paired: int
) -> None:
    """Solve the rest of a refinement after pairing axes from the right."""
    skipped = constraint.skipped + paired
    named, rest = constraint.named, constraint
    if named.trailing and paired:
        named = NamedAxis(0, max(0, named.trailing - paired))
    if paired or res.tail != constraint.res.tail or opnd.tail != constraint.opnd.tail:
        rest = replace(constraint, res=res, opnd=opnd, skipped=skipped, named=named)
    if res.tail in state.equations or opnd.tail in state.equations:
        for one in rows.right_forms(state, res):
            for other in rows.right_forms(state, opnd):
                _refine_axes(state, one.trailing, other.trailing, rest)
    if opnd.tail is None:
        if named.trailing:
            _refuse_missing(state, res.trailing[-named.trailing :], constraint)
        if res.tail is not None:
            state.anchor(res.tail)
        if opnd.trailing:
            state.suspend(rest)
        return
    below, above = res.known, opnd.known
    if res.tail is None:
        if below == above and skipped + constraint.ahead + below > 0:
            _refine_axes(state, res.trailing, opnd.leading, rest)
            rows.solve(state, opnd.tail, _EMPTY, constraint)
            return
    else:
        ranks.record(state, res.tail, opnd.tail, above - below, constraint)
        if (
            below == above == 0
            and state.suspended.get(opnd.tail)
            and state.suspended.get(res.tail)
            and state.is_suspended(RowBelow(rest.opnd, rest.res, constraint.origin))
        ):
            state.agenda.append(RowEqual(rest.res, rest.opnd, constraint.origin, skipped))
            return
    state.suspend(rest)


def _refine_axes(
    state: SolverState, res: tuple[Dim, ...], opnd: tuple[Dim, ...], constraint: RowBelow
) -> None:
    """Pair axes from the right, up to the shorter side."""
    axis = -1 - constraint.skipped
    for below, above in zip(reversed(res), reversed(opnd), strict=False):
        if below is not above:
            _compare(state, below, above, constraint, axis)
        axis -= 1


def _compare(state: SolverState, res: Dim, opnd: Dim, constraint: RowBelow, axis: int) -> None:
    """Relate two axes; one that is indexed at a position is not broadcast."""
    relation = DimEqual if res in state.addressed else DimBelow
    state.agenda.append(relation(res, opnd, constraint.origin, axis))


def _refuse_missing(state: SolverState, missing: tuple[Dim, ...], constraint: RowBelow) -> None:
    """Refuse an operand without axes at which positions are read."""
    if any(dim in state.addressed for dim in missing):
        operand = state.flat(constraint.opnd)
        wanted = operand.known + len(missing)
        causes = rows.solution_causes(state, constraint)
        raise position_is_missing(state.current_row(operand), wanted, constraint, causes)


def _refine_scalar(state: SolverState, res: Row, opnd: Row, constraint: RowBelow) -> None:
    """Accept an operand of one axis of size 1 for an empty result: both are scalars."""
    dim, *further = (*opnd.leading, *opnd.trailing)
    size = state.size(dim)
    is_empty = not res.known + constraint.skipped + constraint.ahead
    if not is_empty or further or (size is not None and size.n != 1):
        raise too_many_axes(
            state.current_row(res),
            state.current_row(opnd),
            constraint,
            rows.solution_causes(state, constraint),
        )
    state.agenda.append(DimEqual(dim, Size(1), constraint.origin, -1))
    if opnd.tail is not None:
        rows.solve(state, opnd.tail, _EMPTY, constraint)


def _refine_itself(state: SolverState, res: Row, opnd: Row, constraint: RowBelow) -> None:
    others = constraint.skipped + constraint.ahead
    if res.tail and not res.known + others and opnd.known == 1 and state.may_be_one(*opnd.dims):
        rows.solve(state, res.tail, _EMPTY, constraint)  # both sides are scalars
        state.agenda.append(constraint)
        return
    if res.known < opnd.known:
        found = f"{res} has at least the axes of {opnd}"
        raise self_reference(constraint, found, rows.solution_causes(state, constraint))
    if res.known == opnd.known and len(res.leading) == len(opnd.leading):
        _refine_axes(state, res.trailing, opnd.trailing, constraint)
        for position, (below, above) in enumerate(zip(res.leading, opnd.leading, strict=True)):
            state.agenda.append(DimBelow(below, above, constraint.origin, position))
    else:
        _refine_axes(state, res.trailing, opnd.trailing, constraint)
        state.suspend(replace(constraint, res=res, opnd=opnd))


def _name_right_end(state: SolverState, res: Row, number: int, constraint: RowBelow) -> None:
    """Name as many axes at the right end of a result as are to be compared.

    Leading axes may be among them.

    (a, v) below (c)  -->  (a, v) = (w, d) is kept, so that d below c
    """
    form = max(rows.right_forms(state, res), key=lambda each: len(each.trailing))
    unnamed = min(number - len(form.trailing), len(form.leading))
    if unnamed <= 0 or form.tail is None:
        return
    tail, dims = state.fresh.row(form.tail.name), state.fresh.dims(unnamed)
    ranks.record_part(state, tail, form.tail, 0)
    ahead = form.leading[len(form.leading) - unnamed :]
    rows.keep_crossing(state, Row(ahead, form.tail), Row((), tail, dims), constraint)


def pairs(state: SolverState, constraint: RowBelow) -> Iterator[tuple[int, Dim, Dim]]:
    """Yield the pairs of axes of closed rows: position, axis of the result, axis of the operand.

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


def _match_names(state: SolverState, res: Row, opnd: Row, constraint: RowBelow) -> None:
    """Solve `res ⊑ opnd` where a spec names axes before the row variable.

    The names belong to the first axes of the operand if it has at least as many axes as there are
    names; else they are matched from the right. The constraint waits until this is known.
    """
    first, last = constraint.named
    ahead, behind = _left_axes(res)[:first], res.trailing[len(res.trailing) - last :]
    middle = _without_ends(res, first, last)
    assert middle is not None
    for form in rows.right_forms(state, opnd):
        _refine_axes(state, behind, form.trailing, constraint)
    if opnd.known >= first + last:
        for form in rows.left_forms(state, opnd):
            for axis, (below, above) in enumerate(zip(ahead, _left_axes(form), strict=False)):
                _compare(state, below, above, constraint, axis)
        inner = _without_ends(opnd, first, last)
        if inner is not None:
            skipped, left = constraint.skipped + last, constraint.ahead + first
            inside = RowBelow(middle, inner, constraint.origin, skipped=skipped, ahead=left)
            state.agenda.append(inside)
            return
    elif opnd.tail is None:
        _refuse_missing(state, (ahead + behind)[: first + last - opnd.known], constraint)
        _refine_axes(state, ahead + behind, opnd.trailing, constraint)
        if middle.tail is not None:
            state.anchor(middle.tail)
        return
    _wait_for_names(state, res, opnd, constraint)


def _wait_for_names(state: SolverState, res: Row, opnd: Row, constraint: RowBelow) -> None:
    """Suspend a constraint until the named axes of the operand are known."""
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
        named=NamedAxis(first, last - paired),
    )
    state.suspend(kept)


def _left_axes(row: Row) -> tuple[Dim, ...]:
    return row.leading if row.tail is not None else row.trailing


def _without_ends(row: Row, first: int, last: int) -> Row | None:
    """Return a row without its outer axes; None if these are unknown."""
    if row.tail is None:
        return Row(trailing=row.trailing[first : len(row.trailing) - last])
    if len(row.leading) < first or len(row.trailing) < last:
        return None
    return Row(row.leading[first:], row.tail, row.trailing[: len(row.trailing) - last])
