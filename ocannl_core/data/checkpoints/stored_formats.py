"""The number formats of the safetensors format, and their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """A number format in a file.

    Attributes:
        name: Its name in the header.
        nbytes: Bytes per cell.
        dtype: The number format of tensors that holds the same cells.
    """

    name: str
    nbytes: int
    dtype: DType

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy format of the cells."""
        return self.dtype.numpy

    @property
    def title(self) -> str:
        """The name of the format in messages."""
        return self.dtype.name


_OF_TENSORS = {
    "F64": dtypes.float64,
    "F32": dtypes.float32,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F8_E4M3": dtypes.float8_e4m3fn,
    "F8_E5M2": dtypes.float8_e5m2,
    "I64": dtypes.int64,
    "I32": dtypes.int32,
    "U64": dtypes.uint64,
    "U32": dtypes.uint32,
    "U16": dtypes.uint16,
    "I16": dtypes.int16,
    "I8": dtypes.int8,
    "BOOL": dtypes.bool_,
    "U8": dtypes.uint8,
}

CODES = {name: StoredFormat(name, dtype.nbytes, dtype) for name, dtype in _OF_TENSORS.items()}
"""The formats that are read and written, by name."""

_BY_DTYPE = {code.dtype: code for code in CODES.values()}

WORD = (4,)
"""The extents of a 128-bit word in a file: four 32-bit lanes along an axis of their own."""


def stored_as(dtype: DType, dims: tuple[int, ...]) -> tuple[StoredFormat, tuple[int, ...]]:
    """Return the format and the extents with which the cells of a tensor are stored."""
    if dtype is dtypes.uint4x32:
        return CODES["U32"], (*dims, *WORD)
    return _BY_DTYPE[dtype.unpacked], dims
