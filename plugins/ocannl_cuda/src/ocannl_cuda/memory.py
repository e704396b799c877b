"""Buffers of CUDA devices, and copies among them and with arrays of the host."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from ocannl_core.backend_api import Buffer, Done, Event, HostBuffer, NodeInfo, Target, dataclass
from ocannl_cuda import interop
from ocannl_cuda.device import CudaDevice, device_of
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.driver_calls import LEGACY_STREAM, DriverCallError
from ocannl_cuda.events import DeviceEvent
from ocannl_cuda.foreign_memory import ForeignMemory, describe
from ocannl_cuda.memory_pool import PooledAllocation
from ocannl_cuda.staging import CHUNK, Download

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CudaBuffer:
    """The cells of a node, margins included, in memory of a device."""

    memory: PooledAllocation | ForeignMemory
    info: NodeInfo
    target: Target

    @property
    def address(self) -> int:
        """The address on the device of the first cell."""
        return self.memory.address

    @property
    def is_aligned(self) -> bool:
        """True if kernels may load and store vectors from the first cell on."""
        return self.address % DIALECT.vector_bytes == 0

    @property
    def is_read_only(self) -> bool:
        """True for memory that another library does not let others write."""
        return isinstance(self.memory, ForeignMemory) and self.memory.is_read_only

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        # many consumers ignore the stream of the interface: the cells must be written
        device_of(self.target).synchronize()
        if isinstance(self.memory, PooledAllocation):
            self.memory.is_described = True
        return interop.array_interface(self.address, self.info)

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.CUDA, self.target.device

    def __dlpack__(self, *, stream: int | None = None, **more: object) -> object:
        """Return a capsule of DLPack, for use on a stream after all queued work.

        Args:
            stream: The handle of the stream; by default the legacy one, which is 1. The
                per-thread stream is 2, and -1 leaves out the wait.
            more: Options of newer versions of the protocol, whose defaults hold.
        """
        if stream == 0:
            raise BufferError("the stream 0 of DLPack is ambiguous: give 1, 2 or a handle")
        device = device_of(self.target)
        if stream != -1:
            with device:
                device.let_follow(LEGACY_STREAM if stream is None else stream)
        lent = Lent(device, self.memory, stream)
        return interop.capsule(lent, self.address, self.info, self.target.device)


class Lent:
    """Memory that a consumer of DLPack uses until the end of this object: whoever gets the memory
    next comes after the work so far of the consumer's stream.

    Args:
        stream: The stream of the consumer, as `__dlpack__` takes it.
    """

    __slots__ = ("_device", "_memory", "_stream")

    def __init__(
        self, device: CudaDevice, memory: PooledAllocation | ForeignMemory, stream: int | None
    ) -> None:
        self._device = device
        self._memory = memory
        # the legacy stream waits for the default stream of every thread
        self._stream = LEGACY_STREAM if stream in (None, -1, 2) else stream

    def __del__(self) -> None:
        self._device.take_back(self._stream)


class Queued:
    """A point in the work of a device's stream.

    Args:
        device: The device, whose context must be current.
        kept: The memory that the work uses.
    """

    __slots__ = ("__weakref__", "_device", "_event", "_kept")

    def __init__(self, device: CudaDevice, kept: object = None) -> None:
        self._device = device
        self._event: DeviceEvent | None = device.event()
        self._kept = kept
        device.own(self)

    @property
    def is_done(self) -> bool:
        """True if all earlier work has finished; False if some failed, so that waiting raises."""
        event = self._event
        if event is None:
            return True
        try:
            with self._device.current():
                return event.query()
        except DriverCallError:
            return False

    def wait(self) -> None:
        """Return when all earlier work has finished.

        Raises:
            LinkError: if some kernel failed.
        """
        event = self._event
        if event is not None:
            try:
                with self._device.current():
                    event.synchronize()
            except DriverCallError as error:
                raise self._device.failure(error) from error

    def free(self) -> None:
        """Return the event for reuse."""
        event, self._event = self._event, None
        if event is not None:
            self._device.reuse_event(event)

    def wait_on(self, other: CudaDevice) -> None:
        """Let later work of another device wait; the other one's context must be current.

        Raises:
            LinkError: if the driver refuses.
        """
        event = self._event
        if event is None:
            return  # the device is closed
        try:
            event.hold_back(other.stream.handle)
        except DriverCallError as error:
            raise other.failure(error, "a wait for another device") from error

    def __del__(self) -> None:
        self.free()


class Arriving:
    """A copy to an array of the host, which has its cells when something has waited for them.

    Args:
        source: The cells.
        flat: The bytes of a contiguous array.
        copied: An array that gets the cells last, and the contiguous one; None if that is all.
    """

    __slots__ = ("_copied", "_device", "_flat", "_parts", "_source")

    def __init__(
        self,
        device: CudaDevice,
        source: CudaBuffer,
        flat: Array,
        copied: tuple[Array, Array] | None,
    ) -> None:
        self._device = device
        self._source = source
        self._flat = flat
        self._copied = copied
        self._parts: deque[tuple[int, Download]] = deque()
        with device:
            self._start(0)

    def wait(self) -> None:
        """Return when the array has the cells; a piece is on its way while one is copied out.

        Raises:
            LinkError: if some kernel failed.
        """
        device = self._device
        with device:
            while self._parts:
                start, part = self._parts.popleft()
                self._start(start + CHUNK)
                try:
                    part.wait()
                except device.failures as error:
                    raise device.failure(error) from error
                self._flat[start : start + CHUNK] = part.cells
        if self._copied is not None:
            np.copyto(*self._copied)
            self._copied = None

    def _start(self, start: int) -> None:
        """Enqueue the copy of the piece from a place on, if there is one."""
        nbytes = min(self._flat.size - start, CHUNK)
        if nbytes <= 0:
            return
        try:
            part = self._device.staging.download(self._source.address + start, nbytes)
        except self._device.failures as error:
            raise self._device.failure(error) from error
        self._parts.append((start, part))


def allocate(info: NodeInfo, target: Target) -> CudaBuffer:
    """Return new memory, all zero.

    Raises:
        MemoryError: if the device has too little.
    """
    return CudaBuffer(zeroed(info.nbytes, target), info, target)


def zeroed(nbytes: int, target: Target) -> PooledAllocation:
    """Return so many bytes of a device, all zero."""
    device = device_of(target)
    with device:
        try:
            memory = device.memory.allocate(nbytes)
            if nbytes:
                device.driver.memset_d8_async(memory.address, 0, nbytes, device.stream)
        except device.failures as error:
            raise device.failure(error) from error
    return memory


def imported(array: object, target: Target) -> CudaBuffer | None:
    """Return memory of another library as a buffer, used after the work that fills it; None for an
    object without memory of CUDA devices.

    Raises:
        TransferError: if it is of another device, of an unknown format, or has gaps.
    """
    if not (hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__")):
        return None
    device = device_of(target)
    with device:
        found = describe(array, device)
    return None if found is None else CudaBuffer(found.memory, found.info, target)


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
    """Copy from the host through page-locked memory: the array may change at once."""
    if not array.size:
        return Done()
    device = device_of(destination.target)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with device:
        try:
            device.staging.upload(destination.address, data)
        except device.failures as error:
            raise device.failure(error) from error
        return Queued(device, destination)


def _download(array: Array, source: CudaBuffer) -> Event:
    """Copy to the host through page-locked memory, in pieces if there is much."""
    if not array.size:
        return Done()
    device = device_of(source.target)
    is_direct = array.flags.c_contiguous and array.flags.writeable
    data = array if is_direct else np.empty(array.shape, array.dtype)
    flat = data.reshape(-1).view(np.uint8)
    arriving = Arriving(device, source, flat, None if is_direct else (array, data))
    if flat.size > CHUNK:
        arriving.wait()
        return Done()
    return arriving


def _copy(destination: CudaBuffer, source: CudaBuffer) -> Event:
    if not source.info.nbytes:
        return Done()
    device = device_of(source.target)
    with device:
        try:
            device.driver.memcpy_dtod_async(
                destination.address, source.address, source.info.nbytes, device.stream
            )
        except device.failures as error:
            raise device.failure(error) from error
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


def wait_for(waiting: CudaDevice, working: CudaDevice) -> None:
    """Let later work of a device wait for all work so far of another one."""
    with working:
        point = Queued(working)
    with waiting:
        point.wait_on(waiting)


def recorded(target: Target) -> Queued:
    """Return the point after all work submitted to a device so far."""
    device = device_of(target)
    with device:
        return Queued(device)


def wait_event(event: object, target: Target) -> bool | None:
    """Let work submitted to a device from now on begin after an event of this backend; None for
    one of another backend.
    """
    if not isinstance(event, Queued):
        return None
    device = device_of(target)
    with device:
        event.wait_on(device)
    return True
