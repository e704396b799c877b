"""The sums of all processes: each adds up some rows of every gradient, and gets the other rows.

    bucket 0    rows of spans -> additions -> rows of sums
    bucket 1              rows of spans -> additions -> rows of sums
    time        ------------------------------------------------------------->

A bucket is a group of summands; buckets are ordered by the time at which their summands are
complete. The rows of a complete bucket are sent while the device computes the next bucket. The
additions are compiled code over the rows of this process: its own spans, and the received ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from time import perf_counter
from typing import Any

import numpy as np

from ocannl_core.backend.protocols import Buffer
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.host_arrays import Array
from ocannl_core.runtime import values
from ocannl_core.runtime.context import Context
from ocannl_core.runtime.routine import Routine
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.communication import Cells, Communicator, Exchange, Parcel
from ocannl_core.train.parallel_code import ParallelCode, Term
from ocannl_core.train.phases import Phases
from ocannl_core.train.slot_tree import Span, largest_spans, share

Compile = Callable[[str, Callable[[], Computation]], Routine]


class BucketProgress(Enum):
    """The progress of a bucket in a step."""

    INCOMPLETE = "incomplete"
    SCATTERING = "rows of spans are in flight"
    GATHERING = "rows of sums are in flight"
    COMPLETE = "complete"


@dataclass(slots=True, eq=False)
class Bucket:
    """Summands that travel together."""

    number: int
    """Its place in the order of buckets."""
    sent: tuple[MessageWindow, ...]
    """The windows that are sent before the additions."""
    inbox: tuple[MessageWindow, ...]
    """The windows that receive rows of other processes."""
    sums: tuple[MessageWindow, ...]
    """The windows of the sums."""
    scatter: Exchange
    """The messages of spans."""
    gather: Exchange
    """The messages of sums."""
    additions: Routine | None
    """The code of the additions; None if this process adds up no row."""
    progress: BucketProgress = BucketProgress.COMPLETE
    started: float = 0.0
    """The time at which the messages in flight were started."""

    @property
    def in_flight(self) -> Exchange | None:
        """The messages that the bucket waits for."""
        match self.progress:
            case BucketProgress.SCATTERING:
                return self.scatter
            case BucketProgress.GATHERING:
                return self.gather
            case _:
                return None


class ProcessSums:
    """The sums over the slots of all processes.

    Args:
        context: The context that has the sums of this process.
        own: The spans of this process with their registers.
        buckets: The numbers of the summands in each bucket, in the order in which they are started.
        is_gathered: True for each summand of which every process needs all rows.
        compile_code: Compiles code in the context.
    """

    def __init__(
        self,
        communicator: Communicator,
        code: ParallelCode,
        context: Context,
        own: Sequence[tuple[Span, int]],
        buckets: Sequence[tuple[int, ...]],
        is_gathered: Sequence[bool],
        compile_code: Compile,
        phases: Phases,
    ) -> None:
        self._communicator = communicator
        self._code = code
        self._context = context
        self._registers = {span: code.register(register) for span, register in own}
        self._is_gathered = tuple(is_gathered)
        self._phases = phases
        size = communicator.size
        self._spans = [largest_spans(code.slots, share(code.slots, size, k)) for k in range(size)]
        self._windows: dict[Tensor, MessageWindow] = {}
        self._buckets = [
            self._bucket(number, summands, compile_code) for number, summands in enumerate(buckets)
        ]

    def _rows(self, summand: int, process: int) -> range | None:
        """Return the rows that a process adds up; None if all processes add up all cells."""
        dims = self._code.register(0)[summand].info.dims
        return share(dims[0], self._communicator.size, process) if dims else None

    def _bucket(self, number: int, summands: tuple[int, ...], compile_code: Compile) -> Bucket:
        code, rank = self._code, self._communicator.rank
        added = {k: rows for k in summands if (rows := self._rows(k, rank)) is None or rows}
        others = other_processes(self._communicator)
        foreign = [(other, span) for other in others for span in self._spans[other]]
        inbox = {
            (other, span, k): code.received(
                k, f"{other}_{span.start}", None if rows is None else len(rows)
            )
            for k, rows in added.items()
            for other, span in foreign
        }
        self._context.assign(dict.fromkeys(inbox.values(), 0))
        terms: dict[int, list[Term]] = {
            k: [
                *((span, tensors[k], rows) for span, tensors in self._registers.items()),
                *((span, inbox[other, span, k], None) for other, span in foreign),
            ]
            for k, rows in added.items()
        }
        name = f"add_bucket_{number}"
        additions = compile_code(name, lambda: code.add_spans(name, terms)) if terms else None
        sums = {
            k: self._window(code.register(0)[k])
            for k in summands
            if self._is_gathered[k] and self._rows(k, rank) is not None
        }
        scatter, gather = [], []
        for other in others:
            sent = [
                self._window(self._registers[span][k]).rows(self._rows(k, other))
                for span in self._spans[rank]
                for k in summands
            ]
            received = [
                self._window(inbox[other, span, k]).rows(None)
                for span in self._spans[other]
                for k in added
            ]
            scatter.append(_parcel(other, sent, received))
            own = [window.rows(self._rows(k, rank)) for k, window in sums.items()]
            theirs = [window.rows(self._rows(k, other)) for k, window in sums.items()]
            gather.append(_parcel(other, own, theirs))
        exchange = self._communicator.exchange
        return Bucket(
            number,
            tuple(self._window(each[k]) for each in self._registers.values() for k in summands),
            tuple(self._window(each) for each in inbox.values()),
            tuple(sums.values()),
            exchange(scatter, "the sum of gradients"),
            exchange(gather, "the sum of gradients"),
            additions,
        )

    def _window(self, tensor: Tensor) -> MessageWindow:
        if tensor not in self._windows:
            direct = self._communicator.passes_device_memory
            self._windows[tensor] = MessageWindow(
                self._context, tensor, passes_device_memory=direct
            )
        return self._windows[tensor]

    def begin(self) -> None:
        """Begin a step: no bucket is complete."""
        for bucket in self._buckets:
            bucket.progress = BucketProgress.INCOMPLETE

    def start(self, number: int) -> None:
        """Send the rows of a bucket whose sums over the slots of this process are complete."""
        bucket = self._buckets[number]
        if bucket.progress is not BucketProgress.INCOMPLETE:
            return
        self._context.synchronize()  # messages read memory, not results of a queue
        for window in bucket.sent:
            window.load()
        bucket.started = perf_counter()
        bucket.scatter.start()
        bucket.progress = BucketProgress.SCATTERING

    def progress(self) -> None:
        """Continue with buckets whose messages have arrived; never waits."""
        for bucket in self._buckets:
            if (messages := bucket.in_flight) is not None and messages.is_over():
                if messages is bucket.scatter:
                    self._add(bucket)
                else:
                    self._finish(bucket)

    def finish(self) -> None:
        """Wait for the sums of all buckets."""
        for bucket in self._buckets:
            self.start(bucket.number)
        self.progress()
        while pending := [each for b in self._buckets if (each := b.in_flight) is not None]:
            self._communicator.wait(pending)
            self.progress()

    def _add(self, bucket: Bucket) -> None:
        """Add up rows that have arrived, and send the sums."""
        arrived = perf_counter()
        self._phases.record(f"bucket {bucket.number}: rows", bucket.started, arrived)
        for window in bucket.inbox:
            window.store()
        if bucket.additions is not None:
            bucket.additions()
        self._context.synchronize()
        for window in bucket.sums:
            window.load()
        bucket.started = perf_counter()
        self._phases.record(f"bucket {bucket.number}: additions", arrived, bucket.started)
        bucket.gather.start()
        bucket.progress = BucketProgress.GATHERING

    def _finish(self, bucket: Bucket) -> None:
        for window in bucket.sums:
            window.store()
        self._phases.record(f"bucket {bucket.number}: sums", bucket.started, perf_counter())
        bucket.progress = BucketProgress.COMPLETE


def other_processes(communicator: Communicator) -> list[int]:
    """Return the numbers of the other processes, those after this one first."""
    size = communicator.size
    return [(communicator.rank + k) % size for k in range(1, size)]


def _parcel(other: int, sent: Sequence[Cells], received: Sequence[Cells]) -> Parcel:
    """Return the messages with another process, without empty parts."""
    return Parcel(
        other,
        tuple(each for each in sent if each.nbytes),
        tuple(each for each in received if each.nbytes),
    )


class Rows:
    """The rows of tensors of which each process has written some; every process gets all."""

    def __init__(
        self, communicator: Communicator, context: Context, tensors: Sequence[Tensor], subject: str
    ) -> None:
        direct = communicator.passes_device_memory
        self._communicator = communicator
        self._windows = [
            MessageWindow(context, each, passes_device_memory=direct) for each in tensors
        ]

        def cells(process: int) -> list[Cells]:
            return [
                window.rows(share(tensor.info.dims[0], communicator.size, process))
                for tensor, window in zip(tensors, self._windows, strict=True)
            ]

        parcels = [
            _parcel(other, cells(communicator.rank), cells(other))
            for other in other_processes(communicator)
        ]
        self._exchange = communicator.exchange(parcels, subject)

    def gather(self) -> None:
        """Exchange the rows."""
        for window in self._windows:
            window.load()
        self._exchange.start()
        while not self._exchange.is_over():
            self._communicator.wait([self._exchange])
        for window in self._windows:
            window.store()


def buckets_of(
    sizes: Sequence[int], order: Sequence[int], least: int
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of tensors in buckets, in an order.

    A bucket is closed when it has enough bytes; also when it has half of them and the next tensor
    has enough by itself, so that it needs not wait for that one. Only the last one may be smaller.
    """
    found: list[tuple[int, ...]] = []
    pending: list[int] = []
    total = 0
    for number in order:
        if pending and sizes[number] >= least and 2 * total >= least:
            found.append(tuple(pending))
            pending, total = [], 0
        pending.append(number)
        total += sizes[number]
        if total >= least:
            found.append(tuple(pending))
            pending, total = [], 0
    if pending:
        found.append(tuple(pending))
    return tuple(found)


class MessageWindow:
    """The memory of one tensor for messages: its own where this process, or the network, addresses
    it; elsewhere an array of this process, copied before it is sent and after it has arrived.
    """

    def __init__(self, context: Context, tensor: Tensor, *, passes_device_memory: bool) -> None:
        stored = context.store.find(tensor.node)
        assert stored is not None, tensor
        self._stored = stored
        self._context = context
        info = stored.info
        direct = _addressable(stored.buffer, passes_device_memory=passes_device_memory)
        self.is_direct = direct is not None
        """True if that is the memory of the tensor, not a copy."""
        self.memory: Array | Buffer = (
            direct if direct is not None else np.empty(info.dims, info.dtype.numpy)
        )
        """The array or buffer that messages access."""

    def rows(self, rows: range | None) -> Cells:
        """Return the cells of some rows along the first axis; None for all."""
        info = self._stored.info
        nbytes = int(np.prod(info.dims, dtype=np.int64)) * info.dtype.numpy.itemsize
        if rows is None:
            return Cells(self.memory, 0, nbytes)
        each = nbytes // info.dims[0] if info.dims[0] else 0
        return Cells(self.memory, each * rows.start, each * len(rows))

    def load(self) -> None:
        """Copy the cells from the device, before they are sent."""
        if not self.is_direct:
            self._context.store.wait_to_read(self._stored)
            self._host[...] = values.read(self._context.backend, self._stored.buffer)

    def store(self) -> None:
        """Copy the cells to the device, after they have arrived."""
        if not self.is_direct:
            self._context.store.wait_to_write(self._stored)
            values.write(self._context.backend, self._stored.buffer, self._host)
        self._context.store.history.host_wrote(self._stored, {})

    @property
    def _host(self) -> Array:
        assert isinstance(self.memory, np.ndarray)
        return self.memory


def _addressable(buffer: Buffer, *, passes_device_memory: bool) -> Any:
    """Return the memory of a buffer that messages can access directly; None if they cannot."""
    info = buffer.info
    if info.memory_dims != info.dims or info.memory_numpy != info.dtype.numpy:
        return None  # with margins, or packed: not the cells of an array
    array = getattr(buffer, "array", None)
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        return array
    if passes_device_memory and hasattr(type(buffer), "__cuda_array_interface__"):
        return buffer
    return None
