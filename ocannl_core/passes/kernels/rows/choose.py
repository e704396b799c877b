"""Choose the kernels that run together, row by row, and the number of rows in a block.

Neighbors in a plan are fused while their rows are the same: along the nodes that one writes and
another one reads, the same axis runs over the same elements. The number of shared axes and the rows
of a block are chosen so that the working set of one iteration stays in the nearest cache. Kernels
whose nodes stay in a cache anyway are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import VarIndex, variables
from ocannl_core.ir.kernels import nest_plan
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, iterations
from ocannl_core.ir.kernels.row_fusion import (
    Member,
    RowFusion,
    find_row_dims,
    nodes_written_by_rows,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.rows.buffer_reuse import reuse_buffers
from ocannl_core.passes.kernels.rows.recompute_matrices import recompute_matrices
from ocannl_core.passes.loops.node_positions import NodePositions
from ocannl_core.schedule import machine_model

_MAX_MEMBERS = 32
_MIN_SAVING = 4
"""The memory that fusion saves, at least, relative to the working set of a block of rows."""
_MIN_BATCH = 8
"""The iterations of batch axes, at least, if sums over all blocks of rows run on one thread each:
enough to share among several threads.
"""


def group_rows(plan: nest_plan.NestPlan, target: Target) -> nest_plan.NestPlan:
    """Group neighboring kernels that run faster together, row by row."""
    blocks = target.thread_blocks
    if blocks is None:
        plan = recompute_matrices(
            plan, machine_model.MachineModel.of(target), lambda p, at: _Chooser(p, target).group(at)
        )
    chooser = _Chooser(plan, target)
    result: list[nest_plan.NestStep] = []
    at = 0
    while at < len(plan.steps):
        found = chooser.group(at) if blocks is None else chooser.group_on_blocks(at, blocks)
        result.append(found if found is not None else plan.steps[at])
        at += len(found.titles) if found is not None else 1
    return nest_plan.with_steps(plan, result)


@dataclass(frozen=True, slots=True)
class _RowCandidate:
    """Kernels from a position on, with the axes of each that are the rows."""

    start: int
    members: tuple[Member, ...]

    @property
    def depth(self) -> int:
        """The number of shared axes."""
        return len(self.members[0].rows)


class _Chooser:
    """A plan, while its kernels are grouped.

    Candidates differ in a kernel or an axis, so members are built once, with their cached
    properties.
    """

    def __init__(self, plan: nest_plan.NestPlan, target: Target) -> None:
        self._steps = plan.steps
        self._nodes = plan.nodes
        self._nbytes = {node: info.nbytes for node, info in plan.nodes.items()}
        self._scratch = frozenset(plan.scratch)
        self._machine = machine_model.MachineModel.of(target)
        self._known: dict[tuple[int, tuple[str, ...]], Member] = {}
        self._uses = NodePositions(map(nest_plan.mentioned, plan.steps))
        # by the first use: the last use, and the bytes
        self._scratch_from: dict[int, list[tuple[int, int]]] = {}
        for node in plan.scratch:
            if uses := self._uses.of(node):
                live = uses[-1], self._nbytes[node]
                self._scratch_from.setdefault(uses[0], []).append(live)

    def _candidate(self, start: int, rows: Sequence[tuple[str, ...]]) -> _RowCandidate:
        return _RowCandidate(start, tuple(map(self._member, count(start), rows)))

    def _truncate(self, candidate: _RowCandidate, depth: int) -> _RowCandidate:
        if depth == candidate.depth:
            return candidate
        return self._candidate(candidate.start, [each.rows[:depth] for each in candidate.members])

    def _member(self, at: int, rows: tuple[str, ...]) -> Member:
        found = self._known.get((at, rows))
        if found is None:
            step = self._steps[at]
            assert isinstance(step, nest_plan.NestKernel)  # candidates have nests
            found = self._known[at, rows] = Member(step.nest, rows, step.title)
        return found

    def group(self, start: int) -> RowFusion | None:
        """Return the longest group of kernels from a position on, if it is profitable."""
        blocks = self._choose_blocks(start)
        if blocks is not None:
            return self._refine(start, blocks)
        candidate = self._start_candidate(start)
        best: RowFusion | None = None
        while candidate is not None:
            found = self._choose_row_block(candidate)
            if len(candidate.members) > 1 and found is None:
                break
            best = found if found is not None else best
            candidate = self._extend(candidate)
        if best is None or not self._is_profitable(best):
            return None
        return self._refine(start, best)

    def _refine(self, start: int, group: RowFusion) -> RowFusion:
        """Return a group with inlined nodes; those that only the group reads are not stored."""
        from ocannl_core.passes.kernels.rows.apply import FusedLoops

        fusion = FusedLoops(group, self._nodes).refine()
        inlined = [each for each in fusion.inlined if each not in fusion.folded]
        end = start + len(fusion.members)
        private = tuple(each for each in inlined if self._is_private(each, start, end))
        return replace(fusion, folded=(*fusion.folded, *private))

    def _is_private(self, node: TensorNode, start: int, end: int) -> bool:
        """Return True if no kernel outside of some positions accesses a node."""
        is_plain = node in self._scratch and not self._nodes[node].padding
        return is_plain and all(start <= at < end for at in self._uses.of(node))

    def group_on_blocks(self, start: int, blocks: ThreadBlocks) -> RowFusion | None:
        """Return the longest group of kernels from a position on that the threads of a block run
        row by row; None if no kernel reduces a row.
        """
        from ocannl_core.passes.kernels.rows.apply import FusedLoops
        from ocannl_core.passes.kernels.rows.on_blocks import row_threads

        candidate = self._start_candidate(start, least_bytes=0)
        best: RowFusion | None = None
        while candidate is not None and not any(each.reduces_rows for each in candidate.members):
            members = candidate.members
            if _is_narrow(members[-1], blocks):
                break
            nests = [member.nest for member in members]
            rows = iterations(members[0].axes)
            if len(members) > 1 and any(nest.reduced for nest in nests):
                foldable = self._fitting(candidate, rows, blocks.local_bytes // 2)
                shared = sum(self._nbytes[node] // rows for node in foldable)
                threads = row_threads(nests, rows, self._nodes, blocks, shared)
                best = RowFusion(members, folded=foldable, threads=threads, blocks=blocks)
            candidate = self._extend(candidate)
        return None if best is None else FusedLoops(best, self._nodes).refine()

    def _fitting(self, candidate: _RowCandidate, rows: int, most: int) -> tuple[TensorNode, ...]:
        """Return the nodes to fold whose rows fit into shared memory together."""
        found: list[TensorNode] = []
        for node in self._find_foldable(candidate, 1, most):
            nbytes = self._nbytes[node] // rows
            if nbytes <= most:
                found.append(node)
                most -= nbytes
        return tuple(found)

    def _start_candidate(self, start: int, least_bytes: int | None = None) -> _RowCandidate | None:
        nest = nest_plan.nest_of(self._steps[start])
        if nest is None or not _is_fusible(nest) or _is_contraction(nest):
            return None
        least = self._machine.l2_negligible if least_bytes is None else least_bytes
        if all(self._accessed_bytes(nest, node) < least for node in nest.mentioned):
            return None
        for axes in (nest.output_axes, nest.reduced):
            for depth in range(len(axes), 0, -1):
                candidate = self._candidate(start, [_names(axes[:depth])])
                has_rows = find_row_dims(candidate.members) is not None
                if has_rows and _has_contiguous_rows(nest, axes[:depth]):
                    return candidate
        return None

    def _extend(
        self, candidate: _RowCandidate, *, has_contractions: bool = False
    ) -> _RowCandidate | None:
        """Return a candidate with the next kernel, sharing as many axes as possible."""
        at = candidate.start + len(candidate.members)
        if at >= len(self._steps) or len(candidate.members) >= _MAX_MEMBERS:
            return None
        nest = nest_plan.nest_of(self._steps[at])
        if nest is None or not _is_fusible(nest):
            return None
        if _is_contraction(nest) and not has_contractions:
            return None
        if all(each.nest.mentioned.isdisjoint(nest.mentioned) for each in candidate.members):
            return None
        for depth in range(candidate.depth, 0, -1):
            members = self._truncate(candidate, depth).members
            axes = _match_rows(nest, members, by_reads=has_contractions)
            if axes is None and has_contractions:
                axes = _match_rows(nest, members)
            if axes is None or (not has_contractions and not _has_contiguous_rows(nest, axes)):
                continue
            new = self._member(at, _names(axes))
            if has_contractions or not new.reduces_inner_rows:
                return _RowCandidate(candidate.start, (*members, new))
        return None

    def _choose_blocks(self, start: int) -> RowFusion | None:
        """Return the longest group of a contraction and its users, in blocks that fit a cache."""
        nest = nest_plan.nest_of(self._steps[start])
        if nest is None or not _is_fusible(nest) or not _is_contraction(nest):
            return None
        if self._max_saved_bytes(start) <= self._machine.l2_bytes or not nest.output_axes:
            return None
        candidate: _RowCandidate | None = self._candidate(start, [_names(nest.output_axes)])
        best: RowFusion | None = None
        while candidate is not None:
            best = self._block_contraction(candidate) or best
            candidate = self._extend(candidate, has_contractions=True)
        return best

    def _max_saved_bytes(self, start: int) -> int:
        """Return the most memory that a group from a position on can save."""
        end = start + _MAX_MEMBERS
        return sum(
            nbytes
            for first in range(start, end)
            for last, nbytes in self._scratch_from.get(first, ())
            if last < end
        )

    def _block_contraction(self, candidate: _RowCandidate) -> RowFusion | None:
        """Return a contraction and its users in blocks of rows; None if that does not pay."""
        members = candidate.members
        if len(members) < 2:
            return None
        batch = [at for at in range(candidate.depth) if _is_batch_axis(members, at)]
        others = [at for at in range(candidate.depth) if at not in batch]
        if not others or (len(others) > 1 and not batch):
            return None
        longest = max(others, key=lambda at: members[0].axes[at].extent)
        order = (*batch, longest)  # the others, as queries of a group of heads, run inside a row
        rows = [tuple([each.rows[at] for at in order]) for each in members]
        reordered = self._candidate(candidate.start, rows)
        members = reordered.members
        if any(axis.is_reduced for each in members for axis in each.axes[:-1]):
            return None  # sums over rows that are incomplete after the loop over blocks of rows
        extent, nbytes = members[0].axes[-1].extent, self._bytes_per_row(reordered)
        size = self._block_size(extent, nbytes)
        is_serial = size < extent and any(each.reduces_rows for each in members)
        if is_serial and iterations(members[0].axes[:-1]) < _MIN_BATCH:
            return None
        foldable = self._find_foldable(reordered, size, self._machine.last_share)
        saved = sum(self._nbytes[node] for node in foldable)
        if saved <= max(self._machine.l2_bytes, _MIN_SAVING * size * nbytes):
            return None
        if size < min(machine_model.MIN_BLOCK_ROWS, extent):
            return None
        return RowFusion(members, size, folded=foldable)

    def _block_size(self, extent: int, nbytes: int) -> int:
        """Return the rows that fit into the second cache, or else into the last one."""
        size = _largest_divisor(extent, self._machine.l2_working_set // nbytes)
        most = min(self._machine.last_share // nbytes, machine_model.BLOCK_ROWS)
        return max(size, _largest_divisor(extent, most))

    def _bytes_per_row(self, candidate: _RowCandidate) -> int:
        """Return the working set of a row; nodes that share a buffer count once."""
        members = candidate.members
        foldable = self._find_foldable(candidate, 1, self._machine.last_bytes)
        buffers = reuse_buffers([member.nest for member in members], foldable, self._nodes)
        return max(self._working_set(members, buffers), 1)

    def _choose_row_block(self, candidate: _RowCandidate) -> RowFusion | None:
        """Return a group with a number of rows in a block; None if one row exceeds the cache."""
        machine, deepest = self._machine, candidate.depth
        for depth in range(1, deepest + 1):
            cut = self._truncate(candidate, depth)
            members = cut.members
            nbytes = self._working_set(members)
            most = machine.l1_working_set
            if depth == deepest:
                most = max(most, machine.l2_working_set)
            if nbytes > most:
                continue
            axes = members[0].axes
            size = _largest_divisor(axes[-1].extent, machine.l1_block // max(nbytes, 1))
            counts = [axis.extent for axis in axes]
            counts[-1] //= size
            sums = [member for member in members if member.reduces_rows]
            cells = [iterations(member.nest.output_axes) for member in sums]
            if any(count * 8 > machine.l1_working_set for count in cells):
                return None
            groups = _largest_divisor(counts[0], machine_model.PARTIAL_SUMS) if sums else 1
            foldable = self._find_foldable(cut, size, machine_model.STACK_BYTES)
            streamed = self._find_streamable(cut)
            return RowFusion(members, size, groups, folded=foldable, streamed=streamed)
        return None

    def _working_set(
        self, members: Sequence[Member], buffers: Mapping[TensorNode, TensorNode] | None = None
    ) -> int:
        """Return the bytes of a row.

        Args:
            buffers: The buffers that nodes share, to count the nodes with rows alone.
        """
        total: dict[TensorNode, int] = {}
        for member in members:
            extents = {axis.var: axis.extent for axis in member.axes}
            for accessed, used in member.nest.reached:
                if buffers is None or member.vars[-1] in used:
                    rows = prod([extents[var] for var in extents if var in used])
                    node = (buffers or {}).get(accessed, accessed)
                    nbytes = self._accessed_bytes(member.nest, accessed)
                    total[node] = max(total.get(node, 0), nbytes // rows)
        return sum(total.values())

    def _accessed_bytes(self, nest: Nest, node: TensorNode) -> int:
        """Return the bytes of the part of a node that a nest accesses."""
        still, count = nest.positions[node]
        if not still:
            return self._nbytes[node]
        dims = self._nodes[node].buffer_dims
        return self._nbytes[node] * count // max(prod([dims[at] for at in still]), 1)

    def _find_foldable(
        self, candidate: _RowCandidate, size: int, most: int
    ) -> tuple[TensorNode, ...]:
        """Return the nodes that no other kernel accesses, with at most so many bytes a row."""
        members = candidate.members
        end = candidate.start + len(members)
        rows = iterations(members[0].axes) // size
        return tuple(
            node
            for node in nodes_written_by_rows(members)
            if self._nbytes[node] <= most * rows and self._is_private(node, candidate.start, end)
        )

    def _find_streamable(self, candidate: _RowCandidate) -> tuple[TensorNode, ...]:
        """Return the nodes that are too large for any cache and not read by a later kernel."""
        end = candidate.start + len(candidate.members)
        return tuple(
            node
            for node in nodes_written_by_rows(candidate.members)
            if node not in self._scratch
            and self._nbytes[node] >= self._machine.streamed_bytes
            and all(at < end for at in self._uses.of(node))
        )

    def _is_profitable(self, group: RowFusion) -> bool:
        """Return True if the nodes of separate kernels would not stay in a near cache."""
        if len(group.members) < 2:
            (only,) = group.members
            return bool(group.streamed) and _has_contiguous_rows(only.nest, only.axes)
        accessed: dict[TensorNode, int] = {}
        for member in group.members:
            for node in member.nest.mentioned:
                nbytes = self._accessed_bytes(member.nest, node)
                accessed[node] = max(accessed.get(node, 0), nbytes)
        return sum(accessed.values()) > self._machine.l2_bytes


def _names(axes: Sequence[LoopAxis]) -> tuple[str, ...]:
    return tuple([axis.name for axis in axes])


def _is_fusible(nest: Nest) -> bool:
    is_plain = all(
        axis.start == 0 and axis.extent > 0 and not axis.is_shifting for axis in nest.axes
    )
    return bool(nest.axes) and is_plain


def _has_contiguous_rows(nest: Nest, rows: Sequence[LoopAxis]) -> bool:
    """Return True if the cells of a row are contiguous, windows along its axis aside."""
    outer = {axis.var for axis in rows}
    inner = {axis.var for axis in nest.axes} - outer
    for access in nest.accesses:
        used = [set(variables(index)) for index in access.indices or ()]
        first = next((at for at, each in enumerate(used) if each & inner), len(used))
        if any(each & outer for each in used[first + 1 :]):
            return False
    return True


def _largest_divisor(number: int, most: int) -> int:
    return max(
        (size for size in range(1, min(number, max(most, 1)) + 1) if number % size == 0), default=1
    )


def _is_contraction(nest: Nest) -> bool:
    """Return True if every factor is reused: such a nest needs register tiles of its own."""
    if nest.reduction is None:
        return False
    cells = {axis.var for axis in nest.output_axes if axis.extent > 1}
    return all(cells - each for each in nest.factor_variables)


def _is_batch_axis(members: Sequence[Member], at: int) -> bool:
    """Return True if every factor of every contraction depends on a shared axis."""
    return all(
        member.axes[at].var in each
        for member in members
        if _is_contraction(member.nest)
        for each in member.nest.factor_variables
    )


def _match_rows(
    nest: Nest, members: Sequence[Member], *, by_reads: bool = False
) -> tuple[LoopAxis, ...] | None:
    """Return the axes of a nest that are the rows of others; None if it depends on all of their
    rows.

    Args:
        by_reads: True if rows of nodes that nests only read are the same rows, too.
    """
    row_dims = find_row_dims(members)
    if row_dims is None:
        return None
    sums = [member for member in members if member.reduces_rows]
    results = {node for member in sums for node in member.written}
    inputs = {node for member in sums for node in member.epilogue_nodes}
    new = Member(nest, ())
    if not results.isdisjoint(nest.mentioned) or not inputs.isdisjoint(new.written):
        return None
    axes = _align_axes(nest, members, {**(_read_row_dims(members) if by_reads else {}), **row_dims})
    if axes is None:
        return None
    new = Member(nest, tuple(axis.name for axis in axes))
    if new.reduces_rows:
        mentioned_before = {node for member in members for node in member.nest.mentioned}
        is_last = row_dims.keys().isdisjoint(new.epilogue_nodes)
        return axes if is_last and mentioned_before.isdisjoint(new.written) else None
    row_dims = find_row_dims((*members, new))
    if row_dims is None:
        return None
    is_independent = all(_stays_in_rows(member, row_dims) for member in (*members, new))
    return axes if is_independent else None


def _read_row_dims(members: Sequence[Member]) -> dict[TensorNode, tuple[int, ...]]:
    """Return the axes of the rows of the nodes of which every nest reads its own row."""
    found: dict[TensorNode, tuple[int, ...] | None] = {}
    for member in members:
        for node, dims in member.accessed_row_dims:
            if found.setdefault(node, dims) != dims:
                found[node] = None
    return {node: dims for node, dims in found.items() if dims is not None}


def _align_axes(
    nest: Nest, members: Sequence[Member], row_dims: Mapping[TensorNode, tuple[int, ...]]
) -> tuple[LoopAxis, ...] | None:
    """Return the axes that run along the rows, found through shared nodes."""
    by_var = {axis.var: axis for axis in nest.axes}
    rows = members[0].axes
    chosen: list[LoopAxis | None] = [None] * len(rows)
    for access in nest.accesses:
        for at, dim in enumerate(row_dims.get(access.node, ())):
            match (access.indices or ())[dim : dim + 1]:
                case (VarIndex(var),) if var in by_var:
                    axis = by_var[var]
                case _:
                    return None
            if chosen[at] not in (None, axis):
                return None
            chosen[at] = axis
    kinds = {axis.is_reduced for axis in chosen if axis is not None} or {False, True}
    for is_reduced in sorted(kinds):
        free = [a for a in nest.axes if a.is_reduced == is_reduced and a not in chosen]
        found = tuple(axis or (free.pop(0) if free else None) for axis in chosen)
        axes = tuple(axis for axis in found if axis is not None)
        if [axis.domain for axis in axes] == [row.domain for row in rows]:
            return axes if len(set(axes)) == len(axes) else None
    return None


def _stays_in_rows(member: Member, row_dims: Mapping[TensorNode, tuple[int, ...]]) -> bool:
    """Return True if a nest accesses its own row alone of all nodes that are written by rows."""
    if not member.nest.gathered.isdisjoint(row_dims):
        return False
    return all(row_dims.get(node, dims) == dims for node, dims in member.accessed_row_dims)


def _is_narrow(member: Member, blocks: ThreadBlocks) -> bool:
    """Return True if a row is many short ones, along none of which most threads of a block run."""
    inside = [
        axis.extent for axis in member.nest.axes if axis.name not in member.rows and axis.extent > 1
    ]
    return len(inside) > 1 and max(inside) < blocks.subgroup
