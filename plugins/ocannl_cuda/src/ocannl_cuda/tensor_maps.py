"""Tensor maps: arrays in the memory of a device as its copy engine takes them.

The driver encodes a map; the numbers that it is given are a pure function of the array and its
address.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_uint64, c_void_p

from ocannl_core.backend_api import DType, bfloat16, dataclass, float16, float32, float64
from ocannl_core.backend_api.c_family import TensorMap
from ocannl_cuda.driver_calls import DriverCalls

TENSOR_MAP_BYTES = 128
_ALIGNMENT = 64
_FLOATS: dict[DType, int] = {float16: 6, float32: 7, float64: 8, bfloat16: 9}
"""CU_TENSOR_MAP_DATA_TYPE_FLOAT16, ..._FLOAT32, ..._FLOAT64 and ..._BFLOAT16."""
_WORDS = {1: 0, 2: 1, 4: 2, 8: 4}
"""CU_TENSOR_MAP_DATA_TYPE_UINT8, ..._UINT16, ..._UINT32 and ..._UINT64 by their bytes: copies of
other formats.
"""
_SWIZZLES = {32: 1, 64: 2, 128: 3}
"""CU_TENSOR_MAP_SWIZZLE_32B, ..._64B and ..._128B, by the bytes of a row in shared memory."""
_NO_INTERLEAVE, _L2_128_BYTES, _ZEROS = 0, 2, 0
"""CU_TENSOR_MAP_INTERLEAVE_NONE, ..._L2_PROMOTION_L2_128B and ..._FLOAT_OOB_FILL_NONE."""


@dataclass(frozen=True, slots=True)
class MapNumbers:
    """The numbers that the driver encodes.

    Attributes:
        dtype: The number format of the cells.
        address: The address of the first cell.
        extents: The cells along each axis, the contiguous one first.
        strides: The bytes from one position to the next one, but for the first axis.
        box: The cells of a box along each axis.
        swizzle: The exchange of the parts of rows in shared memory.
    """

    dtype: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def numbers_of(form: TensorMap, address: int) -> MapNumbers:
    """Return the numbers of a tensor map.

    Args:
        form: The array.
        address: The address of its buffer.
    """
    nbytes = form.dtype.nbytes
    return MapNumbers(
        _FLOATS[form.dtype] if form.dtype in _FLOATS else _WORDS[nbytes],
        address + nbytes * form.offset,
        form.extents,
        tuple(nbytes * each for each in form.strides),
        form.box,
        _SWIZZLES[form.row_bytes],
    )


def encode(calls: DriverCalls, form: TensorMap, address: int) -> bytes:
    """Return the tensor map of an array, which a kernel takes by value.

    Args:
        form: The array.
        address: The address of its buffer.

    Raises:
        DriverCallError: if the driver refuses it.
    """
    numbers = numbers_of(form, address)
    rank = len(numbers.extents)
    memory = ctypes.create_string_buffer(TENSOR_MAP_BYTES + _ALIGNMENT)
    start = -ctypes.addressof(memory) % _ALIGNMENT
    calls.call(
        "cuTensorMapEncodeTiled",
        byref(memory, start),
        numbers.dtype,
        rank,
        c_void_p(numbers.address),
        (c_uint64 * rank)(*numbers.extents),
        (c_uint64 * rank)(*numbers.strides),
        (c_uint32 * rank)(*numbers.box),
        (c_uint32 * rank)(*[1] * rank),
        _NO_INTERLEAVE,
        numbers.swizzle,
        _L2_128_BYTES,
        _ZEROS,
    )
    return memory.raw[start : start + TENSOR_MAP_BYTES]
