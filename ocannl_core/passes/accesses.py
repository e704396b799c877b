"""What a routine does to each node: the facts from which inlining and memory modes follow.

OCANNL traces: it runs the first iterations of every loop and notes what happens. Here the affine
maps of accesses are analysed instead, or enumerated where that is cheap, so that the facts do not
depend on how many iterations were looked at. Three kinds of facts:

- *Order*: which units (top-level statements) write and read a node.
- *Coverage*: whether some cell may be read before it is written. This decides what is correct, so
  when in doubt the answer is yes.
- *Cost*: how often cells are read, and whether computing one takes more than a load. This decides
  what is worthwhile; where counting would take too long it is an estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.identity import ById
from ocannl_core.indexing import IndexVar, VarIndex, variables
from ocannl_core.loopir.nodes import (
    Binary,
    Const,
    ConstBits,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    LocalRead,
    LoopProgram,
    Scoped,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import Node, fold, unconditional_subexpressions, walk
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import COMPARISONS
from ocannl_core.passes.access_counts import (
    MOST_ENUMERATED,
    AccessCount,
    Counts,
    access_count,
    counts_per_cell,
)
from ocannl_core.passes.definite_assignment import DefiniteAssignment, written_cells
from ocannl_core.passes.statement_accesses import AccessSite, AnalysedStatement, analyse_statements


@dataclass(frozen=True, slots=True)
class NodeAccesses:
    """The accesses of one node.

    Attributes:
        node: The node.
        info: What is known of it.
        writes: Units that write it, with where they do, in order.
        reads: Units that read it, likewise; loads of the cell being written do not count.
        is_read_before_write: True unless every cell is certainly written before it is read.
        is_zeroed: True if the whole node is filled with zero somewhere.
        starts_zeroed: True if that is the first thing that happens to it.
        is_constant: True if it has one cell and its value depends on no memory.
    """

    node: TensorNode
    info: NodeInfo
    writes: tuple[tuple[int, AccessSite], ...]
    reads: tuple[tuple[int, AccessSite], ...]
    is_read_before_write: bool
    is_zeroed: bool
    starts_zeroed: bool
    is_constant: bool

    @property
    def is_read_only(self) -> bool:
        return not self.writes

    @property
    def is_independent(self) -> bool:
        """True if every cell that is read was written before in this routine."""
        return not self.is_read_only and not self.is_read_before_write

    @property
    def is_accessing(self) -> bool:
        """True if its value depends on memory other than its own."""
        return any(reads_memory(value, self.node) for value in self._values())

    @property
    def is_complex(self) -> bool:
        """True if computing a cell takes more than a load: a primitive of what is loaded."""
        stores = [site for _, site in self.writes if isinstance(site.by, Store)]
        combines = len(stores) > 1 or any(_repeats(site) for site in stores)
        return (combines and self.is_accessing) or any(
            computes(value, self.node) for value in self._values()
        )

    def _values(self) -> tuple[Expr, ...]:
        return tuple(s.by.value for _, s in self.writes if isinstance(s.by, Store))

    def visits(self, max_tracing_dim: int) -> AccessCount:
        """Returns how often its cells are read; the largest count is exact where possible."""
        sites = [site for _, site in self.reads if site.indices is not None]
        each = [self._frequency(site, max_tracing_dim) for site in sites]
        least = sum(one.least for one in each)
        most = sum(one.most for one in each)
        is_exact = all(one.is_exact for one in each)
        if any(one.most + least - one.least == most for one in each) or not each:
            return AccessCount(least, most, is_exact)
        found = self.visit_counts()
        if found is None:
            return AccessCount(least, most, is_exact=False)
        return AccessCount(int(found.min()), int(found.max(initial=0)))

    def evaluated_once(self) -> NodeAccesses:
        """Returns the accesses with equal loads in one stored value as one.

        Where the node is inlined, `c[i] = t[i] * t[i]` computes `t[i]` once, and so does
        `c[i] = where(x[i], t[i], 0.0) + t[i]`. Loads that are only in branches stay apart.
        """
        keys = Counter(_key(site) for _, site in self.reads)
        if all(count == 1 for count in keys.values()):
            return self
        surely: set[Hashable] = set()
        kept: list[tuple[int, AccessSite]] = []
        for position, site in self.reads:
            key = _key(site)
            if key in surely:
                continue
            if keys[key] > 1 and _is_computed_surely(site):
                surely.add(key)
            kept.append((position, site))
        return replace(self, reads=tuple(kept))

    def visit_counts(self) -> Counts | None:
        """Returns how often each cell is read; None if counting would take too long.

        Static indices count as zero.
        """
        if self.info.size > MOST_ENUMERATED:
            return None
        total = np.zeros(self.info.buffer_dims, dtype=np.int64)
        for _, site in self.reads:
            found = counts_per_cell(
                site.indices or (), _traced_ranges(site.loops), self.info.buffer_dims
            )
            if found is None:
                return None
            total += found
        return total

    def write_counts(self) -> Counts | None:
        """Returns how often each cell is written; None if counting is impossible or takes long."""
        if self.info.size > MOST_ENUMERATED:
            return None
        total = np.zeros(self.info.buffer_dims, dtype=np.int64)
        for _, site in self.writes:
            found = written_cells(site, self.info)
            if found is None:
                return None
            total += found
        return total

    def _frequency(self, site: AccessSite, max_tracing_dim: int) -> AccessCount:
        indices = site.indices or ()
        loops = _traced_ranges(site.loops)
        if site.never_runs:
            return AccessCount(0, 0)
        plain = {index.var for index in indices if isinstance(index, VarIndex)}
        if len(plain) == len(indices) and plain <= loops.keys():
            repeats = 1
            for var, values in loops.items():
                repeats *= 1 if var in plain else values.extent
            covers = all(
                isinstance(index, VarIndex) and loops[index.var].extent >= dim
                for index, dim in zip(indices, self.info.buffer_dims, strict=True)
            )
            return AccessCount(repeats if covers else 0, repeats)
        return access_count(indices, loops, self.info.buffer_dims, max_tracing_dim)


@dataclass(frozen=True, slots=True)
class Accesses:
    """The units of a routine, and what they do to each node.

    Attributes:
        units: The top-level statements in order.
        nodes: The facts about every node that is accessed.
    """

    units: tuple[AnalysedStatement, ...]
    nodes: Mapping[TensorNode, NodeAccesses]


def trace(program: LoopProgram) -> Accesses:
    """Returns what a program does to each of its nodes.

    The work is proportional to the number of accesses; extents of loops hardly matter.
    """
    units = analyse_statements(program)
    coverage = DefiniteAssignment(program.nodes)
    notes = {node: _Notes() for node in program.nodes}
    constants: set[TensorNode] = set()
    for unit in units:
        coverage.run(unit)
        for site in unit.reads:
            notes[site.node].read(unit.position, site)
        for site in unit.writes:
            note, info = notes[site.node], program.nodes[site.node]
            note.write(unit.position, site)
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
            note.is_zeroed,
            note.starts_zeroed,
            node in constants,
        )
        for node, note in notes.items()
    }
    return Accesses(units, found)


@dataclass(slots=True)
class _Notes:
    """What has been seen of a node so far."""

    writes: list[tuple[int, AccessSite]] = field(default_factory=list)
    reads: list[tuple[int, AccessSite]] = field(default_factory=list)
    is_zeroed: bool = False
    starts_zeroed: bool = False
    is_constant: bool = True

    def read(self, position: int, site: AccessSite) -> None:
        if not site.is_own:
            self.reads.append((position, site))

    def write(self, position: int, site: AccessSite) -> None:
        if isinstance(site.by, Fill) and site.by.value == 0:
            self.is_zeroed = True
            self.starts_zeroed = self.starts_zeroed or not (self.writes or self.reads)
        self.writes.append((position, site))


def _key(site: AccessSite) -> Hashable:
    return ById(site.store), site.by, len(site.loops)


def _is_computed_surely(site: AccessSite) -> bool:
    """True if the stored value that contains a load always needs it."""
    return isinstance(site.store, Store) and any(
        each == site.by for each in unconditional_subexpressions(site.store.value)
    )


def _traced_ranges(loops: tuple[For, ...]) -> dict[IndexVar, Range]:
    """Returns the values of loop variables; of a loop that is not to be traced, the first."""
    return {
        loop.var: Range(loop.start, loop.stop - 1 if loop.traced else loop.start) for loop in loops
    }


def _is_constant(site: AccessSite, constants: set[TensorNode]) -> bool:
    """True if what a site writes depends on nothing but constants."""
    match site.by:
        case Fill():
            return True
        case Store(node, _, value):
            return fold(
                value,
                lambda each, inner: _is_constant_here(each, node, constants) and all(inner),
            )
        case _:
            return False


def _is_constant_here(node: Node, own: TensorNode, constants: set[TensorNode]) -> bool:
    match node:
        case Load(loaded):
            return loaded is own or loaded in constants
        case Const() | ConstBits() | Unary() | Binary() | Ternary():
            return True
        case _:
            return False


def _repeats(site: AccessSite) -> bool:
    """True if a store runs several times for the same cell."""
    used = {var for index in site.indices or () for var in variables(index)}
    return any(loop.var not in used and loop.stop - loop.start > 1 for loop in site.loops)


def reads_memory(value: Expr, own: TensorNode | None = None) -> bool:
    """True if a value depends on memory other than a node's own cells."""
    return fold(value, lambda each, inner: any(inner) or _is_access(each, own))


def computes(value: Expr, own: TensorNode | None = None) -> bool:
    """True if a primitive is applied to what is loaded, or loops run inside the value.

    Combining the node's own cell with a value is no computation if the cell holds a constant; who
    asks has to know that.
    """
    return fold(value, lambda each, inner: cost(each, inner, own)).computes


class Cost(NamedTuple):
    """What a part of a program takes.

    Comparing a position with something is not computing: it costs no more than a load.

    Attributes:
        reads: True if it reads memory or variables.
        computes: True if it computes something from those, or loops.
        loads: True if it reads memory.
    """

    reads: bool
    computes: bool
    loads: bool


def cost(node: Node, inner: Sequence[Cost], own: TensorNode | None) -> Cost:
    """Returns what a node of the loop language costs, given the costs of what is inside."""
    reads = any(each.reads for each in inner) or _is_access(node, own)
    computes = any(each.computes for each in inner)
    loads = any(each.loads for each in inner) or (
        not isinstance(node, LocalRead) and _is_access(node, own)
    )
    match node:
        case Binary(_, Load(loaded), _) if loaded is own:
            return Cost(reads, computes, loads)
        case Binary(op, left, right) if op in COMPARISONS and (
            isinstance(left, IndexValue) or isinstance(right, IndexValue)
        ):
            # a flag is no dearer than a load, and where it is known, reductions may select
            return Cost(reads, computes, loads)
        case Unary() | Binary() | Ternary():
            return Cost(reads, computes or reads, loads)
        case For():
            return Cost(reads, True, loads)
        case Scoped(_, body) if not loads and not any(isinstance(n, For) for n in walk(body)):
            return Cost(False, False, False)  # a constant, whatever its variables take
        case _:
            return Cost(reads, computes, loads)


def _is_access(node: Node, own: TensorNode | None) -> bool:
    match node:
        case Load(loaded):
            return loaded is not own
        case LoadMerge() | Gather() | LocalRead():
            return True
        case _:
            return False
