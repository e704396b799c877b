"""Examples: arrays, files mapped into memory, and sequences of arrays, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from ocannl_core.base.errors import DataError, UsageError
from ocannl_core.ir.host_arrays import Array

_RANGE_CHECKED = 1 << 22
"""The number of labels that are compared at a time, so that mapped files stay on disk."""


class Examples:
    """Examples of one kind: the rows of an array, which may be mapped from a file, or the entries
    of a sequence, which are arrays of one shape.
    """

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self, positions: Array) -> Array:
        """Return the examples at positions, along a new leading axis."""
        if isinstance(self._entries, np.ndarray):
            return np.asarray(self._entries[positions])
        return np.stack([np.asarray(self._entries[int(position)]) for position in positions])

    def slice(self, start: int, stop: int) -> Array:
        """Return consecutive examples, without a copy where possible."""
        if isinstance(self._entries, np.ndarray):
            return self._entries[start:stop]
        return self.rows(np.arange(start, stop))


def examples_of(value: object, number: int) -> Examples:
    """Return the examples of an input of a loader.

    Args:
        value: An array, a sequence of arrays or numbers, or any object with `shape`, `dtype` and
            `__getitem__`.

    Raises:
        DataError: if there are none, or shapes differ.
        UsageError: if it is neither an array nor a sequence.
    """
    if isinstance(value, np.ndarray):
        _check_kind(value.dtype, number)
        if value.ndim == 0:
            raise _refusal(value, number)
        found = Examples(value)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found = _sequence(value, number)
    elif hasattr(value, "shape") and hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        found = Examples(value)
    else:
        raise _refusal(value, number)
    if len(found) == 0:
        raise DataError.at_caller(
            "An input of a loader has examples.", found=f"input {number} is empty"
        )
    return found


def _sequence(entries: Sequence[object], number: int) -> Examples:
    shapes: dict[tuple[int, ...], int] = {}
    for position, entry in enumerate(entries):
        try:
            array = np.asarray(entry)
        except ValueError as error:
            raise _ragged(number, position, str(error)) from error
        _check_kind(array.dtype, number)
        shapes.setdefault(array.shape, position)
        if len(shapes) > 1:
            first = next(iter(shapes))
            found = f"{list(array.shape)} in place of {list(first)}"
            raise _ragged(number, position, found)
    return Examples(np.asarray(entries) if shapes.keys() <= {()} else entries)


def check_lengths(inputs: Sequence[Examples]) -> int:
    """Return the number of examples, which all inputs have in common."""
    lengths = [len(each) for each in inputs]
    if len(set(lengths)) > 1:
        raise DataError.at_caller(
            "The inputs of a loader have the same number of examples.",
            found=", ".join(f"{n:,} in input {i}" for i, n in enumerate(lengths)),
            fix="the leading axis counts examples",
        )
    return lengths[0]


def check_labels(labels: Examples, classes: object) -> None:
    """Check that labels are class numbers."""
    if not isinstance(classes, Integral) or isinstance(classes, bool) or int(classes) < 1:
        raise UsageError.at_caller("classes= is the number of classes.", found=repr(classes))
    count = int(classes)
    for start in range(0, len(labels), _RANGE_CHECKED):
        part = np.asarray(labels.slice(start, min(start + _RANGE_CHECKED, len(labels))))
        is_wrong = (part < 0) | (part >= count)
        if part.dtype.kind not in "iu":
            raise DataError.at_caller(
                "Labels are class numbers, which are integers.",
                found=f"labels of {part.dtype}",
                fix="labels.astype(np.int32); without classes=, labels may be any numbers",
            )
        if is_wrong.any():
            first = tuple(int(i) for i in np.argwhere(is_wrong)[0])
            raise DataError.at_caller(
                f"Labels are class numbers, 0 to {count - 1}.",
                found=f"{part[first]} at example {start + first[0]:,}",
                fix="classes= is the number of classes; the last input has the labels",
            )


def _check_kind(dtype: np.dtype[Any], number: int) -> None:
    if dtype.kind in "OSUM":
        raise DataError.at_caller(
            "Examples are numbers.",
            found=f"an array of dtype {dtype} in input {number}",
            fix="convert it: np.asarray(rows, dtype=np.float32)",
        )


def _ragged(number: int, position: int, found: str) -> DataError:
    return DataError.at_caller(
        "The examples of an input have one shape.",
        found=f"example {position:,} of input {number}: {found}",
        fix="pad examples to one shape, or cut them",
    )


def _refusal(value: object, number: int) -> UsageError:
    return UsageError.at_caller(
        "An input of a loader is an array whose leading axis counts examples, or a sequence of "
        "arrays.",
        found=f"input {number}: a {type(value).__name__}",
        fix="oc.data.Loader(images, labels, batch=64)",
    )
