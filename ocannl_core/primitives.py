"""Operations that other operations are made of.

Gates and operands of recorded code, sums and maxima of sums, and cells that hold their position.
"""

from typing import TYPE_CHECKING

from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand
from ocannl_core.tensor.operations.contractions import interleave, outer_sum, tropical
from ocannl_core.tensor.operations.literals import offsets
from ocannl_core.tensor.primitives.pointwise_operations import (
    first,
    identity,
    relu_gate,
    sat01,
    sat01_gate,
    second,
)

# fmt: off
__all__ = [
    "first", "identity", "interleave", "offsets", "outer_sum", "relu_gate", "sat01", "sat01_gate",
    "second", "tropical",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), {})
__dir__ = list_names(globals())
guard(globals(), __all__)
