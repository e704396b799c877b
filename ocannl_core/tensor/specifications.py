"""Logics that users state, and what they are told about them: the line, the operands, a label that
looks forgotten.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ocannl_core import settings
from ocannl_core.errors import ShapeError, SpecError, SpecWarning
from ocannl_core.origin import Origin, caller_depth, caller_location
from ocannl_core.shape.einsum import operand_name
from ocannl_core.shape.einsum_ast import ShapeSpec, Spec, axis_names
from ocannl_core.shape.logic import Einsum, Logic, logic_from_text
from ocannl_core.tensor.placement import refuse_unreachable
from ocannl_core.tensor.tensor import Tensor


def stated_logic(
    name: str,
    text: str,
    operands: int,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
) -> Logic:
    """Returns the logic that a text states for an application of an operation on the user's line.

    Warns about labels that are summed although they occur once.

    Args:
        name: The operation's name.
        text: `.`, `@`, `T`, or an einsum specification.
        operands: The number of operands.
        padded: As in `Einsum`.
        values: As in `Einsum`.

    Raises:
        SpecError: if the text states no logic for this number of operands.
    """
    try:
        logic = logic_from_text(text, operands, padded, values)
    except SpecError as error:
        where = error.where or str(Origin(name, caller_location()))
        raise SpecError(error.rule, found=error.found, where=where, fix=error.fix) from None
    if isinstance(logic, Einsum):
        where = str(Origin(name, caller_location()))
        refuse_unreachable(logic.spec, where, apart=name == "concat")
        warn_about_summed_once(logic.spec, name)
    return logic


# ----- labels that look forgotten -----------------------------------------------------------------


def summed_once(spec: Spec) -> tuple[str, ...]:
    """Returns the labels that occur once among several operands, and not in the result.

    Such an axis of one operand is summed before it meets anything, as `j` and `k` in `ij;k=>i`,
    which is rarely meant. With one operand, summing is what the specification is for.
    """
    if len(spec.operands) < 2:
        return ()
    counts = Counter(name for shape in spec.operands for name in _names(shape))
    kept = set(_names(spec.result))
    return tuple(name for name, count in counts.items() if count == 1 and name not in kept)


def _names(shape: ShapeSpec) -> Iterator[str]:
    for row in shape.rows():
        for axis in row.axes:
            yield from axis_names(axis)


def warn_about_summed_once(spec: Spec, name: str) -> None:
    """Warns if a label of a specification looks forgotten, unless the settings say otherwise."""
    labels = summed_once(spec)
    if not labels or not settings.current().warn_summed_once:
        return
    listed = ", ".join(f"`{label}`" for label in labels)
    one = len(labels) == 1
    subject = "a label occurs" if one else "labels occur"
    axes = "Its axis is summed before it meets" if one else "Their axes are summed before they meet"
    warnings.warn(
        f"In {spec.text or spec!s} {subject} once and not in the result: {listed}. {axes} "
        "anything. If this is meant, say so by writing `...` in place of the label; if not, name "
        "it in the result or in another operand. The setting warn_summed_once=false ends these "
        "warnings.\n"
        f"  where  {Origin(name, caller_location())}",
        SpecWarning,
        stacklevel=caller_depth(),
    )


# ----- operands in messages -----------------------------------------------------------------------

_composed: ContextVar[tuple[str, tuple[Any, ...]] | None] = ContextVar("composed", default=None)


@contextmanager
def composing(name: str, operands: tuple[Any, ...]) -> Iterator[None]:
    """Has messages name an operation that others make up, and its operands, in place of these."""
    token = _composed.set((name, operands))
    try:
        yield
    finally:
        _composed.reset(token)


def composed_name() -> str | None:
    """Returns what the operation is called that is being made up of others; None if none is."""
    composed = _composed.get()
    return composed[0] if composed else None


@contextmanager
def naming(operands: Sequence[Tensor], target: Tensor | None = None) -> Iterator[None]:
    """Adds shapes and lines of the tensors concerned to the shape errors of an operation."""
    try:
        yield
    except ShapeError as error:
        lines = [error.where] if error.where else []
        if composed := _composed.get():
            operands = [each for each in composed[1] if isinstance(each, Tensor)]
        if target is not None:
            lines.append(f"the target is {_described(target)}")
        for position, operand in enumerate(operands):
            name = operand_name(position) if len(operands) > 1 else "the operand"
            lines.append(f"{name} is {_described(operand)}")
        raise ShapeError(
            error.rule, found=error.found, where="\n".join(lines), fix=error.fix
        ) from error


def _described(tensor: Tensor) -> str:
    name = "_".join(tensor.label)
    made = "" if tensor.origin.operation == name else f", made by {tensor.origin.operation}"
    at = f", at {tensor.origin.location}" if tensor.origin.location else ""
    return f"{name} of shape {tensor.shape}{made}{at}"
