"""Embeddings: rows of a trained table."""

from __future__ import annotations

from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import caller_location
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.operations.positions import take
from ocannl_core.tensor.operations.required_shapes import require_shape


@op
def embedding(
    ids: Tensor, *, entries: int | None = None, width: int | None = None, init: Any = None
) -> Tensor:
    """Return one row of a table for every id.

    Shapes: `b|` to `b|n`, with a parameter `table` of `v` rows, of shape `v,n`. It is the product
    of one-hot vectors with the table, read and not multiplied; the gradient is added to the rows
    that were read, in the order of the ids. A layer that shares the table with the embedding is
    `oc.einsum("...|n; |v,n => ...|v", x, table)`.

    Args:
        ids: Integers from 0 to `entries - 1`; others are errors when the routine runs.
        entries: The number of rows `v`; inferred from other uses of the table when not given.
        width: The size `n`; inferred from the use of the result when not given.
        init: The initial value of the table, as for `oc.param`. By default it is uniform, centred,
            of variance 1: a row is the image of a one-hot vector, which has a fan-in of 1.
    """
    for name, size in (("entries", entries), ("width", width)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise UsageError(
                "The sizes of an embedding are positive integers.",
                found=f"{name}={size!r}",
                where=str(caller_location() or ""),
                fix=f"{name}=64, or leave it out where the use of the embedding decides it",
            )
    rows, cells = ("_" if size is None else str(size) for size in (entries, width))
    table = require_shape(param("table", init=init), f"{rows},{cells}")
    result: Tensor = take(table, ids, axis=0)
    return result
