"""Apply a schedule to a nest: a pure function to a block that computes the same.

The transforms are folded over the nest (`nest_state`), and loops are emitted for the state that
they give (`emission`). Around the accumulators of a reduction run the outer loops, inside of them
the loops that its strategy emits, which the kind of its buffers decides.

    for each iteration of the loops outside:
        clear accumulators
        fill buffers, add up products        the strategy: `Accumulation` and its kinds
        combine partial results              chains of one thread, or those of several threads
        epilogue

Where threads of a block run along reduced axes, their partial results meet in shared memory, and a
tree of fixed order combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import assert_never

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, LoopVar, VarIndex
from ocannl_core.ir.kernels.nest import Nest, Reduction
from ocannl_core.ir.kernels.nest_accesses import loads_of_cells
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import Schedule, schedule_text
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.traverse import locals_of
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply import accumulators
from ocannl_core.schedule.apply.accumulators import Accumulators
from ocannl_core.schedule.apply.axis_tree import Region
from ocannl_core.schedule.apply.emission import Emission
from ocannl_core.schedule.apply.nest_state import BufferKind, NestState, apply_transforms
from ocannl_core.schedule.apply.operand_buffers import FilledBuffer, PackedBuffer, SharedBuffer
from ocannl_core.schedule.apply.packing import Body
from ocannl_core.schedule.apply.reduction_strategy import Accumulation
from ocannl_core.schedule.apply.squares import emit_square, is_whole_square
from ocannl_core.schedule.apply.vector_leaf import VectorLeaf


@dataclass(frozen=True, slots=True)
class ScheduledNest:
    """A nest after a schedule."""

    initial_stores: tuple[ir.Stmt, ...]
    """Stores of initial values, if stores to memory hold partial results."""
    packing: tuple[ir.Stmt, ...]
    """The loops that fill the buffers that are filled once."""
    loops: tuple[ir.Stmt, ...]
    """The other loops, after these."""
    nodes: Mapping[TensorNode, NodeInfo]
    shared: tuple[TensorNode, ...] = ()
    """The nodes that the threads of a block share."""

    @property
    def body(self) -> ir.Block:
        """All statements of the nest."""
        return ir.Block((*self.initial_stores, *self.packing, *self.loops))


def apply_schedule(nest: Nest, schedule: Schedule, nodes: NodeInfos | None = None) -> ScheduledNest:
    """Return a nest in the order and on the axes of a schedule.

    The results of a `Nest` are independent of each other, so every order of its axes is safe;
    sums and products of floats round differently when their terms are combined in another order.

    Args:
        nodes: Extents and formats, from which axes of packed operands that run along memory
            together, and the accesses of thread blocks that are vectors, are proven; None for
            neither.

    Raises:
        UsageError: for a schedule that does not fit the nest.
    """
    with _stating(schedule):
        emitter = _emitter(apply_transforms(nest, schedule), nodes)
        state, emission = emitter.state, emitter.emission
        if state.is_on_blocks:
            return ScheduledNest((), (), emission.on_device(emitter.thread), emission.nodes)
        every = state.tree.full_region
        packing, loops = emission.fill(None, every), emitter.thread(every)
        return ScheduledNest(state.initial_stores, packing, loops, emission.nodes)


def apply_in_block(
    nest: Nest, schedule: Schedule, nodes: NodeInfos, thread: LoopVar
) -> ScheduledNest:
    """Return the statements of one thread of a block, inside of a loop over threads that others
    share with it.

    Args:
        schedule: A schedule with one axis of a block, or none.
        thread: The number of the thread; where no axis is mapped to it, the first one runs.
    """
    with _stating(schedule):
        state = apply_transforms(nest, schedule, is_on_blocks=True)
        emitter = _emitter(state, nodes)
        numbers: dict[str, AxisIndex] = {name: VarIndex(thread) for name in state.block}
        stmts = emitter.thread(state.tree.full_region.at(numbers))
        if not state.block:
            stmts = guarded(ir.LoopBound(VarIndex(thread), 1), stmts)
        return ScheduledNest((), (), stmts, emitter.emission.nodes, tuple(emitter.emission.shared))


@contextmanager
def _stating(schedule: Schedule) -> Iterator[None]:
    """Name the schedule in errors."""
    try:
        yield
    except UsageError as error:
        text = schedule_text(schedule)
        where = error.where or (f"schedule {text!r}" if error.found else "")
        found = error.found or text
        raise UsageError(error.rule, found=found, where=where, fix=error.fix) from None


def _classes_of(kind: BufferKind) -> tuple[type[FilledBuffer], type[Accumulation]]:
    """Return the buffers of a kind, and the strategy of a reduction whose operands they hold; the
    modules of matrix units are imported for the first schedule with one.
    """
    match kind:
        case BufferKind.KERNEL:
            return PackedBuffer, Accumulation
        case BufferKind.GROUP:
            return SharedBuffer, Accumulation
        case BufferKind.TILES:
            from ocannl_core.schedule.apply.amx_tiles import AmxBuffer, TileProducts

            return AmxBuffer, TileProducts
        case BufferKind.STAGES:
            from ocannl_core.schedule.apply.software_pipelines import PipelineBuffer, StagedProducts

            return PipelineBuffer, StagedProducts
        case BufferKind.RING:
            from ocannl_core.schedule.apply.wgmma_pipeline import RingBuffer, RingProducts

            return RingBuffer, RingProducts
        case _:
            assert_never(kind)


def _emitter(state: NestState, nodes: NodeInfos | None) -> _NestEmitter:
    """Return the emitter of a state that meets the conditions of its strategy."""
    _, strategy = _classes_of(state.buffer_kind)
    for condition, holds in strategy.conditions(state):
        if not holds:
            raise UsageError(condition)
    return _NestEmitter(Emission(state, VectorLeaf.of(state, nodes), nodes))


class _NestEmitter:
    """The statements of one thread."""

    def __init__(self, emission: Emission) -> None:
        self.emission = emission
        self.state = state = emission.state
        self.nest = nest = state.nest
        operands = nest.reduction.factors if nest.reduction else loads_of_cells(nest)
        buffer, strategy = _classes_of(state.buffer_kind)
        self.buffers = {
            pack.operand: buffer(emission, pack, operands[pack.operand]) for pack in state.packs
        }
        self.strategy = strategy(emission, self.buffers)
        if nest.reduction is not None:
            emission.fill = self.strategy.fill

    @property
    def outer_cells(self) -> list[str]:
        """The axes of cells that grid and block determine."""
        return [axis.name for axis in self.nest.output_axes if axis.name in self.state.device_axes]

    def thread(self, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statements of a thread; all threads of a block come to their barriers."""
        reduction = self.nest.reduction
        if reduction is None:
            return self._cells(region)

        def reduced(inner: Region) -> tuple[ir.Stmt, ...]:
            return self._reduce(reduction, inner)

        return self.emission.loops(self.state.outside, region, reduced, fills=True)

    def _cells(self, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the stores of cells without a reduction, after copies of packed loads."""
        square, emission = self.state.square, self.emission
        names = self.state.serial

        def stores(inner: Region) -> tuple[ir.Stmt, ...]:
            copies = {each.operand: each.cell(inner) for each in self.buffers.values()}
            return accumulators.epilogue_stores(self.nest, inner, {}, copies)

        def rest(inner: Region) -> tuple[ir.Stmt, ...]:
            if is_whole_square(inner, square):
                return (ir.Block(emit_square(self.nest, inner, square, emission.nodes)),)
            return emission.loops(square, inner, stores)

        if square:
            return emission.loops(names[: -len(square)], region, rest)
        stmts = emission.loops_over_cells(names, region, stores)
        stmts = region.guarded(self.outer_cells, stmts)
        copies = [stmt for each in self.buffers.values() for stmt in each.fill(region)]
        return (*copies, ir.Barrier(), *stmts) if copies else stmts

    def _reduce(self, reduction: Reduction, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the reduction inside a region, from clearing accumulators to the epilogue."""
        state, registers = self.state, self._accumulators(reduction, region)
        sums = self.strategy.sums(registers, region)
        if not self.buffers:
            sums = region.guarded(self.outer_cells, sums)
        combined, value = registers.combine(), None
        if state.reduced_threads:
            from ocannl_core.schedule.apply.partial_results import PartialResults

            combined, value = PartialResults(self.emission, registers).combine()
        results = self._results(registers, region, value)
        if state.reduced_threads:  # the first of those that share a result
            results = guarded(ir.LoopBound(region.joint_number(state.reduced_threads), 1), results)
        stmts = (registers.declaration, *registers.clear(), *sums, *combined, *results)
        return stmts if state.is_on_blocks else (ir.Block(stmts),)

    def _accumulators(self, reduction: Reduction, region: Region) -> Accumulators:
        """Return the accumulators: on processors of every result in a region, and of every chain;
        on thread blocks of the cells of one thread.
        """
        state, region = self.state, self.strategy.whole(region)
        used = [local.id for store in self.nest.epilogue for local in locals_of(store)]
        local = ir.Local(max([*used, reduction.result.id], default=-1) + 1, reduction.dtype)
        if state.is_on_blocks:
            axes = tuple(name for name in state.cells if state.tree.max_extent(name) > 1)
        else:
            own = {name for name in state.inside if state.kinds[name].splits_sums}
            axes = tuple(name for name in state.inside if name in own or name in state.cells)

        def loops(
            names: Sequence[str], region: Region, body: Body, *, unrolls: bool = True
        ) -> tuple[ir.Stmt, ...]:
            return self.emission.loops(names, region, body, guards=False, unrolls=unrolls)

        is_fused = state.is_fused or state.tile is not None
        registers = Accumulators(None, local, state, axes, region, loops, is_fused)
        if state.is_on_blocks and not axes:
            return registers
        node = self.emission.new_array("sums", registers.dtype, registers.dims)
        return replace(registers, node=node)

    def _results(
        self, registers: Accumulators, region: Region, value: Callable[[Region], ir.Expr] | None
    ) -> tuple[ir.Stmt, ...]:
        """Return the epilogue of a register tile.

        An epilogue of a processor that needs many registers runs as a loop, on a copy of the
        accumulators: unrolled for all of them, it would spill them while they accumulate. So does a
        long one, for the compiler's sake.
        """
        state, emission, cells = self.state, self.emission, self.state.cells

        def store(inner: Region) -> tuple[ir.Stmt, ...]:
            return registers.store_results(inner, value)

        is_direct = state.is_on_blocks or (
            not self.strategy.outlines_epilogue
            and not accumulators.has_expensive_epilogue(self.nest)
            and not accumulators.has_long_epilogue(self.nest, state.tree, state.kinds)
        )
        lanes = state.of_kind(ir.AxisKind.VECTOR)
        if is_direct or any(map(state.tree.is_reduced, lanes)):
            stmts = emission.loops_over_cells(cells, region, store)
            return region.guarded(self.outer_cells, stmts)
        node = emission.new_array("results", registers.dtype, registers.dims)
        copy = replace(registers, node=node)
        return (
            ir.Allocate(node, ir.Scope.KERNEL),
            *emission.loops(
                cells, registers.region, lambda inner: copy.copy_from(registers, inner)
            ),
            *emission.loops(cells, region, copy.store_results, unrolls=False),
        )
