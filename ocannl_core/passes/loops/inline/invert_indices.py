"""Inversion of index maps: the iteration of a definition that writes a given cell.

A definition writes at an index map D over its loop variables; a read has the cell A, an index map
over the reader's variables. Solving D = A axis by axis expresses the variables of the definition in
those of the reader:

t[i, j] = ...       read at t[a + 1, 3]       i --> a + 1,  j --> 3
t[i, i] = ...       read at t[a, b]           i --> a,      if a == b
t[2*i + j] = ...    read at t[a]              j --> a - 2*i, for every i, if j is in its range

Bounds that the ranges of the reader's loops do not imply become conditions. Undetermined variables
keep their loops; since no cell is written twice, the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import (
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    substitute,
    variables,
)
from ocannl_core.ir.loops.ranges import Range, index_range, subtract, visits_cells_once
from ocannl_core.ir.node import Reason


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition `low <= index <= high`; None means unbounded."""

    index: AxisIndex
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Solution:
    """The iterations of a definition that write one cell."""

    values: Mapping[IndexVar, AxisIndex]
    """The definition's loop variables in terms of the reader's, and of fresh variables."""
    kept: Mapping[LoopVar, LoopVar]
    """The loop variables that keep a loop, with their fresh variables."""
    conditions: tuple[Condition, ...] = ()
    """Bounds of the definition's loops that the values may violate."""


class NoSolution(Exception):
    """The iteration cannot be expressed; carries the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def check_definition(indices: IndexMap, loops: Mapping[IndexVar, Range]) -> Reason | None:
    """Return why the index map cannot be inverted for any reader; None if it can for some."""
    if any(isinstance(index, (ConcatIndex, ComputedIndex)) for index in indices):
        return Reason.CONCATENATED_INDEX
    own = [[v for v in variables(index) if v in loops] for index in indices]
    if all(len(each) <= 1 for each in own):
        return None
    used = {var: loops[var] for each in own for var in each}
    return None if visits_cells_once(indices, used) else Reason.NOT_INJECTIVE


def solve(
    indices: IndexMap,
    loops: Mapping[IndexVar, Range],
    cell: IndexMap,
    ranges: Mapping[IndexVar, Range],
) -> Solution | None:
    """Return the iterations that write a cell; None if the cell is never written.

    Args:
        loops: The ranges of the definition's loop variables, outermost first.

    Raises:
        NoSolution: if they cannot be expressed.
    """
    system = _System(loops, dict(ranges))
    plain = [index.var for index in indices if isinstance(index, VarIndex)]
    if len(plain) == len(indices) and len(loops.keys() & plain) == len(indices):
        system.values.update(zip(plain, cell, strict=True))  # almost all
        return system.solution()
    pending = list(zip(indices, cell, strict=True))
    while pending:
        # axes with fewer unknowns first: their values may settle the other axes
        place = min(range(len(pending)), key=lambda k: len(system.unknowns(pending[k][0])))
        own, wanted = pending.pop(place)
        if not system.equate(own, wanted):
            return None
    return system.solution()


@dataclass(slots=True)
class _System:
    """The system of equations, with the values found so far."""

    loops: Mapping[IndexVar, Range]
    ranges: dict[IndexVar, Range]
    """The ranges of the reader's variables and of the kept loops."""
    values: dict[IndexVar, AxisIndex] = field(default_factory=dict)
    kept: dict[LoopVar, LoopVar] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)

    def unknowns(self, index: AxisIndex) -> list[IndexVar]:
        return [var for var in variables(index) if var in self.loops and var not in self.values]

    def equate(self, own: AxisIndex, wanted: AxisIndex) -> bool:
        """Add the equation `own == wanted`; return False if it never holds."""
        match self.unknowns(own):
            case []:
                return self.require(subtract(wanted, substitute(own, self.values)), 0, 0)
            case [var]:
                self.values[var] = self.isolate(var, own, wanted)
            case several:
                if not self.match_pairwise(own, wanted, several):
                    self.keep_all_but_one(own, wanted, several)
        return True

    def isolate(self, var: IndexVar, own: AxisIndex, wanted: AxisIndex) -> AxisIndex:
        """Solve `own == wanted` for its only unknown.

        2*i + 1 == 4*a + 3   -->   i = 2*a + 1
        """
        if isinstance(own, VarIndex):
            return wanted
        (coefficient,) = (c for c, each in as_affine(own)[0] if each == var)
        known = {**self.values, var: FixedIndex(0)}
        terms, offset = as_affine(subtract(wanted, substitute(own, known)))
        if any(c % coefficient for c, _ in terms) or offset % coefficient:
            raise NoSolution(Reason.INDEX_MISMATCH)
        return affine([(c // coefficient, v) for c, v in terms], offset // coefficient)

    def match_pairwise(
        self, own: AxisIndex, wanted: AxisIndex, unknowns: Sequence[IndexVar]
    ) -> bool:
        """Equate variables with equal coefficients; return False if other solutions may exist.

        2*i + j == 2*a + b   -->   i = a, j = b, if a and b stay in the ranges of i and j
        """
        terms, offset = as_affine(own)
        wanted_terms, wanted_offset = as_affine(wanted)
        partners = dict(wanted_terms)
        same = offset == wanted_offset and len(partners) == len(wanted_terms)
        if not same or partners.keys() != {c for c, _ in terms} or len(terms) != len(unknowns):
            return False
        if len(partners) < len(terms) or any(
            not self.is_within(VarIndex(partners[c]), self.loops[v]) for c, v in terms
        ):
            return False
        self.values.update((v, VarIndex(partners[c])) for c, v in terms)
        return True

    def keep_all_but_one(
        self, own: AxisIndex, wanted: AxisIndex, unknowns: Sequence[IndexVar]
    ) -> None:
        """Solve for the innermost unknown of coefficient 1 or -1; the others keep their loops."""
        coefficients = {var: c for c, var in as_affine(own)[0]}
        order = [var for var in self.loops if var in unknowns]
        solved = next((var for var in reversed(order) if abs(coefficients[var]) == 1), None)
        if solved is None:
            raise NoSolution(Reason.UNSOLVABLE_INDEX)
        for var in order:
            if var is not solved and isinstance(var, LoopVar):
                self.kept[var] = kept = fresh_var(var.hint)
                self.values[var] = VarIndex(kept)
                self.ranges[kept] = self.loops[var]
        self.values[solved] = self.isolate(solved, own, wanted)

    def is_within(self, index: AxisIndex, wanted: Range) -> bool:
        reach = index_range(index, self.ranges)
        return reach is not None and wanted.low <= reach.low and reach.high <= wanted.high

    def require(self, index: AxisIndex, low: int, high: int) -> bool:
        """Add `low <= index <= high` unless it is implied; return False if it never holds."""
        reach = index_range(index, self.ranges)
        if reach is None:
            self.conditions.append(Condition(index, low, high))
            return True
        if reach.high < low or reach.low > high:
            return False
        above = low if reach.low < low else None
        below = high if reach.high > high else None
        if above is not None or below is not None:
            self.conditions.append(Condition(index, above, below))
        return True

    def solution(self) -> Solution | None:
        for var, value in self.values.items():
            wanted = self.loops[var]
            if var not in self.kept and not self.require(value, wanted.low, wanted.high):
                return None
        return Solution(self.values, self.kept, tuple(self.conditions))


def is_one_to_one(
    values: Mapping[IndexVar, AxisIndex],
    loops: Mapping[IndexVar, Range],
    domain: Mapping[IndexVar, Range],
    cells: Collection[IndexVar],
) -> bool:
    """Return True if a definition's cells map one to one to a reader's iterations.

    Args:
        values: The definition's variables in terms of the reader's.
    """
    images = list(_images(values, loops, cells))
    wide = {var: values for var, values in domain.items() if values.extent > 1}
    return len(set(images)) == len(images) and set(images) == set(wide.items())


def _images(
    values: Mapping[IndexVar, AxisIndex],
    loops: Mapping[IndexVar, Range],
    cells: Collection[IndexVar],
) -> Iterator[tuple[IndexVar | None, Range]]:
    for var in cells:
        if loops[var].extent > 1:
            value = values.get(var)
            yield (value.var if isinstance(value, VarIndex) else None), loops[var]
