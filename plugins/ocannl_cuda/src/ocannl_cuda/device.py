"""CUDA devices in use: the context, the stream and the memory of each.

The context is the primary one, which PyTorch, JAX and the runtime library use, too, so that memory
can be shared. It is current on a thread only during a call into this backend.

At exit everything that the devices still have is released before PyCUDA is torn down: a context or
a pool that lives longer would abort the process. PyCUDA lets only the thread that made a context
release what belongs to it, unless the context is current, which is why objects here release their
memory and events themselves.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from ocannl_core.backend_api import LinkError, Target
from ocannl_cuda.cache import Cubin
from ocannl_cuda.driver_probe import LIBRARY
from ocannl_cuda.memory_pool import MemoryPool
from ocannl_cuda.targets import is_emulated

_NON_BLOCKING = 1
"""The flag of streams that do not wait for the legacy default stream."""
_MOST_EVENTS = 64
"""The most events that are kept for reuse."""


class Device:
    """A device with the stream that runs all of its work in order.

    As a context manager it makes its context the current one of the thread.

    Args:
        ordinal: Its number among the devices of the driver.
        is_emulated: True for exact allocations, so that a sanitizer sees every overrun.
    """

    def __init__(self, ordinal: int, *, is_emulated: bool) -> None:
        import pycuda.driver as driver

        driver.init()
        self.driver: Any = driver
        self.ordinal = ordinal
        device = driver.Device(ordinal)
        self.capability: tuple[int, int] = device.compute_capability()
        self.context: Any = device.retain_primary_context()
        with self:
            self.stream: Any = driver.Stream(_NON_BLOCKING)
            self.memory = MemoryPool(self, is_exact=is_emulated)
        self._modules: dict[str, Any] = {}
        self._events: list[Any] = []
        self._host: weakref.WeakSet[HostMemory] = weakref.WeakSet()
        self._launches: weakref.WeakSet[Launches] = weakref.WeakSet()
        self._peers: dict[int, bool] = {ordinal: True}
        self.is_closed = False

    def __enter__(self) -> Self:
        self.context.push()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.Context.pop()

    def synchronize(self) -> None:
        """Wait for all work of the stream.

        Raises:
            LinkError: if some kernel failed.
        """
        with self:
            try:
                self.stream.synchronize()
            except self.driver.Error as error:
                raise self.failure(error) from error

    def failure(self, error: Exception, where: str = "") -> LinkError:
        """Return the error of work that failed on the device."""
        return LinkError(
            "Kernels run to their end.",
            found=f"device {self.ordinal}: {error}",
            where=where or "some kernel since the last synchronisation",
            fix="CUDA_LAUNCH_BLOCKING=1 waits for every kernel, and so names the one that fails",
        )

    def function(self, cubin: Cubin, symbol: str) -> Any:
        """Return a kernel of a cubin, which is loaded once; the context must be current.

        Raises:
            LinkError: if the driver refuses it.
        """
        try:
            if cubin.digest not in self._modules:
                self._modules[cubin.digest] = self.driver.module_from_buffer(cubin.content)
            return self._modules[cubin.digest].get_function(symbol)
        except self.driver.Error as error:
            raise LinkError(
                "The driver loads compiled kernels.",
                found=str(error),
                where=f"kernel {symbol} on device {self.ordinal}",
                fix="remove the directory `cuda` of the cache, which `ocannl doctor` names",
            ) from error

    def launches(self) -> Launches:
        """Return a list for the launches of a routine; closing the device empties it."""
        made = Launches()
        self._launches.add(made)
        return made

    def host_memory(self, nbytes: int) -> HostMemory:
        """Return page-locked memory of the host, all zero; the context must be current."""
        memory = HostMemory(self, nbytes)
        self._host.add(memory)
        return memory

    def reaches(self, other: Device) -> bool:
        """Return True if copies from another device are direct and kernels can read its memory,
        after enabling that.
        """
        if other.ordinal not in self._peers:
            here, there = (self.driver.Device(each.ordinal) for each in (self, other))
            self._peers[other.ordinal] = bool(here.can_access_peer(there))
            if self._peers[other.ordinal]:
                # an error says that another library has enabled it
                with self, suppress(self.driver.LogicError):
                    self.context.enable_peer_access(other.context)
        return self._peers[other.ordinal]

    def copy_from_peer(self, other: Device, to: int, start: int, nbytes: int) -> None:
        """Enqueue a copy from another device; the context must be current.

        The function of PyCUDA 2026.1 ignores the contexts that it is given.

        Args:
            other: The other device.
            to: The address on this device.
            start: The address on the other one.
            nbytes: The size.
        """
        function = ctypes.CDLL(LIBRARY).cuMemcpyPeerAsync
        handles = [each.context.handle for each in (self, other)]
        there, here = (ctypes.c_void_p(int(handle)) for handle in handles)
        places = ctypes.c_uint64(to), there, ctypes.c_uint64(start), here
        code = function(*places, ctypes.c_size_t(nbytes), ctypes.c_void_p(self.stream.handle))
        if code:
            raise self.failure(RuntimeError(f"cuMemcpyPeerAsync returns {code}"), "a copy")

    def event(self) -> Any:
        """Return an event behind all work so far; the context must be current."""
        try:
            event = self._events.pop()
        except IndexError:
            event = self.driver.Event(self.driver.event_flags.DISABLE_TIMING)
        event.record(self.stream)
        return event

    def reuse_event(self, event: Any) -> None:
        """Take back an event that nothing waits for any more."""
        if not self.is_closed and len(self._events) < _MOST_EVENTS:
            self._events.append(event)

    def close(self) -> None:
        """Finish all work, and release memory, code and context."""
        with self, suppress(self.driver.Error):
            self.stream.synchronize()  # errors went to those who waited
        self.is_closed = True
        with self:
            for launches in list(self._launches):
                launches.actions.clear()
            for memory in list(self._host):
                memory.free()
            self.memory.close()
            self._events.clear()
            self._modules.clear()
            del self.stream
        self.context.detach()


class Launches:
    """The launches of a linked routine, in order.

    Attributes:
        actions: Functions of the values of static indices; they hold code and streams of a device.
    """

    __slots__ = ("__weakref__", "actions")

    def __init__(self) -> None:
        self.actions: list[Callable[[Any], None]] = []


class HostMemory:
    """Page-locked memory of the host, which kernels can access, too.

    Args:
        device: The device, whose context must be current.
        nbytes: Its size.

    Attributes:
        cells: Its bytes.
        address: Its address on devices.
    """

    __slots__ = ("__weakref__", "_device", "_memory", "address", "cells")

    def __init__(self, device: Device, nbytes: int) -> None:
        flags = device.driver.host_alloc_flags.DEVICEMAP
        zeros = device.driver.pagelocked_zeros
        self._device: Device | None = device
        self.cells: np.ndarray[Any, Any] = zeros(nbytes, np.uint8, mem_flags=flags)
        self._memory: Any = self.cells.base
        self.address: int = self._memory.get_device_pointer()

    def free(self) -> None:
        """Return the memory to the driver, once."""
        device, self._device = self._device, None
        if device is not None:
            with device:
                self._memory.free()

    def __del__(self) -> None:
        self.free()


_devices: dict[int, Device] = {}
_lock = threading.RLock()


def device_of(target: Target) -> Device:
    """Return the device of a target, which is initialised on first use.

    Raises:
        LinkError: if this machine does not have it, or it cannot be used.
    """
    found = _devices.get(target.device)
    if found is not None:
        return found
    with _lock:
        if target.device not in _devices:
            try:
                _devices[target.device] = Device(target.device, is_emulated=is_emulated(target))
            except Exception as error:  # of PyCUDA, which may itself be missing
                raise LinkError(
                    "A target of this backend is a device of this machine that works.",
                    found=f"{target}: {type(error).__name__}: {error}",
                    fix="`ocannl doctor cuda` checks driver, devices and compiler",
                ) from error
        return _devices[target.device]


@atexit.register
def close_all() -> None:
    """Release all devices in use."""
    with _lock:
        while _devices:
            _, device = _devices.popitem()
            device.close()
