"""Stated logics, and the lines, operands and warnings of messages about them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product, zip_longest
from typing import Any

from ocannl_core.base import settings
from ocannl_core.base.context_variables import scoped
from ocannl_core.base.errors import ShapeError, SpecError, SpecWarning
from ocannl_core.base.origin import Origin, caller_depth, caller_location
from ocannl_core.ir.indexing import is_whole
from ocannl_core.shape.language.einsum_ast import AxisSpec, Concat, ShapeSpec, Spec, axis_names
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.language.subscripts import NewAxis
from ocannl_core.shape.translation.einsum import operand_name
from ocannl_core.shape.translation.logic import Einsum, Logic, Slice, logic_from_text
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.tensor import Tensor


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
                fix="take one part out at a time, as in a^b => a, and name the parts that are kept"
                + ("; oc.concat joins operands: a; b => a^b" if len(shapes) > 1 else ""),
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


def stated_logic(
    name: str, text: str, operands: int, padded: bool | None, values: Mapping[str, int] | None
) -> Logic:
    """Return the logic of a text, for an application of an operation on the user's line.

    Warn about labels that are summed although they occur once.

    Args:
        text: `.`, `@`, `T`, or an einsum specification.
    """
    for label, number in (values or {}).items():
        if not is_whole(number) or number < 0:
            raise SpecError(
                "A value is a number of positions, or a coefficient.",
                found=f"{label} = {number!r}",
                where=str(Origin(name, caller_location())),
                fix=f'values={{"{label}": 3}}',
            )
    try:
        logic = logic_from_text(text, operands, padded, values)
        if isinstance(logic, Einsum):
            refuse_unreachable(logic.spec, apart=name == "concat")
    except SpecError as error:
        where = error.where or str(Origin(name, caller_location()))
        raise SpecError(error.rule, found=error.found, where=where, fix=error.fix) from None
    if isinstance(logic, Einsum):
        warn_about_summed_once(logic.spec, name)
    return logic


def warn_about_summed_once(spec: Spec, name: str) -> None:
    """Warn of labels that occur once among several operands, and not in the result.

    Such an axis of one operand is summed before any product, as `j` and `k` in `ij;k=>i`, which is
    rarely meant. With one operand, summing is the purpose of the specification.
    """
    if len(spec.operands) < 2 or not settings.current().warn_summed_once:
        return
    counts = Counter(label for shape in spec.operands for label in shape.names)
    kept = set(spec.result.names)
    labels = [label for label, count in counts.items() if count == 1 and label not in kept]
    if not labels:
        return
    listed = ", ".join(f"`{label}`" for label in labels)
    one = len(labels) == 1
    subject = "a label occurs" if one else "labels occur"
    axes = "Its axis is summed before it meets" if one else "Their axes are summed before they meet"
    known = kept.union(counts)
    joined = [each for each in labels if len(each) > 1 and known.issuperset(each)]
    words = "".join(
        f"Between commas `{each}` is one axis, `{','.join(each)}` are several. " for each in joined
    )
    warnings.warn(
        f"In {spec.text or spec!s} {subject} once and not in the result: {listed}. {axes} "
        f"anything. {words}If this is intended, write `...` in place of the label; if not, name "
        "it in the result or in another operand. The setting warn_summed_once=false ends these "
        "warnings.\n"
        f"  where  {Origin(name, caller_location())}",
        SpecWarning,
        stacklevel=caller_depth(),
    )


_composed: ContextVar[tuple[str, tuple[Any, ...]] | None] = ContextVar("composed", default=None)


@contextmanager
def composite_operation(name: str, operands: tuple[Any, ...]) -> Iterator[None]:
    """Let messages name a composite operation and its operands, in place of its parts."""
    tensors = (each for each in operands if isinstance(each, Tensor))
    session = next((each.session for each in tensors), sessions.current())
    with scoped(_composed, (name, operands)), session.atomic():
        yield


def composite_name() -> str | None:
    """Return the name of the composite operation under construction, or None."""
    composed = _composed.get()
    return composed[0] if composed else None


class describe_operands:
    """A context manager that adds tensors' shapes and lines to an operation's shape errors.

    Args:
        target: The tensor that is assigned to.
        is_pointwise: True for operands that broadcast row by row.
    """

    def __init__(
        self, operands: Sequence[Tensor], target: Tensor | None = None, is_pointwise: bool = False
    ) -> None:
        self._operands = operands
        self._target = target
        self._is_pointwise = is_pointwise

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, ShapeError):
            return
        operands, target = self._operands, self._target
        lines = [error.where] if error.where else []
        if composed := _composed.get():
            operands = [each for each in composed[1] if isinstance(each, Tensor)]
        if target is not None:
            lines.append(f"the target is {_describe_tensor(target)}")
        for position, operand in enumerate(operands):
            name = operand_name(position) if len(operands) > 1 else "the operand"
            lines.append(f"{name} is {_describe_tensor(operand)}")
        fix = error.fix
        if self._is_pointwise:
            if _broadcast_by_position_only(self._operands):
                fix = ALL_PAIRS.format("oc.subtract")
            if any(map(_has_new_axis, self._operands)):
                fix = f"{fix or 'name the axes'}; {_NEW_AXIS}"
        raise ShapeError(
            error.rule, found=error.found, where="\n".join(lines), fix=fix
        ) from None  # equal but for the lines of the operands


ALL_PAIRS = (
    "axes meet axes of the same kind, not of the same position: a new axis is of the kind of the "
    'axis behind it. For all pairs of positions of the batch, name the axes: {}(x, y, logic="'
    'i|...; j|... => i,j|...")'
)
"""Advice about operands of the shapes `4|1,6` and `1,3|6`."""


_NEW_AXIS = (
    "the axis that None makes in a subscript is of the kind of the axis behind it; "
    'oc.einsum("...|..x.. => ...,0|..x..", x) makes a last batch axis'
)


def _has_new_axis(tensor: Tensor) -> bool:
    definition = tensor.definition
    logic = definition.logic if isinstance(definition, Applied) else None
    return isinstance(logic, Slice) and any(isinstance(key, NewAxis) for key in logic.keys)


def broadcast_by_position(shapes: Sequence[Shape]) -> bool:
    """Return True if tensors of known shapes broadcast by NumPy's rule, axes from the right."""
    return _broadcast([each.dims for each in shapes])


def _broadcast(sizes: Sequence[tuple[int, ...]]) -> bool:
    axes = zip_longest(*(reversed(each) for each in sizes), fillvalue=1)
    return all(len({*axis} - {1}) < 2 for axis in axes)


def _broadcast_by_position_only(tensors: Sequence[Tensor]) -> bool:
    """Return True if tensors broadcast by NumPy's rule, and do not row by row."""
    shapes = [each.shape for each in tensors]
    if not all(each.is_closed for each in shapes) or not broadcast_by_position(shapes):
        return False
    rows = zip(*([row.sizes for _, row in each.rows()] for each in shapes), strict=True)
    return not all(map(_broadcast, rows))


def _describe_tensor(tensor: Tensor) -> str:
    name = "_".join(tensor.label)
    made = "" if tensor.origin.operation == name else f", made by {tensor.origin.operation}"
    at = f", at {tensor.origin.location}" if tensor.origin.location else ""
    return f"{name} of shape {tensor.shape}{made}{at}"
