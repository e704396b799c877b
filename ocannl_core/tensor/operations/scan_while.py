"""Loops whose number of steps follows from data, up to a bound: `scan_while` masks the steps of a
loop over time behind the last one.

A masked step computes the first step again, whose numbers are finite and whose positions are valid
if the loop runs at all:

    active = active & condition(c)
    after, item = body(active ? c : first carry, active ? xs[t] : xs[0])
    c = active ? after : c
    stacked[t] = active ? item : 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import bool_, int32
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Loop
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.structures import leaves_of, with_leaves
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.contractions import subscript
from ocannl_core.tensor.operations.scan import (
    check_arguments,
    checked_result,
    relate_carry,
    run_steps,
)
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import as_tensor, constant


def scan_while(
    condition: Callable[[Any], Any],
    body: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    keep: str = "reductions",
) -> Any:
    """Run a function for steps along a time axis as long as a condition on the carry holds; return
    the values of all steps, the carry after the last one, and the number of steps.

        def halve(x, _):
            return x / 2, x

        xs, small, count = oc.scan_while(lambda x: x > 1, halve, start, length=32)

    The arguments are those of `scan`, whose length bounds the number of steps. Values beyond the
    last step are zeros. A condition with axes, such as a batch, ends the steps of each of its cells
    by itself, and the number of steps has these axes.

    All steps up to the bound take time: those behind the last one compute the first step again,
    and their results and gradients are dropped. So the first step has valid positions also where
    the condition does not hold before it; and a loss that is not finite there leaves parameters
    of the step without a finite gradient.

    Args:
        condition: Takes the carry; returns a tensor, or a truth value of Python. It is true where
            the tensor is not 0.
        body: Takes the carry and the entry of `xs` for one step; returns the next carry and a
            value, or None in its place.
        init: The carry before the first step, as for `scan`.
        xs: A tensor, or a structure of tensors, with the time in front, which has a position at
            least; None for steps that read no entry.
        length: The greatest number of steps; needed without `xs`.
        keep: The values of each step that its gradient reads from memory, as for `scan`.

    Raises:
        UsageError: if the function returns another structure, or a carry in another number format,
            or records assignments; or if the condition is no tensor.
        ShapeError: if a carry changes its shape, or time axes of `xs` have different lengths.
    """
    over, initial = leaves_of(xs), leaves_of(init)
    check_arguments(body, over, initial, length)
    if not callable(condition):
        raise UsageError.at_caller(
            "The condition of a loop is a function of the carry.",
            found=repr(condition),
            fix="oc.scan_while(lambda carry: carry < 10, step, init, length=100)",
        )
    given = [each.value for each in (*initial, *over)]
    tensors = [each for each in given if isinstance(each, Tensor)]
    session = tensors[0].session if tensors else sessions.current()
    with session:
        start = [pointwise.stop_gradient(as_tensor(e.value, session)) for e in initial]
        entries = [pointwise.stop_gradient(subscript(each.value, 0)) for each in over]
        flags = constant(1.0, session, dtype=bool_), constant(0.0, session, dtype=int32)

    def step(carry: Any, entry: Any) -> Any:
        state, (active, count) = carry
        before = [each.value for each in leaves_of(state)]
        loop: Loop = session.loop
        active = pointwise.logical_and(active, _holds(loop, condition(state)), dtype="bool")
        own = _chosen(active, before, start)
        read = _chosen(active, [each.value for each in leaves_of(entry)], entries)
        found = body(with_leaves(init, own), with_leaves(xs, read))
        after, items = checked_result(loop, init, found)
        kept = [
            _updated(loop, active, *each, session) for each in zip(before, own, after, strict=True)
        ]
        values = [_masked(active, each.value) for each in leaves_of(items)]
        count = count + pointwise.cast(active, "int32")
        return (with_leaves(init, kept), (active, count)), with_leaves(items, values)

    name = str(getattr(body, "__name__", "step"))
    items, (last, (_, count)) = run_steps(
        step, (init, flags), xs, length, is_reversed=False, keep=keep, has_layers=False, name=name
    )
    return items, last, count


def _holds(loop: Loop, found: Any) -> Any:
    if isinstance(found, Tensor | Real):
        return found
    raise UsageError(
        "The condition of a loop is a tensor that is not 0 as long as steps run.",
        found=repr(found),
        where=str(loop.origin),
    )


def _chosen(active: Tensor, tensors: Sequence[Tensor], first: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of a step; in a masked step, the tensors of the first step."""
    return [pointwise.where(active, each, one) for each, one in zip(tensors, first, strict=True)]


def _masked(active: Tensor, value: Any) -> Tensor:
    label = value.label[0] if isinstance(value, Tensor) and value.label else None
    masked: Tensor = pointwise.where(active, value, 0, label=label)
    return masked


def _updated(
    loop: Loop, active: Tensor, before: Tensor, own: Tensor, after: Any, session: Session
) -> Tensor:
    """Return the carry after a step, which a masked step leaves as it is."""
    if after is own:
        return before
    new = as_tensor(after, session)
    relate_carry(loop, before, new)
    kept: Tensor = pointwise.where(active, new, before)
    return kept
