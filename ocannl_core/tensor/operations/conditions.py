"""The operators `&`, `|`, `^` and `~`: of conditions logical, of integers bit by bit; and tensors
between brackets, which are positions and no masks.

A condition is a comparison, a test, or made of conditions; its cells are 1 and 0, in the format of
what was compared. So `~(a == b)` is a condition, also of integers, and `~n` inverts bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import bool_
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.activations import logical_xor
from ocannl_core.tensor.operations.positions import store_rows, take
from ocannl_core.tensor.primitives import pointwise_operations as pointwise


def is_condition(x: object) -> bool:
    """Return True for truth values of Python, and for results that are 1 or 0 by definition."""
    if isinstance(x, bool):
        return True
    if not (isinstance(x, Tensor) and isinstance(x.definition, Applied)):
        return False
    operation = x.definition.operation
    primitive = operation.primitive
    combine = operation.combine
    return (primitive is not None and bool(primitive.value.gives_truth)) or (
        combine is not None and bool(combine.value.gives_truth)
    )


def refuse_mask(mask: Tensor) -> None:
    """Refuse a condition between brackets: NumPy selects the cells where it holds."""
    if is_condition(mask) or mask.dtype is bool_:
        raise UsageError.at_caller(
            "The number of cells that a mask selects depends on data, and sizes do not.",
            found=f"{mask!r} between brackets",
            fix="oc.where(mask, x, 0.0) keeps all cells, and oc.where(mask, new, x) replaces those "
            "of the mask;\nas positions, 0 and 1 are oc.take(x, oc.cast(mask, 'int32'))",
        )


def take_at(x: Tensor, ids: Tensor, axis: int) -> Any:
    """Return `x[ids]`."""
    refuse_mask(ids)
    return take(x, ids, axis)


def store_at(x: Tensor, ids: Tensor, axis: int, value: Any, combine: BinaryOp, reset: bool) -> None:
    """Record `x[ids] = value`, or an accumulation."""
    refuse_mask(ids)
    store_rows(x, ids, axis, value, combine, reset)


def _either(logical: Callable[..., Any], bitwise: Callable[..., Any]) -> Callable[..., Any]:
    def operator(a: Any, b: Any) -> Any:
        return (logical if is_condition(a) and is_condition(b) else bitwise)(a, b)

    return operator


both = _either(pointwise.logical_and, pointwise.bitwise_and)
either = _either(pointwise.logical_or, pointwise.bitwise_or)
one_of = _either(logical_xor, pointwise.bitwise_xor)


def inverted(x: Any) -> Any:
    """Return the opposite of a condition, or the bits of an integer inverted."""
    return pointwise.logical_not(x) if is_condition(x) else pointwise.bitwise_not(x)
