"""An allocator over the addresses of a device.

    arena = Arena(1 << 16, 1 << 20)
    first = arena.allocate(1000)        # 65536
    second = arena.allocate(1000)       # 66560, the next multiple of the alignment
    arena.free(first)                   # the next allocation that fits takes its place

Free ranges are kept in the order of their addresses, and neighbors are joined. The first one that
is large enough serves an allocation, so that the end of the arena stays in one piece.

A finalizer may free a block at any instruction, also inside `allocate` on the same thread. So
`free` takes no lock: it appends to a queue, which the next allocation empties.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable

from ocannl_core.base.errors import UsageError
from ocannl_core.base.forks import process_lock
from ocannl_core.base.rounding import round_up
from ocannl_core.compile.memory_plan import ALIGNMENT


class Arena:
    """Blocks in a range of addresses.

    Args:
        start: The first address.
        nbytes: The number of bytes.
        alignment: The alignment of blocks, a power of two; allocations may have a larger one. If
            the device adds a base to addresses, the base is a multiple of it, too.
        extend: Enlarges the memory behind the range by so many bytes at least, and returns the
            number that it added; 0 if there are none. Without it, the range keeps its size.

    Attributes:
        nbytes: The size of the range.
    """

    def __init__(
        self,
        start: int,
        nbytes: int,
        *,
        alignment: int = ALIGNMENT,
        extend: Callable[[int], int] | None = None,
    ) -> None:
        _require_power_of_two(alignment)
        if start < 0 or nbytes < 0:
            raise UsageError(
                "An arena begins at an address and has a size, neither of which is negative.",
                found=f"start {start}, {nbytes} bytes",
            )
        self.start = start
        self.nbytes = nbytes
        self._alignment = alignment
        self._extend = extend
        self._starts = [start] if nbytes else []  # of the free ranges, ascending
        self._ends = [start + nbytes] if nbytes else []
        self._sizes: dict[int, int] = {}
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = process_lock()

    def allocate(self, nbytes: int, alignment: int | None = None) -> int:
        """Return the address of a new block.

        Args:
            nbytes: The size; a block of none has an address of its own as well.
            alignment: The alignment, if it is larger than the arena's.

        Raises:
            MemoryError: if no free range is large enough, and the memory cannot grow.
        """
        size = round_up(max(nbytes, 1), self._alignment)
        aligned_to = self._alignment
        if alignment is not None:
            _require_power_of_two(alignment)
            aligned_to = max(aligned_to, alignment)
        with self._lock:
            self._collect()
            address = self._first_fit(size, aligned_to)
            if address is None and self._grow(size + aligned_to):
                address = self._first_fit(size, aligned_to)
            if address is None:
                raise MemoryError(
                    f"no room for {nbytes} bytes: {self._free()} of {self.nbytes} are free, "
                    f"{self._largest()} in one piece"
                )
            self._sizes[address] = size
            return address

    def free(self, address: int) -> None:
        """Make the memory of a block available again; finalizers may call it.

        Raises:
            UsageError: if no block begins at the address.
        """
        size = self._sizes.pop(address, None)  # atomic, so of two calls one fails
        if size is None:
            raise UsageError(
                "A block is freed once, by its first address.",
                found=f"no block at address {address}",
            )
        self._freed.append((address, size))

    @property
    def free_nbytes(self) -> int:
        """The bytes that no block has."""
        with self._lock:
            self._collect()
            return self._free()

    @property
    def free_ranges(self) -> tuple[tuple[int, int], ...]:
        """The first address and the end of each free range, ascending."""
        with self._lock:
            self._collect()
            return tuple(zip(self._starts, self._ends, strict=True))

    def _first_fit(self, size: int, alignment: int) -> int | None:
        for at, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            address = round_up(start, alignment)
            if address + size <= end:
                self._take(at, address, address + size)
                return address
        return None

    def _take(self, at: int, address: int, stop: int) -> None:
        """Remove a part of a free range."""
        start, end = self._starts.pop(at), self._ends.pop(at)
        if stop < end:
            self._starts.insert(at, stop)
            self._ends.insert(at, end)
        if start < address:
            self._starts.insert(at, start)
            self._ends.insert(at, address)

    def _collect(self) -> None:
        while self._freed:
            address, size = self._freed.popleft()
            self._insert(address, address + size)

    def _insert(self, start: int, end: int) -> None:
        """Add a free range, joined with its neighbors."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == end:
            self._starts.pop(at)
            end = self._ends.pop(at)
        if at and self._ends[at - 1] == start:
            self._ends[at - 1] = end
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)

    def _grow(self, least: int) -> bool:
        if self._extend is None:
            return False
        end = self.start + self.nbytes
        is_last_free = bool(self._ends) and self._ends[-1] == end
        missing = least - (end - self._starts[-1] if is_last_free else 0)
        added = self._extend(max(missing, 1))
        if not added:
            return False
        self.nbytes += added
        self._insert(end, end + added)
        return True

    def _free(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def _largest(self) -> int:
        return max((e - s for s, e in zip(self._starts, self._ends, strict=True)), default=0)


def _require_power_of_two(alignment: int) -> None:
    if alignment < 1 or alignment & (alignment - 1):
        raise UsageError("An alignment is a power of two.", found=str(alignment))
