"""Parameters whose shape would have to be guessed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ocannl_core.errors import ShapeError
from ocannl_core.shape import ranks
from ocannl_core.shape.contradictions import refuse_contradictions
from ocannl_core.shape.state import LeafTensor, State
from ocannl_core.shape.terms import DimVar, RowKind, RowVar


class _Unknown(NamedTuple):
    """A part of a parameter's shape that nothing fixes."""

    leaf: LeafTensor
    part: str


def refuse_guesses(state: State, rows: Iterable[RowVar], dims: Iterable[DimVar]) -> None:
    """Refuse guesses about parameters.

    A row is fit for guessing when it only meets others axis by axis, or lies above a closed
    operand. A size is, when it or a result that uses it lies above an operand of size 1: in
    `param("w") @ x + b` with a `b` of size 1, the 1 is the user's word for the size of the sum. The
    1 of a reduced axis is nobody's word: in `param("w") @ x - mean`, the size stays hidden.

    Raises:
        ShapeError: naming every parameter concerned, and how to give the first one's shape; or
            the equations that no shape satisfies.
    """
    found: dict[tuple[int, RowKind], _Unknown] = {}
    open_rows = list(rows)
    for var in open_rows:
        leaf = ranks.leaf_of(state, var)
        if leaf is None or not leaf.parameter or ranks.is_anchored(state, var):
            continue
        if ranks.is_contracted(state, var):
            found[leaf.order, leaf.kind] = _Unknown(leaf, f"its {leaf.kind.value} axes")
    for dim in dims:
        if not may_be_guessed(state, dim):
            leaf = state.dim_leaves[state.find(dim)]
            part = f"the size of its {axis_name(state, leaf, dim)}"
            found[leaf.order, leaf.kind] = _Unknown(leaf, part)
    if found:
        refuse_contradictions(state, open_rows)
        raise _forgotten([found[key] for key in sorted(found, key=_importance)])


def may_be_guessed(state: State, dim: DimVar) -> bool:
    """True unless a size belongs to a parameter and nothing suggests that it is 1."""
    leaf = state.dim_leaves.get(state.find(dim))
    return not (leaf and leaf.parameter) or _has_unit(state, state.find(dim))


def _has_unit(state: State, dim: DimVar) -> bool:
    """Return True if the size, or one below it, has an operand of size 1 that somebody stated."""
    seen = {dim}
    pending = [dim]
    while pending:
        var = pending.pop()
        unit = state.units.get(var)
        if unit is not None and unit.stated:
            return True
        below = {state.find(result) for result in state.results.get(var, ())} - seen
        seen |= below
        pending += below
    return False


def _importance(key: tuple[int, RowKind]) -> tuple[bool, int, str]:
    order, kind = key
    return kind is not RowKind.OUTPUT, order, kind.value


def axis_name(state: State, leaf: LeafTensor, dim: DimVar) -> str:
    """Return what errors call the axis of a leaf that has the size of a representative.

    output axis -1
    """
    flat = state.flat(leaf.row)
    for axis, other in enumerate(reversed(flat.trailing), start=1):
        if isinstance(other, DimVar) and state.find(other) == dim:
            return f"{leaf.kind.value} axis -{axis}"
    return f"{leaf.kind.value} axis"


def parameter_text(leaf: LeafTensor) -> str:
    """Return how to make a parameter with stated axes.

    oc.param("w", output=[...])
    """
    name = leaf.origin.operation.removeprefix("parameter ")
    return f'oc.param("{name}", {leaf.kind.value}=[...])'


def _forgotten(unknown: list[_Unknown]) -> ShapeError:
    first = unknown[0].leaf
    return ShapeError(
        "You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.",
        found="\n".join(
            f"{leaf.origin.operation}: {part} can be anything" for leaf, part in unknown
        ),
        where="\n".join(dict.fromkeys(str(leaf.origin) for leaf, _ in unknown)),
        fix=f"give it where the parameter is made: {parameter_text(first)}",
    )
