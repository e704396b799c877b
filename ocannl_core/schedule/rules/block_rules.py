"""Rules that choose schedules for the thread blocks of a device.

Six rules, from the strides and extents of a nest and the numbers of `ThreadBlocks`:

- cells without a reduction, some of whose loads are contiguous along another axis than the stores:
  a tile of these loads is transposed in shared memory;
- other cells without a reduction: neighboring threads store neighboring cells, in vectors where
  memory is aligned;
- a product that matrix instructions compute: tensor cores (`tensor_core_schedules`), or
  WGMMA, by a setting (`wgmma_schedules`);
- a product in which each factor lacks an axis of cells of the other: tiles of rows and columns,
  whose operands all threads of a block copy to shared memory, and of which each thread computes a
  register tile;
- a reduction that is contiguous along a reduced axis: threads along that axis, and a tree of their
  partial results;
- other reductions: threads along the cells, and along a reduced axis where there are few cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div, power_above, power_below
from ocannl_core.ir.indexing import IndexVar, VarIndex, variables
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, iterations
from ocannl_core.ir.kernels.nest_accesses import find_vectors, loads_of_cells, strides
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import COMMON_UNITS, Obstacle, ProductUnit
from ocannl_core.ir.kernels.transforms import (
    AccumulateAt,
    Pack,
    Schedule,
    SetKind,
    Shuffle,
    Splits,
    Transform,
    outer_of,
    set_kinds,
)
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Load, Store
from ocannl_core.ir.loops.traverse import Node, walk
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.schedule.machine_model import (
    MIN_COARSE_CELLS,
    MIN_THREAD_TERMS,
    MIN_TREE_TERMS,
    THREAD_CELLS,
    THREAD_ROWS,
    THREAD_VECTORS,
    TRANSPOSED_SIDE,
)
from ocannl_core.schedule.rules.block_tiles import find_block_schedule, fused
from ocannl_core.schedule.rules.decision import ScheduleDecision, UnitRule, choose_unit
from ocannl_core.schedule.rules.tensor_core_schedules import (
    candidate_tiles,
    find_tensor_core_schedule,
    schedule_tensor_core_tile,
)
from ocannl_core.schedule.rules.wgmma_schedules import find_wgmma_schedule


@dataclass(frozen=True, slots=True)
class BlockParameters:
    """The decisions of the rules that a search may make instead; 0 where a rule decides."""

    side: int = 0
    """The rows and columns of the register tile of a thread."""
    depth: int = 0
    """The terms of a product that are in shared memory at a time."""
    sharing: int = 0
    """The threads that share a result, where there are no tiles."""


CHOSEN_BY_RULE = BlockParameters()


def block_schedules(nest: Nest, nodes: NodeInfos, target: Target) -> Iterator[Schedule]:
    """Yield schedules of a nest for a search, each once, the rules' choice first."""
    found: set[Schedule | None] = {None}
    sides = (THREAD_ROWS, THREAD_ROWS // 2, THREAD_ROWS // 4)
    tiles = (BlockParameters(side, depth) for depth in (16, 8, 32) for side in sides)
    blocks = target.thread_blocks
    most = 1 if blocks is None else blocks.threads
    shared = (BlockParameters(sharing=1 << n) for n in range(most.bit_length()))
    for parameters in (CHOSEN_BY_RULE, *tiles, *shared):
        schedule = block_schedule(nest, nodes, target, parameters)
        if schedule is not None and schedule not in found:
            found.add(schedule)
            yield schedule
    if blocks is not None and nest.reduction is not None:
        for tile in candidate_tiles(nest, nest.reduction, nodes, target):
            schedule = schedule_tensor_core_tile(nest, tile)
            if schedule not in found:
                found.add(schedule)
                yield schedule


def block_schedule(
    nest: Nest, nodes: NodeInfos, target: Target, parameters: BlockParameters = CHOSEN_BY_RULE
) -> Schedule | None:
    """Return the schedule of a nest for a device with thread blocks; None for plain loops."""
    return decide_on_blocks(nest, nodes, target, parameters).schedule


def decide_on_blocks(
    nest: Nest, nodes: NodeInfos, target: Target, parameters: BlockParameters = CHOSEN_BY_RULE
) -> ScheduleDecision:
    """Return the decision on a nest for a device with thread blocks.

    It is plain loops for a nest whose axes the device cannot share: one without axes or iterations,
    or one that adds to windows of its results.
    """
    blocks = target.thread_blocks
    assert blocks is not None
    if not nest.axes or any(axis.extent < 1 or axis.is_shifting for axis in nest.axes):
        is_shifting = any(axis.is_shifting for axis in nest.axes)
        obstacle = Obstacle.SHIFTING if is_shifting else Obstacle.AXES
        return ScheduleDecision(None, tuple((unit, obstacle) for unit in COMMON_UNITS))
    if nest.reduction is None:
        return ScheduleDecision(_schedule_cells(nest, nodes, blocks))
    in_tiles = partial(find_block_schedule, side=parameters.side, depth=parameters.depth)
    tiles: tuple[tuple[ProductUnit, UnitRule], ...] = (
        (ProductUnit.REGISTER_TILES, in_tiles),
        (ProductUnit.SCALAR, partial(_schedule_reduction, parameters=parameters)),
    )
    if parameters == CHOSEN_BY_RULE:
        return choose_unit((*_MATRIX_UNITS, *tiles), nest, nodes, target)
    return choose_unit(tiles[1:] if parameters.sharing else tiles, nest, nodes, target)


_MATRIX_UNITS: tuple[tuple[ProductUnit, UnitRule], ...] = (
    (ProductUnit.ASYNCHRONOUS_PRODUCTS, find_wgmma_schedule),
    (ProductUnit.MATRIX_INSTRUCTIONS, find_tensor_core_schedule),
)


def _schedule_cells(nest: Nest, nodes: NodeInfos, blocks: ThreadBlocks) -> Schedule:
    order = _coalesced_order(nest.axes, _accesses(nest.epilogue), nodes)
    distribution = _CyclicDistribution(blocks.threads)
    fast = order[0]
    cells = iterations(nest.axes)
    if blocks.subgroup > 1 and cells >= TRANSPOSED_SIDE**2 * blocks.processors:
        transposition = _find_transposition(nest, nodes, blocks)
        if transposition is not None:
            return transposition
    is_large = cells >= MIN_COARSE_CELLS
    lanes = vector_lanes(nest, fast, nodes, blocks)
    if lanes > 1 and cells >= lanes * blocks.subgroup * blocks.processors:
        is_coarse = is_large and fast.extent >= THREAD_VECTORS * lanes * blocks.threads
        distribution.distribute_vectors(fast, lanes, THREAD_VECTORS if is_coarse else 1)
        order = order[1:]
    elif is_large and fast.bound is None and fast.extent >= THREAD_CELLS * blocks.threads:
        distribution.distribute_coarsely(fast, THREAD_CELLS)
        order = order[1:]
    for axis in order:
        distribution.distribute(axis)
    return distribution.schedule()


def _find_transposition(nest: Nest, nodes: NodeInfos, blocks: ThreadBlocks) -> Schedule | None:
    """Return the schedule of cells of which a block computes a square, after transposing the square
    of the loads that are contiguous along another axis than the stores; None if there are none.
    """
    axes: dict[IndexVar, LoopAxis] = {axis.var: axis for axis in nest.axes}
    stored = [strides(nest.axes, (store,), nodes) for store in nest.epilogue]
    along = [axis for axis in nest.axes if all(steps[axis.name] == 1 for steps in stored)]
    room = blocks.local_bytes // (8 * TRANSPOSED_SIDE * (TRANSPOSED_SIDE + 1))
    if not along or not _fills_tile(along[0]) or blocks.threads < TRANSPOSED_SIDE or room == 0:
        return None
    written = {store.node for store in nest.epilogue}
    found: dict[str, list[int]] = {}
    for position, load in enumerate(loads_of_cells(nest)):
        used = [axes.get(i.var) if isinstance(i, VarIndex) else None for i in load.indices]
        if None in used or len(set(used)) < len(used) or load.node in written:
            continue  # a copy of the tile would leave the array, or be older than its cells
        dims = nodes[load.node].buffer_dims
        ends = [axis.start + axis.extent for axis in used if axis is not None]
        if any(end > extent for end, extent in zip(ends, dims, strict=True)):
            continue  # a copy of the tile would not be behind the condition that the load is behind
        steps = strides(nest.axes, (load,), nodes)
        if steps[along[0].name] <= 1:
            continue
        for axis in used:
            if axis is not None and steps[axis.name] == 1 and _fills_tile(axis):
                found.setdefault(axis.name, []).append(position)
    if not found:
        return None
    i, positions = max(found.items(), key=lambda item: len(item[1]))
    j = along[0].name
    outer = (axis.name for axis in nest.axes if axis.name not in (i, j))
    splits = Splits()
    tiles, row = splits.cut(i, TRANSPOSED_SIDE)
    own, rows = splits.cut(row, blocks.threads // TRANSPOSED_SIDE)
    others, column = splits.cut(j, TRANSPOSED_SIDE)
    return (
        *splits,
        SetKind(AxisKind.GRID, (*outer, tiles, others)),
        SetKind(AxisKind.BLOCK, (rows, column)),
        SetKind(AxisKind.UNROLLED, (own,)),
        *(Pack(position, None, (row, column)) for position in positions[:room]),
    )


def _fills_tile(axis: LoopAxis) -> bool:
    return axis.bound is None and axis.start == 0 and 2 * axis.extent >= TRANSPOSED_SIDE


class _CyclicDistribution:
    """The cyclic distribution of axes of cells among the threads of a block, then the grid."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.splits = Splits()
        self.grid: list[str] = []
        self.block: list[str] = []
        self.unrolled: list[str] = []
        self.vector = ""

    def distribute(self, axis: LoopAxis, *, is_rounded: bool = False) -> None:
        """Distribute an axis: the threads that are left take as many iterations as there are; axes
        distributed first are neighbors.

        Args:
            is_rounded: True for a power of two, some threads of which may have no iteration.
        """
        name = axis.name
        count = min(power_above(axis.extent) if is_rounded else axis.extent, self.threads)
        if count <= 1:
            self.grid.insert(0, name)
            return
        if axis.extent != count:
            blocks, name = self.splits.cut(name, count)
            self.grid.insert(0, blocks)
        self.block.insert(0, name)
        self.threads //= count

    def distribute_coarsely(self, axis: LoopAxis, cells: int) -> None:
        """Distribute an axis so that each thread has several iterations, a block's width apart."""
        blocks, own, inner = self.splits.cut(axis.name, cells * self.threads, self.threads)
        self.grid.insert(0, blocks)
        self.unrolled.append(own)
        self.block.insert(0, inner)
        self.threads = 1

    def distribute_vectors(self, axis: LoopAxis, lanes: int, count: int) -> None:
        """Distribute an axis in vectors: neighboring threads have neighboring ones, and each
        thread so many, a block's width apart.
        """
        name = axis.name
        threads = min(ceil_div(axis.extent, lanes), self.threads)
        if axis.extent > count * threads * lanes:
            blocks, name = self.splits.cut(name, count * threads * lanes)
            self.grid.insert(0, blocks)
        if count > 1:
            own, name = self.splits.cut(name, threads * lanes)
            self.unrolled.append(own)
        vectors, self.vector = self.splits.cut(name, lanes)
        self.block.insert(0, vectors)
        self.threads //= threads

    def schedule(self, *more: Transform) -> Schedule:
        """Return the schedule, followed by other transforms."""
        mapped: list[Transform] = []
        if self.grid:
            mapped.append(SetKind(AxisKind.GRID, tuple(self.grid)))
        mapped.append(SetKind(AxisKind.BLOCK, tuple(self.block)))
        unrolled = set_kinds(AxisKind.UNROLLED, self.unrolled)
        vectors = set_kinds(AxisKind.VECTOR, filter(None, (self.vector,)))
        return (*self.splits, *mapped, *unrolled, *vectors, *more)


def _accesses(roots: Iterable[Node]) -> list[Load | Store]:
    return [each for root in roots for each in walk(root) if isinstance(each, Load | Store)]


def _largest(accesses: list[Load | Store], nest: Nest) -> list[Load | Store]:
    """Return the accesses that reach the most cells, for which the order matters."""

    def reached(access: Load | Store) -> int:
        used = {var for index in access.indices for var in variables(index)}
        return iterations(axis for axis in nest.axes if axis.var in used)

    cells = [reached(each) for each in accesses]
    return [each for each, count in zip(accesses, cells, strict=True) if count == max(cells)]


def _coalesced_order(
    axes: Iterable[LoopAxis], accesses: list[Load | Store], nodes: NodeInfos
) -> list[LoopAxis]:
    """Return axes in the order in which threads take them: first that along which most accesses are
    contiguous, stores above all; then small strides.
    """
    known = list(axes)
    steps = [(strides(known, (each,), nodes), isinstance(each, Store)) for each in accesses]

    def rank(axis: LoopAxis) -> tuple[bool, int, int, int]:
        stored = [step[axis.name] for step, is_store in steps if is_store]
        contiguous = sum(
            (2 if is_store else 1) * (step[axis.name] == 1) for step, is_store in steps
        )
        strided = sum(step[axis.name] > 1 for step, _ in steps)
        return axis.extent == 1, -contiguous, strided, max(stored, default=0)

    positions = {axis.name: at for at, axis in enumerate(known)}
    return sorted(known, key=lambda axis: (rank(axis), -positions[axis.name]))


def _schedule_reduction(
    nest: Nest, nodes: NodeInfos, target: Target, parameters: BlockParameters
) -> Schedule:
    reduction, blocks = nest.required_reduction, target.thread_blocks
    assert blocks is not None
    accesses = _largest(_accesses((reduction.term,)), nest)
    reduced = _coalesced_order(nest.reduced, accesses, nodes)
    cells = _coalesced_order(nest.output_axes, [*accesses, *_accesses(nest.epilogue)], nodes)
    terms = iterations(reduced)
    distribution = _CyclicDistribution(blocks.threads)
    # the threads that share a result read neighboring cells
    is_across = any(
        step[axis.name] == 1
        for axis in reduced[:1]
        for step in (strides(nest.axes, (each,), nodes) for each in accesses)
    )
    shared = 1
    if terms >= MIN_TREE_TERMS and not nest.rounds_often:
        most = power_below(min(blocks.threads, terms // MIN_THREAD_TERMS))
        # along the cells, as many as those leave idle
        count = iterations(cells)
        if count == 1 and 2 * most == blocks.threads:
            most = blocks.threads  # as many as other kernels, to share a launch with these
        width = max(
            min(blocks.subgroup, power_above(count)),
            power_below(min(blocks.threads, count // blocks.processors)),
        )
        idle = most if is_across else max(1, blocks.threads // width)
        shared = min(most, parameters.sharing or idle)
    lanes = vector_lanes(nest, reduced[0], nodes, blocks) if is_across else 1
    leaves = _distribute_reduced(distribution, reduced, shared, lanes)
    for axis in cells:
        # blocks of equal sizes can share a launch
        distribution.distribute(axis, is_rounded=shared > 1)
    block = distribution.block
    distribution.block = [*block, *leaves] if is_across else [*leaves, *block]
    over = _first_reduced_leaf(nest, distribution)
    exchanges = _shuffles(distribution.block if is_across else (), leaves, shared, blocks)
    sums = [AccumulateAt(over, fused(nest, target))] if over else []
    return distribution.schedule(*exchanges, *sums)


def _shuffles(
    block: Sequence[str], leaves: Sequence[str], shared: int, blocks: ThreadBlocks
) -> list[Transform]:
    """Return the exchange of results between threads that share them, if they are neighbors."""
    if not blocks.has_shuffles or not leaves or list(block[-len(leaves) :]) != list(leaves):
        return []
    lanes = min(power_below(shared), blocks.subgroup)
    return [Shuffle(lanes)] if lanes > 1 else []


def _distribute_reduced(
    distribution: _CyclicDistribution, axes: list[LoopAxis], count: int, lanes: int
) -> list[str]:
    """Distribute reduced axes, innermost first, among so many threads of a block, and return the
    leaves that these run along.

    Args:
        lanes: The neighboring terms of the first axis that a thread may load at once.
    """
    leaves: list[str] = []
    for axis in axes:
        threads = min(power_above(axis.extent), count)
        if threads <= 1:
            continue
        if axis is axes[0] and lanes > 1 and axis.extent >= lanes * threads:
            _, inside = distribution.splits.cut(axis.name, lanes * threads)
            leaf, distribution.vector = distribution.splits.cut(inside, lanes)
        else:
            sizes = () if axis.extent == threads else (threads,)
            *_, leaf = distribution.splits.cut(axis.name, *sizes)
        leaves.insert(0, leaf)
        count //= threads
        distribution.threads //= threads
    return leaves


def _first_reduced_leaf(nest: Nest, distribution: _CyclicDistribution) -> str:
    """Return the outermost serial loop over terms; the first reduced axis if threads run all."""
    split = {each.axis for each in distribution.splits}
    leaves = [outer_of(axis.name) if axis.name in split else axis.name for axis in nest.reduced]
    serial = [name for name in leaves if name not in distribution.block]
    return next(iter([*serial, *leaves]), "")


def row_schedule(nest: Nest, nodes: NodeInfos, threads: int, blocks: ThreadBlocks) -> Schedule:
    """Return the schedule of a nest inside of a row that some threads run together.

    Every thread has equally many iterations of one axis, the one that is contiguous in memory; that
    of the cells where there are enough.
    """
    wide = [axis for axis in nest.axes if axis.extent > 1]
    cells = [axis for axis in wide if not axis.is_reduced]
    accesses = _accesses(nest.roots)
    order = _coalesced_order(cells or wide, accesses, nodes)
    if cells and len(cells) < len(wide) and order[0].extent < threads // 2:
        order = _coalesced_order(wide, accesses, nodes)
    terms = iterations(nest.reduced)
    keeps_order = nest.rounds_often or terms < MIN_TREE_TERMS
    if not order or (keeps_order and order[0].is_reduced):
        return ()  # one thread
    name = order[0].name
    lanes = vector_lanes(nest, order[0], nodes, blocks)
    splits = Splits()
    steps, thread, *vector = splits.cut(name, threads * lanes, *([lanes] if lanes > 1 else []))
    transforms: list[Transform] = [*splits, SetKind(AxisKind.BLOCK, (thread,))]
    transforms += set_kinds(AxisKind.VECTOR, vector)
    over = next((axis.name for axis in nest.reduced), "")
    if order[0].is_reduced:
        transforms += _shuffles((name,), (name,), threads, blocks)
    if over:
        transforms.append(AccumulateAt(steps if over == name else over))
    return tuple(transforms)


def vector_lanes(nest: Nest, axis: LoopAxis, nodes: NodeInfos, blocks: ThreadBlocks) -> int:
    """Return the number of iterations of an axis whose accesses are vectors; 1 if some are not.

    The widest numbers fill the vectors of the device, narrower ones a part of them.
    """
    if axis.bound is not None or axis.is_shifting or not blocks.vector_bytes:
        return 1
    sizes = [
        nodes[access.node].dtype.nbytes
        for access in nest.accesses
        if any(axis.var in variables(index) for index in access.indices or ())
    ]
    lanes = blocks.vector_bytes // max(sizes, default=blocks.vector_bytes)
    if lanes < 2 or axis.extent < lanes:
        return 1
    return lanes if find_vectors(nest, axis, lanes, nodes).is_complete else 1
