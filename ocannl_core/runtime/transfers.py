"""Copies of cells between contexts: of any two devices, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ocannl_core.backend.loaded_backend import transfer
from ocannl_core.backend.protocols import Done, Event
from ocannl_core.base.errors import TransferError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.runtime import values
from ocannl_core.runtime.store import BufferStore, NodeMemory

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor


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


def pairs_of(tensors: object) -> list[tuple[Tensor, Tensor]]:
    """Return the destination and the source of each copy that an argument states.

    Raises:
        UsageError: if it is none of one tensor, several, or a mapping.
    """
    if isinstance(tensors, Mapping):
        found = [(here if is_tensor(here) else there, there) for here, there in tensors.items()]
    elif isinstance(tensors, Iterable) and not is_tensor(tensors):
        found = [(each, each) for each in tensors]
    else:
        found = [(tensors, tensors)]
    for pair in found:
        if not all(map(is_tensor, pair)):
            raise UsageError(
                "copy_from takes tensors.",
                found=f"a {type(pair[1]).__name__}: {pair[1]!r}",
                fix="target.copy_from(source, [w, b]), or loss.params for all parameters",
            )
    return list({here.node: (here, there) for here, there in found}.values())


def is_tensor(value: object) -> bool:
    return isinstance(getattr(value, "node", None), TensorNode)


def unequal(tensor: Tensor, info: NodeInfo, source: NodeMemory) -> TransferError:
    """Return the error about tensors of different formats or extents."""
    formats = [f"{each.dtype} {list(each.dims)}" for each in (source.info, info)]
    return TransferError(
        "A transfer connects tensors of equal number format and extents.",
        found=f"{source.node.name}, {formats[0]}, to {tensor.node.name}, {formats[1]}",
        where=tensor.describe(),
        fix="compute a tensor of the format and extents needed, and copy that",
    )


def copy(at: BufferStore, into: NodeMemory, of: BufferStore, source: NodeMemory) -> Event:
    """Copy the cells of a node to its memory in another context; return the end of the copy."""
    if into is source or into.buffer is source.buffer:
        return Done()
    event = _copy(at, into, of, source)
    finished = isinstance(event, Done)
    at.history.host_wrote(into, source.sizes(), None if finished else event)
    if not finished:
        of.history.note_reader(source, event)
    return event


def _copy(at: BufferStore, into: NodeMemory, of: BufferStore, source: NodeMemory) -> Event:
    before, after = source.info, into.info
    if before.padding or after.padding or before.buffer_dims != after.buffer_dims:
        of.wait_to_read(source)  # margins keep their cells
        at.wait_to_write(into)
        values.write(at.backend, into.buffer, values.read(of.backend, source.buffer))
        return Done()
    if at.queue is None:
        _order(at, into, of, source)
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


def _order(at: BufferStore, into: NodeMemory, of: BufferStore, source: NodeMemory) -> None:
    """Let the copy that is submitted next begin after the work that it depends on.

    A device of a backend that orders copies begins one after its own work, and waits for that of
    others if it can; else the host waits.
    """
    if at.is_synchronous or not at.backend.orders_copies:
        of.wait_to_read(source)
        at.wait_to_write(into)
        return
    at.follow_write(source, of)
    for event in _distinct((*into.readers, into.copied)):
        at.follow(event)
    into.readers.clear()


def _distinct(events: Sequence[Event | None]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if event is not None and not any(event is each for each in found):
            found.append(event)
    return found
