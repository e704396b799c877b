"""How a parallel kernel is run in parts: the bounds of its loops come from the caller.

# iterations of both loops, counted through, from first1 up to end1
for i in range(3): ...                 for (i = max(first1, 0); i < min(end1, 3); ++i) ...
for i in range(5): ...        -->      for (i = max(first1, 3) - 3; i < min(end1, 8) - 3; ++i) ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.identity import IdentityMap
from ocannl_core.kernel_passes.parallelise import inner_loops, parallel_loops
from ocannl_core.kernels.nodes import Kernel
from ocannl_core.loopir.nodes import For


@dataclass(frozen=True, slots=True)
class LoopPartition:
    """A loop of which a part is run: its iterations among those of all loops beside it.

    Attributes:
        level: 1 for loops of the kernel, 2 for those right inside.
        before: The iterations of the loops before it.
        extent: Its own.
        is_alone: True if there is no other loop beside it.
    """

    level: int
    before: int
    extent: int
    is_alone: bool

    def limits(self, loop: For) -> tuple[str, str]:
        """Returns the values of the variable at which a part begins and ends."""
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

    def guard(self) -> str:
        """Returns the condition under which the only iteration is in the part."""
        return f"if (first{self.level} <= {self.before} && {self.before} < end{self.level})"


def loop_partitions(nest: Kernel) -> IdentityMap[For, LoopPartition]:
    """Return the loops of which threads run parts, with these parts."""
    shares: IdentityMap[For, LoopPartition] = IdentityMap()
    if nest.is_parallel:
        outer = parallel_loops(nest)
        shares.update(_shares_at(1, outer))
        for loop in outer:
            shares.update(_shares_at(2, inner_loops(loop)))
    return shares


def _shares_at(level: int, loops: Sequence[For]) -> Iterator[tuple[For, LoopPartition]]:
    before = 0
    for loop in loops:
        extent = loop.stop - loop.start
        yield loop, LoopPartition(level, before, extent, len(loops) == 1)
        before += extent
