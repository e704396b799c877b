"""Equations of rows that no number of axes satisfies."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.language.constraints import Constraint, RowEqual
from ocannl_core.shape.language.shape_terms import DimVar, Row, RowVar, Size
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.messages import place
from ocannl_core.shape.solving.state import SolverState


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
    state: SolverState, group: Sequence[RowVar]
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
