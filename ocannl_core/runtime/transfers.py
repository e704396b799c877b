"""Copies of cells between contexts: of any two devices, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.hooks.backend import transfer
from ocannl_core.runtime import values
from ocannl_core.runtime.store import BufferStore, Stored
from ocannl_core.target import Done, Event


@dataclass(frozen=True, slots=True)
class AllOf:
    """The point at which several events have happened."""

    events: tuple[Event, ...]

    @property
    def is_done(self) -> bool:
        return all(getattr(event, "is_done", False) for event in self.events)

    def wait(self) -> None:
        """Return when all of them have happened; raise the first error."""
        for event in self.events:
            event.wait()


def all_of(events: Iterable[Event]) -> Event:
    """Return the event after several ones."""
    pending = tuple(event for event in events if not isinstance(event, Done))
    return AllOf(pending) if len(pending) > 1 else next(iter(pending), Done())


def copy(at: BufferStore, into: Stored, of: BufferStore, source: Stored) -> Event:
    """Copy the cells of a node to its memory in another context; return the end of the copy.

    Args:
        at: The memory of the destination's context.
        into: The destination.
        of: The memory of the source's context.
        source: The source.
    """
    if into is source or into.buffer is source.buffer:
        return Done()
    event = _copy(at, into, of, source)
    finished = isinstance(event, Done)
    at.history.host_wrote(into, source.sizes(), None if finished else event)
    if not finished:
        of.history.note_reader(source, event)
    return event


def _copy(at: BufferStore, into: Stored, of: BufferStore, source: Stored) -> Event:
    before, after = source.info, into.info
    if before.padding or after.padding or before.buffer_dims != after.buffer_dims:
        of.wait_to_read(source)  # margins keep their cells
        at.wait_to_write(into)
        values.write(at.backend, into.buffer, values.read(of.backend, source.buffer))
        return Done()
    if at.queue is None:
        of.wait_to_read(source)
        at.wait_to_write(into)
        return transfer(at.backend, of.backend, into.buffer, source.buffer)
    read, written = source.write_event(), tuple(into.accesses())
    if read is None:
        of.wait_to_read(source)
    for event in _distinct((read, *written)):
        at.follow(event)
    into.readers.clear()

    destination, origin = into.buffer, source.buffer

    def work() -> None:
        transfer(at.backend, of.backend, destination, origin).wait()

    return at.queue.submit(work, f"copying {source.node.name} from {of.target} to {at.target}")


def _distinct(events: Sequence[Event | None]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if event is not None and not any(event is each for each in found):
            found.append(event)
    return found
