"""Innermost loops that find their cells from pointers set before them.

A compiler finds such pointers by itself, and takes a third of its time for it: the pass that does
is left out for kernels that consist of vectors.
"""

from __future__ import annotations

from dataclasses import field

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.loopir.nodes import AxisKind, For
from ocannl_core.loopir.traverse import statements
from ocannl_core.node import TensorNode

_WITHIN = frozenset({AxisKind.VECTOR, AxisKind.TILE, AxisKind.PAIR, AxisKind.UNROLLED})
"""Loops that are operations on registers, or written out."""


def has_reduced_addresses(loop: For) -> bool:
    """True if a loop is an innermost one, of vectors."""
    if loop.kind in _WITHIN:
        return False
    inside = [
        each.kind
        for each in statements(loop.body)
        if isinstance(each, For) and each.stop - each.start > 1
    ]
    return AxisKind.VECTOR in inside and _WITHIN.issuperset(inside)


@dataclass(slots=True)
class ReducedAddressLoop:
    """An innermost loop whose cells are found from pointers that are set before it, as is what is
    the same in all iterations.

    for (p = 0; p < 9; ++p)                   c0 = &a0[256 * i]; c1 = &a1[64 * i];
      a0[256 * i + p] * a1[64 * i + 8 * p]    for (p = 0, p_8 = 0; p < 9; ++p, p_8 += 8)
                                       -->      c0[p] * c1[p_8]

    Attributes:
        variable: The variable of the loop.
        depth: How many loops are around it.
        inside: That variable and those of the loops inside, which are written out by the compiler.
        scope: The number of the scope that the loop stands in.
        written: The nodes of which it changes cells.
        opening: What is written before the loop.
        same: Variables that are set there, by the expressions whose values they hold.
        multiples: The multiples of the variable that are counted along.
    """

    variable: str
    depth: int
    inside: set[str]
    scope: int
    written: frozenset[TensorNode]
    opening: list[str] = field(default_factory=list)
    same: dict[str, str] = field(default_factory=dict)
    multiples: list[int] = field(default_factory=list)

    def multiple(self, factor: int) -> str:
        """Returns the variable that is a multiple of the loop's."""
        if factor == 1:
            return self.variable
        if factor not in self.multiples:
            self.multiples.append(factor)
        return f"{self.variable}_{factor}"

    def head(self, index_type: str, first: str, end: str) -> str:
        """Returns the head of the loop with all that is counted along."""
        name = self.variable
        starts, steps = [f"{name} = {first}"], [f"++{name}"]
        for factor in self.multiples:
            start = first if first == "0" else f"{factor} * ({first})"
            starts.append(f"{self.multiple(factor)} = {start}")
            steps.append(f"{self.multiple(factor)} += {factor}")
        return f"for ({index_type} {', '.join(starts)}; {name} < {end}; {', '.join(steps)})"
