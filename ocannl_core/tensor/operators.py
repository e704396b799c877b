"""The operations and functions to which the operators and methods of tensors are bound."""

from __future__ import annotations

from ocannl_core.tensor import (
    computation,
    contractions,
    pointwise_operations,
    positions,
    powers,
    random,
)
from ocannl_core.tensor.operation import Operation
from ocannl_core.tensor.operator_bindings import code, operations

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
operations.identity = pointwise_operations.identity
operations.transpose = contractions.transpose
operations.take = positions.take
operations.store_rows = positions.store_rows
operations.slice_batch = contractions.slice_batch

code.forward = computation.forward
code.zero_grads = computation.zero_gradients
code.backprop = computation.backpropagate
code.consume_forward = computation.consume_forward
code.consume_backprop = computation.consume_backprop


def primitive_operations() -> tuple[Operation, ...]:
    """Return the operations that lift one primitive, in order of definition."""
    found = (
        each
        for module in (pointwise_operations, contractions, random)
        for each in vars(module).values()
        if isinstance(each, Operation) and each.primitive is not None and each.combine is None
    )
    return tuple(dict.fromkeys(found))
