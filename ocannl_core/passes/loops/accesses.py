"""Access analysis of a routine: the facts behind inlining and memory modes.

OCANNL traces: it runs the first iterations of every loop and records the accesses. This module
analyses the affine maps of the accesses instead, or enumerates them where that is cheap, so the
facts do not depend on a number of sampled iterations. Three kinds of facts:

- *Order*: the top-level statements that write and read a node.
- *Definite assignment*: whether some cell may be read before it is written. Correctness depends on
  this fact, so the analysis is conservative.
- *Cost*: how often cells are read, and whether computing a cell costs more than a load. Only
  profitability depends on this fact, so an estimate replaces a count that would be too slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import field
from math import prod
from operator import ge

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import ById
from ocannl_core.ir.indexing import IndexMap, IndexVar, VarIndex, variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.loops.traverse import Node, fold, unconditional_subexpressions
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.loops.access_counts import (
    MOST_ENUMERATED,
    AccessCount,
    Counts,
    count_accesses,
    count_accesses_per_cell,
)
from ocannl_core.passes.loops.definite_assignment import DefiniteAssignment
from ocannl_core.passes.loops.statement_accesses import (
    AccessSite,
    AnalyzedStatement,
    analyze_statements,
)
from ocannl_core.schedule.cost_model import has_computation, is_access


@dataclass(frozen=True, slots=True)
class NodeAccesses:
    """The accesses of one node."""

    node: TensorNode
    info: NodeInfo
    writes: tuple[tuple[int, AccessSite], ...]
    """The accesses that write it, each with the position of its statement, in order."""
    reads: tuple[tuple[int, AccessSite], ...]
    is_read_before_write: bool
    """True unless every cell is definitely assigned before it is read."""
    is_constant: bool
    """True if it has one cell and its value depends on no memory."""

    @property
    def is_read_only(self) -> bool:
        return not self.writes

    @property
    def is_definitely_assigned(self) -> bool:
        """Return True if every cell is written in this routine before it is read."""
        return not self.is_read_only and not self.is_read_before_write

    @property
    def depends_on_memory(self) -> bool:
        """Return True if its value depends on the memory of other nodes."""
        return any(
            fold(value, lambda each, inner: any(inner) or is_access(each, self.node))
            for value in self._values()
        )

    @property
    def is_complex(self) -> bool:
        """Return True if computing a cell costs more than a load."""
        stores = [site for _, site in self.writes if isinstance(site.access, ir.Store)]
        combines = len(stores) > 1 or any(
            stores_repeatedly(site, site.indices or ()) for site in stores
        )
        return (combines and self.depends_on_memory) or any(
            has_computation(value, self.node) for value in self._values()
        )

    def _values(self) -> tuple[ir.Expr, ...]:
        return tuple(s.access.value for _, s in self.writes if isinstance(s.access, ir.Store))

    def count_reads(self, max_tracing_dim: int) -> AccessCount:
        """Count the reads per cell; the largest count is exact where possible."""
        sites = [site for _, site in self.reads if site.indices is not None]
        each = [self._count_site_reads(site, max_tracing_dim) for site in sites]
        if len(each) == 1:
            return each[0]
        least = sum(one.least for one in each)
        most = sum(one.most for one in each)
        is_exact = all(one.is_exact for one in each)
        if any(one.most + least - one.least == most for one in each) or not each:
            return AccessCount(least, most, is_exact)
        found = self.count_reads_per_cell()
        if found is None:
            return AccessCount(least, most, is_exact=False)
        return AccessCount(int(found.min()), int(found.max(initial=0)))

    def merge_equal_reads(self) -> NodeAccesses:
        """Merge equal loads in one stored value into one access.

        An inlined `c[i] = t[i] * t[i]` computes `t[i]` once, and so does
        `c[i] = where(x[i], t[i], 0.0) + t[i]`. Loads that occur in branches only stay separate.
        """
        if len({ById(site.store) for _, site in self.reads}) == len(self.reads):
            return self
        keys = Counter(_read_key(site) for _, site in self.reads)
        if all(count == 1 for count in keys.values()):
            return self
        surely: set[Hashable] = set()
        kept: list[tuple[int, AccessSite]] = []
        for position, site in self.reads:
            key = _read_key(site)
            if key in surely:
                continue
            if keys[key] > 1 and _is_computed_surely(site):
                surely.add(key)
            kept.append((position, site))
        return replace(self, reads=tuple(kept))

    def count_reads_per_cell(self) -> Counts | None:
        """Count the reads of each cell; return None if counting would be too slow.

        Static indices count as zero.
        """
        if self.info.size > MOST_ENUMERATED:
            return None
        total = np.zeros(self.info.buffer_dims, dtype=np.int64)
        for _, site in self.reads:
            found = count_accesses_per_cell(
                site.indices or (), _traced_ranges(site.loops), self.info.buffer_dims
            )
            if found is None:
                return None
            total += found
        return total

    def _count_site_reads(self, site: AccessSite, max_tracing_dim: int) -> AccessCount:
        indices, dims = site.indices or (), self.info.buffer_dims
        if site.never_runs:
            return AccessCount(0, 0)
        extents = {each.var: each.stop - each.start if each.traced else 1 for each in site.loops}
        plain = [i.var for i in indices if isinstance(i, VarIndex) and i.var in extents]
        if len(set(plain)) == len(indices):
            reached = [extents.pop(var) for var in plain]
            covers = all(map(ge, reached, dims))
            repeats = prod(extents.values())
            return AccessCount(repeats if covers else 0, repeats)
        return count_accesses(indices, _traced_ranges(site.loops), dims, max_tracing_dim)


@dataclass(frozen=True, slots=True)
class Accesses:
    """The access analysis of one routine."""

    statements: tuple[AnalyzedStatement, ...]
    nodes: Mapping[TensorNode, NodeAccesses]


def analyze_accesses(program: ir.LoopProgram) -> Accesses:
    """Analyze the accesses of a program.

    The run time is proportional to the number of accesses and nearly independent of loop extents.
    """
    statements = analyze_statements(program)
    coverage = DefiniteAssignment(program.nodes)
    notes = {node: _AccessRecord() for node in program.nodes}
    constants: set[TensorNode] = set()
    for analyzed in statements:
        coverage.run(analyzed)
        for site in analyzed.reads:
            notes[site.node].read(analyzed.position, site)
        for site in analyzed.writes:
            note, info = notes[site.node], program.nodes[site.node]
            note.writes.append((analyzed.position, site))
            if info.size == 1 and note.is_constant and _is_constant(site, constants):
                constants.add(site.node)
            else:
                note.is_constant = False
                constants.discard(site.node)
    found = {
        node: NodeAccesses(
            node,
            program.nodes[node],
            tuple(note.writes),
            tuple(note.reads),
            node in coverage.read_first,
            node in constants,
        )
        for node, note in notes.items()
    }
    return Accesses(statements, found)


@dataclass(slots=True)
class _AccessRecord:
    """The accesses of a node up to the current statement."""

    writes: list[tuple[int, AccessSite]] = field(default_factory=list)
    reads: list[tuple[int, AccessSite]] = field(default_factory=list)
    is_constant: bool = True

    def read(self, position: int, site: AccessSite) -> None:
        if not site.is_own:
            self.reads.append((position, site))


def _read_key(site: AccessSite) -> Hashable:
    return ById(site.store), site.access, len(site.loops)


def _is_computed_surely(site: AccessSite) -> bool:
    """Return True if every evaluation of the stored value executes this load."""
    return isinstance(site.store, ir.Store) and any(
        each == site.access for each in unconditional_subexpressions(site.store.value)
    )


def _traced_ranges(loops: tuple[ir.For, ...]) -> dict[IndexVar, Range]:
    """Return the values of loop variables; of an untraced loop, the first value only."""
    return {
        loop.var: Range(loop.start, loop.stop - 1 if loop.traced else loop.start) for loop in loops
    }


def _is_constant(site: AccessSite, constants: set[TensorNode]) -> bool:
    """Return True if the written value depends on constants only."""
    match site.access:
        case ir.Fill():
            return True
        case ir.Store(node, _, value):
            return fold(
                value, lambda each, inner: _is_constant_here(each, node, constants) and all(inner)
            )
        case _:
            return False


def _is_constant_here(node: Node, own: TensorNode, constants: set[TensorNode]) -> bool:
    match node:
        case ir.Load(loaded):
            return loaded is own or loaded in constants
        case ir.Const() | ir.ConstBits() | ir.Unary() | ir.Binary() | ir.Ternary():
            return True
        case _:
            return False


def stores_repeatedly(site: AccessSite, indices: IndexMap) -> bool:
    """Return True if several iterations of the loops around an access store to the same cell."""
    used = {var for index in indices for var in variables(index)}
    return any(loop.var not in used and loop.stop - loop.start > 1 for loop in site.loops)
