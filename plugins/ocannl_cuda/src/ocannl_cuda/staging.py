"""Page-locked memory of the host, and copies through it that return before they have finished.

A copy from or to memory that is not page-locked may wait for the work of its stream. Arrays go
through blocks that are kept for reuse, so that the next operands are uploaded while kernels run.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_cuda.events import DeviceEvent

if TYPE_CHECKING:
    from ocannl_cuda.device import CudaDevice

Bytes = np.ndarray[Any, Any]
_SMALLEST = 1 << 16
CHUNK = 1 << 24
"""The most bytes of one copy; more are copied in several pieces."""
_MOST = 1 << 26
"""The most bytes of blocks."""


class HostMemory:
    """Page-locked memory of the host, which kernels can access, too.

    Args:
        device: The device, whose context must be current.
        nbytes: Its size.

    Attributes:
        cells: Its bytes, all zero at first.
        address: Its address on devices.
    """

    __slots__ = ("__weakref__", "_device", "_memory", "address", "cells")

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self._device: CudaDevice | None = None
        flags = device.driver.host_alloc_flags.DEVICEMAP
        zeros = device.driver.pagelocked_zeros
        self.cells: Bytes = zeros(nbytes, np.uint8, mem_flags=flags)
        self._memory: Any = self.cells.base
        self.address: int = self._memory.get_device_pointer()
        self._device = device

    def free(self) -> None:
        """Return the memory to the driver, once."""
        device, self._device = self._device, None
        if device is not None and not device.is_left:
            with device:
                self._memory.free()

    def __del__(self) -> None:
        self.free()


class Staging:
    """Blocks of page-locked memory, reused when the copies that use them have finished.

    Attributes:
        nbytes: The bytes of all blocks.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._free: dict[int, list[HostMemory]] = {}
        self._busy: deque[tuple[HostMemory, DeviceEvent]] = deque()
        self._lock = threading.RLock()
        self.nbytes = 0

    def upload(self, address: int, data: Bytes) -> None:
        """Enqueue a copy to the device; the context must be current. The array may change as soon
        as this returns.
        """
        for start in range(0, data.size, CHUNK):
            part = data[start : start + CHUNK]
            block = self._acquire(part.size)
            try:
                cells = block.cells[: part.size]
                cells[:] = part
                self._device.driver.memcpy_htod_async(address + start, cells, self._device.stream)
            finally:
                self._release(block)

    def download(self, address: int, nbytes: int) -> Download:
        """Enqueue a copy of at most `CHUNK` bytes from the device; the context must be current."""
        block = self._acquire(nbytes)
        try:
            cells = block.cells[:nbytes]
            self._device.driver.memcpy_dtoh_async(cells, address, self._device.stream)
        except BaseException:
            self._release(block)
            raise
        made = Download(self, block, cells, self._device.event())
        self._device.own(made)
        return made

    def give_back(self, block: HostMemory, event: DeviceEvent) -> None:
        """Take back a block that is free after an event."""
        with self._lock:
            self._busy.append((block, event))

    def close(self) -> None:
        """Return all blocks to the driver; the stream must have finished."""
        with self._lock:
            for block, event in self._busy:
                self._device.reuse_event(event)
                block.free()
            self._busy.clear()
            self._free_blocks()

    def _release(self, block: HostMemory) -> None:
        """Take back a block that is free after the work so far."""
        self.give_back(block, self._device.event())

    def _acquire(self, nbytes: int) -> HostMemory:
        """Return a block of at least so many bytes that nothing uses."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            self._collect()
            while not self._free.get(size) and self.nbytes + size > _MOST and self._busy:
                self._busy[0][1].synchronize()
                self._collect()
            found = self._free.get(size)
            if found:
                return found.pop()
            if self.nbytes + size > _MOST:
                self._free_blocks()
            self.nbytes += size
        return HostMemory(self._device, size)

    def _collect(self) -> None:
        """Move the blocks whose copies have finished to the free ones."""
        while self._busy and self._busy[0][1].query():
            block, event = self._busy.popleft()
            self._device.reuse_event(event)
            self._free.setdefault(block.cells.size, []).append(block)

    def _free_blocks(self) -> None:
        for blocks in self._free.values():
            for block in blocks:
                self.nbytes -= block.cells.size
                block.free()
        self._free.clear()


class Download:
    """A copy from the device that has been enqueued.

    Args:
        staging: The owner of its block.
        cells: The bytes of the block that it writes.
        event: Its end.
    """

    __slots__ = ("__weakref__", "_block", "_event", "_staging", "cells")

    def __init__(
        self, staging: Staging, block: HostMemory, cells: Bytes, event: DeviceEvent
    ) -> None:
        self._staging = staging
        self._block = block
        self._event: DeviceEvent | None = event
        self.cells = cells

    def wait(self) -> None:
        """Return when the bytes have arrived; the context must be current."""
        event = self._event
        if event is not None:
            event.synchronize()

    def free(self) -> None:
        """Give the block back, free after the copy."""
        event, self._event = self._event, None
        if event is not None:
            self._staging.give_back(self._block, event)

    def __del__(self) -> None:
        self.free()
