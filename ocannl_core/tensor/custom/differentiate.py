"""Backpropagation through user-written operations: their `grad` as tensor expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any

from ocannl_core.base.errors import MissingGradientError, OpError
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.graph.definitions import Backward, GradientOf, ancestors
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.specifications import describe_operands

if TYPE_CHECKING:
    from ocannl_core.tensor.custom.op import Apply


def backward(node: Apply) -> Backward:
    """Return the gradients of an application, built once and shared by all backpropagations."""
    if not any(variable.requires_grad for variable in node.inputs):
        return Backward()
    given = [output.grad if isinstance(output, Tensor) else None for output in node.outputs]
    wanted = [variable.requires_grad for variable in node.inputs]
    terms = _contributions(node, _gradients(node, given, node.inputs, in_expression=False), wanted)
    contributions = tuple((variable, value) for variable, value, _ in terms)
    found = [value for _, value in contributions if isinstance(value, Tensor)]
    code = tuple(ancestors(found))
    return Backward(code, _gradient_dependents(code), contributions)


def gradient_terms(
    node: Apply,
    cotangents: Sequence[Tensor],
    wanted: Sequence[bool],
    values: Sequence[Tensor],
) -> tuple[tuple[Tensor, Tensor | float, Shape], ...]:
    """Return the inputs of an application with terms of their gradients, and the common shape.

    Args:
        wanted: True for the inputs whose gradients are needed.
        values: The tensors that hold the cells of the inputs.
    """
    remaining = iter(cotangents)
    given = [next(remaining) if isinstance(each, Tensor) else None for each in node.outputs]
    found = _gradients(node, given, values, in_expression=True)
    return tuple(_contributions(node, found, wanted))


def _gradients(
    node: Apply,
    given: Sequence[Tensor | None],
    values: Sequence[Tensor],
    *,
    in_expression: bool,
) -> list[Any] | tuple[Any, ...]:
    """Return what `grad` of the op returns."""
    grad = getattr(node.op, "grad", None)
    if grad is None:
        raise MissingGradientError(
            "Gradients flow through an op that defines `grad`.",
            found=f"{node.op!r} defines none",
            where=str(node.origin),
            fix="def grad(self, inputs, output_gradients), which returns one entry for each "
            "input,\nor stop the gradient: oc.stop_gradient(x)",
        )
    result = node.results[0]
    session = result.session
    with session, nullcontext() if in_expression else session.outside_of_code(result.loop):
        try:
            found = grad(list(values), list(given))
        except Exception as error:
            error.add_note(f"while calling `grad` of {node.origin}")
            raise
    if not isinstance(found, list | tuple):
        raise _error(
            node,
            f"a {type(found).__name__}",
            "return gx, (with a comma) or [gx] where there is one input",
        )
    if len(found) != len(node.inputs):
        raise _error(node, f"{len(found)} entries for {len(node.inputs)} inputs")
    return found


def _contributions(
    node: Apply, found: list[Any] | tuple[Any, ...], wanted: Sequence[bool]
) -> Iterator[tuple[Tensor, Tensor | float, Shape]]:
    for position, (variable, value) in enumerate(zip(node.inputs, found, strict=True)):
        if value is None or not wanted[position]:
            continue
        if isinstance(value, Real):
            yield variable, float(value), variable.terms
            continue
        if not isinstance(value, Tensor):
            raise _error(node, f"{type(value).__name__} {value!r} for input {position}")
        origin = Origin(f"gradient of {node.op!r} for input {position}", node.origin.location)
        with describe_operands([value], variable):
            environment = variable.session.environment
            if node.op.broadcasts:
                common = environment.fresh_shape()
                shapes = [variable.terms, value.terms]
                environment.relate(Pointwise(), common, shapes, origin)
            else:
                common = variable.terms
                environment.relate(Pointwise(), common, [value.terms], origin)
        yield variable, value, common


def _error(node: Apply, found: str, fix: str = "") -> OpError:
    return OpError(
        "`grad` returns a list or tuple with one entry for each input: a tensor expression, a "
        "number, or None.",
        found=found,
        where=f"{node.op!r}.grad, for {node.origin}",
        fix=fix,
    )


def _gradient_dependents(code: tuple[Tensor, ...]) -> frozenset[Tensor]:
    """Return the tensors that depend on gradients."""
    depends: set[Tensor] = set()
    for tensor in code:
        if isinstance(tensor.definition, GradientOf) or depends.intersection(tensor.operands):
            depends.add(tensor)
    return frozenset(t for t in depends if not isinstance(t.definition, GradientOf))
