"""The sums of all processes: each adds up some rows of every gradient, and gets the other rows.

    bucket 0    rows of spans -> additions -> rows of sums
    bucket 1              rows of spans -> additions -> rows of sums
    time        ------------------------------------------------------------->

A bucket is a group of summands; buckets are ordered by the time at which their summands are
complete. The rows of a complete bucket are sent while the device computes the next bucket. The
additions are compiled code over the rows of this process: its own spans, and the received ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.host_arrays import Array
from ocannl_core.runtime.context import Context
from ocannl_core.runtime.routine import Routine
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.communication import Cells, Communicator, Exchange, Parcel
from ocannl_core.train.parallel_code import ParallelCode, Term
from ocannl_core.train.phases import Phases
from ocannl_core.train.slot_tree import Span, largest_spans, share
from ocannl_core.train.windows import MessageWindow

Compile = Callable[[str, Callable[[], Computation]], Routine]


class BucketProgress(Enum):
    """The progress of a bucket in a step."""

    INCOMPLETE = "incomplete"
    SCATTERING = "rows of spans are in flight"
    GATHERING = "rows of sums are in flight"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Summands that travel together.

    Attributes:
        number: Its place in the order of buckets.
        summands: The numbers of the summands.
        sent: The windows that are sent before the additions.
        inbox: The windows that receive rows of other processes.
        sums: The windows of the sums.
        scatter: The messages of spans.
        gather: The messages of sums.
        additions: The code of the additions; None if this process adds up no row.
    """

    number: int
    summands: tuple[int, ...]
    sent: tuple[MessageWindow, ...]
    inbox: tuple[MessageWindow, ...]
    sums: tuple[MessageWindow, ...]
    scatter: Exchange
    gather: Exchange
    additions: Routine | None


class ProcessSums:
    """The sums over the slots of all processes.

    Args:
        communicator: The group of processes.
        code: The code of the step.
        context: The context that has the sums of this process.
        own: The spans of this process with their registers.
        buckets: The numbers of the summands in each bucket, in the order in which they are started.
        is_gathered: True for each summand of which every process needs all rows.
        compile_code: Compiles code in the context.
        phases: Records times.
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
        self._own = tuple(own)
        self._is_gathered = tuple(is_gathered)
        self._phases = phases
        size = communicator.size
        self._parts = [share(code.slots, size, process) for process in range(size)]
        self._spans = [largest_spans(code.slots, part) for part in self._parts]
        self._others = [(communicator.rank + k) % size for k in range(1, size)]
        self._windows: dict[Tensor, MessageWindow] = {}
        self._buckets = [
            self._bucket(number, tuple(summands), compile_code)
            for number, summands in enumerate(buckets)
        ]
        self._states = [BucketProgress.COMPLETE] * len(self._buckets)
        self._started = [0.0] * len(self._buckets)

    def _rows(self, summand: int, process: int) -> range | None:
        """Return the rows that a process adds up; None if all processes add up all cells."""
        dims = self._code.summands[summand].dims
        return share(dims[0], self._communicator.size, process) if dims else None

    def _bucket(self, number: int, summands: tuple[int, ...], compile_code: Compile) -> Bucket:
        rank = self._communicator.rank
        registers = {span: self._code.register(register) for span, register in self._own}
        inbox = self._inbox(summands)
        terms = self._terms(summands, registers, inbox)
        name = f"add_bucket_{number}"
        additions = compile_code(name, lambda: self._code.add_spans(name, terms)) if terms else None
        sums = self._code.register(0)
        gathered = [k for k in summands if self._is_gathered[k] and self._rows(k, rank) is not None]
        scatter, gather = [], []
        for other in self._others:
            sent = [
                self._window(registers[span][k]).rows(self._rows(k, other))
                for span in self._spans[rank]
                for k in summands
            ]
            received = [
                self._window(inbox[other, span, k]).rows(None)
                for span in self._spans[other]
                for k in summands
                if (other, span, k) in inbox
            ]
            scatter.append(_parcel(other, sent, received))
            gather.append(
                _parcel(
                    other,
                    [self._window(sums[k]).rows(self._rows(k, rank)) for k in gathered],
                    [self._window(sums[k]).rows(self._rows(k, other)) for k in gathered],
                )
            )
        exchange = self._communicator.exchange
        return Bucket(
            number,
            summands,
            tuple(self._window(each[k]) for each in registers.values() for k in summands),
            tuple(self._window(each) for each in inbox.values()),
            tuple(self._window(sums[k]) for k in gathered),
            exchange(scatter, "the sum of gradients"),
            exchange(gather, "the sum of gradients"),
            additions,
        )

    def _inbox(self, summands: Sequence[int]) -> dict[tuple[int, Span, int], Tensor]:
        """Return a tensor for the rows of this process in each span of each other process."""
        found = {}
        for k in summands:
            rows = self._rows(k, self._communicator.rank)
            if rows is not None and not rows:
                continue
            for other in self._others:
                for span in self._spans[other]:
                    count = None if rows is None else len(rows)
                    found[other, span, k] = self._code.received(k, f"{other}_{span.start}", count)
        self._context.assign(dict.fromkeys(found.values(), 0))
        return found

    def _terms(
        self,
        summands: Sequence[int],
        registers: Mapping[Span, Sequence[Tensor]],
        inbox: Mapping[tuple[int, Span, int], Tensor],
    ) -> dict[int, list[Term]]:
        """Return the sums of spans that this process adds up, for each summand."""
        rank = self._communicator.rank
        terms: dict[int, list[Term]] = {}
        for k in summands:
            rows = self._rows(k, rank)
            if rows is not None and not rows:
                continue
            terms[k] = [(span, tensors[k], rows) for span, tensors in registers.items()]
            terms[k] += [
                (span, inbox[other, span, k], None)
                for other in self._others
                for span in self._spans[other]
            ]
        return terms

    def _window(self, tensor: Tensor) -> MessageWindow:
        if tensor not in self._windows:
            direct = self._communicator.passes_device_memory
            self._windows[tensor] = MessageWindow(
                self._context, tensor, passes_device_memory=direct
            )
        return self._windows[tensor]

    def begin(self) -> None:
        """Begin a step: no bucket is complete."""
        self._states = [BucketProgress.INCOMPLETE] * len(self._buckets)

    def start(self, number: int) -> None:
        """Send the rows of a bucket whose sums over the slots of this process are complete."""
        bucket = self._buckets[number]
        if self._states[number] is not BucketProgress.INCOMPLETE:
            return
        self._context.synchronize()  # messages read memory, not results of a queue
        for window in bucket.sent:
            window.load()
        self._started[number] = self._phases.now()
        bucket.scatter.start()
        self._states[number] = BucketProgress.SCATTERING

    def progress(self) -> None:
        """Continue with buckets whose messages have arrived; never waits."""
        for bucket in self._buckets:
            state = self._states[bucket.number]
            if state is BucketProgress.SCATTERING and bucket.scatter.is_over():
                self._add(bucket)
            elif state is BucketProgress.GATHERING and bucket.gather.is_over():
                self._finish(bucket)

    def finish(self) -> None:
        """Wait for the sums of all buckets."""
        for bucket in self._buckets:
            self.start(bucket.number)
        self.progress()
        while pending := [each for each in map(self._pending, self._buckets) if each is not None]:
            self._communicator.wait(pending)
            self.progress()

    def _pending(self, bucket: Bucket) -> Exchange | None:
        match self._states[bucket.number]:
            case BucketProgress.SCATTERING:
                return bucket.scatter
            case BucketProgress.GATHERING:
                return bucket.gather
            case _:
                return None

    def _add(self, bucket: Bucket) -> None:
        """Add up rows that have arrived, and send the sums."""
        arrived = self._phases.now()
        self._phases.record(f"bucket {bucket.number}: rows", self._started[bucket.number], arrived)
        for window in bucket.inbox:
            window.store()
        if bucket.additions is not None:
            bucket.additions()
        self._context.synchronize()
        for window in bucket.sums:
            window.load()
        self._started[bucket.number] = self._phases.now()
        self._phases.record(
            f"bucket {bucket.number}: additions", arrived, self._started[bucket.number]
        )
        bucket.gather.start()
        self._states[bucket.number] = BucketProgress.GATHERING

    def _finish(self, bucket: Bucket) -> None:
        for window in bucket.sums:
            window.store()
        number = bucket.number
        self._phases.record(f"bucket {number}: sums", self._started[number], self._phases.now())
        self._states[number] = BucketProgress.COMPLETE


def _parcel(other: int, sent: Sequence[Cells], received: Sequence[Cells]) -> Parcel:
    """Return the messages with another process, without empty parts."""
    return Parcel(
        other,
        tuple(each for each in sent if each.nbytes),
        tuple(each for each in received if each.nbytes),
    )


class Rows:
    """The rows of tensors of which each process has written some; every process gets all.

    Args:
        communicator: The group of processes.
        context: The context that has the tensors.
        tensors: Tensors with a first axis, whose rows the processes share.
        subject: Its purpose, for messages.
    """

    def __init__(
        self,
        communicator: Communicator,
        context: Context,
        tensors: Sequence[Tensor],
        subject: str,
    ) -> None:
        direct = communicator.passes_device_memory
        self._communicator = communicator
        self._windows = [
            MessageWindow(context, each, passes_device_memory=direct) for each in tensors
        ]
        size, rank = communicator.size, communicator.rank
        parcels = []
        for other in ((rank + k) % size for k in range(1, size)):
            sent, received = [], []
            for tensor, window in zip(tensors, self._windows, strict=True):
                count = tensor.info.dims[0]
                sent.append(window.rows(share(count, size, rank)))
                received.append(window.rows(share(count, size, other)))
            parcels.append(_parcel(other, sent, received))
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


def all_gather(
    communicator: Communicator, rows: Sequence[Array], totals: Sequence[int], subject: str
) -> Sequence[Array]:
    """Return arrays of the rows of all processes in order; called by all of them.

    Args:
        communicator: The group of processes.
        rows: The rows of this process in each array, as `slot_tree.share` divides them.
        totals: The number of rows of each array.
        subject: Its purpose, for messages.
    """
    size, rank = communicator.size, communicator.rank
    wholes = [
        np.empty((total, *own.shape[1:]), own.dtype)
        for own, total in zip(rows, totals, strict=True)
    ]

    def cells(whole: Array, process: int) -> Cells:
        part = share(len(whole), size, process)
        each = whole.nbytes // len(whole) if len(whole) else 0
        return Cells(whole, each * part.start, each * len(part))

    for own, whole in zip(rows, wholes, strict=True):
        part = share(len(whole), size, rank)
        whole[part.start : part.stop] = own
    parcels = [
        _parcel(
            other,
            [cells(whole, rank) for whole in wholes],
            [cells(whole, other) for whole in wholes],
        )
        for other in ((rank + k) % size for k in range(1, size))
    ]
    exchange = communicator.exchange(parcels, subject)
    exchange.start()
    while not exchange.is_over():
        communicator.wait([exchange])
    return wholes


def buckets_of(
    sizes: Sequence[int], order: Sequence[int], least: int
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of tensors in buckets, in an order.

    A bucket is closed when it has enough bytes; also when it has half of them and the next tensor
    has enough by itself, so that it needs not wait for that one. Only the last one may be smaller.

    Args:
        sizes: The size of each tensor in bytes.
        order: The numbers of the tensors in the order in which they are complete.
        least: The least size of a bucket in bytes.
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
