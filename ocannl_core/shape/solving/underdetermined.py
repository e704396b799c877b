"""Refusal of guesses on the shapes of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.graphs import reachable
from ocannl_core.shape.language.shape_terms import DimVar, RowKind, RowVar
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.contradictions import refuse_contradictions
from ocannl_core.shape.solving.state import LeafTensor, SolverState


class _Unknown(NamedTuple):
    """An undetermined part of a parameter's shape."""

    leaf: LeafTensor
    part: str


def refuse_guesses(state: SolverState, rows: Iterable[RowVar], dims: Iterable[DimVar]) -> None:
    """Refuse guesses about parameters.

    A row may be guessed if it is only aligned axis by axis with others, or is above a closed
    operand. A size may be guessed if it, or a result of it, is above an operand of size 1: in
    `param("w") @ x + b` with a `b` of size 1, the user states the size of the sum. The 1 of a
    reduced axis is no such statement: in `param("w") @ x - mean`, the size is underdetermined.

    Raises:
        ShapeError: naming every parameter concerned, and the way to state the shape of the first;
            or the contradictory equations.
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


def may_be_guessed(state: SolverState, dim: DimVar) -> bool:
    """Return True unless a size belongs to a parameter and no operand suggests that it is 1."""
    leaf = state.dim_leaves.get(state.find(dim))
    return not (leaf and leaf.parameter) or _has_unit(state, state.find(dim))


def refuse_default_size(state: SolverState, dim: DimVar) -> None:
    """Refuse a size of a leaf that follows from no use.

    Raises:
        ShapeError: if the size belongs to a leaf, and no operand suggests that it is 1.
    """
    leaf = state.dim_leaves.get(state.find(dim))
    if leaf is not None and not (leaf.parameter and _has_unit(state, state.find(dim))):
        raise _is_open(leaf, f"the size of its {axis_name(state, leaf, dim)}")


def refuse_scalar(state: SolverState, leaf: LeafTensor) -> None:
    """Refuse a leaf that has no axes because no use says that it has some.

    Raises:
        ShapeError: if it has none.
    """
    if not any(state.flat(row).known for _, row in leaf.shape.rows()):
        raise _is_open(leaf, f"its {leaf.kind.value} axes")


def _is_open(leaf: LeafTensor, part: str) -> ShapeError:
    return ShapeError(
        "A shape is determined when no default is taken for it.",
        found=f"{leaf.origin.operation}: {part} can be anything",
        where=leaf.origin.place,
        fix=f"state it where the tensor is made: {leaf.kind.value}=[...]",
    )


def _has_unit(state: SolverState, dim: DimVar) -> bool:
    """Return True if the size, or one below it, has a stated operand of size 1."""
    below = reachable([dim], lambda var: map(state.find, state.results.get(var, ())))
    units = (state.units.get(var) for var in below)
    return any(unit is not None and unit.stated for unit in units)


def _importance(key: tuple[int, RowKind]) -> tuple[bool, int, str]:
    order, kind = key
    return kind is not RowKind.OUTPUT, order, kind.value


def axis_name(state: SolverState, leaf: LeafTensor, dim: DimVar) -> str:
    """Return the name in errors of the axis of a leaf with a given size.

    output axis -1
    """
    flat = state.flat(leaf.row)
    for axis, other in enumerate(reversed(flat.trailing), start=1):
        if isinstance(other, DimVar) and state.find(other) == dim:
            return f"{leaf.kind.value} axis -{axis}"
    return f"{leaf.kind.value} axis"


def parameter_text(leaf: LeafTensor) -> str:
    """Return where the axes of a parameter are stated.

    oc.param("w", output=[...])
    """
    name, _, block = leaf.origin.operation.removeprefix("parameter ").partition(" of ")
    if block:
        return f"an argument of {block}"
    return f'oc.param("{name}", {leaf.kind.value}=[...])'


def _forgotten(unknown: list[_Unknown]) -> ShapeError:
    first = unknown[0].leaf
    return ShapeError(
        "You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.",
        found="\n".join(
            f"{leaf.origin.operation}: {part} can be anything" for leaf, part in unknown
        ),
        where="\n".join(dict.fromkeys(leaf.origin.place for leaf, _ in unknown)),
        fix=f"give it where the parameter is made: {parameter_text(first)}",
    )
