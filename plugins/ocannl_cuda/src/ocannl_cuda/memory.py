"""Buffers of CUDA devices, and copies among them and with arrays of the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ocannl_core.backend_api import (
    Buffer,
    Done,
    Event,
    HostBuffer,
    NodeInfo,
    Target,
    dataclass,
)
from ocannl_cuda.device import Device, device_of
from ocannl_cuda.memory_pool import Allocation

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CudaBuffer:
    """The cells of a node, margins included, in memory of a device."""

    memory: Allocation
    info: NodeInfo
    target: Target

    @property
    def address(self) -> int:
        """The address on the device of the first cell."""
        return self.memory.address


class Queued:
    """A point in the work of a device's stream.

    Args:
        device: The device, whose context must be current.
        kept: The memory that the work uses.
    """

    __slots__ = ("_device", "_event", "_kept")

    def __init__(self, device: Device, kept: object = None) -> None:
        self._device = device
        self._event = device.event()
        self._kept = kept

    def wait(self) -> None:
        """Return when all earlier work has finished.

        Raises:
            LinkError: if some kernel failed.
        """
        with self._device:
            try:
                self._event.synchronize()
            except self._device.driver.Error as error:
                raise self._device.failure(error) from error

    def wait_on(self, other: Device) -> None:
        """Let later work of another device wait; the other one's context must be current."""
        other.stream.wait_for_event(self._event)

    def __del__(self) -> None:
        self._device.reuse_event(self._event)


def allocate(info: NodeInfo, target: Target) -> CudaBuffer:
    """Return new memory, all zero.

    Raises:
        MemoryError: if the device has too little.
    """
    return CudaBuffer(zeroed(info.nbytes, target), info, target)


def zeroed(nbytes: int, target: Target) -> Allocation:
    """Return so many bytes of a device, all zero."""
    device = device_of(target)
    with device:
        memory = device.memory.allocate(nbytes)
        if nbytes:
            device.driver.memset_d8_async(memory.address, 0, nbytes, device.stream)
    return memory


def transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy cells; return None for a pair that this backend does not serve."""
    match destination, source:
        case CudaBuffer(), HostBuffer(array=array):
            return _upload(destination, array)
        case HostBuffer(array=array), CudaBuffer():
            return _download(array, source)
        case CudaBuffer(), CudaBuffer() if destination.target == source.target:
            return _copy(destination, source)
        case CudaBuffer(), CudaBuffer():
            return _copy_to_peer(destination, source)
        case _:
            return None


def _upload(destination: CudaBuffer, array: Array) -> Event:
    """Copy from the host. The array may change as soon as this returns: the driver copies memory
    that is not page-locked before its call returns.
    """
    if not array.size:
        return Done()
    device = device_of(destination.target)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with device:
        device.driver.memcpy_htod_async(destination.address, data, device.stream)
        return Queued(device, (destination, data))


def _download(array: Array, source: CudaBuffer) -> Event:
    if not array.size:
        return Done()
    device = device_of(source.target)
    is_direct = array.flags.c_contiguous and array.flags.writeable
    data = array if is_direct else np.empty(array.shape, array.dtype)
    with device:
        try:
            flat = data.reshape(-1).view(np.uint8)
            device.driver.memcpy_dtoh_async(flat, source.address, device.stream)
            device.stream.synchronize()
        except device.driver.Error as error:
            raise device.failure(error) from error
    if not is_direct:
        np.copyto(array, data)
    return Done()


def _copy(destination: CudaBuffer, source: CudaBuffer) -> Event:
    if not source.info.nbytes:
        return Done()
    device = device_of(source.target)
    with device:
        device.driver.memcpy_dtod_async(
            destination.address, source.address, source.info.nbytes, device.stream
        )
        return Queued(device, (destination, source))


def _copy_to_peer(destination: CudaBuffer, source: CudaBuffer) -> Event:
    """Copy between devices on the stream of the destination, after all work of the source; later
    work of the source waits until the copy has read.
    """
    if not source.info.nbytes:
        return Done()
    here, there = device_of(source.target), device_of(destination.target)
    there.reaches(here)
    wait_for(there, here)
    with there:
        addresses = destination.address, source.address
        there.copy_from_peer(here, *addresses, source.info.nbytes)
        copied = Queued(there, (destination, source))
    with here:
        copied.wait_on(here)
    return copied


def wait_for(waiting: Device, working: Device) -> None:
    """Let later work of a device wait for all work so far of another one."""
    with working:
        point = Queued(working)
    with waiting:
        point.wait_on(waiting)
