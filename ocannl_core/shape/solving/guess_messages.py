"""Error messages about guesses of earlier closings.

A guess is final. Later code that needs another size fails far away from the line that was closed.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.language.constraints import DimConstraint
from ocannl_core.shape.language.shape_terms import DimVar, RowVar
from ocannl_core.shape.solving.derivations import derivation, dims_of, row_derivation
from ocannl_core.shape.solving.state import Edge, Guessed, LeafTensor, SolverState, Work, sides
from ocannl_core.shape.solving.underdetermined import axis_name, parameter_text

_SHOWN = 2


def add_guess_notes(state: SolverState, work: Work, error: ShapeError) -> ShapeError:
    """Add the guesses of earlier closings on the sizes and rows concerned to an error.

    Args:
        work: The constraint that failed.
    """
    guesses = list(_earlier(state, work))[:_SHOWN]
    notes = dict.fromkeys(_note(state, var, guess) for var, guess in guesses)
    advice = dict.fromkeys(_advice(state, var, guess) for var, guess in guesses)
    if not guesses:
        return error
    return ShapeError(
        error.rule,
        found="\n".join([error.found, *notes]),
        where=error.where,
        fix=";\n".join([error.fix, *advice]),
    )


def _earlier(state: SolverState, work: Work) -> Iterator[tuple[DimVar | RowVar, Guessed]]:
    found: dict[DimVar | RowVar, None] = {}
    if not isinstance(work, Edge | DimConstraint):
        for row in sides(work):
            found.update(dict.fromkeys(row_derivation(state, row)[1]))
    for dim in (work.res, work.opnd) if isinstance(work, Edge) else dims_of(work):
        found.update(dict.fromkeys(derivation(state, dim)[1]))
    for var in found:
        if (guess := state.guesses[var]).closing is not state.closing:
            yield var, guess


def _note(state: SolverState, var: DimVar | RowVar, guess: Guessed) -> str:
    line = f" at {guess.closing.location}" if guess.closing.location else ""
    return (
        f"{_subject(state, var)} was guessed, because nothing determined it,\n"
        f"when {guess.closing.operation} was closed{line}"
    )


def _subject(state: SolverState, var: DimVar | RowVar) -> str:
    """Return the subject of a guess.

    size 1 of output axis -1 of uniform
    """
    leaf = _leaf(state, var)
    if isinstance(var, DimVar):
        axis = f" of {axis_name(state, leaf, state.find(var))} of {_maker(leaf)}" if leaf else ""
        return f"size {state.size(var)}{axis}"
    if leaf:
        number = len(state.flat(leaf.row).trailing)
        return f"the number of {leaf.kind.value} axes of {_maker(leaf)}, {number},"
    decided = state.decided_rows.get(var)
    return f"the number of further axes, {decided[0].known}," if decided else "the number of axes"


def _advice(state: SolverState, var: DimVar | RowVar, guess: Guessed) -> str:
    leaf = _leaf(state, var)
    if leaf is None:
        return (
            f"or decide it before {guess.closing.operation} is closed: state the sizes,\n"
            "or apply the operation earlier"
        )
    if leaf.parameter:
        return f"or give it where the parameter is made: {parameter_text(leaf)}"
    return f"or give the {leaf.kind.value} axes of {_maker(leaf)} where it is made"


def _leaf(state: SolverState, var: DimVar | RowVar) -> LeafTensor | None:
    if isinstance(var, RowVar):
        return state.row_leaves.get(var)
    return state.dim_leaves.get(state.find(var))


def _maker(leaf: LeafTensor) -> str:
    return leaf.origin.operation
