"""Memory of devices for other libraries, without copies: DLPack and `__cuda_array_interface__`.

    torch.from_dlpack(ctx.buffer(y))        cupy.asarray(ctx.buffer(y))

The memory stays alive as long as the other library refers to it. It has been written when it is
handed over; the other library must have finished before a routine that uses the tensor runs.
The module `foreign_memory` has the other direction.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import count
from typing import Any

from ocannl_core.backend_api import (
    NodeInfo,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

CUDA = 2
"""kDLCUDA."""
CODES = {
    int8: 0,
    int16: 0,
    int32: 0,
    int64: 0,
    uint8: 1,
    uint16: 1,
    uint32: 1,
    uint64: 1,
    float16: 2,
    float32: 2,
    float64: 2,
    bfloat16: 4,
    bool_: 6,
    float8_e4m3fn: 10,
    float8_e5m2: 12,
}
"""DLDataTypeCode."""
_WITHOUT_NUMPY = frozenset({bfloat16, float8_e4m3fn, float8_e5m2})
"""Formats that `__cuda_array_interface__` has no names for."""
NAME = b"dltensor"


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor."""


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
TENSOR_FIELDS = (
    ("data", ctypes.c_void_p),
    ("device_type", ctypes.c_int32),
    ("device_id", ctypes.c_int32),
    ("ndim", ctypes.c_int32),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64),
)
"""DLTensor."""
ManagedTensor._fields_ = (*TENSOR_FIELDS, ("manager", ctypes.c_void_p), ("deleter", Deleter))
_exported: dict[int, tuple[object, ...]] = {}
"""The objects that exported memory depends on, by number."""
_numbers = count(1)


_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _release(address: int) -> None:
    """Drop the objects that an exported tensor depends on."""
    _exported.pop(ManagedTensor.from_address(address).manager, None)


def _drop(address: int) -> None:
    """Release a tensor that no consumer has taken out of its capsule."""
    capsule = ctypes.c_void_p(address)
    if ctypes.pythonapi.PyCapsule_IsValid(capsule, NAME):
        _release(_pointer_in(capsule, NAME))


_RELEASE = Deleter(_release)
_DROP = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


def capsule(owner: object, address: int, info: NodeInfo, device: int) -> object:
    """Return memory as a capsule of DLPack.

    Args:
        owner: The object that keeps the memory alive.
        address: The address of the first stored cell.
        info: The format and the extents.
        device: The ordinal of the device.

    Raises:
        BufferError: for a format that DLPack does not have.
    """
    if info.dtype not in CODES:
        raise BufferError(f"DLPack has no format for {info.dtype}")
    strides, offset = _layout(info)
    dims = _array(info.dims)
    number, steps = next(_numbers), _array(strides)
    nbytes = info.dtype.nbytes
    place = address + offset * nbytes, CUDA, device, len(info.dims)
    kind = CODES[info.dtype], 8 * nbytes, 1
    tensor = ManagedTensor(*place, *kind, dims, steps, 0, number, _RELEASE)
    _exported[number] = owner, tensor, dims, steps
    return _capsule(ctypes.addressof(tensor), NAME, ctypes.cast(_DROP, ctypes.c_void_p))


def array_interface(address: int, info: NodeInfo) -> dict[str, object]:
    """Return memory as `__cuda_array_interface__` describes it.

    Raises:
        AttributeError: for a format that the interface does not have.
    """
    if info.dtype not in CODES or info.dtype in _WITHOUT_NUMPY:
        raise AttributeError(f"__cuda_array_interface__ has no format for {info.dtype}")
    strides, offset = _layout(info)
    nbytes = info.dtype.nbytes
    return {
        "shape": info.dims,
        "typestr": info.dtype.numpy.str,
        "data": (address + offset * nbytes, False),
        "strides": tuple(stride * nbytes for stride in strides),
        "version": 3,
    }


def _layout(info: NodeInfo) -> tuple[list[int], int]:
    """Return the strides of the cells inside of margins, and the place of the first, in cells."""
    strides: list[int] = []
    step = 1
    for extent in reversed(info.buffer_dims):
        strides.insert(0, step)
        step *= extent
    lefts = [margin.left for margin in info.padding]
    return strides, sum(left * stride for left, stride in zip(lefts, strides, strict=False))


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
