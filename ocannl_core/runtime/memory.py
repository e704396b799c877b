"""The memory of a device: its account, the limit, and reports by label."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

from ocannl_core.backend.protocols import MemoryStatistics
from ocannl_core.base import settings
from ocannl_core.base.errors import LinkError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.forks import process_lock
from ocannl_core.ir.kernels.nodes import Plan

_SHOWN = 8
"""The number of tensors that an error about lacking memory lists."""
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Memory of a device."""

    label: str
    """The tensor, or the routine whose scratch it is."""
    kind: str
    """`parameter`, `gradient`, `placeholder`, `literal`, `statistic`, `tensor`, `key` of random
    numbers, `merge buffer` or `scratch`.
    """
    nbytes: int
    lineage: object = None
    """The identity of the contexts that hold it; None if several lineages share it."""


class Account:
    """All memory of a device that contexts and routines hold."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.peak = 0
        self._entries: dict[weakref.ref[Any], MemoryEntry] = {}
        self._lock = process_lock()  # owners may be freed while it is held

    def add(self, owner: Any, entry: MemoryEntry) -> None:
        """Enter memory that is freed with its owner."""
        with self._lock:
            self._entries[weakref.ref(owner, self._drop)] = entry
            self.nbytes += entry.nbytes
            self.peak = max(self.peak, self.nbytes)

    def remove(self, owner: Any) -> MemoryEntry | None:
        """Remove the memory of an owner, and return it."""
        return self._drop(weakref.ref(owner))

    def move(self, owner: Any, other: Any, *, is_shared: bool = False) -> None:
        """Let memory be freed with another owner; shared memory belongs to no lineage."""
        entry = self.remove(owner)
        if entry is not None:
            self.add(other, replace(entry, lineage=None) if is_shared else entry)

    def _drop(self, reference: weakref.ref[Any]) -> MemoryEntry | None:
        with self._lock:
            entry = self._entries.pop(reference, None)
            if entry is not None:
                self.nbytes -= entry.nbytes
            return entry

    def entries(self) -> list[MemoryEntry]:
        """Return all entries, largest first."""
        with self._lock:
            found = list(self._entries.values())
        return sorted(found, key=lambda entry: (-entry.nbytes, entry.label))

    def reserve(self, nbytes: int, what: str, device: str) -> None:
        """Return if more memory fits into the limit; collect garbage first.

        Raises:
            LinkError: if it does not; the message lists the largest tensors.
        """
        limit = limit_of_settings()
        if limit is None or self.nbytes + nbytes <= limit:
            return
        gc.collect()
        if self.nbytes + nbytes > limit:
            raise self.exhausted(nbytes, what, device, "")

    def exhausted(self, nbytes: int, what: str, device: str, details: str) -> LinkError:
        """Return the error for memory that a device lacks."""
        limit = limit_of_settings()
        used = f"{self.nbytes:,} bytes are in use on {device}"
        if limit is not None:
            used += f", of {limit:,} that the setting device_memory allows"
        largest = [_line(entry) for entry in self.entries()[:_SHOWN]]
        found = [f"no room for {nbytes:,} bytes{details}", used, *largest]
        fixes = ["make an axis shorter, or reduce in the operation that makes the axes"]
        if largest:
            fixes.append("or free contexts that are done: ctx.release()")
        return LinkError(
            "The nodes that a context stores fit into the memory of its device.",
            found="\n".join(found),
            where=what,
            fix="\n".join(fixes),
        )

    def exhausted_by_run(self, plan: Plan, device: str) -> LinkError:
        """Return the error for a run of a routine that finds too little memory."""
        sizes = sorted(plan.nodes.items(), key=lambda each: (-each[1].nbytes, each[0].name))
        largest = [
            f"{info.nbytes:>16,}  {node.name}, {info.dtype} of extents {info.buffer_dims}"
            for node, info in sizes[:_SHOWN]
        ]
        used = f"{self.nbytes:,} bytes are in use on {device}; the largest nodes of the routine:"
        return LinkError(
            "A run of a routine finds the memory that it needs.",
            found="\n".join([used, *largest]),
            where=f"running {plan.name}",
            fix="make an axis shorter, or reduce in the operation that makes the axes\n"
            "or free contexts that are done: ctx.release()",
        )


def limit_of_settings() -> int | None:
    """Return the limit of the memory of a device in bytes."""
    limit = settings.current().device_memory
    return None if limit is None else limit * _MEBIBYTE


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of a context, by label; printable."""

    device: str
    entries: tuple[MemoryEntry, ...]
    """The memory of the context's lineage, largest first."""
    in_use: int
    """The bytes of all contexts and routines on the device."""
    peak: int
    limit: int | None
    """The greatest number that the setting `device_memory` allows; None for no limit."""
    statistics: MemoryStatistics | None = None
    """The memory as the driver of the device counts it; None if it does not."""

    @property
    def nbytes(self) -> int:
        """The size of all entries."""
        return sum(entry.nbytes for entry in self.entries)

    def by_kind(self) -> dict[str, int]:
        """Return the bytes of each kind, largest first."""
        sizes: Counter[str] = Counter()
        for entry in self.entries:
            sizes[entry.kind] += entry.nbytes
        return dict(sizes.most_common())

    def __str__(self) -> str:
        lines = [_line(entry) for entry in self.entries]
        kinds = ", ".join(f"{kind} {size:,}" for kind, size in self.by_kind().items())
        total = f"{self.nbytes:>16,}  total" + (f": {kinds}" if kinds else "")
        limit = "" if self.limit is None else f", limit {self.limit:,}"
        lines += [total, f"{self.device}: {self.in_use:,} in use, peak {self.peak:,}{limit}"]
        counted = self.statistics
        if counted is not None:
            own = "" if counted.in_use is None else f", {counted.in_use:,} held by this process"
            lines.append(f"its driver: {counted.free:,} of {counted.total:,} free{own}")
        return "\n".join(lines)


def report(
    account: Account, device: str, lineage: object, statistics: MemoryStatistics | None
) -> MemoryReport:
    """Return the memory of a lineage, and the literals that lineages share."""
    entries = tuple(each for each in account.entries() if each.lineage in (lineage, None))
    limit = limit_of_settings()
    return MemoryReport(device, entries, account.nbytes, account.peak, limit, statistics)


def _line(entry: MemoryEntry) -> str:
    return f"{entry.nbytes:>16,}  {entry.kind:<12}  {entry.label}"
