"""The operations and functions to which the operators and methods of tensors are bound."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ocannl_core.tensor.computations import computation
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.operations import (
    activations,
    conditions,
    contractions,
    joining,
    numpy_functions,
    position_writes,
    positions,
    powers,
    rearrangement,
    reductions,
    repetition,
)
from ocannl_core.tensor.primitives import pointwise_operations
from ocannl_core.tensor.primitives.operation import Operation

_MODULES: tuple[ModuleType, ...] = (
    pointwise_operations,
    contractions,
    activations,
    reductions,
    rearrangement,
    repetition,
    joining,
    conditions,
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
functions["divmod"] = lambda a, b: (
    pointwise_operations.floor_divide(a, b),
    pointwise_operations.mod(a, b),
)
for _function in (
    computation.forward,
    computation.zero_gradients,
    computation.backpropagate,
    computation.consume_forward,
    computation.consume_backprop,
    powers.power,
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
