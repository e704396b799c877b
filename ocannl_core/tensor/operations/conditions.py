"""The operators `&`, `|`, `^` and `~`: of conditions logical, of integers bit by bit.

A condition is a comparison, a test, or made of conditions; its cells are 1 and 0, in the format of
what was compared. So `~(a == b)` is a condition, also of integers, and `~n` inverts bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.activations import logical_xor
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
