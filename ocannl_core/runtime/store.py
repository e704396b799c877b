"""The memory of a context: buffers and values of nodes, reasons for those without, and the
routines that depend on each other through them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from ocannl_core.backend.protocols import Buffer, Event
from ocannl_core.backend.queues import HostQueue, QueueEvent
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.forks import process_lock
from ocannl_core.base.garbage import note_memory
from ocannl_core.compile.context_state import ContextState, Unstored
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.node import NodeInfo, NodeTable, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.runtime.device import SharedCells, SharedDevice
from ocannl_core.runtime.memory import MemoryEntry, MemoryReport, report

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.tensor.graph.tensor import Tensor


@dataclass(slots=True, eq=False)
class RunRecord:
    """The record of a routine's last run."""

    at: int = 0
    """The time of its last run; 0 if there was none."""
    routine: str = ""
    passed_on: AbstractSet[TensorNode] = frozenset()
    """Gradients that it leaves passed on to operands; it keeps none of them alive."""
    owner: Callable[[], object] | None = None
    """The routine, once there is one; None when it is gone."""
    sizes: Mapping[StaticExtent, int] = field(default_factory=dict)
    """The extents at run time of its last run."""
    values: tuple[int, ...] = ()
    """The sizes in the order of the routine's arguments."""
    event: Event | None = None
    """The end of its last run; None if that was over when its call returned."""

    @property
    def is_over(self) -> bool:
        """Return True if the routine is gone, so that it will not run again."""
        return self.owner is not None and self.owner() is None


class RoutineRecord(Protocol):
    """A routine, as the store of its context refers to it."""

    name: str
    merged: TensorNode | None
    """The node whose merge buffer it reads."""
    reads: frozenset[TensorNode]
    writes: frozenset[TensorNode]
    ordinal: int
    """Its place in the order of compilation in its lineage."""

    @property
    def memory(self) -> Mapping[TensorNode, Any]:
        """The memory of the nodes of its context that it uses."""
        ...

    def link_again(self, stored: Any) -> None:
        """Link the code anew if it uses this memory, whose buffer has changed."""
        ...

    def unlink(self, released: Any) -> None:
        """Drop the memory of the code if some of it has been released: it cannot run any more."""
        ...


class Hazard(Enum):
    """The kind of a dependence."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"


@dataclass(frozen=True, slots=True)
class Dependence:
    """An access to memory that a routine compiled before accesses too, one of them writing it."""

    hazard: Hazard
    node: TensorNode
    routine: str

    def __str__(self) -> str:
        return f"{self.hazard.value} of {self.node.name}: {self.routine}"


def dependences(routine: RoutineRecord, earlier: RoutineRecord) -> Iterator[Dependence]:
    """Yield the dependences of a routine on one that was compiled before it, by node."""
    shared = [
        node
        for node, stored in routine.memory.items()
        if earlier.memory.get(node) is stored  # not a node of that name in another child
    ]
    for node in sorted(shared, key=lambda each: each.id):
        if node in routine.reads and node in earlier.writes:
            yield Dependence(Hazard.READ_AFTER_WRITE, node, earlier.name)
        if node in routine.writes and node in earlier.reads:
            yield Dependence(Hazard.WRITE_AFTER_READ, node, earlier.name)
        if node in routine.writes and node in earlier.writes:
            yield Dependence(Hazard.WRITE_AFTER_WRITE, node, earlier.name)


class History:
    """The order of writes and runs in a lineage of contexts.

    Attributes:
        lock: Held while code is compiled, and while memory is added for values.
        last: The last event, if it was a run after which nothing needs checking or recording
            before the same routine runs again; None after everything else.
        merged: The content of the merge buffer; None while it is empty.
        merge_memory: The memory of the merge buffer in each layout that it has had.
    """

    __slots__ = ("__weakref__", "last", "lock", "merge_memory", "merged", "ordinals", "routines")

    def __init__(self) -> None:
        self.lock = process_lock()
        self.last: RunRecord | None = None
        self.routines: weakref.WeakSet[RoutineRecord] = weakref.WeakSet()
        self.merged: MergeContent | None = None
        self.merge_memory: dict[NodeInfo, NodeMemory] = {}
        self.ordinals = count(1)

    def host_wrote(
        self, stored: NodeMemory, sizes: Mapping[StaticExtent, int], event: Event | None = None
    ) -> None:
        """Record a write to a node by the host or by a transfer.

        Args:
            event: The end of the write; None if it is over.
        """
        self.last = None
        stored.has_value = True
        stored.host_sizes = sizes
        stored.host_wrote_at = next(self.ordinals)
        stored.copied = event

    def note_reader(self, stored: NodeMemory, event: Event) -> None:
        """Record a transfer that reads a node: later writes wait for it."""
        self.last = None
        stored.readers = [*filter(is_pending, stored.readers), event]

    def merge_filled(self, content: MergeContent) -> None:
        """Record that the merge buffer has a new content."""
        self.last = None
        self.merged = content

    def ran(self, run: RunRecord, *, is_repeatable: bool) -> None:
        """Record that a routine has run.

        Args:
            is_repeatable: True if it may run again at once without checks.
        """
        run.at = next(self.ordinals)
        self.last = run if is_repeatable else None


class NodeMemory:
    """The memory of one node.

    Attributes:
        has_value: True once the host or a routine has written it; never becomes False again.
        is_linked: True once a routine holds the buffer's address.
        writers: Names of the routines that compute it, oldest first.
        host_wrote_at: The time of the last write by the host or by a transfer.
        host_sizes: The extents at run time of the cells written then.
        copied: The end of that write; None if it is over.
        readers: The ends of transfers that read the cells.
        shared: The cells of a literal that other contexts on the device use, too; None if the
            memory is the context's own.
    """

    # fmt: off
    __slots__ = (
        "__weakref__", "_tensor", "buffer", "copied", "has_value", "host_sizes", "host_wrote_at",
        "is_linked", "node", "readers", "reads", "runs", "shared", "writers",
    )
    # fmt: on

    def __init__(self, node: TensorNode, buffer: Buffer, tensor: Tensor | None) -> None:
        self.node = node
        self.buffer = buffer
        self._tensor = None if tensor is None else weakref.ref(tensor)
        self.has_value = False
        self.is_linked = False
        self.writers: list[str] = []
        self.runs: list[RunRecord] = []
        self.reads: list[RunRecord] = []
        self.host_wrote_at = 0
        self.host_sizes: Mapping[StaticExtent, int] = {}
        self.copied: Event | None = None
        self.readers: list[Event] = []
        self.shared: SharedCells | None = None
        note_memory(self, buffer.info.nbytes)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor behind the node, as long as something else refers to it, for messages."""
        return None if self._tensor is None else self._tensor()

    def add_run(self, run: RunRecord) -> None:
        """Record a routine that writes the node. Of those that are gone, the last run is kept."""
        over = [each for each in self.runs if each.is_over]
        last = max(over, key=lambda each: each.at, default=None)
        self.runs = [each for each in self.runs if each is last or not each.is_over]
        self.runs.append(run)

    def add_reader(self, run: RunRecord) -> None:
        """Record a routine that reads the node."""
        self.reads = [each for each in self.reads if not each.is_over or is_pending(each.event)]
        self.reads.append(run)

    def last_run(self) -> RunRecord | None:
        """Return the run that wrote the node last; None if something else did, or nothing."""
        last = max(self.runs, key=lambda run: run.at, default=None)
        return None if last is None or last.at <= self.host_wrote_at else last

    def write_event(self) -> Event | None:
        """Return the end of the last write; None if it is over, or nothing states it."""
        last = self.last_run()
        return self.copied if last is None else last.event

    def accesses(self) -> Iterator[Event]:
        """Yield the ends of the last write and of the reads that a further write waits for."""
        written = self.write_event()
        if written is not None:
            yield written
        for run in self.reads:
            if run.event is not None:
                yield run.event
        yield from self.readers

    def passed_on_by(self) -> RunRecord | None:
        """Return the run that wrote the node last, if that left it passed on to operands."""
        last = self.last_run()
        return last if last is not None and self.node in last.passed_on else None

    def sizes(self) -> Mapping[StaticExtent, int]:
        """Return the extents of the last write; a missing one has its maximum."""
        last = self.last_run()
        return self.host_sizes if last is None else last.sizes

    def written_at(self) -> int:
        """Return the time of the last write."""
        return max((self.host_wrote_at, *(run.at for run in self.runs)))

    @property
    def info(self) -> NodeInfo:
        return self.buffer.info


def _kind_of(node: TensorNode, tensor: Tensor | None) -> str:
    """Return the kind of a node's memory in reports."""
    if node.gradient_of is not None:
        return "gradient"
    if tensor is None:
        return "tensor"
    if tensor.literal is not None:
        return "literal"
    kinds = {
        "parameter": tensor.is_parameter,
        "placeholder": tensor.is_placeholder,
        "statistic": tensor.is_statistic,
    }
    return next((kind for kind, holds in kinds.items() if holds), "tensor")


@dataclass(frozen=True, slots=True, eq=False)
class _AllWork:
    """The end of the work of a device that records no events."""

    backend: Backend
    target: Target

    def wait(self) -> None:
        """Return when all work has finished, also that submitted since."""
        self.backend.synchronize(self.target)


def is_pending(event: Event | None) -> bool:
    """Return True unless the work before an event is certain to be over."""
    return event is not None and not getattr(event, "is_done", False)


_STORES: weakref.WeakSet[BufferStore] = weakref.WeakSet()


class BufferStore:
    """The buffers of a context and of those that it descends from."""

    def __init__(
        self,
        device: SharedDevice,
        parent: BufferStore | None = None,
        *,
        queue: HostQueue | None,
        fallbacks: tuple[tuple[Backend, Target], ...],
    ) -> None:
        self.backend = device.backend
        self.target = device.target
        self.device = device
        """The state that all contexts on the device share."""
        self.queue = queue
        self.is_synchronous = self.backend.is_synchronous
        """True if the backend's calls return when their work is finished."""
        self.fallbacks = fallbacks
        """Other devices, for kernels that the device does not support."""
        self._parent = parent
        self.history: History = History() if parent is None else parent.history
        """The writes and runs, in order; a lineage shares one."""
        device.histories.add(self.history)
        _STORES.add(self)
        self._stored: NodeTable[NodeMemory] = NodeTable()
        self._unstored: NodeTable[tuple[Unstored, RunRecord]] = NodeTable()

    def _lineage(self) -> Iterator[BufferStore]:
        store: BufferStore | None = self
        while store is not None:
            yield store
            store = store._parent

    def find(self, node: TensorNode) -> NodeMemory | None:
        """Return the memory of a node, from the nearest context of the lineage that has it."""
        for store in self._lineage():
            found = store._stored.get(node)
            if found is not None:
                return found
        return None

    @staticmethod
    def has_value_anywhere(node: TensorNode) -> bool:
        """Return True if a context has a value of a node."""
        found = [each._stored.get(node) for each in list(_STORES)]
        return any(each is not None and each.has_value for each in found)

    def memories(self) -> Iterator[NodeMemory]:
        """Return the memory of the nodes of the lineage, the nearest context first."""
        for store in self._lineage():
            yield from (memory for _, memory in store._stored.items())

    def owns(self, node: TensorNode) -> bool:
        """Return True if this context, not one that it descends from, has the node's memory."""
        return node in self._stored

    def wait_to_read(self, stored: NodeMemory) -> None:
        """Return when the cells of a node have been written.

        Raises:
            DeviceError: if the device is unusable.
        """
        self.device.check_usable()
        event = stored.write_event()
        if event is not None:
            event.wait()
        elif not self.is_synchronous and stored.last_run() is not None:
            self.backend.synchronize(self.target)

    def wait_for_others(self, stored: NodeMemory) -> None:
        """Let a copy from the host, which is submitted next, follow the accesses to a node's cells:
        backends that stage such copies order them after earlier work of the device themselves.
        """
        if not self.backend.stages_uploads:
            self.wait_to_write(stored)
            return
        for event in (stored.copied, *stored.readers):
            if event is not None:
                self.follow(event)
        stored.copied = None
        stored.readers.clear()

    def wait_to_write(self, stored: NodeMemory) -> None:
        """Return when nothing that was submitted reads or writes the cells of a node."""
        for event in stored.accesses():
            if isinstance(event, QueueEvent):
                event.join()  # cells are replaced: an error is raised elsewhere
            else:
                event.wait()
        stored.readers.clear()
        if not self.is_synchronous and self.queue is None and (stored.runs or stored.reads):
            self.backend.synchronize(self.target)

    def synchronize(self) -> None:
        """Return when all work of the device has finished."""
        if self.queue is not None:
            self.queue.synchronize()
        self.backend.synchronize(self.target)

    def follow(self, event: Event) -> None:
        """Let work submitted from now on begin after an event; wait for it if the device cannot."""
        if self.queue is not None:
            self.queue.wait_for(event)
        elif self.is_synchronous or not self.backend.wait_event(event, self.target):
            event.wait()

    def follow_write(self, stored: NodeMemory, of: BufferStore) -> None:
        """Let work submitted from now on begin after the last write to a node of a context."""
        orders_itself = self.queue is None and not self.is_synchronous and of.device is self.device
        event = stored.copied if orders_itself else of.last_write(stored)
        if event is not None:
            self.follow(event)

    def last_write(self, stored: NodeMemory) -> Event | None:
        """Return the end of the last write to a node, or one after it; None if it is over."""
        event = stored.write_event()
        if event is None and (stored.last_run() is not None or self.backend.stages_uploads):
            return self.submitted()
        return event

    def submitted(self) -> Event | None:
        """Return the end of the work submitted to the device so far; None if it is over."""
        if self.is_synchronous:
            return None if self.queue is None else self.queue.last
        return self.backend.record_event(self.target) or _AllWork(self.backend, self.target)

    def allocate(self, info: NodeInfo, name: str) -> Buffer:
        """Return new memory for a node, all zero.

        Raises:
            LinkError: if the device has too little.
        """
        account, device = self.device.account, str(self.target)
        account.reserve(info.nbytes, name, device)
        try:
            try:
                return self.backend.allocate(info, self.target)
            except MemoryError:
                gc.collect()  # of contexts and routines that are gone
                return self.backend.allocate(info, self.target)
        except MemoryError as error:
            details = f", {info.dtype} of extents {info.buffer_dims}"
            raise account.exhausted(info.nbytes, name, device, details) from error

    def new(
        self,
        node: TensorNode,
        info: NodeInfo,
        name: str,
        tensor: Tensor | None = None,
        kind: str = "",
    ) -> NodeMemory:
        """Return new memory for a node, all zero, that is not part of the context yet.

        Args:
            kind: The kind of memory in reports; by default the tensor's kind.

        Raises:
            LinkError: if the device has too little.
        """
        stored = NodeMemory(node, self.allocate(info, name), tensor)
        if tensor is not None:
            tensor.note_memory()
        entry = MemoryEntry(node.name, kind or _kind_of(node, tensor), info.nbytes, self.history)
        self.device.account.add(stored, entry)
        return stored

    def report(self) -> MemoryReport:
        """Return the memory of the lineage, by label."""
        statistics = self.backend.memory_statistics(self.target)
        return report(self.device.account, str(self.target), self.history, statistics)

    def release(self) -> None:
        """Free the context's own memory, and unlink the routines that use it."""
        owned = list(self._stored.values())
        used = set(owned)
        self.history.last = None
        for routine in list(self.history.routines):
            routine.unlink(used)
        for stored in owned:
            self.device.account.remove(stored)
            del self._stored[stored.node]
        if self._parent is None:
            self.history.merged = None
            self.history.merge_memory.clear()

    def add(self, stored: NodeMemory) -> None:
        self._stored[stored.node] = stored

    @contextmanager
    def all_or_none(self) -> Iterator[list[NodeMemory]]:
        """Remove the memory that the `with` statement adds, and lists, if it raises an error."""
        new: list[NodeMemory] = []
        try:
            yield new
        except BaseException:
            for stored in new:
                del self._stored[stored.node]
            raise

    def find_unstored(self, node: TensorNode) -> tuple[Unstored, RunRecord] | None:
        """Return the records of a node that a routine computes unstored, and of the routine."""
        for store in self._lineage():
            found = store._unstored.get(node)
            if found is not None:
                return found
        return None

    def add_unstored(self, node: TensorNode, unstored: Unstored, run: RunRecord) -> None:
        self._unstored[node] = unstored, run

    def state(self) -> ContextState:
        """Return what code that is compiled for this context depends on."""
        stored: dict[TensorNode, NodeInfo] = {}
        unstored: dict[TensorNode, Unstored] = {}
        for store in reversed(tuple(self._lineage())):  # the nearest memory of a node counts
            stored.update((node, memory.info) for node, memory in store._stored.items())
            unstored.update((node, found) for node, (found, _) in store._unstored.items())
        held = self.history.merged
        merged = None if held is None else (held.node, held.name)
        return ContextState(self.backend, self.target, stored, unstored, merged, self.fallbacks)

    def nbytes(self) -> int:
        """Return the bytes of this context's own buffers."""
        return sum(stored.info.nbytes for stored in self._stored.values())

    def __len__(self) -> int:
        return len(self._stored)


@dataclass(slots=True, eq=False)
class MergeContent:
    """The content of a merge buffer."""

    node: TensorNode
    name: str
    cells: NodeMemory
    streamed_from: NodeMemory | None
    """The memory that is read in place of a copy; None for a copy."""
    source: BufferStore
    """The context of the cells."""
    written_at: int
    """The time at which that memory was written last before the filling."""
    is_read: bool = False
    """True once a routine has read the content."""

    def wait_to_read(self, store: BufferStore) -> None:
        """Let the work that a context submits next begin after the writes of the cells."""
        store.follow_write(self.cells, self.source)

    def has_run(self, event: Event | None, store: BufferStore) -> None:
        """Record that a routine of a context has read the content, or will have at an event."""
        self.is_read = True
        if event is None and self.streamed_from is not None:
            event = store.submitted()
        if event is not None:
            self.source.history.note_reader(self.cells, event)
