"""Device memory, kept for reuse: an allocation of the driver waits for the whole device.

Blocks of one size are reused in the order of the stream, so memory may be freed while kernels that
use it are still queued.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

from ocannl_cuda.driver_calls import LEGACY_STREAM

if TYPE_CHECKING:
    from ocannl_cuda.device import CudaDevice

_SMALL = 1 << 20
_SMALL_STEP = 512
_LARGE_STEP = 1 << 21
"""Sizes up to a mebibyte are multiples of 512 bytes, greater ones of 2 MiB, as pages are."""
_KEPT_SHARE = 4
"""Free blocks take at most one part in so many of a device: other programs and libraries use it,
too.
"""


class PooledAllocation:
    """A part of a device's memory, which returns to its pool when nothing refers to it.

    Attributes:
        address: Its address on the device.
        nbytes: Its size as it was asked for.
        is_described: True after `__cuda_array_interface__` has described it: its consumers, which
            state no stream, use the default one.
    """

    __slots__ = ("__weakref__", "_block", "_pool", "_size", "address", "is_described", "nbytes")

    def __init__(self, pool: MemoryPool, block: Any, size: int, nbytes: int) -> None:
        self._pool = pool
        self._block = block
        self._size = size
        self.address = int(block)
        self.nbytes = nbytes
        self.is_described = False

    def __del__(self) -> None:
        if self.is_described:
            self._pool.let_readers_end()
        self._pool.release(self._block, self._size)


class MemoryPool:
    """The memory of one device.

    Args:
        device: The device, whose context must be current.
        is_exact: True to give every allocation a block of exactly its size, and to keep none.

    Attributes:
        is_exact: The same.
        used: The bytes of all allocations that are in use.
        kept: The bytes of free blocks.
    """

    def __init__(self, device: CudaDevice, *, is_exact: bool) -> None:
        self._device = device
        self.is_exact = is_exact
        self._free: dict[int, list[Any]] = {}
        self._live: weakref.WeakSet[PooledAllocation] = weakref.WeakSet()
        self._is_closed = False
        self._lock = threading.RLock()
        self.used = 0
        self.kept = 0
        self._most_kept = device.driver.mem_get_info()[1] // _KEPT_SHARE

    def allocate(self, nbytes: int) -> PooledAllocation:
        """Return memory with undefined content; the device's context must be current.

        Raises:
            MemoryError: if the device has too little, with its largest allocations.
        """
        size = self._rounded(nbytes)
        with self._lock:
            free = self._free.get(size)
            if free:
                self.kept -= size
                block = free.pop()
            else:
                block = self._new_block(size, nbytes)
            allocation = PooledAllocation(self, block, size, nbytes)
            self.used += size
            self._live.add(allocation)
        return allocation

    def release(self, block: Any, size: int) -> None:
        """Take a block back; called by any thread, also while another one allocates."""
        with self._lock:
            if self._is_closed:
                return
            self.used -= size
            if self.is_exact or self.kept + size > self._most_kept:
                with self._device:
                    block.free()
            else:
                self.kept += size
                self._free.setdefault(size, []).append(block)

    def let_readers_end(self) -> None:
        """Let later work wait for other libraries' work on the legacy default stream."""
        self._device.take_back(LEGACY_STREAM)

    def trim(self) -> None:
        """Return all free blocks to the driver; the device's context must be current."""
        with self._lock:
            for blocks in self._free.values():
                for block in blocks:
                    block.free()
            self._free.clear()
            self.kept = 0

    def close(self) -> None:
        """Return all memory to the driver, in use or not; the context must be current."""
        with self._lock:
            self.trim()
            self._is_closed = True
            for allocation in list(self._live):
                allocation._block.free()

    def leave(self) -> None:
        """Release nothing from now on, in a process that was forked."""
        self._lock = threading.RLock()  # a thread of the parent may hold the other one
        self._is_closed = True

    def _new_block(self, size: int, nbytes: int) -> Any:
        driver = self._device.driver
        for free_memory in (self.trim, gc.collect, None):
            try:
                return driver.mem_alloc(size)
            except driver.MemoryError:
                if free_memory is not None:
                    free_memory()
        self.trim()  # blocks that the garbage collector has released
        try:
            return driver.mem_alloc(size)
        except driver.MemoryError:
            raise MemoryError(self._shortage(nbytes)) from None

    def _shortage(self, nbytes: int) -> str:
        free, total = self._device.driver.mem_get_info()
        largest = sorted((each.nbytes for each in self._live), reverse=True)[:5]
        listed = ", ".join(f"{each:,}" for each in largest)
        others = f"; the largest allocations have {listed} bytes" if largest else ""
        return (
            f"no room for {nbytes:,} bytes on device {self._device.ordinal}: {free:,} of {total:,} "
            f"are free, {self.used:,} are in use here{others}"
        )

    def _rounded(self, nbytes: int) -> int:
        if self.is_exact:
            return max(nbytes, 1)
        step = _SMALL_STEP if nbytes <= _SMALL else _LARGE_STEP
        return max(-(-nbytes // step), 1) * step
