"""The operations and functions to which the operators and methods of tensors are bound."""

from __future__ import annotations

from ocannl_core.tensor import computation, contractions, pointwise, powers, random
from ocannl_core.tensor.bindings import code, operations
from ocannl_core.tensor.operation import Operation

operations.add = pointwise.add
operations.sub = pointwise.sub
operations.mul = pointwise.mul
operations.div = pointwise.div
operations.mod = pointwise.mod
operations.neg = pointwise.neg
operations.power = powers.power
operations.matmul = contractions.matmul
operations.less = pointwise.less
operations.less_equal = pointwise.less_equal
operations.equal = pointwise.equal
operations.not_equal = pointwise.not_equal
operations.logical_or = pointwise.logical_or
operations.logical_and = pointwise.logical_and
operations.identity = pointwise.identity
operations.transpose = contractions.transpose
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
        for module in (pointwise, contractions, random)
        for each in vars(module).values()
        if isinstance(each, Operation) and each.primitive is not None and each.combine is None
    )
    return tuple(dict.fromkeys(found))
