"""User-written operations: computations beyond the primitives, in Python and optionally in C or
CUDA.

    class Sort(Op):
        spec = "... => ..."

        def perform(self, node, inputs, output_storage):
            output_storage[0][0] = np.sort(inputs[0], axis=-1)

A call applies an operation: `Sort()(x)` is a tensor like any other.
"""

from typing import TYPE_CHECKING

from ocannl_core.base.origin import skip_lines_of
from ocannl_core.ir.external import NativeCode
from ocannl_core.tensor.custom.op import Apply, NoNativeCode, Op
from ocannl_core.tensor.custom.variables import ObjectResult, ObjectType, TensorType, as_variable
from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand, places_of

if TYPE_CHECKING:
    from ocannl_core.tensor.custom.composite import Composite
    from ocannl_core.tensor.custom.scalar_ops import Broadcast, Reduce

# fmt: off
__all__ = [
    "Apply", "Broadcast", "Composite", "NativeCode", "NoNativeCode", "ObjectResult", "ObjectType",
    "Op", "Reduce", "TensorType", "as_variable", "skip_lines_of",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(
        globals(), places_of(__name__, {"composite": "Composite", "scalar_ops": "Broadcast Reduce"})
    )
__dir__ = list_names(globals())
guard(globals(), __all__)
