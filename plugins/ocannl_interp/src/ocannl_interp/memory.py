"""Memory of the interpreter: NumPy arrays, their strides, and reads of their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ocannl_core import backend_api
from ocannl_core.backend_api import (
    DType,
    NodeInfo,
    Target,
    TensorNode,
    VerifyError,
    bool_,
    dataclass,
    float16,
    int4,
)
from ocannl_core.backend_api.arithmetic import Number

Array = np.ndarray[Any, Any]

POISON_BYTE = 0xA5
"""The value of every byte of uninitialized integers and words; such floats are NaN."""


@dataclass(frozen=True, slots=True)
class ArrayBuffer:
    """The cells of a node, margins included, as an array of `info.buffer_dims`."""

    array: Array
    info: NodeInfo
    target: Target


def undefined(info: NodeInfo) -> Array:
    """Return new memory as a flat array of values that mark uninitialized cells."""
    if info.dtype.is_float:
        return np.full(info.size, np.nan, info.dtype.numpy)
    return np.full(info.nbytes, POISON_BYTE, np.uint8).view(info.memory_numpy)


def interior(cells: Array, info: NodeInfo) -> Array:
    """Return the view of a node's flat memory that has its extents and leaves out its margins."""
    return backend_api.interior(cells.reshape(info.buffer_dims), info)


def strides(info: NodeInfo) -> tuple[int, ...]:
    """Return the stride of each axis, in cells."""
    strides = [1]
    for extent in reversed(info.buffer_dims[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(info.dims)])


def outside(
    node: TensorNode, positions: Sequence[int], info: NodeInfo, detail: str = ""
) -> VerifyError:
    return VerifyError(
        "Accesses stay inside the node.",
        found=f"position {list(positions)} of extents {list(info.buffer_dims)}{detail}",
        where=repr(node),
    )


def reader(dtype: DType) -> Callable[[Array, int], Number]:
    """Return a function from the offset of a cell in a flat array to its value in Python."""
    if dtype.is_narrow and dtype is not float16:  # these formats have scalars of their own
        return lambda cells, offset: float(cells[offset])
    if dtype.is_packed:
        is_signed = dtype is int4

        def read(cells: Array, offset: int) -> Number:
            number = cells.item(offset >> 1) >> 4 * (offset & 1) & 15
            return (number ^ 8) - 8 if is_signed else number

        return read
    if dtype is bool_:  # its scalars are no numbers to `~`
        return lambda cells, offset: int(cells[offset])
    return lambda cells, offset: cells.item(offset)


def cell(dtype: DType, cells: str, offset: str) -> str | None:
    """Return a Python expression for what `reader` reads, or None for a format that needs it."""
    if dtype.is_narrow and dtype is not float16:
        return f"float({cells}[{offset}])"
    if dtype.is_packed:
        return None
    return f"int({cells}[{offset}])" if dtype is bool_ else f"{cells}.item({offset})"


def poison(dtype: DType) -> Number:
    """Return the value of an uninitialized scalar variable."""
    return reader(dtype)(undefined(NodeInfo(dtype, (1,))), 0)
