"""The operations and functions to which the operators and methods of tensors are bound."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ocannl_core.tensor.computations import computation
from ocannl_core.tensor.graph.operator_bindings import code, functions, operations
from ocannl_core.tensor.operations import (
    activations,
    conditions,
    contractions,
    joining,
    numpy_functions,
    position_writes,
    positions,
    powers,
    random,
    rearrangement,
    reductions,
    repetition,
)
from ocannl_core.tensor.primitives import pointwise_operations
from ocannl_core.tensor.primitives.operation import Operation

operations.add = pointwise_operations.add
operations.sub = pointwise_operations.sub
operations.mul = pointwise_operations.mul
operations.div = pointwise_operations.div
operations.mod = pointwise_operations.mod
operations.neg = pointwise_operations.neg
operations.power = powers.power
operations.matmul = contractions.matmul
operations.less = pointwise_operations.less
operations.less_equal = pointwise_operations.less_equal
operations.equal = pointwise_operations.equal
operations.not_equal = pointwise_operations.not_equal
operations.logical_or = pointwise_operations.logical_or
operations.logical_and = pointwise_operations.logical_and
operations.logical_not = pointwise_operations.logical_not
operations.bitwise_and = conditions.both
operations.bitwise_or = conditions.either
operations.bitwise_xor = conditions.one_of
operations.bitwise_not = conditions.inverted
operations.floor_divide = pointwise_operations.floor_divide
operations.abs = pointwise_operations.abs
operations.identity = pointwise_operations.identity
operations.transpose = contractions.transpose
operations.subscript = contractions.subscript
operations.take = conditions.take_at
operations.store_rows = conditions.store_at

code.forward = computation.forward
code.zero_grads = computation.zero_gradients
code.backprop = computation.backpropagate
code.consume_forward = computation.consume_forward
code.consume_backprop = computation.consume_backprop


_MODULES: tuple[ModuleType, ...] = (
    pointwise_operations,
    contractions,
    activations,
    reductions,
    rearrangement,
    repetition,
    joining,
)


def _defined_in(module: ModuleType) -> dict[str, Callable[..., object]]:
    """Return the operations of a module, and the public functions that it defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Operation) or getattr(value, "__module__", "") == module.__name__)
        and callable(value)
    }


for _module in _MODULES:
    functions.update(_defined_in(_module))
functions["slices_of"] = rearrangement.slices_of
functions["length_of"] = rearrangement.length_of
functions["power"] = powers.power
functions["divmod"] = lambda a, b: (
    pointwise_operations.floor_divide(a, b),
    pointwise_operations.mod(a, b),
)
for _function in (
    positions.take,
    positions.take_along,
    position_writes.put,
    position_writes.put_along,
    numpy_functions.diff,
    numpy_functions.trace,
    numpy_functions.diagonal,
    numpy_functions.split,
):
    functions[_function.__name__] = _function
functions["greater"] = lambda a, b: pointwise_operations.less(b, a)
functions["greater_equal"] = lambda a, b: pointwise_operations.less_equal(b, a)


def primitive_operations() -> tuple[Operation, ...]:
    """Return the operations that lift one primitive, in order of definition."""
    found = (
        each
        for module in (pointwise_operations, contractions, random)
        for each in vars(module).values()
        if isinstance(each, Operation) and each.primitive is not None and each.combine is None
    )
    return tuple(dict.fromkeys(found))
