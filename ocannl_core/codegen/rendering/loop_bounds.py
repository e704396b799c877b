"""Ends of loops that the text of a kernel does not know.

The end of a loop at run time:

    for i in range(8) while 4*i + j < n:   -->   for (i = 0; i < (n - j + 3) / 4; ++i)

The part of parallel loops that a thread runs; the caller passes the bounds of the iterations of all
loops of a level, counted through:

    for i in range(3): ...              for (i = max(first1, 0); i < min(end1, 3); ++i) ...
    for i in range(5): ...       -->    for (i = max(first1, 3) - 3; i < min(end1, 8) - 3; ++i) ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.rendering.render_state import RenderState
from ocannl_core.ir.indexing import affine, as_affine
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import For, LoopBound
from ocannl_core.ir.loops.ranges import index_range
from ocannl_core.passes.kernels.parallel_loops import inner_loops, parallel_loops


def bound_condition(bound: LoopBound, state: RenderState) -> str:
    """Return the condition that an iteration is before the end at run time."""
    return f"{state.positions.index(bound.index)} < {state.positions.index(bound.end)}"


def earlier_end(loop: For, bound: LoopBound, end: str, state: RenderState, *, is_part: bool) -> str:
    """Return the smaller of an end of a loop and its end at run time.

    Args:
        bound: Its end at run time.
        end: The other end.
        is_part: True if that is the end of the iterations that one thread runs.
    """
    terms, offset = as_affine(bound.index)
    step = sum(coefficient for coefficient, var in terms if var is loop.var)
    others = [(coefficient, var) for coefficient, var in terms if var is not loop.var]
    before = [(-coefficient, var) for coefficient, var in others]
    end_terms, end_offset = as_affine(bound.end)
    last = affine([*end_terms, *before], end_offset + step - 1 - offset)
    limit = state.positions.index(last).code
    if step > 1:
        limit = f"({limit}) / {step}"
    reached = index_range(affine(others, offset), state.ranges)
    if reached is not None and not is_part:
        most = -((reached.low - bound.maximum) // step)
        if most <= loop.stop:
            return limit
    name = state.names.fresh()
    state.writer.line(f"const {state.dialect.index_type} {name} = {limit};")
    return f"({name} < {end} ? {name} : {end})"


@dataclass(frozen=True, slots=True)
class LoopPartition:
    """A partitioned loop: the position of its iterations among all iterations of its sibling loops.

    Attributes:
        level: 1 for loops of the kernel, 2 for those directly inside.
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


def partition_loops(kernel: Kernel) -> IdentityMap[For, LoopPartition]:
    """Return the partitioned loops with their partitions."""
    partitions: IdentityMap[For, LoopPartition] = IdentityMap()
    if kernel.is_parallel:
        outer = parallel_loops(kernel)
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
