"""Whether every cell that is read has been written before, for sure.

Boxes answer for most accesses and for arrays of any size. What they leave open, such as strides,
diagonals and windows, is enumerated cell by cell where the array is small enough; beyond that a
read counts as uncovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import numpy.typing as npt

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import (
    AxisIndex,
    IndexVar,
    StaticIndex,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    row_major,
    variables,
)
from ocannl_core.loopir.nodes import CallExternal, Fill, For, Load, LoadMerge, Store, StoreVector
from ocannl_core.loopir.ranges import Box, Range, boxes_cover, covered_box
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.passes.access_counts import Counts, counts_per_cell
from ocannl_core.passes.statement_accesses import AccessSite, AnalysedStatement


@dataclass(slots=True)
class _Written:
    """The cells of one node that are certain to be written so far.

    Attributes:
        info: What is known of the node.
        is_complete: True if all are.
        pending: Writes that `boxes` does not take into account yet.
        boxes: What all others write, as far as it consists of boxes.
        partial: Writes that `cells` does not take into account yet.
        cells: What all others write, cell by cell.
    """

    info: NodeInfo
    is_complete: bool = False
    pending: list[AccessSite] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    partial: list[AccessSite] = field(default_factory=list)
    cells: npt.NDArray[np.bool_] | None = None

    def add(self, site: AccessSite) -> None:
        if self.is_complete or site.never_runs:
            return
        if assigns_all(site, self.info):
            self.is_complete = True
        else:
            self.pending.append(site)

    def settle(self) -> bool:
        """Returns whether all cells are written, taking the latest writes into account."""
        if self.is_complete or not self.pending:
            return self.is_complete
        self.boxes += (
            box for site in self.pending if (box := certain_cells(site, self.info)) is not None
        )
        self.partial += self.pending
        self.pending = []
        self.is_complete = boxes_cover(self.boxes, self.info.buffer_dims)
        return self.is_complete

    def includes(self, read: AccessSite) -> bool:
        """True if all cells that a load reads are written; False when unsure."""
        if read.indices is None or not isinstance(read.by, Load) or _has_static(read.indices):
            return False
        wanted = counts_per_cell(read.indices, ranges_of(read.loops), self.info.buffer_dims)
        if wanted is None:
            return False
        written = np.zeros(self.info.buffer_dims, bool) if self.cells is None else self.cells
        for site in self.partial:
            cells = written_cells(site, self.info)
            if cells is not None:
                written |= cells > 0
        self.cells, self.partial = written, []
        return bool(written[wanted > 0].all())


@dataclass(slots=True)
class DefiniteAssignment:
    """What is written so far, and which nodes were read before they were.

    Attributes:
        nodes: What is known of every node.
        read_first: Nodes of which some cell may be read before it is written.
    """

    nodes: Mapping[TensorNode, NodeInfo]
    read_first: set[TensorNode] = field(default_factory=set)
    _written: dict[TensorNode, _Written] = field(default_factory=dict)

    def run(self, unit: AnalysedStatement) -> None:
        """Takes the reads of a unit, then its writes, into account."""
        for site in unit.reads:
            if site.node not in self.read_first and not self._is_covered(site, unit):
                self.read_first.add(site.node)
        for site in unit.writes:
            if site.node not in self._written:
                self._written[site.node] = _Written(self.nodes[site.node])
            self._written[site.node].add(site)

    def _is_covered(self, read: AccessSite, unit: AnalysedStatement) -> bool:
        if isinstance(read.by, LoadMerge):
            return False  # a transfer fills the buffer of a node that has memory
        if read.never_runs:
            return True
        written = self._written.get(read.node)
        if written is not None and (written.is_complete or written.settle()):
            return True
        if any(write.node is read.node for write in unit.writes) and follows_store(read, unit):
            return True
        return written is not None and written.includes(read)


def follows_store(read: AccessSite, unit: AnalysedStatement) -> bool:
    """True if a store of the very same cell precedes a load under the same or fewer loops."""
    return any(
        isinstance(write.by, Store)
        and write.node is read.node
        and write.indices == read.indices
        and not write.is_staged
        and write.by is not read.store
        and write.loops == read.loops[: len(write.loops)]
        and _precedes(write, read, unit)
        for write in unit.writes
    )


def _precedes(write: AccessSite, read: AccessSite, unit: AnalysedStatement) -> bool:
    """True if a store comes before a load in program order, directly inside loops around both."""
    body = write.loops[-1].body.stmts if write.loops else None
    if body is None:
        return False
    store_place = next((k for k, stmt in enumerate(body) if stmt is write.by), None)
    if store_place is None:
        return False
    inner = read.loops[len(write.loops)] if len(read.loops) > len(write.loops) else read.store
    read_place = next((k for k, stmt in enumerate(body) if stmt is inner), None)
    return read_place is not None and store_place < read_place


def ranges_of(loops: tuple[For, ...]) -> dict[IndexVar, Range]:
    """Returns the values of the variables of loops."""
    return {loop.var: Range(loop.start, loop.stop - 1) for loop in loops}


def written_cells(site: AccessSite, info: NodeInfo) -> Counts | None:
    """Returns how often a site writes each cell of its node; None when unsure."""
    loops, dims = ranges_of(site.loops), info.buffer_dims
    match site.by:
        case Fill():
            return np.ones(dims, dtype=np.int64)
        case Store(_, indices) if not _has_static(indices):
            return counts_per_cell(indices, loops, dims)
        case StoreVector(_, indices, length) if not _has_static(indices):
            cells, lane = _lanes(indices, length, info)
            found = counts_per_cell((cells,), {**loops, **lane}, (info.size,))
            return None if found is None else found.reshape(dims)
        case CallExternal():
            found = np.zeros(dims, dtype=np.int64)
            found[tuple(slice(axis.low, axis.high + 1) for axis in _interior(info))] = 1
            return found
        case _:
            return None


def _has_static(indices: tuple[AxisIndex, ...]) -> bool:
    return any(isinstance(var, StaticIndex) for index in indices for var in variables(index))


def assigns_all(site: AccessSite, info: NodeInfo) -> bool:
    """True if a site is certain to write every cell, by plain indices; False when unsure."""
    if site.never_runs:
        return False
    return isinstance(site.by, Fill) or (isinstance(site.by, Store) and is_whole(site, info))


def is_whole(site: AccessSite, info: NodeInfo) -> bool:
    """True if a store under its loops writes every cell by plain indices; False when unsure."""
    extents: dict[IndexVar, int] = {loop.var: loop.stop for loop in site.loops if loop.start == 0}
    indices = site.indices or ()
    if len({index.var for index in indices if isinstance(index, VarIndex)}) < len(indices):
        return False
    return all(
        isinstance(index, VarIndex) and extents.get(index.var, -1) >= dim
        for index, dim in zip(indices, info.buffer_dims, strict=True)
    )


def certain_cells(site: AccessSite, info: NodeInfo) -> Box | None:
    """Returns cells that a site is certain to write; None when unsure."""
    if site.never_runs or site.is_staged:
        return None
    loops = ranges_of(site.loops)
    match site.by:
        case Fill():
            return whole(info)
        case Store(_, indices):
            return covered_box(indices, loops)
        case StoreVector(_, indices, length):
            cells, lane = _lanes(indices, length, info)
            box = covered_box((cells,), {**loops, **lane})
            is_all = box is not None and box[0].low <= 0 and box[0].high >= info.size - 1
            return whole(info) if is_all else None
        case CallExternal():
            return _interior(info)
        case _:
            return None


def whole(info: NodeInfo) -> Box:
    """Returns all cells of a node."""
    return tuple(Range(0, dim - 1) for dim in info.buffer_dims)


def _lanes(
    indices: tuple[AxisIndex, ...], length: int, info: NodeInfo
) -> tuple[AxisIndex, dict[IndexVar, Range]]:
    """Returns the row-major positions that a vector store writes, and the variable that adds."""
    lane = fresh_var("lane")
    terms, start = as_affine(row_major(indices, info.buffer_dims))
    return affine([*terms, (1, lane)], start), {lane: Range(0, length - 1)}


def _interior(info: NodeInfo) -> Box:
    if not info.padding:
        return tuple(Range(0, dim - 1) for dim in info.dims)
    return tuple(
        Range(margin.left, margin.left + dim - 1)
        for dim, margin in zip(info.dims, info.padding, strict=True)
    )
