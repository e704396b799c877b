"""Events of a device: points in the work of streams, reused once nothing waits for them.

Timing is disabled, because it costs the device more. A stream waits for the point that an event had
when the wait was enqueued, so an event may be recorded again while streams still wait for its
earlier point.
"""

from __future__ import annotations

from ocannl_cuda.driver_calls import DriverCalls


class DeviceEvent:
    """A point in the work of a stream.

    Args:
        handle: The driver's event.
    """

    __slots__ = ("_calls", "handle")

    def __init__(self, calls: DriverCalls, handle: int) -> None:
        self._calls = calls
        self.handle = handle

    def record(self, stream: int) -> None:
        """Move it behind all work so far of a stream of its context."""
        self._calls.record_event(self.handle, stream)

    def synchronize(self) -> None:
        """Return when the work before it has finished; the context must be current.

        Raises:
            DriverCallError: if some of it has failed.
        """
        self._calls.wait_for_event(self.handle)

    def query(self) -> bool:
        """Return True if the work before it has finished; the context must be current.

        Raises:
            DriverCallError: if some of it has failed.
        """
        return self._calls.has_happened(self.handle)

    def hold_back(self, stream: int) -> None:
        """Let later work of a stream, of any device, wait for it; the host waits for nothing."""
        self._calls.let_stream_wait(stream, self.handle)


class EventPool:
    """The events of a device.

    There are as many as were in use at once. Threads may take and return them.
    """

    def __init__(self, calls: DriverCalls) -> None:
        self._calls = calls
        self._free: list[DeviceEvent] = []
        self._every: list[DeviceEvent] = []

    def recorded(self, stream: int) -> DeviceEvent:
        """Return an event behind all work so far of a stream; its context must be current."""
        try:
            event = self._free.pop()
        except IndexError:
            event = DeviceEvent(self._calls, self._calls.create_event())
            self._every.append(event)
        try:
            event.record(stream)
        except BaseException:
            self._free.append(event)
            raise
        return event

    def reuse(self, event: DeviceEvent) -> None:
        """Take back an event that nothing will wait for any more."""
        self._free.append(event)

    def close(self) -> None:
        """Return all events to the driver, in use or not; the context must be current."""
        self._free.clear()
        while self._every:
            self._calls.destroy_event(self._every.pop().handle)
