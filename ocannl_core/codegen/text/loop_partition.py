"""Partition of parallel loops among threads: the caller passes the bounds.

# iterations of both loops, counted through, from first1 up to end1
for i in range(3): ...                 for (i = max(first1, 0); i < min(end1, 3); ++i) ...
for i in range(5): ...        -->      for (i = max(first1, 3) - 3; i < min(end1, 8) - 3; ++i) ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import For
from ocannl_core.passes.kernels.parallelise import inner_loops, parallel_loops


@dataclass(frozen=True, slots=True)
class LoopPartition:
    """A partitioned loop: the position of its iterations among all iterations of its sibling loops.

    Attributes:
        level: 1 for loops of the kernel, 2 for those directly inside.
        before: The iterations of the loops before it.
        is_alone: True if it has no sibling loop.
    """

    level: int
    before: int
    extent: int
    is_alone: bool

    def bounds_of(self, loop: For) -> tuple[str, str]:
        """Return the bounds of the loop variable in a part."""
        first, end = f"first{self.level}", f"end{self.level}"
        shift = loop.start - self.before
        moved = "" if shift == 0 else f" + {shift}" if shift > 0 else f" - {-shift}"
        if self.is_alone:
            return f"{first}{moved}", f"{end}{moved}"
        past = self.before + self.extent
        return (
            f"({first} > {self.before} ? {first} : {self.before}){moved}",
            f"({end} < {past} ? {end} : {past}){moved}",
        )

    def condition(self) -> str:
        """Return the condition that a single iteration is in the part."""
        return f"first{self.level} <= {self.before} && {self.before} < end{self.level}"


def partition_loops(nest: Kernel) -> IdentityMap[For, LoopPartition]:
    """Return the partitioned loops with their partitions."""
    partitions: IdentityMap[For, LoopPartition] = IdentityMap()
    if nest.is_parallel:
        outer = parallel_loops(nest)
        partitions.update(_partition_level(1, outer))
        for loop in outer:
            partitions.update(_partition_level(2, inner_loops(loop)))
    return partitions


def _partition_level(level: int, loops: Sequence[For]) -> Iterator[tuple[For, LoopPartition]]:
    before = 0
    for loop in loops:
        extent = loop.stop - loop.start
        yield loop, LoopPartition(level, before, extent, len(loops) == 1)
        before += extent
