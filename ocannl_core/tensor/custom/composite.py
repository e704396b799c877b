"""Composite ops: expressions of pointwise operations under one name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

from ocannl_core.base.errors import OcannlError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.assignments.nodes import Constant
from ocannl_core.ir.numbers.dtypes import DType, float32, round_to
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.custom.op import Apply
from ocannl_core.tensor.custom.scalar_ops import Gradient, PointwiseOp, parameters_of_function
from ocannl_core.tensor.custom.variables import Array, Storage, TensorType, as_variables
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Applied, Filled, ancestors
from ocannl_core.tensor.graph.precision import Why
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.slots import (
    COTANGENT,
    RESULT,
    Code,
    Formula,
    SlotAssignment,
    Variable,
    applies_more_than,
    fold,
    map_variables,
    operand_variables,
)
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import placeholder
from ocannl_core.tensor.operations.gradients import gradients
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import identity
from ocannl_core.tensor.primitives.specifications import composite_operation

_MOST_APPLICATIONS = 500
"""The primitives that a formula applies, shared parts counted as often as they occur."""


@dataclass(frozen=True)
class ScalarStep:
    """One number of a composite: an input, a constant, or an operation on numbers before it."""

    operation: Operation | None = None
    operands: tuple[int, ...] = ()
    """The positions of its operands among the steps."""
    constant: str = ""
    """The number: an integer in decimal, a float in hexadecimal."""
    dtype: DType | None = None
    """The number format that is stated for the result, or None."""

    @property
    def formula(self) -> Formula:
        """The formula of the operation."""
        found = None if self.operation is None else self.operation.forward.formula
        assert found is not None, "_steps has it"
        return found


Steps = tuple[ScalarStep, ...]


class Composite(PointwiseOp):
    """One op from an expression of pointwise operations.

        Composite(lambda x, y: oc.exp(x) * y)

    A call compiles like the expression: it is inlined, has native code, and the expression's
    gradient of any order. Composites of the same expression are equal.

    Args:
        function: A function of tensors that consists of pointwise operations.
        gradient: As `grad` of an op, in place of the expression's gradient. If it consists of
            pointwise operations, it is compiled as well.
    """

    __props__ = ("steps", "gradient")

    def __init__(self, function: Callable[..., Tensor], gradient: Gradient | None = None) -> None:
        if gradient is not None and not callable(gradient):
            raise UsageError("The gradient of a composite is a function.", found=repr(gradient))
        self.gradient = gradient
        with Session():
            inputs = [placeholder(f"x{i}") for i in range(_operands_of(function))]
            result = function(*inputs)
            self.steps, position = _steps(result, inputs)
        if not self.steps[position].operation:
            raise UsageError("A composite computes something from its inputs.", found=repr(result))

    def __repr__(self) -> str:
        names = (each.operation.name for each in self.steps if each.operation)
        return f"Composite({', '.join(names)})"

    def __call__(self, *inputs: Any) -> Any:
        """Return the expression applied to inputs; equal composites of equal inputs are merged."""
        operation = None if self.gradient is None else _differentiable(self.steps, self.gradient)
        if self.gradient is not None and operation is None:
            return super().__call__(*inputs)  # the gradient needs other operations
        session = next((x.session for x in inputs if isinstance(x, Tensor)), sessions.current())
        with session, session.atomic():
            variables = self._variables(inputs)
            known = max(variables, key=lambda each: each.id).applications()
            key = ("composite", self, *(variable.id for variable in variables))
            if session.recorder is None and key in known:
                return known[key]
            with composite_operation(repr(self), tuple(variables)):
                if operation is None:
                    result = _expression(self.steps, variables)
                else:
                    result = operation(*variables, dtype=self._format(variables))
            if session.recorder is None:
                session.undo_log.put(known, key, result)
        return result

    def make_node(self, *inputs: Any) -> Apply:
        variables = self._variables(inputs)
        return Apply(self, variables, [TensorType(self._format(variables))])

    def _variables(self, inputs: Sequence[Any]) -> list[Tensor]:
        self.check_count(_inputs_of(self.steps), inputs)
        return as_variables(inputs)

    def _format(self, variables: Sequence[Tensor]) -> DType:
        """Return the number format of the expression."""
        with Session():
            inputs = [placeholder("x", dtype=each.dtype) for each in variables]
            return _expression(self.steps, inputs).dtype

    @property
    def grad(self) -> Gradient:
        """The stated gradient function, or the gradient function of the expression."""
        return self._gradient_of_expression if self.gradient is None else self.gradient

    def _gradient_of_expression(
        self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        copies = [identity(each) for each in inputs]  # one tensor may be several inputs
        wanted = [each for each in copies if each.dtype.is_float]
        result = _expression(self.steps, copies)
        found = iter(gradients(result, wanted, grad_y=output_gradients[0], allow_unused=True))
        return [next(found) if each.dtype.is_float else None for each in copies]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        dtype = node.results[0].dtype

        def rounded(number: Any) -> Any:
            return round_to(number, dtype)

        def apply(step: ScalarStep, *operands: Any) -> Any:
            made = step.dtype or dtype
            computed = float32 if made.is_narrow else made
            return rounded(round_to(_value(step.formula, operands, computed), made))

        def value(*numbers: Any) -> Any:
            return _evaluate(self.steps, list(map(rounded, numbers)), apply, rounded)[-1]

        arrays = [array.astype(dtype.numpy) for array in self.arrays(node, inputs)]
        found = np.vectorize(value, otypes=[dtype.numpy])(*(a.astype(object) for a in arrays))
        output_storage[0][0] = np.asarray(found, dtype.numpy)


def _operands_of(function: Callable[..., Tensor]) -> int:
    """Return the number of tensors that a function takes."""
    if isinstance(function, Operation):
        return function.operands
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    stated = parameters_of_function(function)
    return sum(each.kind in positional and each.default is each.empty for each in stated)


def _steps(result: Tensor, inputs: Sequence[Tensor]) -> tuple[Steps, int]:
    """Return the graph of a result, its inputs first, and the position of the result."""
    steps = [ScalarStep() for _ in inputs]
    positions = {tensor: position for position, tensor in enumerate(inputs)}
    for tensor in ancestors([result]):
        if tensor in positions:
            continue
        positions[tensor] = len(steps)
        match tensor.definition:
            case Filled(source) if isinstance(number := source(), Constant):
                value = number.value
                text = value.hex() if isinstance(value, float) else str(int(value))
                steps.append(ScalarStep(constant=text))
            case Applied(operation, operands, Pointwise()) if operation.forward.formula is not None:
                at = tuple(positions[operand] for operand in operands)
                dtype = tensor.dtype if tensor.precision.why is Why.STATED else None
                steps.append(ScalarStep(operation, at, dtype=dtype))
            case _:
                raise UsageError(
                    "A composite is made of pointwise operations, its inputs and numbers.",
                    found=f"{tensor.origin.operation}",
                    where=str(tensor.origin),
                    fix="call the function itself, which compiles to the same code and may hold "
                    "any operation, or derive a class from oc.custom.Op",
                )
    return tuple(steps), positions[result]


def _value(formula: Formula, operands: Sequence[Any], dtype: DType) -> Any:
    """Return the value of a formula of numbers, each part of which is rounded to a format."""

    def of_leaf(leaf: Variable | float) -> Any:
        return operands[leaf.position - 1] if isinstance(leaf, Variable) else round_to(leaf, dtype)

    return fold(formula, of_leaf, lambda part, args: round_to(part.op.value.meaning(*args), dtype))


def _inputs_of(steps: Steps) -> int:
    return sum(each == ScalarStep() for each in steps)


def _evaluate(
    steps: Steps,
    inputs: Sequence[Any],
    apply: Callable[..., Any],
    constant: Callable[[float], Any] = lambda number: number,
) -> list[Any]:
    """Return the values of a graph: `apply(step, *operands)` for each operation."""
    known = list(inputs)
    for step in steps[len(inputs) :]:
        if step.operation is None:
            text = step.constant
            known.append(constant(int(text) if text.lstrip("-").isdigit() else float.fromhex(text)))
        else:
            known.append(apply(step, *(known[position] for position in step.operands)))
    return known


def _expression(steps: Steps, inputs: Sequence[Tensor]) -> Tensor:
    """Return the tensor that the steps compute from inputs."""

    def apply(step: ScalarStep, *operands: Any) -> Any:
        assert step.operation is not None
        return step.operation(*operands, dtype=step.dtype)

    result: Tensor = _evaluate(steps, inputs, apply)[-1]
    return result


@lru_cache(maxsize=256)
def _differentiable(steps: Steps, gradient: Gradient) -> Operation | None:
    """Return the operation that computes the steps and has the stated gradient.

    Return None if the gradient does not consist of pointwise operations, numbers and None.
    """
    count = _inputs_of(steps)
    values, targets = operand_variables(count), operand_variables(count, "gradient")
    result = _formula(steps, len(steps) - 1, values)
    slopes = _slopes(gradient, values)
    if result is None or slopes is None:
        return None
    sums = [
        SlotAssignment(targets[position], BinaryOp.ADD, False, slope)
        for position, slope in slopes.items()
    ]
    return Operation(
        name="composite",
        operands=count,
        logic=".",
        forward=Code.of((RESULT, *values), SlotAssignment(RESULT, BinaryOp.SECOND, False, result)),
        gradient=Code.of((COTANGENT, *targets, *values), *sums),
    )


def _slopes(gradient: Gradient, values: Sequence[Variable]) -> dict[int, Formula] | None:
    """Return the formulas of a stated gradient by input, or None."""
    found: dict[int, Formula] = {}
    with Session():
        inputs = [placeholder(f"x{i}", requires_grad=True) for i in range(len(values))]
        given = placeholder("g")
        try:
            stated = gradient(inputs, [given])
            if not isinstance(stated, list | tuple) or len(stated) != len(values):
                return None
            for position, each in enumerate(stated):
                if isinstance(each, Tensor):
                    graph, at = _steps(each, [*inputs, given])
                    slope = _formula(graph, at, [*values, COTANGENT])
                    if slope is None:
                        return None
                    found[position] = slope
                elif isinstance(each, Real):
                    found[position] = float(each)
                elif each is not None:
                    return None
        except OcannlError:
            return None
    return found


def _formula(steps: Steps, at: int, variables: Sequence[Variable]) -> Formula | None:
    """Return a step as a formula; None if it is too large, has a conversion of formats, or an
    integer that is no number of float64.
    """
    is_plain = all(step.dtype is None for step in steps[: at + 1])
    integers: list[int] = []

    def apply(step: ScalarStep, *operands: Formula) -> Formula:
        return map_variables(step.formula, lambda each: operands[each.position - 1])

    def constant(number: float) -> float:
        if isinstance(number, int):
            integers.append(number)
        return float(number)

    found: Formula = _evaluate(steps[: at + 1], variables, apply, constant)[at]
    is_plain = is_plain and all(number == float(number) for number in integers)
    return found if is_plain and not applies_more_than(_MOST_APPLICATIONS, found) else None
