"""Nested literals: the kinds of their axes, and their leaves."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from numbers import Real
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import caller_location
from ocannl_core.ir.host_arrays import Array, plain_number, refuse_mask
from ocannl_core.shape.language.shape_terms import BUFFER_ORDER, Row, RowKind, Shape, Size
from ocannl_core.tensor.graph.tensor import Tensor


class BatchLiteral(tuple[Any, ...]):
    """A batch axis: `oc.batch([1, 2], [3, 4])` holds two entries of one output axis each."""


def batch(*entries: Any) -> BatchLiteral:
    """Return a batch axis for a nested literal; lists are output axes, tuples input axes.

        oc.tensor(oc.batch([1, 2, 3], [4, 5, 6]))       # 2|3

    Args:
        entries: Numbers, nested literals, arrays or tensors of one shape.
    """
    return BatchLiteral(entries)


CONTAINERS = (list, tuple, range)
"""The types that nest; a range is a list of its numbers."""


@dataclass(frozen=True, slots=True)
class NestedAxis:
    """An axis that a literal states."""

    kind: RowKind
    n: int


@dataclass(frozen=True, slots=True)
class NestedLiteral:
    """A nested literal: its containers, outermost first, and the entries of the innermost ones."""

    axes: tuple[NestedAxis, ...]
    leaves: tuple[Any, ...]

    @property
    def holds_tensors(self) -> bool:
        return any(issubclass(each, Tensor) for each in self._types())

    @property
    def holds_arrays(self) -> bool:
        return any(is_array(each) for each in self._types() if not issubclass(each, Tensor))

    @property
    def states_kinds(self) -> bool:
        """Return True if a container other than a list states the kind of its axis."""
        return any(axis.kind is not RowKind.OUTPUT for axis in self.axes)

    def _types(self) -> set[type]:
        return set(map(type, self.leaves))  # literals may be long: each type is checked once


_MOST_AXES = 64  # the limit of NumPy


def is_array(value: object) -> bool:
    """Return True for arrays of any library, and for NumPy's scalars; tensors are none."""
    if isinstance(value, Tensor):
        return False
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def parse_nested(value: Any) -> NestedLiteral:
    """Return the axes and leaves of a literal. A value that is no container is a single leaf."""
    axes: list[NestedAxis] = []
    level = value
    while isinstance(level, CONTAINERS):
        if len(axes) == _MOST_AXES:
            raise UsageError.at_caller(
                f"A literal nests containers at most {_MOST_AXES} deep, the most axes of an array.",
                found="a deeper one, or one that contains itself",
            )
        axes.append(NestedAxis(_kind(level), len(level)))
        if not level:
            break
        level = level[0]
    if prod(axis.n for axis in axes) == 0:
        _check_empty(value, axes)
        return NestedLiteral(tuple(axes), ())
    return NestedLiteral(tuple(axes), tuple(_leaves(value, axes, "")))


def _kind(container: list[Any] | tuple[Any, ...] | range) -> RowKind:
    if isinstance(container, BatchLiteral):
        return RowKind.BATCH
    return RowKind.INPUT if isinstance(container, tuple) else RowKind.OUTPUT


_CONTAINER = {RowKind.OUTPUT: "list", RowKind.INPUT: "tuple", RowKind.BATCH: "oc.batch"}


def _leaves(value: Any, axes: list[NestedAxis], path: str) -> Iterator[Any]:
    if not axes:
        if not (isinstance(value, Real | Tensor) or is_array(value)):
            raise UsageError.at_caller(
                "A literal nests numbers, arrays or tensors to one depth.",
                found=f"{value!r}{_at(path)}",
                fix="text is no number: tables of words become numbers, as positions in a list"
                if isinstance(value, str)
                else "lists of equal lengths, with numbers inside",
            )
        yield value
        return
    expected, *inner = axes
    _check_entry(value, expected, path)
    if not inner and set(map(type, value)) <= {int, float, bool}:
        yield from value
        return
    for position, entry in enumerate(value):
        yield from _leaves(entry, inner, f"{path}[{position}]")


def _check_empty(value: Any, axes: list[NestedAxis]) -> None:
    """Check the containers around an axis without positions."""
    entries = [("", value)]
    for axis in axes:
        for path, entry in entries:
            _check_entry(entry, axis, path)
        entries = [
            (f"{path}[{i}]", inner) for path, entry in entries for i, inner in enumerate(entry)
        ]


def _check_entry(value: Any, expected: NestedAxis, path: str) -> None:
    if isinstance(value, CONTAINERS):
        if (_kind(value), len(value)) == (expected.kind, expected.n):
            return
        found = f"{_CONTAINER[_kind(value)]} of length {len(value)}"
    else:
        found = repr(value)
    raise UsageError.at_caller(
        "The entries of one axis of a literal have the same kind and length.",
        found=f"{found}{_at(path)}, where a {_CONTAINER[expected.kind]} of length {expected.n} "
        "was expected",
        fix="fill the shorter ones, as with zeros, and state lengths in a tensor of their own",
    )


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def cells_of(literal: NestedLiteral) -> Array:
    """Return the cells of a literal without tensors: axes of the nesting, then of arrays in it."""
    dims = tuple(axis.n for axis in literal.axes)
    if not literal.holds_arrays:
        return _numbers(literal.leaves).reshape(dims)
    arrays = [as_array(leaf) for leaf in literal.leaves]
    for position, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            path = "".join(f"[{i}]" for i in np.unravel_index(position, dims))
            raise UsageError.at_caller(
                "The arrays in a literal have the same shape.",
                found=f"an array of shape {array.shape} at {path}, where {arrays[0].shape} was "
                "expected",
            )
    stacked: Array = np.stack(arrays).reshape((*dims, *arrays[0].shape))
    return stacked


def _numbers(leaves: tuple[Any, ...]) -> Array:
    """Return an array of truths, of integers of 64 bits, or else of double precision."""
    if leaves and all(isinstance(leaf, bool) for leaf in leaves):
        return np.array(leaves, dtype=np.bool_)
    if leaves and all(isinstance(leaf, int) for leaf in leaves):
        low, high = min(leaves), max(leaves)
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return np.array(leaves, dtype=dtype)
    where = str(caller_location() or "")
    return np.array([float(plain_number(leaf, where)) for leaf in leaves])


def as_array(value: Any, where: str | None = None) -> Array:
    """Return an array of any library as a NumPy array, without a copy where that is possible.

    Raises:
        UsageError: if it does not hold real numbers, or is not in the host's memory.
        TransferError: if a cell is masked.
    """
    where = where or str(caller_location() or "")
    refuse_mask(value, where)
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
            array = np.from_dlpack(value)
        else:
            array = value if isinstance(value, np.memmap) else np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            "An array is in the host's memory, in a format that NumPy has.",
            found=f"{type(value).__name__}: {error}",
            where=where,
            fix="convert it to a NumPy array: for PyTorch, x.detach().cpu().float().numpy()",
        ) from error
    if array.dtype.kind not in "bfiuV":
        raise UsageError(
            "A tensor is made of numbers.",
            found=f"{type(value).__name__} of dtype {array.dtype}",
            where=where,
            fix="real and imaginary parts are two tensors: oc.tensor(x.real), oc.tensor(x.imag)"
            if array.dtype.kind == "c"
            else "array.astype(np.float32), if all entries are numbers",
        )
    return array


def to_buffer_order(
    cells: Array, kinds: list[RowKind], basis: list[str | None]
) -> tuple[Array, Shape]:
    """Return cells with their axes ordered batch, output, input; and the shape."""
    of_kind = {kind: [i for i, each in enumerate(kinds) if each is kind] for kind in RowKind}
    shape = Shape()
    for kind, axes in of_kind.items():
        sizes = tuple(Size(cells.shape[i], basis[i]) for i in axes)
        shape = shape.with_row(kind, Row(trailing=sizes))
    order = [i for kind in BUFFER_ORDER for i in of_kind[kind]]
    return cells if order == sorted(order) else cells.transpose(order), shape
