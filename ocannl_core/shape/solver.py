"""Working off the agenda: from constraints to everything that they imply."""

from __future__ import annotations

from typing import assert_never

from ocannl_core.errors import ShapeError
from ocannl_core.shape import counts, dims, guesses, row_equations, row_order
from ocannl_core.shape.constraints import (
    AtLeast,
    DimBelow,
    DimEqual,
    Exact,
    ReverseEqual,
    RowBelow,
    RowEqual,
    TotalElements,
)
from ocannl_core.shape.messages import out_of_steps
from ocannl_core.shape.state import Edge, State, Work

_STEPS_PER_CONSTRAINT = 2_000
_STEPS_AT_LEAST = 100_000


def run(state: State, budget: int | None = None) -> None:
    """Work until the agenda is empty.

    Args:
        state: What is known; new knowledge goes there.
        budget: The number of steps after which inference is given up.

    Raises:
        ShapeError: if the constraints contradict each other, or the budget is spent.
    """
    agenda = state.agenda
    if budget is None:
        known = len(state.suspended) + len(state.operands) + len(state.formulas) + len(agenda)
        budget = _STEPS_AT_LEAST + _STEPS_PER_CONSTRAINT * known
    steps = 0
    while agenda:
        work = agenda.popleft()
        steps += 1
        if steps > budget:
            raise out_of_steps(steps, work.cause if isinstance(work, Edge) else work)
        try:
            step(state, work)
        except ShapeError as error:
            raise guesses.guess_messages(state, work, error) from None


def step(state: State, work: Work) -> None:
    """Do one piece of work, which may put more on the agenda."""
    match work:
        case Edge():
            dims.propagate(state, work)
        case DimBelow():
            dims.refine(state, work)
        case DimEqual():
            dims.equate(state, work)
        case AtLeast():
            dims.at_least(state, work)
        case RowBelow():
            row_order.refine(state, work)
        case RowEqual():
            row_equations.equate(state, work)
        case TotalElements():
            counts.total(state, work)
        case Exact():
            counts.exact(state, work)
        case ReverseEqual():
            counts.reverse(state, work)
        case _:
            assert_never(work)
