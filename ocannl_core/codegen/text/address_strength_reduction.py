"""Strength reduction of addresses in innermost loops.

C compilers do this themselves, but spend a third of their time on it: the pass is disabled for
kernels that consist of vector code.
"""

from __future__ import annotations

from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.nodes import AxisKind, For
from ocannl_core.ir.loops.traverse import statements
from ocannl_core.ir.node import TensorNode


def has_reduced_addresses(loop: For) -> bool:
    """Return True if a loop is an innermost loop around vector loops."""
    if loop.kind.is_whole:
        return False
    inside = [
        each.kind
        for each in statements(loop.body)
        if isinstance(each, For) and each.stop - each.start > 1
    ]
    return AxisKind.VECTOR in inside and all(kind.is_whole for kind in inside)


@dataclass(slots=True)
class ReducedAddressLoop:
    """An innermost loop with addresses and invariant values computed before it.

    for (p = 0; p < 9; ++p)                   c0 = &a0[256 * i]; c1 = &a1[64 * i];
      a0[256 * i + p] * a1[64 * i + 8 * p]    for (p = 0, p_8 = 0; p < 9; ++p, p_8 += 8)
                                       -->      c0[p] * c1[p_8]
    """

    variable: str
    depth: int
    inside: set[str]
    """That variable and the variables of inner loops, which the C compiler unrolls."""
    scope: int
    """The number of the scope around the loop."""
    written: frozenset[TensorNode]
    opening: list[str] = field(default_factory=list)
    invariants: dict[str, str] = field(default_factory=dict)
    """Variables set there, by the expressions that they hold."""
    multiples: list[int] = field(default_factory=list)
    """The multiples of the variable that are kept as induction variables."""

    def multiple(self, factor: int) -> str:
        """Return the induction variable for a multiple of the loop variable."""
        if factor == 1:
            return self.variable
        if factor not in self.multiples:
            self.multiples.append(factor)
        return f"{self.variable}_{factor}"

    def head(self, index_type: str, first: str, end: str) -> str:
        """Return the head of the loop with all its induction variables."""
        name = self.variable
        starts, steps = [f"{name} = {first}"], [f"++{name}"]
        for factor in self.multiples:
            start = first if first == "0" else f"{factor} * ({first})"
            starts.append(f"{self.multiple(factor)} = {start}")
            steps.append(f"{self.multiple(factor)} += {factor}")
        return f"for ({index_type} {', '.join(starts)}; {name} < {end}; {', '.join(steps)})"
