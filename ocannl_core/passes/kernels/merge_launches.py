"""Horizontal fusion for thread blocks: independent kernels become one launch.

    launch 1: w -= dw                    launch 1: blocks 0..3  x = x @ a
    launch 2: x = x @ a          -->               blocks 4..6  w -= dw
    launch 3: v -= dv                              blocks 7..9  v -= dv

A launch costs microseconds, and a small kernel leaves most of a device idle. The statements of a
launch run on blocks of their own, side by side, so that none waits for another one; a kernel moves
over others that neither write what it accesses nor access what it writes. Every statement stays the
same, and so do all bits.

Kernels are merged if each leaves processors idle, or if they need little of the shared memory,
which the blocks of a launch all get; and if the threads of blocks meet at barriers in equal
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap, IdentityNumbers
from ocannl_core.ir.kernels.nodes import (
    KeptApart,
    Kernel,
    LaunchPart,
    NodeInfos,
    Plan,
    RepeatedSteps,
    Separation,
    Step,
    joint_title,
    kernel_of,
    nodes_written,
)
from ocannl_core.ir.kernels.regions import Regions, accessed_regions, are_disjoint
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import most_iterations
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import ThreadBlocks
from ocannl_core.schedule import machine_model as machine


def merge_launches(plan: Plan, blocks: ThreadBlocks) -> Plan:
    """Merge independent kernels of a plan, and of each iteration of repeated steps."""
    return replace(plan, steps=_merged(plan.steps, plan.nodes, blocks, _Originals()))


def _merged(
    steps: Sequence[Step], nodes: NodeInfos, blocks: ThreadBlocks, originals: _Originals
) -> tuple[Step, ...]:
    merger = _Merger(blocks, nodes, originals)
    for step in steps:
        match step:
            case RepeatedSteps(steps=inside):
                merger.close(replace(step, steps=_merged(inside, nodes, blocks, originals)))
            case Kernel():
                launch = _launch(step, nodes)
                if isinstance(launch, Separation):
                    merger.close(step, launch)
                else:
                    merger.add(launch)
            case _:
                merger.close(step)
    merger.flush()
    return tuple(merger.steps)


@dataclass(frozen=True, slots=True)
class _Launch:
    """Kernels that run at the same time."""

    kernels: tuple[Kernel, ...]
    accessed: frozenset[TensorNode]
    written: frozenset[TensorNode]
    grid: int
    largest: int
    """The number of thread blocks of the largest of them."""
    threads: int
    meeting: int
    """The threads of a block that meet at barriers; 0 if none do."""
    shared_bytes: int
    nbytes: int
    apart: tuple[KeptApart, ...] = ()

    @property
    def title(self) -> str:
        return joint_title(each.title for each in self.kernels)

    def shared_nodes(self, other: _Launch) -> frozenset[TensorNode]:
        """Return the nodes that one writes and the other one accesses."""
        return (self.written & other.accessed) | (other.written & self.accessed)

    def joined(self, other: _Launch) -> _Launch:
        """Return the launch of all kernels of both."""
        return _Launch(
            (*self.kernels, *other.kernels),
            self.accessed | other.accessed,
            self.written | other.written,
            self.grid + other.grid,
            max(self.largest, other.largest),
            max(self.threads, other.threads),
            max(self.meeting, other.meeting),
            self.shared_bytes + other.shared_bytes,
            self.nbytes + other.nbytes,
            (*self.apart, *other.apart),
        )

    def separation(self, other: _Launch, blocks: ThreadBlocks) -> Separation | None:
        """Return the reason why one launch of both is slower than two; None if it is not."""
        joint = self.joined(other)
        if (
            len(joint.kernels) > machine.MAX_LAUNCH_KERNELS
            or len(joint.accessed) > machine.MAX_LAUNCH_ARGUMENTS
        ):
            return Separation.SIZE
        if {self.meeting, other.meeting} - {0, joint.threads}:
            return Separation.BARRIERS  # some threads of a block would miss a barrier
        if joint.meeting and not blocks.has_conditional_barriers:
            return Separation.CONDITIONAL_BARRIERS
        # shared memory limits the blocks that run at the same time
        is_idle = machine.MERGED_BLOCKS * joint.shared_bytes <= blocks.local_bytes
        if is_idle and joint.threads <= 2 * min(self.threads, other.threads):
            return None
        is_small = joint.largest <= blocks.processors
        is_small = is_small and 2 * joint.shared_bytes <= blocks.local_bytes
        return None if is_small else Separation.COST

    def step(self, originals: _Originals) -> Kernel:
        if len(self.kernels) == 1:
            return originals.kept(self.kernels[0], self.apart)
        body = ir.Block(tuple(stmt for each in self.kernels for stmt in each.body.stmts))
        joint = replace(
            kernel_of(body, self.title),
            parts=tuple(map(_part, self.kernels)),
            apart=self.apart,
            products=tuple(product for each in self.kernels for product in each.products),
        )
        return originals.referring(joint, self.kernels)


def _part(kernel: Kernel) -> LaunchPart:
    blocks = sum(most_iterations(stmt, ir.AxisKind.GRID) for stmt in kernel.body.stmts)
    threads = max(1, most_iterations(kernel.body, ir.AxisKind.BLOCK))
    return LaunchPart(kernel.title, blocks, threads, kernel.schedule)


class _Originals:
    """The launches of a plan, of which later ones may be copies."""

    def __init__(self) -> None:
        self._numbers: IdentityNumbers[Kernel] = IdentityNumbers()
        self._first: dict[object, Kernel] = {}
        self._kept: IdentityMap[Kernel, Kernel] = IdentityMap()

    def kept(self, kernel: Kernel, apart: tuple[KeptApart, ...]) -> Kernel:
        """Return a kernel that has a launch of its own with the reasons; copies refer to it."""
        like = kernel.like
        if like is not None:
            like = self._kept.find(like) or like
        elif not apart:
            return kernel
        found = replace(kernel, apart=apart, like=like)
        if kernel.like is None:
            self._kept[kernel] = found
        return found

    def referring(self, joint: Kernel, kernels: Sequence[Kernel]) -> Kernel:
        """Return a launch; it refers to an earlier one of equal kernels and arguments."""
        numbers, _ = self._numbers.number([each.like or each for each in kernels])
        passed = tuple(
            tuple(map(joint.arguments.index, each.arguments))
            + tuple(map(joint.indices.index, each.indices))
            for each in kernels
        )
        first = self._first.setdefault((tuple(numbers), passed), joint)
        return joint if first is joint else replace(joint, like=first)


def _launch(kernel: Kernel, nodes: NodeInfos) -> _Launch | Separation:
    """Return the launch of a kernel, or the reason why others neither join it nor move over it."""
    stmts = [stmt for stmt in kernel.body.stmts if not isinstance(stmt, ir.Remark)]
    kinds = ir.AxisKind.GRID, ir.AxisKind.BLOCK
    if not stmts or any(most_iterations(stmt, kind) < 1 for stmt in stmts for kind in kinds):
        return Separation.OPAQUE  # beside others, each thread of a block would run it
    parts = list(walk(kernel.body))
    if any(isinstance(each, ir.For) and each.kind is ir.AxisKind.TILE for each in parts):
        return Separation.TILES  # a number of registers for each tile
    if any(isinstance(each, ir.CheckPositions | ir.Verbatim) for each in parts):
        return Separation.OPAQUE  # nothing is written before the check, or accesses are unknown
    grid = sum(most_iterations(stmt, ir.AxisKind.GRID) for stmt in stmts)
    threads = max(1, most_iterations(kernel.body, ir.AxisKind.BLOCK))
    meets = any(isinstance(each, ir.Barrier | ir.SubgroupReduce) for each in parts)
    shared = [
        each.node
        for each in parts
        if isinstance(each, ir.Allocate) and each.scope is ir.Scope.GROUP
    ]
    return _Launch(
        (kernel,),
        frozenset(kernel.arguments),
        frozenset(nodes_written(kernel)),
        grid,
        grid,
        threads,
        threads if meets else 0,
        sum(prod(nodes[node].dims) * nodes[node].dtype.nbytes for node in shared),
        sum(nodes[node].nbytes for node in kernel.arguments),
    )


class _Merger:
    """The steps so far, and the launches since the last step that none moves over."""

    def __init__(self, blocks: ThreadBlocks, nodes: NodeInfos, originals: _Originals) -> None:
        self.steps: list[Step] = []
        self._blocks = blocks
        self._nodes = nodes
        self._originals = originals
        self._regions: IdentityMap[Kernel, Regions] = IdentityMap()
        self._pending: list[_Launch] = []
        self._closed: tuple[str, Separation] | None = None

    def _is_independent(self, first: _Launch, second: _Launch) -> bool:
        """Return True if neither accesses a cell that the other one writes."""
        shared = first.shared_nodes(second)
        return not shared or all(
            are_disjoint(a[node], b[node])
            for a in map(self._regions_of, first.kernels)
            for b in map(self._regions_of, second.kernels)
            for node in shared & a.keys() & b.keys()
        )

    def _regions_of(self, kernel: Kernel) -> Regions:
        found = self._regions.find(kernel)
        if found is None:
            found = self._regions[kernel] = accessed_regions(kernel.body, self._nodes)
        return found

    def add(self, launch: _Launch) -> None:
        """Add a launch, to an earlier one if it can."""
        pending = self._pending
        least = max(0, len(pending) - machine.MAX_LAUNCH_DISTANCE)
        last = next(
            (
                at
                for at in range(len(pending) - 1, least - 1, -1)
                if not self._is_independent(launch, pending[at])
            ),
            least - 1,
        )
        # the launch moves up, next to one behind all that it depends on
        is_small = launch.nbytes <= machine.MAX_MOVED_BYTES  # memory is in use for longer
        for at in range(last + 1, len(pending)):
            is_near = is_small or at == len(pending) - 1
            if is_near and pending[at].separation(launch, self._blocks) is None:
                pending[at] = pending[at].joined(launch)
                return
        # or an earlier one moves down, over all that do not depend on it
        for at in range(last, least - 1, -1):
            other = pending[at]
            is_near = at == len(pending) - 1 or other.nbytes <= machine.MAX_MOVED_BYTES
            is_movable = is_near and all(
                self._is_independent(other, each) for each in (*pending[at + 1 :], launch)
            )
            if is_movable and other.separation(launch, self._blocks) is None:
                del pending[at]
                pending.append(other.joined(launch))
                return
        pending.append(replace(launch, apart=tuple(self._reasons(launch))))

    def _reasons(self, launch: _Launch) -> Iterator[KeptApart]:
        """Yield the reason why a launch shares none with the one before, if there is one."""
        if not self._pending:
            if self._closed is not None:
                yield KeptApart(*self._closed)
            return
        before = self._pending[-1]
        if not self._is_independent(launch, before):
            shared = before.shared_nodes(launch)
            nodes = tuple(sorted(shared, key=lambda node: node.id))
            yield KeptApart(before.title, Separation.DEPENDENCE, nodes)
            return
        reason = before.separation(launch, self._blocks)
        assert reason is not None  # it would have joined that launch
        yield KeptApart(before.title, reason)

    def flush(self) -> None:
        """Turn the pending launches into steps."""
        self.steps += [launch.step(self._originals) for launch in self._pending]
        self._pending = []

    def close(self, step: Step, reason: Separation = Separation.OPAQUE) -> None:
        """Add a step that no launch moves over, for a reason."""
        last = self._pending[-1].title if self._pending else None
        self.flush()
        if isinstance(step, Kernel) and last is not None:
            step = self._originals.kept(step, (KeptApart(last, reason),))
        self.steps.append(step)
        self._closed = step.title, reason
