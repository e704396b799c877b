"""Which parts of a concatenated result have an operand."""

from __future__ import annotations

from itertools import product

from ocannl_core.errors import SpecError
from ocannl_core.shape.notation import Concat, ShapeSpec, Spec, axis_names


def covers_result(spec: Spec, where: str) -> bool:
    """True if every part of the result of a concatenation has an operand.

    Args:
        spec: The specification.
        where: What to name in errors.

    Raises:
        SpecError: if an operand has an axis that the result has not, or two have the same place.
    """
    concats = [axis for row in spec.result.rows() for axis in row.axes if isinstance(axis, Concat)]
    kept = _names(spec.result)
    for operand in spec.operands:
        for name in sorted(_names(operand) - kept):
            raise SpecError(
                "Concatenation sums nothing: every axis of an operand is one of the result.",
                found=f"{spec.text}, where {name} is not in the result",
                where=where,
                fix=f"reduce it first: oc.einsum sums over {name}",
            )
    parts = {part for axis in concats for part in axis.parts}
    is_complete = True
    for choice in product(*(axis.parts for axis in concats)):
        present = [
            position
            for position, operand in enumerate(spec.operands)
            if _is_placed_at(operand, set(choice), parts)
        ]
        if len(present) > 1:
            raise SpecError(
                "Each part of a concatenated result has at most one operand.",
                found=f"{spec.text}, where operands {present[0] + 1} and {present[1] + 1} are both "
                f"at {', '.join(map(str, choice))}",
                where=where,
                fix="name the parts of the result differently: a; b => a^b",
            )
        is_complete = is_complete and bool(present)
    return is_complete


def _names(shape: ShapeSpec) -> set[str]:
    return {name for row in shape.rows() for axis in row.axes for name in axis_names(axis)}


def _is_placed_at(operand: ShapeSpec, choice: set[str | int], parts: set[str | int]) -> bool:
    """True if an operand has cells where these parts of the result meet."""
    for row in operand.rows():
        for axis in row.axes:
            if isinstance(axis, Concat):
                if not choice.intersection(axis.parts):
                    return False
            elif not parts.intersection(axis_names(axis)) <= choice:
                return False
    return True
