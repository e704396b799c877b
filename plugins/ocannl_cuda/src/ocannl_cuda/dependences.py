"""Dependences between launches of a graph, from the memory that their kernels read and write.

Launches without a path between them may run at the same time. Memory is compared by addresses:
tensors of a routine share memory when their lifetimes are disjoint, and other libraries may share
parts of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocannl_core.backend_api import dataclass


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """The bytes from an address up to another one, which a kernel reads, or may write too."""

    start: int
    end: int
    is_written: bool


def dependences(launches: Sequence[Sequence[MemoryAccess]]) -> list[tuple[int, ...]]:
    """Return for each launch the earlier ones that it must follow, without those that these
    follow, directly or not.

    Args:
        launches: The accesses of the launches, in an order that is right.
    """
    regions = _regions([each for accesses in launches for each in accesses])
    writers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    before: list[int] = []  # the launches that one follows, directly or not, as bits
    found: list[tuple[int, ...]] = []
    for position, accesses in enumerate(launches):
        read, written = _touched(accesses, regions)
        needed = {writers[region] for region in read | written if region in writers}
        needed.update(each for region in written for each in readers.get(region, ()))
        mask, direct = 0, []
        for each in sorted(needed, reverse=True):
            if not mask >> each & 1:
                direct.append(each)
                mask |= before[each] | 1 << each
        for region in written:
            writers[region] = position
            readers[region] = []
        for region in read - written:
            readers.setdefault(region, []).append(position)
        before.append(mask)
        found.append(tuple(reversed(direct)))
    return found


def _touched(
    accesses: Sequence[MemoryAccess], regions: dict[tuple[int, int], int]
) -> tuple[set[int], set[int]]:
    """Return the regions that a launch reads, and those that it writes."""
    touched: tuple[set[int], set[int]] = set(), set()
    for each in accesses:
        if each.start < each.end:
            touched[each.is_written].add(regions[each.start, each.end])
    return touched


def _regions(accesses: Sequence[MemoryAccess]) -> dict[tuple[int, int], int]:
    """Return the region of each range of addresses: ranges that overlap have one in common."""
    return dict(_numbered(sorted({(each.start, each.end) for each in accesses})))


def _numbered(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
    region, reached = 0, 0
    for start, end in ranges:
        if start >= reached:
            region += 1
        reached = max(reached, end)
        yield (start, end), region
