"""Definite assignment of the cells of arrays.

Boxes of cells suffice for most accesses and for arrays of any size. Strides, diagonals and windows
are enumerated cell by cell where the array is small enough; otherwise the analysis assumes a read
of unassigned cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

import numpy as np
import numpy.typing as npt

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Box, Range, boxes_cover, covered_box, ranges_of
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.loops.access_counts import Counts, count_accesses_per_cell
from ocannl_core.passes.loops.statement_accesses import (
    AccessSite,
    AnalyzedStatement,
    analyze_statements,
)


@dataclass(slots=True)
class _AssignedCells:
    """The definitely assigned cells of one node."""

    info: NodeInfo
    is_complete: bool = False
    pending: list[AccessSite] = field(default_factory=list)
    """Writes that are not yet in `boxes`."""
    boxes: list[Box] = field(default_factory=list)
    """The cells of all other writes, as far as they are boxes."""
    partial: list[AccessSite] = field(default_factory=list)
    """Writes that are not yet in `cells`."""
    cells: npt.NDArray[np.bool_] | None = None
    """The cells of all other writes, cell by cell."""

    def add(self, site: AccessSite) -> None:
        if self.is_complete or assigns_all(site, self.info):
            self.is_complete = True
        elif not site.never_runs:
            self.pending.append(site)

    def merge_pending(self) -> bool:
        """Add the pending writes, and return True if all cells are assigned."""
        if self.is_complete or not self.pending:
            return self.is_complete
        self.boxes += (
            box for site in self.pending if (box := assigned_cells(site, self.info)) is not None
        )
        self.partial += self.pending
        self.pending = []
        self.is_complete = boxes_cover(self.boxes, self.info.buffer_dims)
        return self.is_complete

    def includes(self, read: AccessSite) -> bool:
        """Return True if all cells that a load reads are assigned; False if unknown."""
        if (
            read.indices is None
            or not isinstance(read.access, ir.Load)
            or indexing.has_static(read.indices)
        ):
            return False
        wanted = count_accesses_per_cell(read.indices, ranges_of(read.loops), self.info.buffer_dims)
        if wanted is None:
            return False
        written = np.zeros(self.info.buffer_dims, bool) if self.cells is None else self.cells
        for site in self.partial:
            if may_run_never(site):
                continue
            cells = count_writes(site, self.info)
            if cells is not None:
                written |= cells > 0
        self.cells, self.partial = written, []
        return bool(written[wanted > 0].all())


@dataclass(slots=True)
class DefiniteAssignment:
    """Definite assignment of all nodes, statement by statement."""

    nodes: Mapping[TensorNode, NodeInfo]
    read_first: set[TensorNode] = field(default_factory=set)
    """Nodes of which some cell may be read before it is written."""
    _written: dict[TensorNode, _AssignedCells] = field(default_factory=dict)

    def run(self, analyzed: AnalyzedStatement) -> None:
        """Account for the reads of a top-level statement, then for its writes."""
        for site in analyzed.reads:
            if site.node not in self.read_first and not self._is_covered(site, analyzed):
                self.read_first.add(site.node)
        for site in analyzed.writes:
            if site.node not in self._written:
                self._written[site.node] = _AssignedCells(self.nodes[site.node])
            self._written[site.node].add(site)

    def incomplete(self, among: Iterable[TensorNode]) -> set[TensorNode]:
        """Return the nodes with cells that are not certain to be assigned, though others are."""
        found = {node: self._written.get(node) for node in among}
        return {node for node, cells in found.items() if cells and not cells.merge_pending()}

    def _is_covered(self, read: AccessSite, analyzed: AnalyzedStatement) -> bool:
        if isinstance(read.access, ir.LoadMerge):
            return False  # a transfer fills the buffer of a node that has memory
        written = self._written.get(read.node)
        if written is not None and (written.is_complete or written.merge_pending()):
            return True
        if read.never_runs:
            return True
        if any(write.node is read.node for write in analyzed.writes) and follows_store(
            read, analyzed
        ):
            return True
        return written is not None and written.includes(read)


def partly_assigned(program: ir.LoopProgram, among: Iterable[TensorNode]) -> set[TensorNode]:
    """Return the nodes of which a program assigns some cells, and others keep their values."""
    coverage = DefiniteAssignment(program.nodes)
    for analyzed in analyze_statements(program):
        coverage.run(analyzed)
    return coverage.incomplete(among)


def follows_store(read: AccessSite, analyzed: AnalyzedStatement) -> bool:
    """Return True if a store of the same cell precedes a load under the same or fewer loops."""
    return any(
        isinstance(write.access, ir.Store)
        and write.node is read.node
        and write.indices == read.indices
        and not write.is_verbatim
        and write.access is not read.store
        and write.loops == read.loops[: len(write.loops)]
        and _precedes(write, read, analyzed)
        for write in analyzed.writes
    )


def _precedes(write: AccessSite, read: AccessSite, analyzed: AnalyzedStatement) -> bool:
    """Return True if a store, directly in a loop around both, precedes a load in program order."""
    body = write.loops[-1].body.stmts if write.loops else None
    if body is None:
        return False
    store_place = next((k for k, stmt in enumerate(body) if stmt is write.access), None)
    if store_place is None:
        return False
    inner = read.loops[len(write.loops)] if len(read.loops) > len(write.loops) else read.store
    read_place = next((k for k, stmt in enumerate(body) if stmt is inner), None)
    return read_place is not None and store_place < read_place


def may_run_never(site: AccessSite) -> bool:
    """Return True if the cell of an access is not accessed where an extent at run time is 0.

    A loop along an axis of the node itself leaves out no cell, because cells beyond the extent are
    undefined.
    """
    bounded = [loop.var for loop in site.loops if loop.bound is not None]
    if not bounded:
        return False
    used = {var for index in site.indices or () for var in indexing.variables(index)}
    return not used.issuperset(bounded)


def count_writes(site: AccessSite, info: NodeInfo) -> Counts | None:
    """Count the writes of each cell by an access; return None if unknown."""
    loops, dims = ranges_of(site.loops), info.buffer_dims
    match site.access:
        case ir.Fill():
            return np.ones(dims, dtype=np.int64)
        case ir.Store(_, indices) if not indexing.has_static(indices):
            return count_accesses_per_cell(indices, loops, dims)
        case ir.StoreVector(_, indices, length) if not indexing.has_static(indices):
            cells, lane = _lanes(indices, length, info)
            found = count_accesses_per_cell((cells,), {**loops, **lane}, (info.size,))
            return None if found is None else found.reshape(dims)
        case ir.CallExternal() | ir.Repeat() if _is_whole(site):
            found = np.zeros(dims, dtype=np.int64)
            found[tuple(slice(axis.low, axis.high + 1) for axis in _interior(info))] = 1
            return found
        case _:
            return None


def assigns_all(site: AccessSite, info: NodeInfo) -> bool:
    """Return True if an access definitely assigns every cell by plain indices; False if unknown."""
    if site.never_runs:
        return False
    return isinstance(site.access, ir.Fill) or (
        isinstance(site.access, ir.Store) and covers_array(site, info)
    )


def covers_array(site: AccessSite, info: NodeInfo) -> bool:
    """Return True if a store in its loops assigns every cell by plain indices; False if unknown."""
    if may_run_never(site):
        return False
    extents: dict[indexing.IndexVar, int] = {
        loop.var: loop.stop for loop in site.loops if loop.start == 0
    }
    for index, dim in zip(site.indices or (), info.buffer_dims, strict=True):
        # each variable once
        if not isinstance(index, indexing.VarIndex) or extents.pop(index.var, -1) < dim:
            return False
    return True


def assigned_cells(site: AccessSite, info: NodeInfo) -> Box | None:
    """Return the definitely assigned cells of an access; None if unknown."""
    if site.never_runs or site.is_verbatim or may_run_never(site):
        return None
    loops = ranges_of(site.loops)
    match site.access:
        case ir.Fill():
            return all_cells(info)
        case ir.Store(_, indices):
            return covered_box(indices, loops)
        case ir.StoreVector(_, indices, length):
            cells, lane = _lanes(indices, length, info)
            box = covered_box((cells,), {**loops, **lane})
            is_all = box is not None and box[0].low <= 0 and box[0].high >= info.size - 1
            return all_cells(info) if is_all else None
        case ir.CallExternal() | ir.Repeat() if _is_whole(site):
            return _interior(info)
        case _:
            return None


def _is_whole(site: AccessSite) -> bool:
    """Return True if an access without indices certainly assigns all cells."""
    return not isinstance(site.access, ir.Repeat) or site.node in site.access.complete


def all_cells(info: NodeInfo) -> Box:
    """Return all cells of a node."""
    return tuple(Range(0, dim - 1) for dim in info.buffer_dims)


def _lanes(
    indices: tuple[indexing.AxisIndex, ...], length: int, info: NodeInfo
) -> tuple[indexing.AxisIndex, dict[indexing.IndexVar, Range]]:
    """Return the row-major positions of a vector store, and the range of its lane variable."""
    lane = indexing.fresh_var("lane")
    terms, start = indexing.as_affine(indexing.row_major(indices, info.buffer_dims))
    return indexing.affine([*terms, (1, lane)], start), {lane: Range(0, length - 1)}


def _interior(info: NodeInfo) -> Box:
    if not info.padding:
        return tuple(Range(0, dim - 1) for dim in info.dims)
    return tuple(
        Range(margin.left, margin.left + dim - 1)
        for dim, margin in zip(info.dims, info.padding, strict=True)
    )
