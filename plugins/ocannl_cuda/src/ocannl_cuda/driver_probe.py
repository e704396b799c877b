"""Detection of CUDA devices through the NVIDIA driver, without PyCUDA and without a context."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache

from ocannl_core.backend_api import LaunchLimits, dataclass

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100
"""The result of a driver that finds no device."""

_ATTRIBUTES = (75, 76, 16, 38)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, _MULTIPROCESSOR_COUNT,
_L2_CACHE_SIZE.
"""
_LIMITS = (1, 2, 3, 4, 5, 6, 7, 8, 97, 12)
"""CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, _MAX_BLOCK_DIM_X, _Y, _Z, _MAX_GRID_DIM_X, _Y, _Z,
_MAX_SHARED_MEMORY_PER_BLOCK, _MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, _MAX_REGISTERS_PER_BLOCK.
"""

_MEANINGS = {
    34: "the library is the stub that programs are linked with, not a driver",
    35: "the driver is older than the CUDA version it is used with",
    101: "the device ordinal is not valid",
    802: "the system is not ready yet",
    803: "the driver's kernel module and its library have different versions",
    804: "the driver does not support this kind of device with its forward-compatibility library",
    999: "unknown; often the kernel module is not loaded",
}


@dataclass(frozen=True, slots=True)
class NotInstalled:
    """The driver library cannot be loaded."""

    error: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A driver call failed.

    Attributes:
        call: The function.
        code: Its result, a `CUresult`.
        meaning: The code in words.
    """

    call: str
    code: int
    meaning: str


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The properties of a device that targets and limits of launches depend on.

    Attributes:
        capability: Its compute capability, as major and minor number.
        nbytes: The size of its memory.
        processors: The number of its multiprocessors.
        cache_bytes: The size of its L2 cache.
        limits: The limits of launches.
    """

    name: str
    capability: tuple[int, int]
    nbytes: int
    processors: int
    cache_bytes: int
    limits: LaunchLimits


@dataclass(frozen=True, slots=True)
class Found:
    """The driver works.

    Attributes:
        version: The newest CUDA version that the driver supports, as major and minor number.
        devices: The devices, by ordinal.
    """

    version: tuple[int, int]
    devices: tuple[DeviceFacts, ...]


class _DriverCallError(Exception):
    def __init__(self, call: str, code: int) -> None:
        self.refused = Refused(
            call, code, _MEANINGS.get(code, "see CUresult in the CUDA documentation")
        )


@cache
def installed() -> NotInstalled | Refused | Found:
    """Return the result of probing the driver of this machine, once."""
    return probe()


def probe(library: str = LIBRARY) -> NotInstalled | Refused | Found:
    """Return the driver's version and devices, or the reason why there are none.

    Args:
        library: The file name of the driver library, as the dynamic linker finds it.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        return NotInstalled(str(error))
    version = (0, 0)
    try:
        version = _version(driver)
        _call(driver, "cuInit", 0)
        count = ctypes.c_int()
        _call(driver, "cuDeviceGetCount", ctypes.byref(count))
        return Found(version, tuple(_facts(driver, ordinal) for ordinal in range(count.value)))
    except _DriverCallError as error:
        if error.refused.code == NO_DEVICE:
            return Found(version, ())
        return error.refused
    except AttributeError as error:
        return NotInstalled(f"{library} is no CUDA driver ({error})")


def _call(driver: ctypes.CDLL, function: str, *arguments: object) -> None:
    code = getattr(driver, function)(*arguments)
    if code != 0:
        raise _DriverCallError(function, code)


def _version(driver: ctypes.CDLL) -> tuple[int, int]:
    """Return the driver's CUDA version; the one call that works before `cuInit`."""
    version = ctypes.c_int()
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def _facts(driver: ctypes.CDLL, ordinal: int) -> DeviceFacts:
    device = ctypes.c_int()
    _call(driver, "cuDeviceGet", ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(256)
    _call(driver, "cuDeviceGetName", name, len(name), device)
    nbytes = ctypes.c_size_t()
    _call(driver, "cuDeviceTotalMem_v2", ctypes.byref(nbytes), device)

    def values(attributes: Sequence[int]) -> Iterator[int]:
        for attribute in attributes:
            value = ctypes.c_int()
            _call(driver, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            yield value.value

    major, minor, processors, cache_bytes = values(_ATTRIBUTES)
    threads, *extents, declared_bytes, shared_bytes, registers = values(_LIMITS)
    block, grid = (extents[0], extents[1], extents[2]), (extents[3], extents[4], extents[5])
    limits = LaunchLimits(threads, block, grid, declared_bytes, shared_bytes, registers)
    decoded = name.value.decode(errors="replace")
    capability = major, minor
    return DeviceFacts(decoded, capability, nbytes.value, processors, cache_bytes, limits)
