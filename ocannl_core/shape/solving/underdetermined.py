"""Guesses: refusals of those on the shapes of parameters, and errors about earlier ones.

A guess is final. Later code that needs another size fails far away from the line that was closed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.graphs import reachable
from ocannl_core.shape.language.constraints import Constraint, DimConstraint, RowEqual
from ocannl_core.shape.language.shape_terms import DimVar, Row, RowKind, RowVar, Size
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.derivations import derivation, dims_of, row_derivation
from ocannl_core.shape.solving.messages import place
from ocannl_core.shape.solving.state import Edge, Guessed, LeafTensor, SolverState, Work, sides


class _Unknown(NamedTuple):
    """An undetermined part of a parameter's shape."""

    leaf: LeafTensor
    part: str


def refuse_guesses(state: SolverState, rows: Iterable[RowVar], dims: Iterable[DimVar]) -> None:
    """Refuse guesses about parameters.

    A row may be guessed if it is only aligned axis by axis with others, or is above a closed
    operand. A size may be guessed if it, or a result of it, is above an operand of size 1: in
    `param("w") @ x + b` with a `b` of size 1, the user states the size of the sum. The 1 of a
    reduced axis is no such statement: in `param("w") @ x - mean`, the size is underdetermined. In
    `param("w") @ mean`, it is: the sizes of the inputs of `w` are those of its operand.

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
    return not (leaf and leaf.parameter) or _has_unit(state, leaf, state.find(dim))


def refuse_default_size(state: SolverState, dim: DimVar) -> None:
    """Refuse a size of a leaf that follows from no use.

    Raises:
        ShapeError: if the size belongs to a leaf, and no operand suggests that it is 1.
    """
    leaf = state.dim_leaves.get(state.find(dim))
    if leaf is not None and not (leaf.parameter and _has_unit(state, leaf, state.find(dim))):
        raise _is_open(leaf, f"the size of its {axis_name(state, leaf, dim)}")


def refuse_scalar(state: SolverState, leaf: LeafTensor) -> None:
    """Refuse a leaf that has no axes because no use says that it has some.

    Raises:
        ShapeError: if it has none.
    """
    if not ranks.has_stated_axes(state, leaf):
        raise _is_open(leaf, f"its {leaf.kind.value} axes")


def _is_open(leaf: LeafTensor, part: str) -> ShapeError:
    return ShapeError(
        "A shape is determined when no default is taken for it.",
        found=f"{leaf.origin.operation}: {part} can be anything",
        where=leaf.origin.place,
        fix=f"state it where the tensor is made: {leaf.kind.value}=[...]",
    )


def _has_unit(state: SolverState, leaf: LeafTensor, dim: DimVar) -> bool:
    """Return True if the size, or one below it, has an operand of size 1 that suggests the size."""
    below = reachable([dim], lambda var: map(state.find, state.results.get(var, ())))
    units = (state.units.get(var) for var in below)
    is_input = leaf.kind is RowKind.INPUT
    return any(unit is not None and (unit.stated or is_input) for unit in units)


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


def refuse_contradictions(state: SolverState, rows: Iterable[RowVar]) -> None:
    """Refuse equations of undecided rows that no number of axes satisfies.

    The solver compares axes at equal distances from an end. That `2,..v..` and `..v..,3` are never
    equal is only found by trying numbers of axes for `..v..`.

    Raises:
        ShapeError: naming the equations, and the lines that demand them.
    """
    seen: set[RowVar] = set()
    for var in rows:
        if var in seen:
            continue
        group = ranks.group(state, var)
        seen.update(group)
        equations = list(_equations(state, group))
        most = 2 * sum(len(side.dims) for left, right, _ in equations for side in (left, right))
        if not any(_holds(state, equations, number) for number in range(most + 1)):
            raise _never_equal(state, equations, most)


def _equations(
    state: SolverState, group: Iterable[RowVar]
) -> Iterator[tuple[Row, Row, Constraint]]:
    """Yield the equations between rows of a group, whose members are equally long."""
    found: dict[RowEqual, None] = {}
    for var in group:
        for constraint in state.suspended.get(var, ()):
            if isinstance(constraint, RowEqual):
                found[constraint] = None
    for equation in found:
        left, right = (state.flat(row) for row in (equation.left, equation.right))
        yield left, right, equation


def _holds(
    state: SolverState, equations: Sequence[tuple[Row, Row, Constraint]], number: int
) -> bool:
    """Return True if the equations can hold for a number of axes of the row variables."""
    same: dict[Hashable, Hashable] = {}

    def find(axis: Hashable) -> Hashable:
        while axis in same:
            axis = same[axis]
        return axis

    for left, right, _ in equations:
        pairs = zip(_axes(state, left, number), _axes(state, right, number), strict=True)
        for one, other in ((find(one), find(other)) for one, other in pairs):
            if isinstance(one, int) and isinstance(other, int):
                if one != other:
                    return False
            elif one != other:
                light, heavy = (other, one) if isinstance(one, int) else (one, other)
                same[light] = heavy
    return True


def _axes(state: SolverState, row: Row, number: int) -> Iterator[Hashable]:
    """Yield the sizes or placeholders of a row whose variable has a number of axes."""
    for dims, tail in ((row.leading, row.tail), (row.trailing, None)):
        for dim in dims:
            current = state.current(dim)
            yield current.n if isinstance(current, Size) else current
        if tail is not None:
            yield from ((tail, position) for position in range(number))


def _never_equal(
    state: SolverState, equations: Sequence[tuple[Row, Row, Constraint]], most: int
) -> ShapeError:
    texts = [
        " = ".join(str(state.current_row(row)) for row in equation[:2]) for equation in equations
    ]
    causes = [cause for _, _, cause in equations]
    dims = [dim for left, right, _ in equations for dim in (*left.dims, *right.dims)]
    for dim in dims:
        if isinstance(dim, DimVar) and (known := state.values.get(state.find(dim))) is not None:
            causes.append(known.cause)
    return ShapeError(
        "All demands on a row must agree for some number of axes.",
        found=f"none up to {most} satisfies " + "\nand ".join(dict.fromkeys(texts)),
        where="\n".join(dict.fromkeys(map(place, causes))),
        fix="change one of the sizes, or give all axes of one of the tensors",
    )


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
