"""The operations and functions to which the operators and methods of tensors are bound.

The operators `&`, `|`, `^` and `~` are logical on conditions, and bit by bit on integers. A
condition is a comparison, a test, or made of conditions; its cells are 1 and 0, in the format of
what was compared. So `~(a == b)` is a condition, also of integers, and `~n` inverts bits. Tensors
between brackets are positions and no masks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import bool_
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.tensor.computations import computation
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages.call_errors import places_of
from ocannl_core.tensor.operations import activations, contractions, reductions
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operation import Operation

_MODULES: tuple[ModuleType, ...] = (pointwise, contractions, activations, reductions)


def _defined_in(module: ModuleType) -> dict[str, Callable[..., object]]:
    """Return the operations of a module, and the public functions that it defines."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Operation) or getattr(value, "__module__", "") == module.__name__)
        and callable(value)
    }


def _is_condition(x: object) -> bool:
    """Return True for truth values of Python, and for results that are 1 or 0 by definition."""
    if not (isinstance(x, Tensor) and isinstance(x.definition, Applied)):
        return isinstance(x, bool)
    operation = x.definition.operation
    return any(
        each is not None and bool(each.value.gives_truth)
        for each in (operation.primitive, operation.combine)
    )


def _refuse_mask(mask: Tensor) -> None:
    """Refuse a condition between brackets: NumPy selects the cells where it holds."""
    if _is_condition(mask) or mask.dtype is bool_:
        raise UsageError.at_caller(
            "The number of cells that a mask selects depends on data, and sizes do not.",
            found=f"{mask!r} between brackets",
            fix="oc.where(mask, x, 0.0) keeps all cells, and oc.where(mask, new, x) replaces those "
            "of the mask;\nas positions, 0 and 1 are oc.take(x, oc.cast(mask, 'int32'))",
        )


def _take_at(x: Tensor, ids: Tensor, axis: int) -> Any:
    """Return `x[ids]`."""
    _refuse_mask(ids)
    return functions["take"](x, ids, axis)


def _store_at(
    x: Tensor, ids: Tensor, axis: int, value: Any, combine: BinaryOp, reset: bool
) -> None:
    """Record `x[ids] = value`, or an accumulation."""
    _refuse_mask(ids)
    functions["store_rows"](x, ids, axis, value, combine, reset)


def _either(logical: Callable[..., Any], bitwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator that is logical for conditions, and bit by bit for other operands."""
    return lambda *operands: (logical if all(map(_is_condition, operands)) else bitwise)(*operands)


for _module in _MODULES:
    functions.update(_defined_in(_module))
functions.update(
    both=_either(pointwise.logical_and, pointwise.bitwise_and),
    either=_either(pointwise.logical_or, pointwise.bitwise_or),
    one_of=_either(activations.logical_xor, pointwise.bitwise_xor),
    inverted=_either(pointwise.logical_not, pointwise.bitwise_not),
    divmod=lambda a, b: (pointwise.floor_divide(a, b), pointwise.mod(a, b)),
    take_at=_take_at,
    store_at=_store_at,
)
for _function in (
    computation.forward,
    computation.zero_gradients,
    computation.backpropagate,
    computation.consume_forward,
    computation.consume_backprop,
):
    functions[_function.__name__] = _function
functions.places = places_of(
    "ocannl_core.tensor",
    {
        "custom.ordering": "argsort median searchsorted sort topk",
        "custom.scans": "cummax cummin cumprod cumsum products_of_others",
        "operations.numpy_functions": "diagonal diff numpy_counterpart split trace",
        "operations.positions": "put put_along store_rows take take_along",
        "operations.rearrangement": (
            "broadcast_to broadcast_to_ranks concat expand_dims flatten length_of moveaxis permute "
            "reshape slices_of squeeze stack swapaxes transpose"
        ),
        "operations.repetition": "flip one_hot pad repeat roll tile tril triu",
    },
)
