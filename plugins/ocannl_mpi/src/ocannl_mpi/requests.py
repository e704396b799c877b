"""Messages that are sent in each step, and waiting for them with a limit of time.

The library reads and writes cells where they are; a datatype describes places with few cells, which
travel together. Requests are persistent, so that a step only starts them.

A process that never answers would leave the others waiting forever. Each wait here ends with an
error after a time without progress, which names the processes whose messages are missing.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from ocannl_core.backend_api import OcannlError
from ocannl_core.train.communication import Cells, Parcel

_SPIN_SECONDS = 0.002
"""Seconds that a wait tests without a pause; messages inside of a machine take less."""

_YIELD_SECONDS = 0.0002
"""Seconds of the spinning during which it lets no other process run in between."""

_PAUSE_SECONDS = 50e-6

_PACKED_BYTES = 16 << 10
"""Cells of fewer bytes share a message."""


class CommunicationError(OcannlError):
    """A process of the group does not answer, or has failed."""


class MpiExchange:
    """Messages between this process and others, from and to fixed memory.

    Attributes:
        subject: Its purpose, for messages.
    """

    def __init__(
        self, comm: MPI.Intracomm, parcels: Sequence[Parcel], tag: int, subject: str
    ) -> None:
        self.subject = subject
        self._memory = [
            cells.memory for parcel in parcels for cells in (*parcel.sent, *parcel.received)
        ]
        self._requests: list[MPI.Prequest] = []
        self._sources: list[int | None] = []
        self._kinds: list[MPI.Datatype] = []
        self._is_active = False
        with translated(subject):
            for parcel in parcels:
                for where in self._messages(parcel.received):
                    self._requests.append(comm.Recv_init(where, parcel.process, tag))
                    self._sources.append(parcel.process)
            for parcel in parcels:
                for where in self._messages(parcel.sent):
                    self._requests.append(comm.Send_init(where, parcel.process, tag))
                    self._sources.append(None)
        weakref.finalize(self, _free, self._requests, self._kinds)

    def _messages(self, cells: Sequence[Cells]) -> Iterator[Any]:
        """Yield the arguments of MPI for the messages of cells: many cells have one each, which the
        network reads where they are, and the others one together, which is packed.
        """
        few = [each for each in cells if each.nbytes < _PACKED_BYTES]
        for each in cells:
            if each.nbytes >= _PACKED_BYTES:
                yield [MPI.memory.fromaddress(_address(each), each.nbytes), MPI.BYTE]
        if few:
            kind = MPI.BYTE.Create_hindexed(
                [each.nbytes for each in few], [_address(each) for each in few]
            ).Commit()
            self._kinds.append(kind)
            yield [MPI.BOTTOM, 1, kind]

    def start(self) -> None:
        """Send and receive the cells."""
        with translated(self.subject):
            MPI.Prequest.Startall(self._requests)
        self._is_active = True

    def is_over(self) -> bool:
        """Return True if all messages have arrived."""
        if not self._is_active:
            return True
        with translated(self.subject):
            if MPI.Request.Testall(self._requests):
                self._is_active = False
        return not self._is_active

    def missing(self) -> list[int]:
        """Return the processes whose messages have not arrived."""
        if not self._is_active:
            return []
        return [
            source
            for source, request in zip(self._sources, self._requests, strict=True)
            if source is not None and not request.Get_status()
        ]

    def arrived(self) -> int:
        """Return the number of messages that have arrived, or left."""
        if not self._is_active:
            return len(self._requests)
        return sum(request.Get_status() for request in self._requests)


def _free(requests: Sequence[MPI.Prequest], kinds: Sequence[MPI.Datatype]) -> None:
    """Free what MPI keeps for an exchange; messages in flight keep it until the process ends."""
    if MPI.Is_finalized() or not all(each.Get_status() for each in requests):
        return
    for request in requests:
        request.Free()
    for kind in kinds:
        kind.Free()


class OneRequest:
    """A request of MPI that is waited for once.

    Args:
        sources: The processes that it may wait for.
        subject: Its purpose, for messages.

    Attributes:
        subject: Its purpose, for messages.
    """

    def __init__(self, request: MPI.Request, sources: Sequence[int], subject: str) -> None:
        self.subject = subject
        self._sources = list(sources)
        self._request = request
        self._is_over = False

    def is_over(self) -> bool:
        """Return True if it is complete."""
        if not self._is_over:
            with translated(self.subject):
                self._is_over = bool(self._request.Test())
        return self._is_over

    def missing(self) -> list[int]:
        """Return the processes that it may wait for."""
        return [] if self._is_over else self._sources

    def arrived(self) -> int:
        return int(self._is_over)


def wait(exchanges: Sequence[MpiExchange | OneRequest], timeout: float) -> None:
    """Return when at least one of several exchanges is over.

    Args:
        timeout: Seconds without any message after which the group is given up.

    Raises:
        CommunicationError: if no message arrives in that time.
    """
    start = last = time.monotonic()
    arrived = sum(each.arrived() for each in exchanges)
    while not any(each.is_over() for each in exchanges):
        now = time.monotonic()
        if now - start < _SPIN_SECONDS:
            if now - start > _YIELD_SECONDS:
                _let_others_run()
            continue
        time.sleep(_PAUSE_SECONDS)
        if now - last > timeout:
            found = sum(each.arrived() for each in exchanges)
            if found == arrived:
                raise _unanswered(exchanges, timeout)
            arrived, last = found, now


_let_others_run: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Lets another process run on this processor while messages are in flight."""


def _unanswered(
    exchanges: Sequence[MpiExchange | OneRequest], timeout: float
) -> CommunicationError:
    sources = sorted({source for each in exchanges for source in each.missing()})
    missing = (
        f"message from rank {', '.join(map(str, sources))}" if sources else "receiver of messages"
    )
    subjects = " and ".join(dict.fromkeys(each.subject for each in exchanges))
    return CommunicationError(
        f"Every process takes part in {subjects}.",
        found=f"no {missing} for {timeout:.0f} s",
        fix="see what these processes printed last; a slower one, as while it compiles, needs"
        "\nocannl_mpi.communicator(timeout=...)",
    )


@contextmanager
def translated(subject: str) -> Iterator[None]:
    """Raise errors of MPI as `CommunicationError`."""
    try:
        yield
    except MPI.Exception as error:
        raise CommunicationError(
            f"MPI transfers messages in {subject}.", found=error.Get_error_string()
        ) from error


def _address(cells: Cells) -> int:
    """Return the address of cells in memory of this process or of a device."""
    is_array = isinstance(cells.memory, np.ndarray)
    interface = "__array_interface__" if is_array else "__cuda_array_interface__"
    address: int = getattr(cells.memory, interface)["data"][0]
    return address + cells.start
