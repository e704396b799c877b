"""Tensors whose cells are given: numbers, arrays, nested literals, ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from ocannl_core.assign.nodes import (
    EmbedIndex,
    RangeOverOffsets,
)
from ocannl_core.dtypes import DType, uint4x32
from ocannl_core.errors import UsageError
from ocannl_core.host_arrays import check_kind, converted, refuse_nan
from ocannl_core.indexing import StaticIndex, VarIndex
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.terms import Shape, closed_shape
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.leaves import constant, filled
from ocannl_core.tensor.precision import chosen, roomy
from ocannl_core.tensor.tensor import Literal, Tensor


class Batch(tuple[Any, ...]):
    """A literal's batch axis: `oc.batch([1, 2], [3, 4])` holds two entries of one output axis
    each.
    """


def batch(*entries: Any) -> Batch:
    """Returns a batch axis for a nested literal; lists are output axes, tuples input axes."""
    return Batch(entries)


def tensor(
    value: Any,
    *,
    batch_axes: int = 0,
    input_axes: int = 0,
    margins: Sequence[tuple[int, int]] | None = None,
    dtype: DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Returns a tensor with the given cells; its shape is exactly that of the value.

    In nested Python literals, lists are output axes, tuples input axes and `oc.batch(...)` batch
    axes: `[(1, 2, 3), (4, 5, 6)]` has the shape `3->2`. The axes of an array are output axes, but
    for the leading `batch_axes` and the trailing `input_axes`.

    Args:
        value: A number, nested literals, a NumPy array, or an object with `__dlpack__`. Arrays are
            copied.
        batch_axes: How many leading axes of an array are batch axes.
        input_axes: How many trailing axes of an array are input axes.
        margins: For data that comes padded, the cells before and after the tensor's own ones, axis
            by axis of the array; they are left out. What windows find there depends on the
            operation.
        dtype: The number format. Without it, literals and float64 arrays get the session's default
            float; other arrays keep theirs.
        label: A name.

    Raises:
        UsageError: for ragged literals, other values, or more axes named than there are.
        TransferError: if a cell is NaN, or is not a number of the format.
    """
    session = sessions.current()
    location = caller_location()
    if margins is not None:
        value = _without_margins(
            _as_array(value, str(location or "")), margins, str(location or "")
        )
    if isinstance(value, list | tuple) and not _holds_arrays(value):
        array, shape = _nested(value, str(location or ""))
        precision = chosen(dtype, session.default_dtype)
    else:
        array = _as_array(value, str(location or ""))
        shape = _shape_of(array, batch_axes, input_axes, str(location or ""))
        own = None if array.dtype == np.float64 else array.dtype
        precision = chosen(own if dtype is None else dtype, session.default_dtype)
    if precision.follows:
        precision = replace(precision, dtype=roomy(precision.dtype, array))
    dtype = precision.dtype
    if dtype is not uint4x32:
        check_kind(array, dtype, str(location or ""))
        refuse_nan(array, str(location or ""))
        rounded = converted(array, dtype, str(location or ""))
        # what a use may ask for in another format keeps its digits until that is settled
        array = array if precision.follows else rounded
    kept = array.dtype if precision.follows else dtype.numpy
    cells = np.array(array, dtype=kept, order="C").reshape(shape.dims)
    cells.flags.writeable = False
    origin = Origin("literal", location)
    return Tensor(session, Literal(cells), shape, precision, (label or "literal",), origin)


def number(
    value: float | StaticIndex, *, dtype: DType | str | None = None, label: str | None = None
) -> Tensor:
    """Returns a tensor of one cell: a constant, or the value of a static index at run time."""
    session = sessions.current()
    precision = chosen(dtype, session.default_dtype)
    if isinstance(value, StaticIndex):
        index = value
        return filled(
            session,
            lambda: EmbedIndex(VarIndex(index)),
            closed_shape(),
            precision,
            label or value.name,
        )
    if not isinstance(value, Real):
        raise UsageError(
            "A number tensor is made from a number or a static index.", found=repr(value)
        )
    return constant(float(value), session, dtype=precision, label=label)


def arange(stop: int, *, dtype: DType | str | None = None, label: str | None = None) -> Tensor:
    """Returns one output axis holding 0, 1, ..., stop - 1."""
    session = sessions.current()
    precision = chosen(dtype, session.default_dtype)
    return filled(
        session, RangeOverOffsets, closed_shape(output=(stop,)), precision, label or "arange"
    )


def _holds_arrays(value: Sequence[Any]) -> bool:
    """True for sequences of arrays, which NumPy stacks."""
    return any(isinstance(each, np.ndarray) for each in value)


def _without_margins(
    array: np.ndarray[Any, Any], margins: Sequence[tuple[int, int]], where: str
) -> np.ndarray[Any, Any]:
    fits = len(margins) == array.ndim and all(
        left >= 0 and right >= 0 and left + right <= n
        for n, (left, right) in zip(array.shape, margins, strict=True)
    )
    if not fits:
        raise UsageError(
            "Margins are two numbers of cells for each axis of an array, no more than it has.",
            found=f"margins={list(margins)} for an array of shape {array.shape}",
            where=where,
        )
    own = zip(array.shape, margins, strict=True)
    cells: np.ndarray[Any, Any] = array[tuple(slice(left, n - right) for n, (left, right) in own)]
    return cells


def _as_array(value: Any, where: str) -> np.ndarray[Any, Any]:
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        array = np.from_dlpack(value)
    else:
        array = np.asarray(value)
    if array.dtype == np.bool_:
        array = array.astype(np.float64)  # truth values are counted and multiplied
    if array.dtype.kind not in "fiuV":
        raise UsageError(
            "A tensor is made of numbers.",
            found=f"{type(value).__name__} of dtype {array.dtype}",
            where=where,
        )
    return array


def _shape_of(array: np.ndarray[Any, Any], batch_axes: int, input_axes: int, where: str) -> Shape:
    if batch_axes < 0 or input_axes < 0 or batch_axes + input_axes > array.ndim:
        raise UsageError(
            "The batch and input axes of an array are among its axes.",
            found=f"batch_axes={batch_axes}, input_axes={input_axes} for an array of {array.ndim} "
            "axes",
            where=where,
        )
    dims = array.shape
    middle = len(dims) - input_axes
    return closed_shape(
        batch=dims[:batch_axes], output=dims[batch_axes:middle], input=dims[middle:]
    )


def _nested(value: Any, where: str) -> tuple[np.ndarray[Any, Any], Shape]:
    """Returns the cells of a nested literal in buffer order, and its shape."""
    kinds: list[type] = []
    dims: list[int] = []
    level: Any = value
    while isinstance(level, list | tuple):
        kinds.append(Batch if isinstance(level, Batch) else type(level))
        dims.append(len(level))
        if not level:
            break
        level = level[0]
    cells = np.array(list(_flatten(value, kinds, dims, 0, where))).reshape(dims)
    axes = {kind: [i for i, k in enumerate(kinds) if k is kind] for kind in (Batch, list, tuple)}
    order = axes[Batch] + axes[list] + axes[tuple]
    sizes = {kind: tuple(dims[i] for i in axes[kind]) for kind in axes}
    return cells.transpose(order), closed_shape(
        batch=sizes[Batch], output=sizes[list], input=sizes[tuple]
    )


def _flatten(
    value: Any, kinds: list[type], dims: list[int], depth: int, where: str
) -> Iterable[Any]:
    if depth == len(kinds):
        if not isinstance(value, Real):
            raise UsageError(
                "A literal nests numbers to one depth.", found=repr(value), where=where
            )
        yield value
        return
    kind = Batch if isinstance(value, Batch) else type(value)
    if kind is not kinds[depth] or len(value) != dims[depth]:
        raise UsageError(
            "The entries of one axis of a literal have the same kind and length.",
            found=f"{value!r} where {kinds[depth].__name__} of length {dims[depth]} was expected",
            where=where,
        )
    for each in value:
        yield from _flatten(each, kinds, dims, depth + 1, where)
