"""The communicator: sums over the slots of all processes, added up in one fixed tree.

An all-reduce has two phases for each bucket. Every process sends the chunk of each other process to
it, one array for each of the largest spans of its slots; a process that has its chunk of all spans
adds them up in the tree. Then it sends the sums to the others. So the additions of a cell are those
of one process that has all slots, and a process sends and receives little more than twice the bytes
of the summands, for any number of processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import numpy as np
from mpi4py import MPI

from ocannl_core.backend_api import UsageError
from ocannl_core.train.communication import Partial, Summand, tree_sum
from ocannl_core.train.slot_tree import Span, largest_spans, share
from ocannl_mpi import failures
from ocannl_mpi.buckets import Array, Bucket, buckets_of, pack, unpack
from ocannl_mpi.requests import CommunicationError, Exchange, Message, run

_BUCKET_BYTES = 4 << 20
_MOST_IN_FLIGHT = 4
_TIMEOUT = 300.0
_MOST_TAG = 1 << 14


def communicator(
    comm: MPI.Intracomm | None = None,
    *,
    timeout: float | None = None,
    bucket_bytes: int = _BUCKET_BYTES,
) -> MpiCommunicator:
    """Return the communicator of a group of processes.

    Args:
        comm: The group; all processes that `mpiexec` started by default. It is duplicated, so that
            messages of the program do not meet those of training.
        timeout: Seconds after which a process that does not answer is given up; by default the
            value of the environment variable `OCANNL_MPI_TIMEOUT`, or 300.
        bucket_bytes: The size of a message; sums of small tensors share one.

    Raises:
        UsageError: for a timeout or a size that is not positive.
    """
    seconds = _timeout() if timeout is None else timeout
    if not seconds > 0 or bucket_bytes < 1:
        raise UsageError(
            "A timeout is a positive number of seconds, and a bucket has at least one byte.",
            found=f"timeout={seconds!r}, bucket_bytes={bucket_bytes!r}",
        )
    return MpiCommunicator((comm or MPI.COMM_WORLD).Dup(), seconds, bucket_bytes)


def _timeout() -> float:
    text = os.environ.get("OCANNL_MPI_TIMEOUT", "")
    try:
        return float(text) if text else _TIMEOUT
    except ValueError:
        raise UsageError("OCANNL_MPI_TIMEOUT is a number of seconds.", found=repr(text)) from None


class MpiCommunicator:
    """A group of processes that train one model; see `ocannl_core.train.communication`.

    As a context manager it stops the whole group when this process fails: an error is printed with
    the rank, and the other processes end.

    Attributes:
        rank: The number of this process.
        size: The number of processes.
        local_rank: The number of this process among those on its machine, to choose a device.
        sent_bytes: The bytes that this process has sent in sums, so far.
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float, bucket_bytes: int) -> None:
        self._comm = comm
        self._timeout = timeout
        self._bucket_bytes = bucket_bytes
        self.rank = comm.rank
        self.size = comm.size
        on_machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = on_machine.rank
        on_machine.Free()
        self.sent_bytes = 0
        self._summands: tuple[Summand, ...] = ()
        self._slots = 0
        self._buckets: tuple[Bucket, ...] = ()
        self._spans: tuple[tuple[Span, ...], ...] = ()
        self._name_processes()

    def __enter__(self) -> MpiCommunicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self.size > 1 and not failures.is_success(error):
            failures.report(error, self.rank, self.size)
            self._comm.Abort(1)

    def _name_processes(self) -> None:
        """Print ranks, machines and numbers of the processes once.

        A launcher reports a killed process by its machine and number alone.
        """
        if self.size == 1:
            return
        own = f"{platform.node()}:{os.getpid()}".encode()
        names = [each.decode() for each in self._gather(own, "the start")]
        if self.rank == 0:
            ranks = ", ".join(f"{rank} {name}" for rank, name in enumerate(names))
            print(f"ocannl_mpi: {self.size} processes: {ranks}", file=sys.stderr, flush=True)

    def __repr__(self) -> str:
        return f"<MpiCommunicator: rank {self.rank} of {self.size}>"

    # ----- agreement ------------------------------------------------------------------------------

    def agree(self, facts: Mapping[str, str]) -> None:
        """Return if all processes state the same facts.

        Raises:
            UsageError: with the first fact that differs, its values, and their ranks.
        """
        text = json.dumps(dict(facts), sort_keys=True).encode()
        digest = hashlib.sha256(text).digest()
        if len(set(self._gather(digest, "the agreement on the program"))) == 1:
            return
        stated = [json.loads(each) for each in self._gather(text, "the agreement on the program")]
        names = sorted({name for each in stated for name in each})
        for name in names:
            values = [each.get(name) for each in stated]
            if any(value != values[0] for value in values):
                raise failures.on_all_processes(_disagreement(name, values))
        raise AssertionError("equal facts have equal digests")

    def _gather(self, data: bytes, subject: str) -> list[bytes]:
        """Return the bytes of all processes, in order."""
        length = np.array([len(data)], np.int64)
        lengths = [np.empty(1, np.int64) for _ in range(self.size)]
        self._to_all(length, lengths, subject)
        texts = [np.empty(int(each[0]), np.uint8) for each in lengths]
        self._to_all(np.frombuffer(data, np.uint8), texts, subject)
        return [each.tobytes() for each in texts]

    def _to_all(self, sent: Array, received: Sequence[Array], subject: str) -> None:
        received[self.rank][...] = sent

        def exchange() -> Exchange:
            yield [
                *(self._receive(received[other], other, _MOST_TAG) for other in self._others()),
                *(self._send(sent, other, _MOST_TAG) for other in self._others()),
            ]

        run([exchange()], 1, self._timeout, subject)

    def first(self, work: Callable[[], object], subject: str = "work of process 0") -> None:
        """Do work in process 0 alone, such as writing a checkpoint; the others wait for it.

        Raises:
            CommunicationError: in the other processes, if it fails there.
        """
        failure: Exception | None = None
        if self.rank == 0:
            try:
                work()
            except Exception as error:
                failure = error
        (outcome, *_) = self._gather(str(failure or "").encode(), subject)
        if failure is not None:
            raise failure
        if outcome:
            raise failures.on_all_processes(
                CommunicationError(f"Process 0 failed in {subject}.", found=outcome.decode())
            )

    # ----- arrays ---------------------------------------------------------------------------------

    def prepare(self, summands: Sequence[Summand], slots: int) -> None:
        """Divide the summands into buckets.

        Raises:
            UsageError: if there are fewer slots than processes.
        """
        if slots < self.size:
            raise failures.on_all_processes(
                UsageError(
                    "Every process has at least one slot of a batch.",
                    found=f"{slots} slots, {self.size} processes",
                    fix=f"divide a batch into {self.size} slots or more, or start at most {slots} "
                    "processes",
                )
            )
        self._summands, self._slots = tuple(summands), slots
        self._buckets = buckets_of(summands, self._bucket_bytes)
        self._spans = tuple(
            largest_spans(slots, share(slots, self.size, rank)) for rank in range(self.size)
        )

    def all_reduce(self, partials: Sequence[Partial]) -> Sequence[Array]:
        """Return the sum of each summand over all slots.

        Raises:
            UsageError: if the spans are not those of this process.
            CommunicationError: if a process does not take part.
        """
        spans = tuple(each.span for each in partials)
        if not self._spans or spans != self._spans[self.rank]:
            raise UsageError(
                "The spans of a process are the largest ones of its slots.",
                found=f"{list(spans)} in rank {self.rank} of {self.size}, {self._slots} slots",
                fix="prepare the communicator with the number of slots",
            )
        flat = [[array.reshape(-1) for array in each.arrays] for each in partials]
        sums = [np.empty(each.dims, each.dtype.numpy) for each in self._summands]
        into = [each.reshape(-1) for each in sums]
        exchanges = (
            self._sum_bucket(number, bucket, flat, into)
            for number, bucket in enumerate(self._buckets)
        )
        run(exchanges, _MOST_IN_FLIGHT, self._timeout, "the sum of gradients")
        return sums

    def _sum_bucket(
        self,
        number: int,
        bucket: Bucket,
        partials: Sequence[Sequence[Array]],
        into: Sequence[Array],
    ) -> Exchange:
        dtype, tag = bucket.dtype.numpy, 2 * (number % (_MOST_TAG // 2))
        chunks = [share(bucket.size, self.size, rank) for rank in range(self.size)]

        def packed(chunk: range) -> Array:
            cells = np.empty((len(partials), len(chunk)), dtype)
            for row, arrays in zip(cells, partials, strict=True):
                pack(bucket, chunk, arrays, row)
            return cells

        mine = chunks[self.rank]
        received = {
            other: np.empty((len(self._spans[other]), len(mine)), dtype) for other in self._others()
        }
        yield [
            *(self._receive(cells, other, tag) for other, cells in received.items()),
            *(self._send(packed(chunks[other]), other, tag) for other in self._others()),
        ]
        received[self.rank] = packed(mine)
        tree = tree_sum(self._slots)
        for rank, cells in sorted(received.items()):
            for span, row in zip(self._spans[rank], cells, strict=True):
                tree.insert(span, (row,))
        assert tree.root is not None
        (total,) = tree.root
        unpack(bucket, mine, total, into)
        sums = {other: np.empty(len(chunks[other]), dtype) for other in self._others()}
        yield [
            *(self._receive(cells, other, tag + 1) for other, cells in sums.items()),
            *(self._send(total, other, tag + 1) for other in self._others()),
        ]
        for other, cells in sums.items():
            unpack(bucket, chunks[other], cells, into)

    def all_gather(self, rows: Sequence[Array], totals: Sequence[int]) -> Sequence[Array]:
        """Return arrays of the rows of all processes, in order."""
        wholes = [
            np.empty((total, *own.shape[1:]), own.dtype)
            for own, total in zip(rows, totals, strict=True)
        ]
        exchanges = (
            self._gather_rows(number % _MOST_TAG, own, whole)
            for number, (own, whole) in enumerate(zip(rows, wholes, strict=True))
        )
        run(exchanges, _MOST_IN_FLIGHT, self._timeout, "the exchange of parameters")
        return wholes

    def _gather_rows(self, tag: int, own: Array, whole: Array) -> Exchange:
        parts = [share(len(whole), self.size, rank) for rank in range(self.size)]
        rows = [whole[part.start : part.stop] for part in parts]
        rows[self.rank][...] = own
        sent = np.ascontiguousarray(own)
        yield [
            *(self._receive(rows[other], other, tag) for other in self._others()),
            *(self._send(sent, other, tag) for other in self._others()),
        ]

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays of process 0."""
        found = list(arrays) if self.rank == 0 else [np.empty_like(each) for each in arrays]

        def exchange() -> Exchange:
            for array in found:
                if self.rank:
                    yield [self._receive(array, 0, _MOST_TAG + 1)]
                else:
                    yield [self._send(array, other, _MOST_TAG + 1) for other in self._others()]

        run([exchange()], 1, self._timeout, "the start of training")
        return found

    # ----- messages -------------------------------------------------------------------------------

    def _others(self) -> list[int]:
        """Return the other processes, each process beginning with the one after it."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def _send(self, cells: Array, other: int, tag: int) -> Message:
        self.sent_bytes += cells.nbytes
        return Message(self._comm.Isend([_bytes(cells), MPI.BYTE], other, tag))

    def _receive(self, cells: Array, other: int, tag: int) -> Message:
        return Message(self._comm.Irecv([_bytes(cells), MPI.BYTE], other, tag), other)


def _bytes(cells: Array) -> Array:
    return np.ascontiguousarray(cells).reshape(-1).view(np.uint8)


def _disagreement(name: str, values: Sequence[object]) -> UsageError:
    ranks: dict[object, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    found = "\n".join(
        f"{value if value is not None else 'nothing'} in rank {', '.join(map(str, at))}"
        for value, at in ranks.items()
    )
    return UsageError(
        f"All processes run the same program; they differ in {name}.",
        found=found,
        where=f"reported by {platform.node()}",
        fix="start the same code with the same settings, seed and versions in all processes",
    )
