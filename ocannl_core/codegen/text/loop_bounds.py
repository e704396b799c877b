"""Ends of loops at run time, as C.

for i in range(8) while 4*i + j < n:   -->   for (i = 0; i < (n - j + 3) / 4; ++i)
"""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.text.addresses import Addresses
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.codegen.text.writer import KernelWriter
from ocannl_core.ir.indexing import IndexVar, affine, as_affine
from ocannl_core.ir.loops.nodes import For, LoopBound
from ocannl_core.ir.loops.ranges import Range, index_range


@dataclass(frozen=True, slots=True)
class LoopEnds:
    """Renders the ends of loops at the current point of a kernel.

    Attributes:
        names: The names in scope.
        writer: Receives the declarations of ends.
        positions: Renders positions.
        index_type: The type of positions.
        ranges: The values of the variables of the loops around.
    """

    names: KernelNames
    writer: KernelWriter
    positions: Addresses
    index_type: str
    ranges: Mapping[IndexVar, Range]

    def condition(self, bound: LoopBound) -> str:
        """Return the condition that an iteration is before the end."""
        return f"{self.positions.index(bound.index)} < {self.positions.index(bound.end)}"

    def earlier(self, loop: For, bound: LoopBound, end: str, *, is_part: bool) -> str:
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
        limit = self.positions.index(last).code
        if step > 1:
            limit = f"({limit}) / {step}"
        reached = index_range(affine(others, offset), self.ranges)
        if reached is not None and not is_part:
            most = -((reached.low - bound.maximum) // step)
            if most <= loop.stop:
                return limit
        name = self.names.fresh()
        self.writer.line(f"const {self.index_type} {name} = {limit};")
        return f"({name} < {end} ? {name} : {end})"
