"""Batches as inputs of a routine: copies to placeholders, rows, and batches without padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.data.loader import Batch
from ocannl_core.tensor.graph.tensor import Tensor

Inputs = Sequence[Tensor] | Mapping[Tensor, int | str]
"""Placeholders in the order of a batch's arrays; or the position or key of each one's array, or
the name of an attribute of the batch, as `"mask"`.
"""


def filler(ctx: Any, inputs: Inputs) -> Callable[[Any], None]:
    """Return the function that copies a batch to placeholders."""
    if isinstance(inputs, Mapping):
        pairs = list(inputs.items())
    elif isinstance(inputs, list | tuple):
        pairs = [(tensor, position) for position, tensor in enumerate(inputs)]
    else:
        pairs = []
    if not pairs or not all(isinstance(t, Tensor) and isinstance(k, int | str) for t, k in pairs):
        raise UsageError.at_caller(
            "inputs= are placeholders in the order of a batch's arrays, or the position of each "
            "one's array.",
            repr(inputs),
            "inputs=[x, y], or inputs={x: 0, y: 1}",
        )
    is_mapping = isinstance(inputs, Mapping)
    tensors = [tensor for tensor, _ in pairs]
    sequences, count = (tuple, list), len(pairs)

    def fill(batch: Any) -> None:
        if is_mapping:
            for tensor, key in pairs:
                ctx[tensor] = _part(batch, key)
            return
        if not isinstance(batch, sequences) or len(batch) != count:
            if not (isinstance(batch, np.ndarray) and count == 1):
                raise _unequal(batch, f"{count} placeholders")
            batch = (batch,)
        for tensor, array in zip(tensors, batch):  # noqa: B905  lengths are equal, and it is hot
            ctx[tensor] = array

    return fill


def reads_mask(inputs: Inputs) -> bool:
    """Return True if a routine gets the mask of a batch, by which it weighs rows."""
    return isinstance(inputs, Mapping) and "mask" in inputs.values()


def count_rows(batch: Any, *, is_masked: bool) -> int:
    """Return the number of rows of a batch that count; padding does, unless it is masked."""
    valid = getattr(batch, "valid", None) if is_masked else None
    if valid is not None:
        return int(valid)
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    first = batch[0] if isinstance(batch, tuple | list) else batch
    return len(first) if hasattr(first, "__len__") and np.ndim(first) else 1


def counted_batches(batch: Any, inputs: Inputs) -> Iterator[tuple[Any, int]]:
    """Yield batches whose means are over the examples of a batch, with the numbers of examples.

    For a batch with padding that no mask leaves out, these are of parts whose sizes divide the
    number of rows, each repeated to fill it.
    """
    rows, valid = count_rows(batch, is_masked=False), getattr(batch, "valid", None)
    if valid is None or valid == rows or reads_mask(inputs):
        if valid != 0:
            yield batch, rows if valid is None else valid
        return
    if not isinstance(batch, tuple | list):
        raise UsageError.at_caller(
            "A batch with padding is a tuple of arrays.",
            f"a {type(batch).__name__}, of whose {rows} rows {valid} are examples",
            'an input "mask", or oc.data.Loader',
        )
    start = 0
    while start < valid:
        size = max(n for n in range(1, valid - start + 1) if rows % n == 0)
        places = start + np.arange(rows) % size
        yield Batch(tuple(np.asarray(each)[places] for each in batch), rows), size
        start += size


def _part(batch: Any, key: int | str) -> Any:
    try:
        if isinstance(key, int) or isinstance(batch, Mapping):
            return batch[key]
        return getattr(batch, key)
    except (LookupError, AttributeError, TypeError):
        raise _unequal(batch, f"a placeholder at {key!r}") from None


def _unequal(batch: object, wanted: str) -> UsageError:
    size = f" of {len(batch)}" if isinstance(batch, tuple | list | Mapping) else ""
    return UsageError.at_caller(
        "A batch has an array for each placeholder.",
        f"a {type(batch).__name__}{size} for {wanted}",
        "inputs={x: 0, y: 1} states positions",
    )
