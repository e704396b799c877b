"""Checks of specifications with concatenated axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ocannl_core.base.errors import SpecError
from ocannl_core.shape.language.einsum_ast import AxisSpec, Concat, ShapeSpec, Spec, axis_names


def covers_result(spec: Spec, where: str) -> bool:
    """Return True if every part of the result of a concatenation has an operand."""
    concats = [axis for axis in spec.result.axes if isinstance(axis, Concat)]
    kept = set(spec.result.names)
    for operand in spec.operands:
        for name in sorted(set(operand.names) - kept):
            raise SpecError(
                "Concatenation sums nothing: every axis of an operand is one of the result.",
                found=f"{spec.text}, where {name} is not in the result",
                where=where,
                fix="`^` makes names words, so that axes are separated by commas: " + ",".join(name)
                if len(name) > 1 and kept.issuperset(name)
                else f"reduce it first: oc.einsum sums over {name}",
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
                + (f"at {', '.join(map(str, choice))}" if choice else "in every cell"),
                where=where,
                fix="name the parts of the result differently: a; b => a^b",
            )
        is_complete = is_complete and bool(present)
    return is_complete


def refuse_unreachable(spec: Spec, *, apart: bool) -> None:
    """Refuse a specification that accesses no cell.

    Axes that share a part are all at that part or all at others, and a name that stands alone is at
    its own part: so `a^b => a, b` needs two parts of one axis at once. A number is a part that is
    skipped.

    Args:
        apart: True when each operand is placed by itself, not multiplied with the others.
    """
    if not any(isinstance(axis, Concat) for axis in spec.axes):
        return
    groups = [[operand] for operand in spec.operands] if apart else [list(spec.operands)]
    for shapes in groups:
        if not _is_reachable([axis for shape in (*shapes, spec.result) for axis in shape.axes]):
            raise SpecError(
                "Some choice of one part of each concatenated axis has cells on all axes.",
                found=f"{spec.text}, where none has",
                fix="take one part out at a time, as in a^b => a, and name the parts that are kept",
            )


def _is_reachable(axes: Sequence[AxisSpec]) -> bool:
    """Return True if some choice of parts has cells on all axes."""
    concats = [axis for axis in axes if isinstance(axis, Concat)]
    named = list(dict.fromkeys(tuple(axis_names(axis)) for axis in concats))
    alone = {name for axis in axes if not isinstance(axis, Concat) for name in axis_names(axis)}
    taken = alone.intersection(name for parts in named for name in parts)
    for choice in product(*named):
        visited = set(choice)
        if taken <= visited and all(len(visited.intersection(parts)) == 1 for parts in named):
            return True
    return False


def _is_placed_at(operand: ShapeSpec, choice: set[str | int], parts: set[str | int]) -> bool:
    """Return True if an operand has cells where these parts of the result meet."""
    for axis in operand.axes:
        if isinstance(axis, Concat):
            if not choice.intersection(axis.parts):
                return False
        elif not parts.intersection(axis_names(axis)) <= choice:
            return False
    return True
