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
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self

from ocannl_core.backend_api import (
    DeviceError,
    DeviceFailure,
    LinkError,
    MemoryStatistics,
    OcannlError,
    Target,
)
from ocannl_core.backend_api.files import CachedObject
from ocannl_cuda.driver_calls import DriverCallError, DriverCalls
from ocannl_cuda.events import DeviceEvent, EventPool
from ocannl_cuda.memory_pool import MemoryPool
from ocannl_cuda.staging import HostMemory, Staging
from ocannl_cuda.targets import is_emulated

_NON_BLOCKING = 1
"""The flag of streams that do not wait for the legacy default stream."""
_POOLED = "CUDA_EMULATOR_POOLED"
"""The variable that is 1 for emulated devices whose memory is reused, in place of exact blocks."""
_NAMED_RUNS = 8
"""The most routines that the error of a kernel names."""


_FAILURES = {
    "all CUDA-capable devices are busy or unavailable": DeviceFailure.LOST,
    "uncorrectable ECC error encountered": DeviceFailure.LOST,
    "uncorrectable NVLink error detected during the execution": DeviceFailure.LOST,
    "unknown error": DeviceFailure.LOST,
    "the launch timed out and was terminated": DeviceFailure.TIME_LIMIT,
    "an illegal memory access was encountered": DeviceFailure.FAULT,
    "device-side assert triggered": DeviceFailure.FAULT,
    "hardware stack error": DeviceFailure.FAULT,
    "an illegal instruction was encountered": DeviceFailure.FAULT,
    "misaligned address": DeviceFailure.FAULT,
    "operation not supported on global/shared address space": DeviceFailure.FAULT,
    "invalid program counter": DeviceFailure.FAULT,
    "unspecified launch failure": DeviceFailure.FAULT,
}
"""The failures that the driver's texts report; PyCUDA passes on no codes."""


def failure_in(text: str) -> DeviceFailure | None:
    """Return the failure of a device that a text of the driver reports, or None."""
    return next((kind for said, kind in _FAILURES.items() if said in text), None)


class Freed(Protocol):
    """An object of the driver that is released when the device is."""

    def free(self) -> None: ...


class CudaDevice:
    """A device with the stream that runs all of its work in order.

    As a context manager it makes its context the current one of the thread. Work that is enqueued
    inside of `following(stream)` runs in order with the work of that stream.

    Args:
        ordinal: Its number among the devices of the driver.
        is_exact: True for exact allocations, so that a sanitizer sees every overrun.

    Attributes:
        is_closed: True at the end of the process: nothing is reused.
        is_left: True in a forked process, which must release nothing.
    """

    def __init__(self, ordinal: int, *, is_exact: bool) -> None:
        import pycuda.driver as driver

        driver.init()
        self.driver: Any = driver
        self.calls = DriverCalls()
        self._threads = threading.local()
        self.failures: tuple[type[Exception], ...] = (driver.Error, DriverCallError)
        self.ordinal = ordinal
        device = driver.Device(ordinal)
        self.context: Any = device.retain_primary_context()
        with self:
            self.stream: Any = driver.Stream(_NON_BLOCKING)
            self.memory = MemoryPool(self, is_exact=is_exact)
        self.staging = Staging(self)
        self._modules: dict[str, Any] = {}
        self.events = EventPool(self.calls)
        self._owned: weakref.WeakSet[Freed] = weakref.WeakSet()
        self._held: deque[tuple[DeviceEvent, object]] = deque()
        self._runs: deque[str] = deque(maxlen=_NAMED_RUNS)
        self._peers: dict[int, bool] = {ordinal: True}
        self.is_closed: bool = False
        self.is_left: bool = False

    def __enter__(self) -> Self:
        self.context.push()
        followed = getattr(self._threads, "stream", 0)
        if followed:
            try:
                self.let_wait(self.stream.handle, followed)
            except DriverCallError as error:
                self.driver.Context.pop()
                raise self.failure(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        followed = getattr(self._threads, "stream", 0)
        try:
            if followed:
                self.let_wait(followed, self.stream.handle)
        except DriverCallError as failed:
            if error is None:
                raise self.failure(failed) from failed
        finally:
            self.driver.Context.pop()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context the current one of the thread, for work that is not of this backend."""
        self.context.push()
        try:
            yield
        finally:
            self.driver.Context.pop()

    @contextmanager
    def following(self, stream: int) -> Iterator[None]:
        """Let the work that this thread enqueues meanwhile run in order with a stream's.

        Args:
            stream: The handle of a stream of this device.
        """
        before = getattr(self._threads, "stream", 0)
        self._threads.stream = stream
        try:
            yield
        finally:
            self._threads.stream = before

    def synchronize(self) -> None:
        """Wait for all work of the stream.

        Raises:
            LinkError: if some kernel failed.
        """
        with self:
            try:
                self.stream.synchronize()
            except self.failures as error:
                raise self.failure(error) from error
        self._runs.clear()
        self._drop_held()

    def failure(self, error: Exception, where: str = "") -> OcannlError:
        """Return the error of work that failed on the device: a `DeviceError` if the driver reports
        that the device failed, or refuses all further work; else a `LinkError`.
        """
        runs = ", ".join(dict.fromkeys(self._runs))
        recent = f" of {runs}," if runs else ""
        found, is_lost = f"device {self.ordinal}: {error}", self._is_lost()
        where = where or f"some kernel{recent} since the last synchronization"
        kind = failure_in(str(error)) or (DeviceFailure.FAULT if is_lost else None)
        fix = "CUDA_LAUNCH_BLOCKING=1 waits for every kernel, and so names the one that fails"
        if kind is None:
            return LinkError(
                "The work of a device runs to its end.", found=found, where=where, fix=fix
            )
        return DeviceError(
            kind,
            found=found,
            where=where,
            fix=fix if kind is not DeviceFailure.LOST else "",
            is_usable=not is_lost,
        )

    def _is_lost(self) -> bool:
        """Return True if the driver refuses all further work in the context of the device."""
        try:
            with self.current():
                self.stream.is_done()
        except self.driver.Error:
            return True
        return False

    def memory_statistics(self) -> MemoryStatistics:
        """Return the memory as the driver counts it, and the pool's part of it."""
        with self.current():
            free, total = self.driver.mem_get_info()
        return MemoryStatistics(total, free, self.memory.used + self.memory.kept)

    def time(self, work: Callable[[], object]) -> float:
        """Return the seconds that the device needs for the work that a function enqueues."""
        with self.current():
            start, end = self.driver.Event(), self.driver.Event()
            start.record(self.stream)
        work()
        with self.current():
            end.record(self.stream)
            end.synchronize()
            milliseconds: float = start.time_till(end)
        return 1e-3 * milliseconds

    def note_run(self, routine: str) -> None:
        """Record a routine whose kernels are about to be enqueued, for messages."""
        self._runs.append(routine)
        if self._held:
            self._drop_held()

    def let_follow(self, stream: int) -> None:
        """Let later work of another library's stream wait for all work so far; the context must be
        current.
        """
        try:
            self.let_wait(stream, self.stream.handle)
        except DriverCallError as error:
            raise self.failure(error, f"the stream {stream:#x}") from error

    def follow(self, stream: int) -> None:
        """Let later work wait for all work so far of another library's stream; the context must be
        current.
        """
        try:
            self.let_wait(self.stream.handle, stream)
        except DriverCallError as error:
            raise self.failure(error, f"the stream {stream:#x}") from error

    def let_wait(self, waiting: int, working: int) -> None:
        """Let later work of a stream wait for all work so far of one of this device; the context
        must be current.

        Raises:
            DriverCallError: if the driver refuses.
        """
        event = self.events.recorded(working)
        try:
            event.hold_back(waiting)
        finally:
            self.events.reuse(event)

    def take_back(self, stream: int) -> None:
        """Let later work wait for all work so far of another library, which has used memory of this
        device on its stream. An error says that the stream is gone with its work, or is raised by a
        later call.
        """
        if not self.is_closed:
            with self.current(), suppress(DriverCallError):
                self.let_wait(self.stream.handle, stream)

    def hold(self, thing: object) -> None:
        """Keep an object until the work so far has finished, which a lost context never does."""
        if self.is_closed:
            return
        self._drop_held()
        with self.current(), suppress(DriverCallError):
            self._held.append((self.events.recorded(self.stream.handle), thing))

    def _drop_held(self) -> None:
        """Drop the objects whose work has finished."""
        while self._held:
            try:
                event, thing = self._held.popleft()
            except IndexError:  # another thread has taken it
                return
            with self.current(), suppress(DriverCallError):
                if not event.query():
                    self._held.appendleft((event, thing))
                    return
            self.reuse_event(event)

    def function(self, cubin: CachedObject, symbol: str) -> Any:
        """Return a kernel of a cubin, which is loaded once; the context must be current.

        Raises:
            LinkError: if the driver refuses it.
        """
        try:
            if cubin.name not in self._modules:
                self._modules[cubin.name] = self.driver.module_from_buffer(cubin.content)
            return self._modules[cubin.name].get_function(symbol)
        except self.driver.Error as error:
            raise LinkError(
                "The driver loads compiled kernels.",
                found=str(error),
                where=f"kernel {symbol} on device {self.ordinal}",
                fix="remove the directory `cuda` of the cache, which `ocannl doctor` names",
            ) from error

    def registers(self, function: Any) -> int:
        """Return the registers of each thread of a loaded kernel; the context must be current."""
        count: int = function.get_attribute(self.driver.function_attribute.NUM_REGS)
        return count

    def allow_shared_memory(self, function: Any, nbytes: int, where: str) -> None:
        """Let launches of a kernel state so much shared memory; the context must be current.

        Raises:
            LinkError: if the device has less.
        """
        most = self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        try:
            function.set_attribute(most, nbytes)
        except self.driver.Error as error:
            raise LinkError(
                "The shared memory of a kernel fits into that of a multiprocessor.",
                found=f"{nbytes} bytes ({error})",
                where=f"{where} on device {self.ordinal}",
            ) from error

    def host_memory(self, nbytes: int) -> HostMemory:
        """Return page-locked memory of the host, all zero; the context must be current."""
        memory = HostMemory(self, nbytes)
        self.own(memory)
        return memory

    def own(self, thing: Freed) -> None:
        """Free an object of the driver before the device is closed, if it still lives then."""
        self._owned.add(thing)

    def reaches(self, other: CudaDevice) -> bool:
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

    def copy_from_peer(self, other: CudaDevice, to: int, start: int, nbytes: int) -> None:
        """Enqueue a copy from another device; the context must be current.

        The function of PyCUDA 2026.1 ignores the contexts that it is given.

        Args:
            to: The address on this device.
            start: The address on the other one.
            nbytes: The size.
        """
        handles = [int(each.context.handle) for each in (self, other)]
        there, here = handles
        try:
            self.calls.copy_from_peer(to, there, start, here, nbytes, self.stream.handle)
        except DriverCallError as error:
            raise self.failure(error, "a copy between devices") from error

    def event(self) -> DeviceEvent:
        """Return an event behind all work so far; the context must be current.

        Raises:
            LinkError: if the driver refuses, as after a kernel that failed.
        """
        try:
            return self.events.recorded(self.stream.handle)
        except DriverCallError as error:
            raise self.failure(error) from error

    def reuse_event(self, event: DeviceEvent) -> None:
        """Take back an event that nothing will wait for any more."""
        if not self.is_closed:
            self.events.reuse(event)

    def close(self) -> None:
        """Finish all work, and release memory, code and context."""
        with self.current(), suppress(self.driver.Error):
            self.stream.synchronize()  # errors went to those who waited
        self.is_closed = True
        with self.current():
            owned = [each.free for each in self._owned]
            rest = [self._held.clear, self.staging.close, self.memory.close, self.events.close]
            for release in (*owned, *rest):
                with suppress(*self.failures):  # a lost context refuses, and has lost them all
                    release()
            self._modules.clear()
            del self.stream
        self.context.detach()


class _ForkedContext:
    """The context of a device in a process that was forked, which cannot use it."""

    def push(self) -> None:
        raise _after_fork()


def _after_fork() -> DeviceError:
    return DeviceError(DeviceFailure.FORKED, found=f"process {os.getpid()}, the child of a fork")


_devices: dict[int, CudaDevice] = {}
_lock = threading.RLock()


def device_of(target: Target) -> CudaDevice:
    """Return the device of a target, which is initialized on first use.

    Raises:
        LinkError: if this machine does not have it, or it cannot be used.
    """
    found = _devices.get(target.device)
    is_exact = is_emulated(target) and os.environ.get(_POOLED) != "1"
    return _opened(target.device, is_exact=is_exact) if found is None else found


def ordinal_device(ordinal: int) -> CudaDevice:
    """Return the device of an ordinal; one that no context has used yet is a real one.

    Raises:
        LinkError: if this machine does not have it, or it cannot be used.
    """
    found = _devices.get(ordinal)
    return _opened(ordinal, is_exact=False) if found is None else found


def _opened(ordinal: int, *, is_exact: bool) -> CudaDevice:
    if _is_forked:
        raise _after_fork()
    with _lock:
        if ordinal not in _devices:
            try:
                _devices[ordinal] = CudaDevice(ordinal, is_exact=is_exact)
            except Exception as error:  # of PyCUDA, which may itself be missing
                raise LinkError(
                    "A target of this backend is a device of this machine that works.",
                    found=f"cuda:{ordinal}: {type(error).__name__}: {error}",
                    fix="`ocannl doctor cuda` checks driver, devices and compiler",
                ) from error
        return _devices[ordinal]


def _leave_to_parent() -> None:
    """Let a forked process release nothing: memory, streams and code are its parent's."""
    global _is_forked, _lock
    _lock = threading.RLock()  # a thread of the parent may hold the other one
    _is_forked = _is_forked or bool(_devices)
    for device in _devices.values():
        device.is_closed = device.is_left = True
        device.memory.leave()
        device.context = _ForkedContext()
        _kept_of_parent.append(device)
    _devices.clear()


_is_forked = False
_kept_of_parent: list[CudaDevice] = []
"""Devices that a forked process must not release."""
os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def close_all() -> None:
    """Release all devices in use."""
    with _lock:
        while _devices:
            _, device = _devices.popitem()
            device.close()
