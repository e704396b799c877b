"""Closing of subscripted rows: the numbers of axes that keys count."""

from __future__ import annotations

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.closing.closing_state import Closing
from ocannl_core.shape.language.constraints import RowEqual, Subscript
from ocannl_core.shape.language.shape_terms import Row, RowKind
from ocannl_core.shape.language.subscripts import Blocked, Position
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.solving.subscripted_rows import addressed
from ocannl_core.shape.solving.underdetermined import parameter_text, refuse_guesses


def close_subscripted_rows(closing: Closing) -> None:
    """Stage 2: decide the rows that keys address, operands before results of subscripts.

    A result takes the axes of its operands. A leaf takes the axes of its other uses; without any it
    has the stated axes alone. Positions in a tensor about which nothing is known are on its
    leftmost batch axes.
    """
    while pending := _pending(closing):
        results = {row.tail for each in pending for _, row in each.result.rows()}
        ready = [
            each
            for each in pending
            if all(row.tail not in results for _, row in each.operand.rows() if row.tail)
        ]
        _decide(closing, (ready or pending)[0])


def _pending(closing: Closing) -> list[Subscript]:
    suspended = closing.state.suspended
    found = [each for var in closing.open_rows() for each in suspended.get(var, ())]
    return list(dict.fromkeys([each for each in found if isinstance(each, Subscript)]))


def _decide(closing: Closing, constraint: Subscript) -> None:
    """Decide the row for which a subscript waits, or rows that it depends on."""
    state = closing.state
    found = addressed(state, constraint)
    assert isinstance(found, Blocked), "a subscript waits only for a row"
    row = constraint.operand.row(found.kind)
    tail = state.flat(row).tail
    assert tail is not None
    if _is_about_unknown(state, constraint):
        axes = Row(state.fresh.dims(len(constraint.keys)), state.fresh.row())
        closing.add_constraints([RowEqual(axes, row, constraint.origin)])
    elif ranks.is_anchored(state, tail):
        together = ranks.group(state, tail)
        number = ranks.missing_between(state, together)
        closing.decide_rows(dict.fromkeys(together, number), _STAGE)
    else:
        reached = ranks.reachable_rows(state, [tail])
        leaves = [var for var in reached if ranks.leaf_of(state, var)] or [tail]
        bounds = {**ranks.known_axes(state, leaves), **ranks.upper_bounds(state, leaves)}
        unknown = [var for var in leaves if var not in bounds]
        refuse_guesses(state, unknown, ())
        if tail in unknown:
            _refuse_contracted(state, constraint, found.kind)
        closing.decide_rows({var: bounds.get(var, 0) for var in leaves}, _STAGE)


_STAGE = "subscripted rows"


def _refuse_contracted(state: SolverState, constraint: Subscript, kind: RowKind) -> None:
    """Refuse to guess the row of a subscripted parameter along which the part is contracted."""
    leaf = ranks.leaf_of(state, tail) if (tail := constraint.operand.row(kind).tail) else None
    part = state.flat(constraint.result.row(kind)).tail
    if leaf is None or not leaf.parameter or part is None or not ranks.is_contracted(state, part):
        return
    raise ShapeError(
        "Keys address axes by number, so the axes of a subscripted parameter are stated.",
        found=f"{leaf.origin.operation}: its {kind.value} axes can be anything",
        where=f"{constraint.origin}\n{leaf.origin}",
        fix=f"give them where the parameter is made: {parameter_text(leaf)}",
    )


def _is_about_unknown(state: SolverState, constraint: Subscript) -> bool:
    """Return True for positions in a tensor of which no axis is known."""
    return all(isinstance(key, Position) for key in constraint.keys) and not any(
        flat.known or (flat.tail is not None and ranks.is_anchored(state, flat.tail))
        for flat in (state.flat(row) for _, row in constraint.operand.rows())
    )
