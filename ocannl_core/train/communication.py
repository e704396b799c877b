"""The interface between data parallel training and other processes.

A process works on consecutive slots of every batch, on one device or several. Then the processes
exchange sums over spans of slots, and rows of tensors after the additions. The messages are fixed
when the step is made: lists of memory regions, which a communicator reads and writes directly.
The additions are code of the step, in one tree, so that the bits do not depend on the number of
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from ocannl_core.backend.protocols import Buffer
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.host_arrays import Array


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Consecutive bytes in memory."""

    memory: Array | Buffer
    """A contiguous array of this process; or memory of a device, with `__cuda_array_interface__`,
    for a communicator that passes it to the network.
    """
    start: int
    """The first byte."""
    nbytes: int
    """The number of bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """The messages between this process and another one in an exchange."""

    process: int
    """The number of the other process."""
    sent: tuple[Cells, ...]
    """The cells that it gets, one after the other."""
    received: tuple[Cells, ...]
    """The memory for the cells that it sends, one after the other."""


@runtime_checkable
class Exchange(Protocol):
    """Messages between processes that are sent again in each step, from and to the same memory."""

    def start(self) -> None:
        """Send and receive the cells; their memory belongs to the exchange until it is over."""
        ...

    def is_over(self) -> bool:
        """Return True if all messages have arrived; True before the first start. Never waits."""
        ...


@runtime_checkable
class Communicator(Protocol):
    """A group of processes with one model, each of which has consecutive slots of every batch."""

    @property
    def rank(self) -> int:
        """The number of this process."""
        ...

    @property
    def size(self) -> int:
        """The number of processes."""
        ...

    @property
    def bucket_bytes(self) -> int:
        """The least size of a message; sums of small tensors share one."""
        ...

    @property
    def passes_device_memory(self) -> bool:
        """True if cells may lie in the memory of a device with `__cuda_array_interface__`."""
        ...

    def agree(self, facts: Mapping[str, str]) -> None:
        """Return if all processes state the same facts: code, summands, slots, settings, versions.

        Raises:
            UsageError: with the name of the fact that differs, and its values.
        """
        ...

    def exchange(self, parcels: Sequence[Parcel], subject: str) -> Exchange:
        """Return an exchange; called by all processes for the same exchanges in the same order.

        Args:
            parcels: The messages, at most one parcel for each other process. What one process sends
                to another is what that one receives from it.
            subject: Its purpose, for messages.
        """
        ...

    def wait(self, exchanges: Sequence[Exchange]) -> None:
        """Return when at least one of several exchanges is over."""
        ...

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays of process 0; called by all processes with arrays of equal extents."""
        ...

    def first(self, work: Callable[[], object], subject: str = "work of process 0") -> None:
        """Do work in process 0 alone, such as writing a checkpoint; the others wait for it.

        If it fails there, all processes raise.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneProcess:
    """The communicator of a process that works alone."""

    rank: int = 0
    size: int = 1
    bucket_bytes: int = 1
    passes_device_memory: bool = False

    def agree(self, facts: Mapping[str, str]) -> None:
        return

    def exchange(self, parcels: Sequence[Parcel], subject: str) -> Exchange:
        return NoMessages()

    def wait(self, exchanges: Sequence[Exchange]) -> None:
        return

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        return arrays

    def first(self, work: Callable[[], object], subject: str = "work of process 0") -> None:
        work()


class NoMessages:
    """The exchange of a process that works alone."""

    def start(self) -> None:
        return

    def is_over(self) -> bool:
        return True
