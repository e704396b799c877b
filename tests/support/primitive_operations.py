"""The operations that lift one primitive."""

from __future__ import annotations

from ocannl_core.tensor.operations import contractions, random
from ocannl_core.tensor.primitives import pointwise_operations
from ocannl_core.tensor.primitives.operation import Operation


def primitive_operations() -> tuple[Operation, ...]:
    """Return the operations that lift one primitive, in order of definition."""
    found = (
        each
        for module in (pointwise_operations, contractions, random)
        for each in vars(module).values()
        if isinstance(each, Operation) and each.primitive is not None and each.combine is None
    )
    return tuple(dict.fromkeys(found))
