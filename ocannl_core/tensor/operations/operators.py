"""The operations and functions to which the operators and methods of tensors are bound."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ocannl_core.tensor.computations import computation
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.messages.names_on_demand import places_of
from ocannl_core.tensor.operations import activations, contractions, powers, reductions
from ocannl_core.tensor.primitives import pointwise_operations
from ocannl_core.tensor.primitives.operation import Operation

_MODULES: tuple[ModuleType, ...] = (pointwise_operations, contractions, activations, reductions)


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
):
    functions[_function.__name__] = _function
functions.places = places_of(
    "ocannl_core.tensor",
    {
        "custom.ordering": "argsort median searchsorted sort topk",
        "custom.scans": "cummax cummin cumprod cumsum products_of_others",
        "operations.conditions": "both either inverted one_of store_at take_at",
        "operations.joining": "concat stack",
        "operations.numpy_functions": "diagonal diff numpy_counterpart split trace",
        "operations.position_writes": "put put_along",
        "operations.positions": "take take_along",
        "operations.rearrangement": (
            "broadcast_to broadcast_to_ranks expand_dims flatten length_of moveaxis permute "
            "reshape slices_of squeeze swapaxes transpose"
        ),
        "operations.repetition": "flip one_hot pad repeat roll tile tril triu",
    },
)
