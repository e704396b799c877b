"""Gradients as expressions: `oc.gradients`.

The graph is walked from the differentiated tensors back to the variables; the gradient of a tensor
is the sum of the terms of its uses (`gradient_terms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Real
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.shape.language.constraints import equal_shapes
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.computations.gradient_states import no_expression
from ocannl_core.tensor.derivatives.gradient_terms import (
    GradientTerm,
    OperationTerms,
    Values,
    derived_tensor,
    filled_like,
    stated_terms,
)
from ocannl_core.tensor.graph.definitions import (
    Applied,
    GradientOf,
    Loop,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.graph.parameter_set import Parameters
from ocannl_core.tensor.graph.session import of_different_sessions
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.loop_gradients import LoopGradient
from ocannl_core.tensor.primitives.pointwise_operations import add, identity


def gradients(
    y: Any, x: Any, *, grad_y: Any = None, allow_unused: bool = False
) -> tuple[Tensor, ...]:
    """Return the gradients of the sum of tensors with respect to others, as expressions.

        (g,) = oc.gradients(loss, [w])           # the shape of w
        (h,) = oc.gradients((g * v).sum(), [w])  # the product of the Hessian and v

    A gradient is a tensor like any other: a loss may contain it, and it can be differentiated
    again. It is computed where it is used, apart from `w.grad`, which backpropagation computes.

    Args:
        y: A tensor, or a list of tensors, of any shape.
        x: The variables, a list of parameters, placeholders, literals, or intermediate results.
        grad_y: The gradient of the final result with respect to `y`, a tensor or a number (a list
            of them for a list of tensors) that `y`'s shape broadcasts; 1 when not given, which
            differentiates the sum of all cells.
        allow_unused: True for gradients of 0 with respect to variables that `y` does not depend on,
            or depends on only through operations without a gradient.

    Raises:
        UsageError: for a variable without gradient unless `allow_unused`, or no real numbers.
        MissingGradientError: for a user-written operation without `grad` on the way.
    """
    ys, xs = _tensors(y, "y"), _tensors(x, "x")
    given = list(grad_y) if isinstance(grad_y, list | tuple) else [grad_y] * len(ys)
    if len(given) != len(ys) or not ys or not xs:
        raise UsageError.at_caller(
            "oc.gradients takes tensors to differentiate, variables, and as many grad_y as there "
            "are tensors.",
            found=f"{len(ys)} tensors, {len(xs)} variables, {len(given)} grad_y",
        )
    _check(ys, xs)
    walk = _Walk(ys, xs)
    for tensor, gradient in zip(ys, given, strict=True):
        walk.add(tensor, _seed(tensor, gradient))
    found = walk.run()
    missing = [each for each in xs if each not in found and each not in walk.reached]
    if missing and not allow_unused:
        raise _unused(missing[0], walk)
    return tuple(found[each] if each in found else filled_like(each, 0.0) for each in xs)


def _advice(found: object) -> str:
    if found is None:
        return "x.grad is not computed from x: give x itself"
    return "list(loss.params) is a list of tensors" if isinstance(found, Parameters) else ""


def _tensors(given: Any, name: str) -> list[Tensor]:
    found = list(given) if isinstance(given, list | tuple) else [given]
    for each in found:
        if not isinstance(each, Tensor):
            raise UsageError.at_caller(
                "oc.gradients(y, [x]) differentiates tensors with respect to tensors.",
                found=f"{name} is {each!r}",
                fix=_advice(each),
            )
    return found


def _check(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
    if len({each.session for each in (*ys, *xs)}) > 1:
        raise of_different_sessions("arguments of oc.gradients")
    for each in (*ys, *xs):
        if not each.dtype.is_float:
            raise UsageError.at_caller(
                "Gradients are computed with respect to real numbers.",
                found=f"{each.describe()} of {each.dtype}",
                fix='state a float format, as in dtype="float32"',
            )


def _unused(tensor: Tensor, walk: _Walk) -> UsageError:
    blocking = walk.blocking(tensor)
    return UsageError.at_caller(
        "A gradient is taken with respect to tensors that y depends on through operations with a "
        "gradient.",
        found=f"{tensor.describe()}, which "
        + (f"y depends on through {blocking} only" if blocking else "y does not depend on"),
        fix="oc.gradients(..., allow_unused=True) returns zeros",
    )


def _seed(tensor: Tensor, gradient: Any) -> Tensor:
    if gradient is None:
        return filled_like(tensor, 1.0)
    if isinstance(gradient, Real) and not isinstance(gradient, bool):
        return filled_like(tensor, float(gradient))
    seed: Tensor = identity(gradient, label="grad_y", dtype=tensor.dtype)
    origin = Origin("grad_y of oc.gradients", caller_location())
    tensor.session.environment.constrain(equal_shapes(seed.terms, tensor.terms, origin))
    return seed


def _itself(tensor: Tensor) -> Tensor:
    return tensor


class _Walk:
    """Reverse accumulation between variables and results; leaves pass no gradients on."""

    def __init__(
        self,
        ys: Sequence[Tensor],
        xs: Sequence[Tensor],
        values: Values = _itself,
        leaves: AbstractSet[Tensor] = frozenset(),
    ) -> None:
        self._xs = dict.fromkeys(xs)
        self._values = values
        self._leaves = leaves
        self._order = ancestors(list(ys))
        self._dependents = self._tensors_that_depend()
        self._terms: dict[Tensor, list[Tensor]] = {}
        self._passed: set[Any] = set()
        self.reached: set[Tensor] = set(ys)
        """The tensors that results depend on through operations with gradients, also where the
        gradient is 0 everywhere.
        """

    def _tensors_that_depend(self) -> set[Tensor]:
        found: set[Tensor] = set()
        for tensor in self._order:
            passes_on = tensor not in self._leaves
            if tensor in self._xs or (
                passes_on and any(operand in found for operand in tensor.operands)
            ):
                found.add(tensor)
            if not passes_on:
                continue
            definition = tensor.definition
            if isinstance(definition, GradientOf) and self._xs.keys() & ancestors(
                [definition.tensor]
            ):
                raise no_expression(tensor)
        return found

    def add(self, tensor: Tensor, term: Tensor) -> None:
        self._terms.setdefault(tensor, []).append(term)

    def run(self) -> dict[Tensor, Tensor]:
        """Return the gradients of the variables that have one."""
        found: dict[Tensor, Tensor] = {}
        for tensor in reversed(self._order):
            if tensor not in self._dependents:
                continue
            definition = tensor.definition
            passes_on = tensor not in self._leaves
            if isinstance(definition, ResultOf | ResultOfLoop) and passes_on:
                if isinstance(definition, ResultOf):
                    self._pass_through_call(definition, tensor)
                else:
                    self._pass_through_loop(definition.loop, tensor)
                if tensor in self._xs and tensor in self._terms:
                    found[tensor] = self._gradient(tensor)
                continue
            if tensor not in self._terms:
                if tensor in self.reached and isinstance(definition, Applied):
                    self._mark_operands(tensor, definition)
                continue
            gradient = self._gradient(tensor)
            if tensor in self._xs:
                gradient.relabel(("grad", *tensor.label))
                found[tensor] = gradient
            if isinstance(definition, Applied) and passes_on:
                self._mark_operands(tensor, definition)
                self._pass_on(tensor, definition, gradient)
        return found

    def _gradient(self, tensor: Tensor) -> Tensor:
        """Return the sum of the terms of a tensor's gradient."""
        first, *others = self._terms[tensor]
        total = first
        for term in others:
            total = derived_tensor(add, (total, term), Pointwise(), tensor, tensor.origin)
        self._terms[tensor] = [total]
        return total

    def _mark_operands(self, tensor: Tensor, definition: Applied) -> None:
        if definition.operation.has_gradient:
            self.reached.update(o for o in definition.operands if o.dtype.is_float)

    def _pass_on(self, tensor: Tensor, definition: Applied, gradient: Tensor) -> None:
        """Add the contributions of a tensor's gradient to its operands' gradients."""
        operation = definition.operation
        if operation.gradient_expression is not None:
            terms = stated_terms(definition, gradient, map(self._values, definition.operands))
            wanted = [each for each in terms if each.input in self._dependents]
            self._add_stated(wanted, tensor.origin)
            return
        if operation.gradient is None:
            return
        code = OperationTerms(tensor, definition, gradient, self._values)
        for position, operand in enumerate(definition.operands, 1):
            if operand in self._dependents and operand.dtype.is_float:
                for term in code.terms(position):
                    self.add(operand, term)

    def _pass_through_call(self, definition: ResultOf, tensor: Tensor) -> None:
        """Add the contributions of a user-written operation's outputs once all are complete."""
        application = definition.application
        if application in self._passed:
            return
        self._passed.add(application)
        if not any(each in self._terms for each in application.results):
            return
        cotangents = [
            self._gradient(each) if each in self._terms else filled_like(each, 0.0)
            for each in application.results
        ]
        wanted = [each in self._dependents and each.dtype.is_float for each in application.inputs]
        if not any(wanted):
            return
        values = [self._values(each) for each in application.inputs]
        self._add_stated(application.gradients(cotangents, wanted, values), tensor.origin)

    def _pass_through_loop(self, loop: Loop, tensor: Tensor) -> None:
        """Add the contributions of the gradients of a loop's results to its inputs' gradients."""
        if not loop.is_oldest(tensor, self._dependents):
            return
        reached = [each for each in loop.results if each in self._dependents]
        given = {each: self._gradient(each) for each in reached if each in self._terms}
        wanted = [each for each in loop.inputs if each in self._dependents and each.dtype.is_float]
        if not given:
            if not self.reached.isdisjoint(reached):
                self.reached.update(wanted)
            return
        code = LoopGradient(loop, given, wanted, _walk_through_step)
        self._add_stated(code.terms(), loop.origin)

    def _add_stated(self, terms: Iterable[GradientTerm], origin: Origin) -> None:
        for each in terms:
            self.reached.add(each.input)
            self.add(each.input, each.as_tensor(origin))

    def blocking(self, tensor: Tensor) -> str:
        """Return the operations without a gradient between a variable and the results."""
        found: dict[str, None] = {}
        dependents = {tensor}
        for each in self._order:
            if dependents.isdisjoint(each.operands):
                continue
            dependents.add(each)
            definition = each.definition
            if not each.dtype.is_float:
                found[f"{each.origin.operation} ({each.dtype})"] = None
            elif isinstance(definition, Applied) and not definition.operation.has_gradient:
                found[each.origin.operation] = None
        return ", ".join(found)


def _walk_through_step(
    ys: Mapping[Tensor, Sequence[Tensor]],
    xs: Sequence[Tensor],
    values: Values,
    leaves: AbstractSet[Tensor],
) -> Mapping[Tensor, Tensor]:
    """Return the gradients of variables of a step, for terms of the gradients of results."""
    walk = _Walk(list(ys), xs, values, leaves)
    for tensor, terms in ys.items():
        for term in terms:
            walk.add(tensor, term)
    return walk.run()
