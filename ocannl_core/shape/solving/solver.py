"""Driver of the solver: a worklist of constraints."""

from __future__ import annotations

from typing import assert_never

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.language import constraints
from ocannl_core.shape.solving import (
    counts,
    dims,
    row_equations,
    row_order,
    selections,
    subscripted_rows,
    underdetermined,
)
from ocannl_core.shape.solving.messages import out_of_steps
from ocannl_core.shape.solving.state import Edge, SolverState, Work

_STEPS_PER_CONSTRAINT = 2_000
_STEPS_AT_LEAST = 100_000


def run(state: SolverState) -> None:
    """Run the solver until the agenda is empty.

    Raises:
        ShapeError: if the constraints contradict each other, or the budget is exceeded.
    """
    agenda = state.agenda
    known = len(state.suspended) + len(state.operands) + len(state.formulas) + len(agenda)
    budget = _STEPS_AT_LEAST + _STEPS_PER_CONSTRAINT * known
    steps = 0
    while agenda:
        work = agenda.popleft()
        if state.queued:
            state.queued.pop(work, None)
        steps += 1
        if steps > budget:
            raise out_of_steps(steps, work.cause if isinstance(work, Edge) else work)
        try:
            step(state, work)
        except ShapeError as error:
            raise underdetermined.add_guess_notes(state, work, error) from None


def step(state: SolverState, work: Work) -> None:
    """Solve one item of the agenda, which may add others."""
    match work:
        case constraints.RowBelow():  # the most frequent ones come first
            row_order.refine(state, work)
        case Edge():
            dims.propagate(state, work)
        case constraints.DimBelow():
            dims.refine(state, work)
        case constraints.DimEqual():
            dims.equate(state, work)
        case constraints.AtLeast():
            dims.at_least(state, work)
        case constraints.RowEqual():
            row_equations.equate(state, work)
        case constraints.TotalElements():
            counts.solve_count(state, work)
        case constraints.Exact():
            counts.solve_exact(state, work)
        case constraints.ReverseEqual():
            row_equations.equate_reversed(state, work)
        case constraints.Selection():
            selections.solve_selection(state, work)
        case constraints.RowJoin():
            selections.solve_join(state, work)
        case constraints.SliceLength():
            subscripted_rows.solve_length(state, work)
        case constraints.Subscript():
            subscripted_rows.solve_subscript(state, work)
        case _:
            assert_never(work)
