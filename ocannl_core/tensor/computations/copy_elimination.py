"""Elimination of copies: an assignment of a temporary computes it in place.

    tmp = a * b;  c += tmp   -->   c += a * b
    tmp = a @ b;  c[:] = tmp -->   c[neutral] += a * b, composed

The tensor must be local to the computation, have no other use, have the format and the extents of
the target, and be computed by one primitive. Its operands must not be written between its
definition and the assignment, nor by the assignment before they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import assert_never

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.computations import computation_steps as code
from ocannl_core.tensor.graph.definitions import Applied, ancestors
from ocannl_core.tensor.graph.tensor import Tensor


def eliminate_copies(
    steps: tuple[code.Step, ...], temporaries: frozenset[Tensor]
) -> tuple[code.Step, ...]:
    """Return the steps without copies of temporaries. Shapes must be closed."""
    order = list(code.without_titles(steps))
    uses = _count_uses(order)
    places = {
        t: i for i, step in enumerate(order) if isinstance(step, code.Forward) for t in step.tensors
    }
    absorbed: set[Tensor] = set()
    replaced: dict[code.Assign, code.Assign] = {}
    for position, step in enumerate(order):
        if not isinstance(step, code.Assign) or len(step.args) != 1:
            continue
        (value,) = step.args
        if not isinstance(value, Tensor) or value not in temporaries or uses[value] != 1:
            continue
        fused = _substitute(step, value)
        if fused is None or value not in places:
            continue
        between = order[places[value] + 1 : position]
        if not any(_may_write(each, value.operands) for each in between):
            absorbed.add(value)
            replaced[step] = fused
    return tuple(_rebuild(steps, absorbed, replaced)) if absorbed else steps


def _count_uses(order: list[code.Code]) -> Counter[Tensor]:
    """Return the number of reads of each tensor."""
    uses: Counter[Tensor] = Counter()
    for step in order:
        match step:
            case code.Assign(args=args):
                uses.update(arg for arg in args if isinstance(arg, Tensor))
            case code.Forward(tensors):
                for tensor in dict.fromkeys(tensors):
                    uses.update(tensor.operands)
            case (
                code.ZeroGradients(roots) | code.Backpropagate(roots) | code.UpdateGradients(roots)
            ):
                uses.update(ancestors(list(roots)))
            case _:
                assert_never(step)
    return uses


def _substitute(step: code.Assign, value: Tensor) -> code.Assign | None:
    """Return the assignment that computes the tensor instead of copying it, or None."""
    definition = value.definition
    if not isinstance(definition, Applied) or step.op is not UnaryOp.IDENTITY:
        return None
    if not isinstance(step.logic, Pointwise):
        return None
    primitive, needed = definition.operation.primitive, definition.operation.combine
    is_plain = step.combine is BinaryOp.SECOND and not step.reset
    if primitive is None or not (needed is None or is_plain or needed is step.combine):
        return None
    if value.dtype is not step.target.dtype or value.shape != step.target.shape:
        return None
    reads_target = any(operand is step.target for operand in definition.operands)
    rearranges = needed is not None or step.reset or not isinstance(definition.logic, Pointwise)
    if reads_target and rearranges:
        return None
    fused = replace(step, op=primitive, args=definition.operands, logic=value.logic)
    if needed is not None and is_plain:
        fused = replace(fused, combine=needed, reset=True)
    return fused


def _may_write(step: code.Code, tensors: tuple[Tensor, ...]) -> bool:
    match step:
        case code.Assign(target=target):
            return any(target is tensor for tensor in tensors)
        case code.Forward(made):
            return any(each is tensor for each in made for tensor in tensors)
        case code.ZeroGradients() | code.Backpropagate() | code.UpdateGradients():
            return True
        case _:
            assert_never(step)


def _rebuild(
    steps: tuple[code.Step, ...], absorbed: set[Tensor], replaced: dict[code.Assign, code.Assign]
) -> Iterator[code.Step]:
    for step in steps:
        match step:
            case code.Assign():
                yield replaced.get(step, step)
            case code.Forward(tensors):
                if kept := tuple(tensor for tensor in tensors if tensor not in absorbed):
                    yield replace(step, tensors=kept)
            case code.Titled(title, inner):
                yield code.Titled(title, tuple(_rebuild(inner, absorbed, replaced)))
            case _:
                yield step
