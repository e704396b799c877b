"""Memory of other libraries on a device: a tensor of PyTorch, an array of CuPy or PyCUDA.

DLPack comes first: it has an owner, and orders the work of both sides by a stream that the consumer
states. `__cuda_array_interface__` describes memory; its producer may state a stream to wait for.
One that states none, as PyCUDA's arrays do, may still have work queued on the legacy stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ocannl_core.backend_api import DType, NodeInfo, TransferError, dataclass
from ocannl_cuda.device import CudaDevice
from ocannl_cuda.driver_calls import LEGACY_STREAM
from ocannl_cuda.interop import CODES, CUDA, NAME, TENSOR_FIELDS, Deleter, ManagedTensor

_VERSIONED = b"dltensor_versioned"
_USED, _USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
_IS_READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY."""
_MAJOR = 1
_FORMATS: dict[tuple[int, int], DType] = {
    (code, 8 * dtype.nbytes): dtype for dtype, code in CODES.items()
}
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        *TENSOR_FIELDS,
    )


class ForeignMemory:
    """Memory that another library owns, which stays alive until the work that was queued before
    the end of this object has finished: its library may reuse it at once.

    Args:
        address: Its address on the device.
        owner: An object that keeps it alive.
        is_read_only: True if it must not be written.

    Attributes:
        address, is_read_only: The same.
    """

    __slots__ = ("_device", "_owner", "address", "is_read_only")

    def __init__(
        self, device: CudaDevice, address: int, owner: object, *, is_read_only: bool
    ) -> None:
        self._device = device
        self.address = address
        self._owner = owner
        self.is_read_only = is_read_only

    def __del__(self) -> None:
        self._device.hold(self._owner)


@dataclass(frozen=True, slots=True)
class FormattedMemory:
    """Memory of another library, with its format and extents."""

    memory: ForeignMemory
    info: NodeInfo


class _Taken:
    """A tensor taken out of a capsule of DLPack; its producer frees it in the end."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, address: int, deleter: Any) -> None:
        self._address = address
        self._deleter = deleter

    def __del__(self) -> None:
        if self._deleter:
            self._deleter(self._address)


def describe(array: Any, device: CudaDevice) -> FormattedMemory | None:
    """Return the memory of an object for use on the device's stream; None if it is not on a CUDA
    device. The context must be current.

    Raises:
        TransferError: if it is on another device, of an unknown format, or has gaps.
    """
    if hasattr(array, "__dlpack_device__"):
        kind, ordinal = _given(array, array.__dlpack_device__)
        if int(kind) != CUDA:
            return None
        if int(ordinal) != device.ordinal:
            raise TransferError(
                "Memory of another library is on the device of the context.",
                found=f"a {type(array).__name__} on device {int(ordinal)}, not {device.ordinal}",
                fix="copy it to that device first",
            )
        return _taken(array, device)
    return _described(array, device)


def _given(array: object, method: Callable[..., Any], **options: object) -> Any:
    """Return the result of another library's method.

    Raises:
        TransferError: if it refuses.
    """
    try:
        return method(**options)
    except (BufferError, RuntimeError, ValueError) as error:
        raise TransferError(
            "The library of an array gives its memory to others.",
            found=f"{type(array).__name__}: {error}",
            fix="for PyTorch, x.detach() has no gradient",
        ) from error


def _taken(array: Any, device: CudaDevice) -> FormattedMemory:
    stream = device.stream.handle
    try:
        capsule = _given(array, array.__dlpack__, stream=stream, max_version=(_MAJOR, 0))
    except TypeError:  # a producer of an older version
        capsule = _given(array, array.__dlpack__, stream=stream)
    tensor, owner, is_read_only = _tensor_in(capsule, array)
    dtype = _FORMATS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        format_ = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise _unknown_format(array, format_)
    dims = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        _check_order(array, dims, tuple(tensor.strides[: tensor.ndim]))
    address = (tensor.data or 0) + tensor.byte_offset
    memory = ForeignMemory(device, address, owner, is_read_only=is_read_only)
    return FormattedMemory(memory, NodeInfo(dtype, dims))


def _tensor_in(capsule: object, array: object) -> tuple[Any, _Taken, bool]:
    """Return the tensor of a capsule, which is used up; its owner; and True if it is read-only."""
    is_valid = ctypes.pythonapi.PyCapsule_IsValid
    rename = ctypes.pythonapi.PyCapsule_SetName
    held = ctypes.py_object(capsule)
    if is_valid(held, _VERSIONED):
        address = _pointer_in(capsule, _VERSIONED)
        versioned = _VersionedTensor.from_address(address)
        rename(held, _USED_VERSIONED)
        owner = _Taken(address, versioned.deleter)
        if versioned.major > _MAJOR:
            raise _unknown_format(array, f"DLPack {versioned.major}.{versioned.minor}")
        return versioned, owner, bool(versioned.flags & _IS_READ_ONLY)
    if is_valid(held, NAME):
        address = _pointer_in(capsule, NAME)
        tensor = ManagedTensor.from_address(address)
        rename(held, _USED)
        return tensor, _Taken(address, tensor.deleter), False
    raise _unknown_format(array, "a capsule that is used up, or none of DLPack")


def _described(array: Any, device: CudaDevice) -> FormattedMemory:
    interface = array.__cuda_array_interface__
    dims = tuple(map(int, interface["shape"]))
    address, is_read_only = interface["data"]
    kind = np.dtype(interface["typestr"])
    dtype = next((each for each in CODES if each.numpy == kind), None)
    if dtype is None:
        raise _unknown_format(array, str(kind))
    if interface.get("mask") is not None:
        raise _unknown_format(array, "an array with a mask")
    strides = interface.get("strides")
    if strides is not None:
        _check_order(array, dims, [stride // dtype.nbytes for stride in strides])
    stream = interface.get("stream")
    if stream == 0:
        raise _unknown_format(array, "the stream 0, which the interface does not allow")
    device.follow(LEGACY_STREAM if stream is None else int(stream))
    memory = ForeignMemory(device, int(address), array, is_read_only=bool(is_read_only))
    return FormattedMemory(memory, NodeInfo(dtype, dims))


def _check_order(array: object, dims: Sequence[int], strides: Sequence[int]) -> None:
    """Raise unless cells are in row-major order without gaps."""
    step = 1
    for extent, stride in zip(reversed(dims), reversed(strides), strict=True):
        if extent != 1 and stride != step and 0 not in dims:
            raise TransferError(
                "Memory of another library has its cells in row-major order without gaps.",
                found=f"a {type(array).__name__} of extents {list(dims)} and strides "
                f"{list(strides)}, in cells",
                fix="x.contiguous() of PyTorch, cupy.ascontiguousarray(x), or a copy",
            )
        step *= extent


def _unknown_format(array: object, found: str) -> TransferError:
    return TransferError(
        "Memory of another library has a number format of the project.",
        found=f"a {type(array).__name__}: {found}",
        fix="convert it in its library",
    )
