"""The communicator: messages between processes of one model, and agreement on their program.

Tensors are sent from, and received in, the memory of their contexts. The additions are code of the
step (`ocannl_core.train`); a process sends and receives little more than twice the bytes of the
summands, for any number of processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from ocannl_core.backend_api import UsageError
from ocannl_core.train.communication import Cells, Parcel
from ocannl_mpi import failures, own_settings
from ocannl_mpi.requests import CommunicationError, MpiExchange, OneRequest, wait
from ocannl_mpi.watching import Watcher

Array = np.ndarray[Any, Any]

_BUCKET_BYTES = 1 << 20
_MESSAGE_BYTES = 256 << 10
_PRINT_SECONDS = 5.0
"""For process 0 to print an error of all processes, before others stop it."""
_MOST_TAG = 1 << 14


def communicator(
    comm: MPI.Intracomm | None = None,
    *,
    timeout: float | None = None,
    bucket_bytes: int | None = None,
) -> MpiCommunicator:
    """Return the communicator of a group of processes.

    Args:
        comm: The group; all processes that `mpiexec` started by default. It is duplicated, so that
            messages of the program do not meet messages of training.
        timeout: Seconds after which a process that does not answer is given up; by default the
            setting `timeout` of `mpi`, 300.
        bucket_bytes: The least size of the sums that travel together; by default 1 MiB, or 256
            KiB for each process if that is more. It is divided into a message for each process.

    Raises:
        UsageError: for a timeout or a size that is not positive.
    """
    seconds = own_settings.current().timeout if timeout is None else timeout
    if not seconds > 0 or (bucket_bytes is not None and bucket_bytes < 1):
        raise UsageError(
            "A timeout is a positive number of seconds, and a bucket has at least one byte.",
            found=f"timeout={seconds!r}, bucket_bytes={bucket_bytes!r}",
        )
    return MpiCommunicator((comm or MPI.COMM_WORLD).Dup(), seconds, bucket_bytes)


class MpiCommunicator:
    """A group of processes that train one model; see `ocannl_core.train.communication`.

    As a context manager it stops the whole group when this process fails: an error is printed with
    the rank, and the other processes end.

    Attributes:
        rank: The number of this process.
        size: The number of processes.
        local_rank: The number of this process among the ones on its machine, to choose a device.
        bucket_bytes: The least size of a bucket, the sums that travel together.
        passes_device_memory: True if the library reads and writes memory of CUDA devices.
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float, bucket_bytes: int | None) -> None:
        self._comm = comm
        self._timeout = timeout
        self.rank = comm.rank
        self.size = comm.size
        on_machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank = on_machine.rank
        on_machine.Free()
        self.bucket_bytes = bucket_bytes or max(_BUCKET_BYTES, comm.size * _MESSAGE_BYTES)
        self.passes_device_memory = _passes_device_memory()
        self._exchanges = 0
        self._watcher: Watcher | None = None
        self._processes = self._name_processes()

    def __enter__(self) -> MpiCommunicator:
        if self.size > 1 and self.local_rank == 0 and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._watcher = Watcher(self._processes, self.size, platform.node())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.finish(is_complete=not isinstance(error, KeyboardInterrupt))
        if error is not None and self.size > 1 and not failures.is_success(error):
            if not failures.report(error, self.rank, self.size):
                time.sleep(_PRINT_SECONDS)  # until process 0, which prints it, stops all
            self._comm.Abort(1)

    def _name_processes(self) -> dict[int, int]:
        """Print ranks, machines and numbers of the processes once; return the numbers of the
        processes on this machine by rank.

        A launcher reports a killed process by its machine and number alone.
        """
        if self.size == 1:
            return {}
        own = f"{platform.node()}:{os.getpid()}".encode()
        names = [each.decode() for each in self._gather(own, "the start")]
        if self.rank == 0:
            ranks = ", ".join(f"{rank} {name}" for rank, name in enumerate(names))
            print(f"ocannl_mpi: {self.size} processes: {ranks}", file=sys.stderr, flush=True)
        machines = [name.rpartition(":") for name in names]
        return {
            rank: int(number)
            for rank, (machine, _, number) in enumerate(machines)
            if machine == platform.node()
        }

    def __repr__(self) -> str:
        return f"<MpiCommunicator: rank {self.rank} of {self.size}>"

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
                raise _disagreement(name, values)
        raise AssertionError("equal facts have equal digests")

    def _gather(self, data: bytes, subject: str) -> list[bytes]:
        """Return the bytes of all processes, in order."""
        lengths = self._to_all(np.array([len(data)], np.int64), [1] * self.size, subject)
        counts = [int(each[0]) for each in lengths]
        texts = self._to_all(np.frombuffer(data, np.uint8), counts, subject)
        return [each.tobytes() for each in texts]

    def _to_all(self, sent: Array, counts: Sequence[int], subject: str) -> list[Array]:
        """Return the arrays that all processes send, given their lengths."""
        received = [np.empty(count, sent.dtype) for count in counts]
        received[self.rank][...] = sent
        parcels = [
            Parcel(other, _whole(sent), _whole(received[other]))
            for other in range(self.size)
            if other != self.rank
        ]
        exchange = self.exchange(parcels, subject)
        exchange.start()
        while not exchange.is_over():
            self.wait([exchange])
        return received

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
        text = "" if failure is None else f"{type(failure).__name__}: {failure}"
        (outcome, *_) = self._gather(text.encode("utf-8", "backslashreplace"), subject)
        if failure is not None:
            raise failure
        if outcome:
            raise CommunicationError(
                f"Process 0 failed in {subject}.", found=outcome.decode()
            ).on_all_processes()

    def exchange(self, parcels: Sequence[Parcel], subject: str) -> MpiExchange:
        """Return an exchange of fixed memory; called by all processes in the same order."""
        self._exchanges += 1
        return MpiExchange(self._comm, parcels, self._exchanges % _MOST_TAG, subject)

    def wait(self, exchanges: Sequence[MpiExchange]) -> None:
        """Return when at least one of several exchanges is over.

        Raises:
            CommunicationError: if no message arrives for a time.
        """
        wait(exchanges, self._timeout)

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays of process 0."""
        found = [np.asarray(each, order="C") for each in arrays]
        if self.rank:
            found = [np.empty_like(each) for each in found]
        for array in found:
            cells = array.reshape(-1).view(np.uint8)
            sources = [0] if self.rank else range(1, self.size)
            request = OneRequest(self._comm.Ibcast(cells), sources, "the start of training")
            while not request.is_over():
                wait([request], self._timeout)
        return found


def _whole(array: Array) -> tuple[Cells, ...]:
    return (Cells(array, 0, array.nbytes),) if array.nbytes else ()


def _passes_device_memory() -> bool:
    """Return True if the library states that it reads memory of CUDA devices."""
    stated = own_settings.current().device_memory
    if stated is not None:
        return stated
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds") or ""
    return any(kind.split(":")[0] == "cuda" for kind in kinds.split(","))


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
    ).on_all_processes()
