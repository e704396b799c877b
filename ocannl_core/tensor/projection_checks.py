"""What must hold of the projections of an assignment."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.errors import UsageError
from ocannl_core.indexing import Projections, variables
from ocannl_core.origin import Origin
from ocannl_core.tensor.margins import margins_of
from ocannl_core.tensor.tensor import Tensor


def check_margins(
    projections: Projections, result: Tensor, operands: Sequence[Tensor], origin: Origin
) -> None:
    """Raises ShapeError unless an operation finds the margins that it needs."""
    positions: list[tuple[int | None, Tensor]] = [(None, result), *enumerate(operands)]
    for position, tensor in positions:
        needed = margins_of(projections, position)
        if needed:
            tensor.layout.check(needed, tensor.describe(), origin)


def refuse_repeated_writes(projections: Projections, origin: Origin) -> None:
    """Refuses a plain assignment that would keep the last of several values of a cell.

    Raises:
        UsageError: naming the assignment.
    """
    kept = {var for index in projections.lhs for var in variables(index)}
    if any(extent > 1 and var not in kept for var, extent in projections.domain):
        raise UsageError(
            "A plain assignment writes each cell once: what is reduced is accumulated.",
            found="an assignment whose operands have axes that the target has not",
            where=str(origin),
            fix="write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum",
        )


def has_margins(projections: Projections) -> tuple[bool, ...]:
    """Returns, for each operand, whether it is read beyond its axes."""
    return tuple(bool(margins_of(projections, i)) for i in range(len(projections.rhs)))
