"""Which kernels run together, row by row, and over how many rows at a time.

Neighbours in a plan join while the rows of one of them are those of the others: along the nodes
that one writes and another one reads, the same axis runs over the same cells. How many shared axes
become loops, and how many rows run at a time, is what makes all that one iteration touches stay in
the nearest cache. Kernels whose nodes stay in a cache anyway are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import prod

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import VarIndex, variables
from ocannl_core.kernel_passes.row_fusion.apply import FusedLoops
from ocannl_core.kernel_passes.row_fusion.buffer_reuse import reuse_buffers
from ocannl_core.kernels.nest import KernelNest, LoopAxis
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan, NestStep, RowGroup, mentioned
from ocannl_core.kernels.row_fusion import (
    RowFusion,
    RowFusionMember,
    nodes_written_by_rows,
    row_positions,
)
from ocannl_core.node import TensorNode
from ocannl_core.target import Target

_MOST_GROUPS = 16
"""Sums over rows are kept in so many parts, which may be on different threads."""
_MOST_MEMBERS = 32
_LEAST_BLOCK = 24
"""With fewer rows than these, what all blocks of a contraction use is read too often."""
_LEAST_GAIN = 4
"""Blocks of rows are to be so many times smaller than the memory that they save."""
_LEAST_BATCH = 8
"""Sums over all blocks of rows run on one thread each; so many are enough for several threads."""
_LARGEST_ROW = 1 << 15
"""Bytes of a row that are kept on the stack of a thread."""
_LARGEST_SHARE = 32
"""Kernels whose nodes are all smaller than this part of a cache are left alone."""
_CACHES = (32 << 10, 512 << 10)
_LAST_CACHE = 32 << 20
"""Sizes of the caches where a target does not tell them."""


def far_cache(target: Target) -> int:
    """Returns the size of the second cache of a processor, in bytes."""
    known = target.cache_bytes
    return known[1] if len(known) > 1 else _CACHES[1]


def group_rows(plan: NestPlan, target: Target) -> NestPlan:
    """Group neighbouring kernels that run faster together, row by row."""
    chooser = _Chooser(plan, target)
    result: list[NestStep] = []
    at = 0
    while at < len(plan.steps):
        found = chooser.group(at)
        result.append(found if found is not None else plan.steps[at])
        at += len(found.kernels) if found is not None else 1
    return plan.with_steps(result)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Kernels from a position on, with the axes of each that are the rows."""

    start: int
    members: tuple[RowFusionMember, ...]

    @property
    def depth(self) -> int:
        """How many axes are shared."""
        return len(self.members[0].rows)


class _Chooser:
    """What is known of a plan while its kernels are grouped.

    Candidates differ in a kernel or an axis, so members are asked for again and again; each is made
    once, with what is known of it.
    """

    def __init__(self, plan: NestPlan, target: Target) -> None:
        self._steps = plan.steps
        self._nodes = plan.nodes
        self._scratch = frozenset(plan.scratch)
        known = target.cache_bytes
        self._near = (known or _CACHES)[0]
        self._far = far_cache(target)
        self._last = known[-1] if len(known) > 1 else _LAST_CACHE
        self._known: dict[tuple[int, tuple[str, ...]], RowFusionMember] = {}
        self._uses: dict[TensorNode, list[int]] = {}
        for at, step in enumerate(plan.steps):
            for node in mentioned(step):
                self._uses.setdefault(node, []).append(at)

    def _nest(self, at: int) -> KernelNest | None:
        step = self._steps[at]
        return step.nest if isinstance(step, NestKernel) else None

    def _group(self, candidate: _Candidate, fusion: RowFusion) -> RowGroup:
        steps = self._steps[candidate.start : candidate.start + len(candidate.members)]
        return RowGroup(tuple(each for each in steps if isinstance(each, NestKernel)), fusion)

    def _candidate(self, start: int, rows: Sequence[tuple[str, ...]]) -> _Candidate:
        return _Candidate(start, tuple(map(self._member, count(start), rows)))

    def _cut(self, candidate: _Candidate, depth: int) -> _Candidate:
        """Returns the same kernels with fewer shared axes."""
        if depth == candidate.depth:
            return candidate
        return self._candidate(candidate.start, [each.rows[:depth] for each in candidate.members])

    def _member(self, at: int, rows: tuple[str, ...]) -> RowFusionMember:
        found = self._known.get((at, rows))
        if found is None:
            nest = self._nest(at)
            assert nest is not None  # of a candidate
            found = self._known[at, rows] = RowFusionMember(nest, rows)
        return found

    def group(self, start: int) -> RowGroup | None:
        """Returns the longest group of kernels from a position on, if it is worth while."""
        blocks = self._blocks(start)
        if blocks is not None:
            return replace(blocks, fusion=FusedLoops(blocks.fusion, self._nodes).refined())
        candidate = self._alone(start)
        best: RowGroup | None = None
        while candidate is not None:
            found = self._chosen(candidate)
            if len(candidate.members) > 1 and found is None:
                break
            best = found if found is not None else best
            candidate = self._extended(candidate)
        if best is None or not self._is_worth_while(best):
            return None
        return replace(best, fusion=FusedLoops(best.fusion, self._nodes).refined())

    def _alone(self, start: int) -> _Candidate | None:
        nest = self._nest(start)
        if nest is None or not _is_joinable(nest) or _is_product(nest):
            return None
        if all(_LARGEST_SHARE * self._nodes[node].nbytes < self._far for node in nest.mentioned):
            return None
        for axes in (nest.cells, nest.reduced):
            for depth in range(len(axes), 0, -1):
                candidate = self._candidate(start, [_names(axes[:depth])])
                has_rows = row_positions(candidate.members) is not None
                if has_rows and _is_along(nest, axes[:depth]):
                    return candidate
        return None

    # ----- joining --------------------------------------------------------------------------

    def _extended(self, candidate: _Candidate, *, has_products: bool = False) -> _Candidate | None:
        """Returns a candidate with the next kernel, sharing as many axes as possible."""
        at = candidate.start + len(candidate.members)
        if at >= len(self._steps) or len(candidate.members) >= _MOST_MEMBERS:
            return None
        nest = self._nest(at)
        if nest is None or not _is_joinable(nest):
            return None
        if _is_product(nest) and not has_products:
            return None
        if all(each.nest.mentioned.isdisjoint(nest.mentioned) for each in candidate.members):
            return None
        for depth in range(candidate.depth, 0, -1):
            members = self._cut(candidate, depth).members
            axes = _matched(nest, members, by_reads=has_products)
            if axes is None and has_products:
                axes = _matched(nest, members)
            if axes is None or (not has_products and not _is_along(nest, axes)):
                continue
            new = self._member(at, _names(axes))
            if has_products or not new.is_inner_sum:
                return _Candidate(candidate.start, (*members, new))
        return None

    # ----- blocks of contractions -----------------------------------------------------------

    def _blocks(self, start: int) -> RowGroup | None:
        """Returns the longest group that begins with a contraction and goes on with its results, a
        block of them at a time, so that no memory larger than a cache holds them.
        """
        nest = self._nest(start)
        if nest is None or not _is_joinable(nest) or not _is_product(nest):
            return None
        if self._most_saved(start) <= self._far:
            return None
        if not nest.cells:
            return None
        candidate: _Candidate | None = self._candidate(start, [_names(nest.cells)])
        best: RowGroup | None = None
        while candidate is not None:
            best = self._blocked(candidate) or best
            candidate = self._extended(candidate, has_products=True)
        return best

    def _most_saved(self, start: int) -> int:
        """Returns the most memory that a group from a position on can do without."""
        end = start + _MOST_MEMBERS
        return sum(
            self._nodes[node].nbytes
            for node, uses in self._uses.items()
            if start <= uses[0] and uses[-1] < end and node in self._scratch
        )

    def _blocked(self, candidate: _Candidate) -> RowGroup | None:
        """Returns the rows of a contraction that make a block; None if that does not pay."""
        members = candidate.members
        if len(members) < 2:
            return None
        batch = [at for at in range(candidate.depth) if _are_separate(members, at)]
        others = [at for at in range(candidate.depth) if at not in batch]
        if len(others) != 1:
            return None
        order = (*batch, *others)
        rows = [tuple([each.rows[at] for at in order]) for each in members]
        turned = self._candidate(candidate.start, rows)
        members = turned.members
        nbytes = self._needed_by_a_row(turned)
        size = self._block_size(members[0].axes[-1].extent, nbytes)
        if not _are_complete(members, size):
            return None
        own = self._own(turned, size, self._last // 4)
        saved = sum(self._nodes[node].nbytes for node in own)
        if saved <= max(self._far, _LEAST_GAIN * size * nbytes):
            return None
        if size < min(_LEAST_BLOCK, members[0].axes[-1].extent):
            return None
        return self._group(turned, RowFusion(members, size, contracted=own))

    def _block_size(self, extent: int, nbytes: int) -> int:
        """Returns how many rows fit into a cache with what the nests need of each; the second cache
        if that is enough of them, otherwise the last one.
        """
        size = _largest_divisor(extent, self._far // 2 // nbytes)
        if size >= _LEAST_BLOCK:
            return size
        most = min(self._last // 4 // nbytes, 2 * _LEAST_BLOCK)
        return max(size, _largest_divisor(extent, most))

    def _needed_by_a_row(self, candidate: _Candidate) -> int:
        """Returns the bytes of a row, where nodes that are in the same place count once."""
        members, own = candidate.members, self._own(candidate, 1, self._last)
        places = reuse_buffers([member.nest for member in members], own, self._nodes)
        row: dict[TensorNode, int] = {}
        for member in members:
            extents = {axis.var: axis.extent for axis in member.axes}
            for accessed, used in member.nest.reached:
                if member.vars[-1] in used:
                    rows = prod(extents[var] for var in extents if var in used)
                    node = places.get(accessed, accessed)
                    row[node] = max(row.get(node, 0), self._nodes[node].nbytes // rows)
        return max(sum(row.values()), 1)

    # ----- choosing -------------------------------------------------------------------------

    def _chosen(self, candidate: _Candidate) -> RowGroup | None:
        """Returns the rows that run at a time; None if one row is too much for the cache."""
        deepest = candidate.depth
        for depth in range(1, deepest + 1):
            cut = self._cut(candidate, depth)
            members = cut.members
            nbytes = self._touched(members)
            most = self._near // 2 if depth < deepest else max(self._near, self._far) // 2
            if nbytes > most:
                continue
            axes = members[0].axes
            size = _largest_divisor(axes[-1].extent, self._near // 4 // max(nbytes, 1))
            counts = [axis.extent for axis in axes]
            counts[-1] //= size
            sums = [member for member in members if member.is_sum]
            cells = [prod(axis.extent for axis in member.nest.cells) for member in sums]
            if any(count * 8 > self._near // 2 for count in cells):
                return None
            groups = _largest_divisor(counts[0], _MOST_GROUPS) if sums else 1
            own = self._own(cut, size, _LARGEST_ROW)
            streamed = self._streamed(cut)
            plan = RowFusion(members, size, groups, contracted=own, streamed=streamed)
            return self._group(cut, plan)
        return None

    def _touched(self, members: Sequence[RowFusionMember]) -> int:
        """Returns the bytes of which a row depends on the shared axes."""
        total: dict[TensorNode, int] = {}
        for member in members:
            extents = {axis.var: axis.extent for axis in member.axes}
            for node, used in member.nest.reached:
                rows = prod(extents[var] for var in extents if var in used)
                total[node] = max(total.get(node, 0), self._nodes[node].nbytes // rows)
        return sum(total.values())

    def _own(self, candidate: _Candidate, size: int, most: int) -> tuple[TensorNode, ...]:
        """Returns the nodes that no other kernel mentions, with so many bytes a row at most."""
        members = candidate.members
        end = candidate.start + len(members)
        rows = prod(axis.extent for axis in members[0].axes) // size
        return tuple(
            node
            for node in nodes_written_by_rows(members)
            if node in self._scratch
            and not self._nodes[node].padding
            and self._nodes[node].nbytes <= most * rows
            and all(candidate.start <= at < end for at in self._uses[node])
        )

    def _streamed(self, candidate: _Candidate) -> tuple[TensorNode, ...]:
        """Returns the nodes that are too large for any cache and not read by a later kernel."""
        end = candidate.start + len(candidate.members)
        return tuple(
            node
            for node in nodes_written_by_rows(candidate.members)
            if node not in self._scratch
            and 2 * self._nodes[node].nbytes >= self._last
            and all(at < end for at in self._uses[node])
        )

    def _is_worth_while(self, group: RowGroup) -> bool:
        """True if kernels one by one would find their nodes in no near cache any more."""
        if len(group.kernels) < 2:
            return bool(group.fusion.streamed)
        touched = {node for member in group.fusion.members for node in member.nest.mentioned}
        return sum(self._nodes[node].nbytes for node in touched) > self._far


def _names(axes: Sequence[LoopAxis]) -> tuple[str, ...]:
    return tuple([axis.name for axis in axes])


def _are_complete(members: Sequence[RowFusionMember], size: int) -> bool:
    """True if sums over rows are complete where the loop over blocks of them is: then they are for
    one thread, so the loops around it are to be enough for several.
    """
    sums = [member for member in members if member.is_sum]
    if any(
        [axis.is_reduced for axis in each.axes].index(True) < len(each.axes) - 1 for each in sums
    ):
        return False
    batch = prod(axis.extent for axis in members[0].axes[:-1])
    return not sums or size == members[0].axes[-1].extent or batch >= _LEAST_BATCH


def _is_joinable(nest: KernelNest) -> bool:
    is_plain = all(
        axis.start == 0 and axis.extent > 0 and not axis.is_shifting for axis in nest.axes
    )
    return bool(nest.axes) and is_plain


def _is_along(nest: KernelNest, rows: Sequence[LoopAxis]) -> bool:
    """True if what a row needs lies together: its axes are inside of those of the rows."""
    outer = {axis.var for axis in rows}
    inner = {axis.var for axis in nest.axes} - outer
    for access in nest.accesses:
        used = [set(variables(index)) for index in access.indices or ()]
        first = next((at for at, each in enumerate(used) if each & inner), len(used))
        if any(each & outer for each in used[first:]):
            return False
    return True


def _largest_divisor(number: int, most: int) -> int:
    """Returns the largest number up to a limit that divides another one."""
    return max(
        (size for size in range(1, min(number, max(most, 1)) + 1) if number % size == 0), default=1
    )


def _is_product(nest: KernelNest) -> bool:
    """True if every factor of the reduced term is used again and again: such a nest needs blocks of
    registers and of caches that are its own.
    """
    if nest.reduction is None:
        return False
    cells = {axis.var for axis in nest.cells if axis.extent > 1}
    return all(cells - each for each in nest.factor_variables)


def _are_separate(members: Sequence[RowFusionMember], at: int) -> bool:
    """True if every factor of every contraction is another one along a shared axis."""
    return all(
        member.axes[at].var in each
        for member in members
        if _is_product(member.nest)
        for each in member.nest.factor_variables
    )


# ----- matching -----------------------------------------------------------------------------------


def _matched(
    nest: KernelNest, members: Sequence[RowFusionMember], *, by_reads: bool = False
) -> tuple[LoopAxis, ...] | None:
    """Returns the axes of a nest that are the rows of others; None if it must wait for them.

    Args:
        nest: The nest.
        members: The others.
        by_reads: True if rows of what nests only read are the same rows, too.
    """
    homes = row_positions(members)
    if homes is None:
        return None
    sums = [member for member in members if member.is_sum]
    finished = {node for member in sums for node in member.written}
    needed = {node for member in sums for node in member.mentioned_last}
    new = RowFusionMember(nest, ())
    if not finished.isdisjoint(nest.mentioned) or not needed.isdisjoint(new.written):
        return None
    axes = _aligned(nest, members, {**(_read_homes(members) if by_reads else {}), **homes})
    if axes is None:
        return None
    new = RowFusionMember(nest, tuple(axis.name for axis in axes))
    if new.is_sum:
        mentioned_before = {node for member in members for node in member.nest.mentioned}
        is_last = homes.keys().isdisjoint(new.mentioned_last)
        return axes if is_last and mentioned_before.isdisjoint(new.written) else None
    homes = row_positions((*members, new))
    if homes is None:
        return None
    is_private = all(_stays_in_rows(member, homes) for member in (*members, new))
    return axes if is_private else None


def _read_homes(members: Sequence[RowFusionMember]) -> dict[TensorNode, tuple[int, ...]]:
    """Returns where the rows are in the nodes of which every nest reads its own row."""
    found: dict[TensorNode, tuple[int, ...] | None] = {}
    for member in members:
        for node, dims in member.places:
            if found.setdefault(node, dims) != dims:
                found[node] = None
    return {node: dims for node, dims in found.items() if dims is not None}


def _aligned(
    nest: KernelNest,
    members: Sequence[RowFusionMember],
    homes: Mapping[TensorNode, tuple[int, ...]],
) -> tuple[LoopAxis, ...] | None:
    """Returns the axes that run along the rows, found through nodes that are shared."""
    by_var = {axis.var: axis for axis in nest.axes}
    rows = members[0].axes
    chosen: list[LoopAxis | None] = [None] * len(rows)
    for access in nest.accesses:
        for at, place in enumerate(homes.get(access.node, ())):
            match (access.indices or ())[place : place + 1]:
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
        if [axis.extent for axis in axes] == [row.extent for row in rows]:
            return axes if len(set(axes)) == len(axes) else None
    return None


def _stays_in_rows(member: RowFusionMember, homes: Mapping[TensorNode, tuple[int, ...]]) -> bool:
    """True if a nest touches only cells of its own row, of all nodes that are written by rows."""
    if not member.nest.gathered.isdisjoint(homes):
        return False
    return all(homes.get(node, places) == places for node, places in member.places)
