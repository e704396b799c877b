"""A group of processes in one: threads that exchange the cells of messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ocannl_core.train.communication import Cells, Parcel

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Ranks:
    """Processes in one: threads that exchange the cells of messages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Any] = [None] * size
        self.facts: list[Mapping[str, str]] = []
        self.mail: dict[tuple[int, int, int], Any] = {}
        self.arrived = threading.Condition(threading.RLock())

    def all_values(self, rank: int, value: Any) -> list[Any]:
        self.slots[rank] = value
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


class Mail:
    """An exchange between these processes."""

    def __init__(self, ranks: Ranks, rank: int, number: int, parcels: Sequence[Parcel]) -> None:
        self._ranks, self._rank, self._number = ranks, rank, number
        self.parcels = parcels
        self._missing: list[Parcel] = []

    def start(self) -> None:
        assert not self._missing, "started again before its end"
        with self._ranks.arrived:
            for parcel in self.parcels:
                cells = b"".join(_bytes(each).tobytes() for each in parcel.sent)
                self._ranks.mail[self._rank, parcel.process, self._number] = cells
            self._missing = list(self.parcels)
            self._ranks.arrived.notify_all()

    def is_over(self) -> bool:
        with self._ranks.arrived:
            for parcel in list(self._missing):
                key = parcel.process, self._rank, self._number
                if key in self._ranks.mail:
                    self._missing.remove(parcel)
                    self._deliver(parcel, self._ranks.mail.pop(key))
        return not self._missing

    def _deliver(self, parcel: Parcel, cells: bytes) -> None:
        assert len(cells) == sum(each.nbytes for each in parcel.received)
        at = 0
        for each in parcel.received:
            _bytes(each)[...] = np.frombuffer(cells[at : at + each.nbytes], np.uint8)
            at += each.nbytes


def _bytes(cells: Cells) -> Array:
    """Return a view of cells in memory of this process, or of what stands for a device."""
    memory: Any = cells.memory
    array = memory if isinstance(memory, np.ndarray) else memory.array
    return array.reshape(-1).view(np.uint8)[cells.start : cells.start + cells.nbytes]


class Rank:
    """One of these processes."""

    passes_device_memory = False

    def __init__(self, ranks: Ranks, rank: int, bucket_bytes: int = 1) -> None:
        self._ranks = ranks
        self.rank = rank
        self.size = ranks.size
        self.bucket_bytes = bucket_bytes
        self.exchanges: list[Mail] = []

    def agree(self, facts: Mapping[str, str]) -> None:
        self._ranks.facts.append(facts)

    def exchange(self, parcels: Sequence[Parcel], subject: str) -> Mail:
        self.exchanges.append(Mail(self._ranks, self.rank, len(self.exchanges), parcels))
        return self.exchanges[-1]

    def wait(self, exchanges: Sequence[Any]) -> None:
        with self._ranks.arrived:
            assert self._ranks.arrived.wait_for(
                lambda: any(each.is_over() for each in exchanges), timeout=60
            )

    def broadcast(self, arrays: Sequence[Array]) -> Sequence[Array]:
        found: Sequence[Array] = self._ranks.all_values(self.rank, arrays)[0]
        return found

    def first(self, work: Callable[[], object], subject: str = "") -> None:
        if self.rank == 0:
            work()
        self._ranks.all_values(self.rank, None)


def on_all(ranks: Ranks, work: Callable[[int], T]) -> list[T]:
    """Return the results of work that all processes do at the same time."""
    with ThreadPoolExecutor(ranks.size) as pool:
        return list(pool.map(work, range(ranks.size)))
