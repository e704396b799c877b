"""Memory of OpenCL devices, and copies between it and arrays of the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ocannl_core.backend_api import Buffer, Done, Event, HostBuffer, NodeInfo, Target, dataclass
from ocannl_opencl.devices import device_of
from ocannl_opencl.driver import cl


@dataclass(frozen=True, slots=True)
class OpenCLBuffer:
    """The cells of a node, margins included, in memory of a device."""

    memory: Any
    info: NodeInfo
    target: Target


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """The end of work that a queue runs after all that was submitted before.

    Attributes:
        event: The event of PyOpenCL.
        context: Its context, all of whose devices can wait for it.
    """

    event: Any
    context: Any

    @property
    def is_done(self) -> bool:
        """True if the work is over."""
        status = self.event.get_info(cl.event_info.COMMAND_EXECUTION_STATUS)
        return bool(status == cl.command_execution_status.COMPLETE)

    def wait(self) -> None:
        self.event.wait()


def record(target: Target) -> QueuedWork:
    """Return the end of the work submitted to a device so far."""
    device = device_of(target)
    event = cl.enqueue_marker(device.queue)
    device.queue.flush()  # other queues may wait for it
    return QueuedWork(event, device.context)


def wait_for(event: object, target: Target) -> bool | None:
    """Let work submitted to a device from now on begin after an event, if the device can."""
    device = device_of(target)
    if not isinstance(event, QueuedWork) or event.context != device.context:
        return None
    cl.enqueue_barrier(device.queue, wait_for=[event.event])
    return True


def allocate(info: NodeInfo, target: Target) -> OpenCLBuffer:
    """Return new memory, all zero."""
    return OpenCLBuffer(zeroed(info.nbytes, target), info, target)


def zeroed(nbytes: int, target: Target) -> Any:
    """Return so many bytes of a device, all zero; a byte at least.

    Raises:
        MemoryError: if the device has too little, or no buffers of that size.
    """
    device = device_of(target)
    size = max(nbytes, 1)
    codes = cl.status_code
    exhausted = (
        codes.INVALID_BUFFER_SIZE,
        codes.MEM_OBJECT_ALLOCATION_FAILURE,
        codes.OUT_OF_HOST_MEMORY,
        codes.OUT_OF_RESOURCES,
    )
    try:
        memory = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, size)
        # a driver may allocate the memory only now
        cl.enqueue_fill_buffer(device.queue, memory, np.zeros(1, np.uint8), 0, size)
    except cl.Error as error:
        if error.code in exhausted:
            raise MemoryError(str(error)) from None
        raise
    return memory


def transfer(destination: Buffer, source: Buffer) -> Event | None:
    """Copy cells; return None for a pair that this backend does not serve."""
    match destination, source:
        case OpenCLBuffer(), HostBuffer(array=array):
            if array.size:
                _write(destination, _bytes(np.ascontiguousarray(array)))
            return Done()
        case HostBuffer(array=array), OpenCLBuffer():
            if array.size:
                _read(array, source)
            return Done()
        case OpenCLBuffer(), OpenCLBuffer():
            return _between(destination, source)
        case _:
            return None


def _between(destination: OpenCLBuffer, source: OpenCLBuffer) -> Event | None:
    """Submit a copy to the queue of the destination; devices of two platforms share no memory."""
    device = device_of(destination.target)
    if device_of(source.target).context != device.context:
        return None
    size = source.info.nbytes
    if not size:
        return Done()
    if source.target != destination.target:
        wait_for(record(source.target), destination.target)
    copied = cl.enqueue_copy(device.queue, destination.memory, source.memory, byte_count=size)
    device.queue.flush()
    return QueuedWork(copied, device.context)


def _write(destination: OpenCLBuffer, data: np.ndarray[Any, Any]) -> None:
    # the array may change as soon as the transfer returns, so it is read at once
    queue = device_of(destination.target).queue
    cl.enqueue_copy(queue, destination.memory, data, is_blocking=True)


def _read(array: np.ndarray[Any, Any], source: OpenCLBuffer) -> None:
    data = np.empty(source.info.nbytes, np.uint8)
    cl.enqueue_copy(device_of(source.target).queue, data, source.memory, is_blocking=True)
    np.copyto(array, data.view(source.info.memory_numpy).reshape(source.info.memory_dims))


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(-1).view(np.uint8)
