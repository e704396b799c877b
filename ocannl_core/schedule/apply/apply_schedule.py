"""Apply a schedule to a nest: a pure function to a block that computes the same.

The nest is not transformed step by step. The splits of each axis form a tree; its leaves, in the
order of the schedule, are the new loops. Loops are emitted from the outermost inwards, with the
number of iterations of each part known at every point: where a split has a remainder, the rest of
the nest is emitted a second time with the smaller number. So every loop has constant bounds and no
iteration is guarded.

    split j 4, for j in range(6)   -->   for j0 in range(1): for j1 in range(4): ... 4 * j0 + j1
                                         for j1 in range(2): ... 4 + j1

The accumulators of a reduction are an array of scope THREAD, with one axis for each loop inside
`accumulate over` that is not a serial reduced loop; code generation keeps it in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nest import KernelNest, Reduction, with_factors
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import (
    AccumulateAt,
    MapToBlock,
    MapToGrid,
    Pack,
    Pair,
    Parallelize,
    Pipeline,
    Ring,
    Schedule,
    Stage,
    TileMatrix,
    Transform,
    Unroll,
    Vectorize,
    schedule_text,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format, unwidened
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.traverse import substitute_in_expr, substitute_in_stmt
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply import accumulators, loop_ends
from ocannl_core.schedule.apply.amx_tiles import AmxBuffer, AmxTiling, amx_term, amx_tiling
from ocannl_core.schedule.apply.apply_block_schedule import ScheduledNest, ThreadEmitter
from ocannl_core.schedule.apply.axis_tree import AxisTree, Region
from ocannl_core.schedule.apply.packing import Packer, packing_order
from ocannl_core.schedule.apply.prefetch import prefetching_loop
from ocannl_core.schedule.apply.software_pipelines import RegisterTileEmitter
from ocannl_core.schedule.apply.squares import emit_square, is_whole_square
from ocannl_core.schedule.apply.tensor_core_tiles import TensorCoreEmitter
from ocannl_core.schedule.apply.wgmma_pipeline import WgmmaPipelineEmitter
from ocannl_core.schedule.machine_model import CACHE_LINE_BYTES, PADDED_STRIDE_BYTES

_BLOCK_EMITTERS: Mapping[type[Transform], type[ThreadEmitter]] = {
    Ring: WgmmaPipelineEmitter,
    TileMatrix: TensorCoreEmitter,
    Pipeline: RegisterTileEmitter,
    Stage: RegisterTileEmitter,
}
"""The emitters of schedules for thread blocks with a transform; the first one counts."""


def apply_schedule(
    nest: KernelNest, schedule: Schedule, nodes: NodeInfos | None = None
) -> ScheduledNest:
    """Return a nest in the order and on the axes of a schedule.

    The results of a `KernelNest` are independent of each other, so every order of its axes is safe;
    sums and products of floats round differently when their terms are combined in another order.

    Args:
        nodes: Extents and formats, from which the accesses of thread blocks that are vectors are
            proven; None for scalar ones.

    Raises:
        UsageError: for a schedule that does not fit the nest.
    """
    kinds = set(map(type, schedule))
    if not kinds.isdisjoint({MapToGrid, MapToBlock}):
        own = (emitter for having, emitter in _BLOCK_EMITTERS.items() if having in kinds)
        return next(own, ThreadEmitter).of(nest, schedule, nodes).scheduled()
    emitter = _NestEmitter(nest, schedule)
    return ScheduledNest(
        emitter.initial_stores, emitter.emit_packing(), emitter.emit_loops(), emitter.nodes
    )


@dataclass(slots=True)
class _NestEmitter:
    """The state of emitting one nest."""

    nest: KernelNest
    schedule: Schedule
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    tree: AxisTree = field(init=False)
    order: tuple[str, ...] = field(init=False)
    kinds: dict[str, ir.AxisKind] = field(init=False)
    tiling: AmxTiling | None = field(init=False)
    packs: dict[str | None, list[tuple[Pack, TensorNode]]] = field(init=False)
    tiles: dict[int, AmxBuffer] = field(default_factory=dict)
    initial_stores: tuple[ir.Stmt, ...] = ()
    square: tuple[str, ...] = ()
    sum_loop: str = ""
    is_fused: bool = False
    prefetches: bool = False

    def __post_init__(self) -> None:
        self.tree = AxisTree.of(self.nest.axes, self.schedule)
        self.order = self.tree.order(self.schedule)
        self.tiling = amx_tiling(self.tree, self.schedule)
        self.kinds = self._kinds()
        self._check_tiles()
        self.packs = {}
        for transform in self.schedule:
            if isinstance(transform, Pack):
                pair = transform, self._allocate_packed(transform)
                self.packs.setdefault(transform.inside, []).append(pair)
        self._place_accumulators()
        self._check_tile_copies()

    def _error(self, rule: str, found: str) -> UsageError:
        return UsageError(rule, found=found, where=f"schedule {schedule_text(self.schedule)!r}")

    def _kinds(self) -> dict[str, ir.AxisKind]:
        kinds = dict.fromkeys(self.order, ir.AxisKind.SERIAL)
        for transform in self.schedule:
            match transform:
                case Unroll(axis):
                    kind = ir.AxisKind.UNROLLED
                case Vectorize(axis):
                    kind = ir.AxisKind.VECTOR
                case Pair(axis):
                    kind = ir.AxisKind.PAIR
                case Parallelize(axis):
                    kind = ir.AxisKind.PARALLEL
                case TileMatrix(rows, lanes, terms):
                    for axis in (rows, lanes, terms):
                        self._expect_leaf(axis)
                        kinds[axis] = ir.AxisKind.TILE
                    continue
                case _:
                    continue
            self._expect_leaf(axis)
            if kind is ir.AxisKind.PARALLEL and self.tree.is_reduced(axis):
                raise self._error("Reduced axes do not run in parallel.", axis)
            kinds[axis] = kind
        vectors = [name for name in self.order if kinds[name] is ir.AxisKind.VECTOR]
        pairs = [name for name in self.order if kinds[name] is ir.AxisKind.PAIR]
        inner = self.order[: len(self.order) - len(pairs)]
        if joint := loop_ends.joint_terms(self.tree, kinds):
            raise self._error("An axis that ends at run time is reduced term by term.", joint)
        if len(vectors) == 2 and self.nest.reduction is None:
            self.square = self.order[-2:]
            kinds[self.square[0]] = ir.AxisKind.SERIAL  # of the rest
        if vectors and vectors != list(self.square or inner[-1:]):
            raise self._error("The innermost axis alone is vectorised.", " ".join(vectors))
        if (
            pairs
            and self.tiling is None
            and not loop_ends.is_valid_pair(self.tree, self.order, pairs, vectors)
        ):
            raise self._error(
                "A pair is the inside of a reduced axis split by two, inside of a vectorised axis.",
                " ".join(pairs),
            )
        return kinds

    def _check_tiles(self) -> None:
        """Check that tiles fit the nest."""
        if self.tiling is None:
            return
        if self.nest.reduction is None:
            raise self._error("Tiles need a reduction.", "a nest without one")
        for rule, found in self.tiling.find_problems(self.order, self.kinds, self.nest.reduction):
            raise self._error(rule, found)

    def _check_tile_copies(self) -> None:
        """Check that both operands of tiles are packed before the reduction."""
        if self.tiling is None:
            return
        sums = self.order[self.order.index(self.sum_loop) :]
        early = [transform for transform in self.schedule if isinstance(transform, Pack)]
        early = [each for each in early if each.inside not in sums]
        if len(early) < 2 or not self.is_fused or self.sum_loop in self.tiling.leaves[1:]:
            raise self._error(
                "Tiles need both operands packed outside of the reduction, which has fused "
                "products and runs around all rows and columns of a tile.",
                f"accumulate over {self.sum_loop}",
            )

    def _place_accumulators(self) -> None:
        """Find the loop that accumulators are allocated outside of."""
        reduction = self.nest.reduction
        if reduction is None:
            if any(isinstance(each, AccumulateAt | Pack) for each in self.schedule):
                raise self._error(
                    "Packing and accumulating need a reduction.", "a nest without one"
                )
            return
        shifts = [
            position
            for position, name in enumerate(self.order)
            if self.tree.axes[name[0]].is_shifting
        ]
        least = max(shifts, default=-1) + 1
        # without reduced axes, accumulators are allocated inside of all loops
        self.sum_loop = next(filter(self.tree.is_reduced, self.order[least:]), "")
        for transform in self.schedule:
            if isinstance(transform, AccumulateAt):
                self._expect_leaf(transform.over)
                self.sum_loop, self.is_fused = transform.over, transform.fused
                self.prefetches = transform.prefetch
        outside = self.order[: self.order.index(self.sum_loop)] if self.sum_loop else self.order
        is_partial = any(self.tree.is_reduced(name) for name in outside)
        if is_partial and self.nest.holds_partial_results:
            self._initialize_cells()
        elif is_partial:
            raise self._error(
                "A reduced axis runs outside of the accumulators only where cells hold partial "
                "results.",
                f"accumulate over {self.sum_loop}",
            )
        if len(outside) < least:
            raise self._error(
                "Axes that shift the cells run outside of the accumulators.",
                f"accumulate over {self.sum_loop}",
            )

    def _initialize_cells(self) -> None:
        """Store initial values before anything else, and continue from the stored values.

        c[i] = 0.0 + sum of x[i, k]  -->  for i: c[i] = 0.0
                                          for k0: for i: c[i] = c[i] + sum of x[i, k0, k1]
        """
        reduction = self.nest.reduction
        if reduction is None or self.nest.is_resumable:
            return
        (store,) = self.nest.epilogue
        stmts: tuple[ir.Stmt, ...] = (replace(store, value=reduction.initial),)
        for axis in reversed(self.nest.cells):
            var = fresh_var(axis.var.hint)
            body = substitute_in_stmt(ir.Block(stmts), {axis.var: affine([(1, var)], axis.start)})
            bound = axis.bound_at(VarIndex(var))
            stmts = (ir.For(var, 0, axis.extent, body, bound=bound),)
        self.initial_stores = stmts
        cell = ir.Load(store.node, store.indices, reduction.dtype)
        self.nest = replace(self.nest, reduction=replace(reduction, initial=cell))

    def _expect_leaf(self, name: str) -> None:
        if name not in self.order:
            raise self._error(f"The axes after all splits are {' '.join(self.order)}.", name)

    def _allocate_packed(self, pack: Pack) -> TensorNode:
        """Return the node of a packed operand; check that its axes cover the operand."""
        reduction = self.nest.reduction
        factors = reduction.factors if reduction else ()
        if pack.operand >= len(factors):
            raise self._error(
                f"Operands of this nest are numbered from 0 to {len(factors) - 1}.",
                str(pack.operand),
            )
        if pack.inside is not None:
            self._expect_leaf(pack.inside)
        factor = factors[pack.operand]
        known = [each.operand for pairs in self.packs.values() for each, _ in pairs]
        if pack.operand in known:
            raise self._error("An operand is packed once.", str(pack.operand))
        outer = self._loops_around(pack.inside)
        mentioned = {leaf for root in self.tree.axes_of(factor) for leaf in self.tree.leaves(root)}
        covered = [leaf for axis in pack.axes for leaf in self.tree.leaves(axis)]
        missing = [leaf for leaf in mentioned if leaf not in outer and leaf not in covered]
        bound = [leaf for leaf in covered if leaf in outer]
        if missing or bound or len(set(covered)) < len(covered):
            raise self._error(
                "A packed buffer has the axes of the operand inside its loop, each once.",
                f"{schedule_text((pack,))}: missing {missing}, fixed already {bound}",
            )
        node = TensorNode(pack.operand, (f"packed{pack.operand}",))
        if self.tiling is not None:
            return self._tile_buffer(self.tiling, pack, node, self.tiling.packed_expr(factor))
        dtype = self._packed_expr(factor).dtype
        dims = [self.tree.max_extent(axis) for axis in pack.axes]
        if not self._is_paired(pack.axes[-1]):
            if len(dims) > 1 and dims[-1] * dtype.nbytes % PADDED_STRIDE_BYTES == 0:
                dims[-1] += CACHE_LINE_BYTES // dtype.nbytes
        elif len(dims) > 2 and dims[-2] * 2 * dtype.nbytes % PADDED_STRIDE_BYTES == 0:
            dims[-2] += CACHE_LINE_BYTES // (2 * dtype.nbytes)
        self.nodes[node] = NodeInfo(dtype, tuple(dims))
        return node

    def _tile_buffer(
        self, tiling: AmxTiling, pack: Pack, node: TensorNode, factor: ir.Expr
    ) -> TensorNode:
        """Return the node of a packed operand of tiles; check that tiles are innermost."""
        inner = tiling.inner_axes(factor)
        if pack.axes[-len(inner) :] != inner:
            raise self._error(
                f"The innermost axes of this buffer are the axes of its tiles, {' '.join(inner)}.",
                schedule_text((pack,)),
            )
        wide = TensorNode(pack.operand, (f"wide{pack.operand}",))
        self.tiles[pack.operand] = AmxBuffer(tiling, pack, factor, node, wide)
        self.nodes.update(self.tiles[pack.operand].nodes)
        return node

    def _is_paired(self, name: str) -> bool:
        return self.kinds.get(name) is ir.AxisKind.PAIR

    def _packed_expr(self, factor: ir.Expr) -> ir.Expr:
        """Return the packed expression of a factor; pairs stay in their narrow format."""
        return unwidened(factor) if self._is_paired(self.order[-1]) else factor

    def _loops_around(self, inside: str | None) -> tuple[str, ...]:
        """Return the loops in each iteration of which a buffer is filled."""
        if inside is None:
            return ()
        return self.order[: self.order.index(inside) + 1]

    def emit_packing(self) -> tuple[ir.Stmt, ...]:
        return self._emit_packing(None, self.tree.full_region())

    def emit_loops(self) -> tuple[ir.Stmt, ...]:
        return self._emit_loop_nest(self.order, self.tree.full_region())

    def _emit_loop_nest(self, remaining: tuple[str, ...], region: Region) -> tuple[ir.Stmt, ...]:
        if self.nest.reduction is not None and (not remaining or remaining[0] == self.sum_loop):
            return self._emit_reduction(self.nest.reduction, remaining, region)
        if not remaining:
            return accumulators.epilogue_stores(self.nest, region, {})
        if remaining == self.square and is_whole_square(region, self.square):
            return (ir.Block(emit_square(self.nest, region, self.square, self.nodes)),)
        return self._loop(
            remaining[0],
            region,
            lambda inner: self._emit_loop_nest(remaining[1:], inner),
            packs=True,
        )

    def _loop(
        self,
        name: str,
        region: Region,
        body: Callable[[Region], tuple[ir.Stmt, ...]],
        *,
        packs: bool = False,
        unrolls: bool = True,
    ) -> tuple[ir.Stmt, ...]:
        """Return the loops of one axis, one for each number of iterations inside it.

        Args:
            packs: True for the loops that compute, in which buffers are filled.
            unrolls: False for loops that are neither unrolled nor tiles in any schedule.
        """
        kind = self.kinds[name]
        if kind is ir.AxisKind.UNROLLED and not unrolls:
            kind = ir.AxisKind.SERIAL
        if kind is ir.AxisKind.TILE and not unrolls:
            is_lane = self.tiling is not None and name == self.tiling.tile.lanes
            kind = ir.AxisKind.VECTOR if is_lane else ir.AxisKind.SERIAL
        emitted: list[ir.Stmt] = []
        for run in region.ranges(name):
            var = fresh_var(self.tree.hint(name))
            index: AxisIndex = VarIndex(var) if run.count > 1 else FixedIndex(0)
            inner = region.bind(name, run, index)
            packing = self._emit_packing(name, inner) if packs else ()
            stmts = (*packing, *body(inner))
            bound = loop_ends.loop_end(name, kind, inner)
            if run.count > 1 and kind in loop_ends.WHOLE_KINDS:
                stmts = guarded(bound, stmts)
                bound = None
            if run.count > 1 and stmts:
                emitted.append(ir.For(var, 0, run.count, ir.Block(stmts), kind, bound=bound))
            elif bound is not None:
                emitted += guarded(bound, stmts)
            else:
                emitted += (ir.Block(stmts),) if packing else stmts
        return tuple(emitted)

    def _loops(
        self,
        names: Sequence[str],
        region: Region,
        body: Callable[[Region], tuple[ir.Stmt, ...]],
        *,
        packs: bool = False,
        unrolls: bool = True,
    ) -> tuple[ir.Stmt, ...]:
        """Return nested loops, as `_loop` does."""
        if not names:
            return body(region)
        return self._loop(
            names[0],
            region,
            lambda inner: self._loops(names[1:], inner, body, packs=packs, unrolls=unrolls),
            packs=packs,
            unrolls=unrolls,
        )

    def _emit_packing(self, inside: str | None, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statements that fill the buffers of an axis."""
        stmts: list[ir.Stmt] = []
        packer = Packer(self.tree, self.kinds, self._loops)
        for pack, node in self.packs.get(inside, ()):
            if pack.operand in self.tiles:
                packing = self.tiles[pack.operand].fill(region, self._loops)
                stmts += [ir.Allocate(node, ir.Scope.KERNEL), *packing]
                continue
            assert self.nest.reduction is not None
            factor = self._packed_expr(self.nest.reduction.factors[pack.operand])
            leaves = packing_order(self.tree, pack)

            def copy(
                inner: Region, pack: Pack = pack, node: TensorNode = node, factor: ir.Expr = factor
            ) -> tuple[ir.Stmt, ...]:
                value = substitute_in_expr(factor, inner.substitution())
                return (ir.Store(node, self._packed_indices(pack, inner), value),)

            packing = packer.fill(factor, leaves, region, copy)
            stmts += [ir.Allocate(node, ir.Scope.KERNEL), *packing]
        return tuple(stmts)

    def _packed_indices(self, pack: Pack, region: Region) -> tuple[AxisIndex, ...]:
        return tuple(region.position(axis) for axis in pack.axes)

    def _emit_reduction(
        self, reduction: Reduction, remaining: tuple[str, ...], region: Region
    ) -> tuple[ir.Stmt, ...]:
        """Return the reduction inside a region, from clearing accumulators to the epilogue."""
        whole = region if self.tiling is None else self.tiling.pad(region)
        registers = accumulators.Accumulators(
            TensorNode(len(self.nodes), ("sums",)),
            self.nest,
            self.kinds,
            remaining,
            whole,
            self._loop,
            self.is_fused,
        )
        self.nodes[registers.node] = registers.info

        def update(inner: Region) -> tuple[ir.Stmt, ...]:
            return (
                registers.update(
                    inner,
                    self._emit_term(reduction, inner),
                    loop_ends.lane_end(self.order[-1], self.kinds, inner),
                ),
            )

        cells = [name for name in registers.axes if not self.tree.is_reduced(name)]
        if self.tiling is None:
            sums = self._emit_accumulation(remaining, region, cells, update)
        else:
            sums = self._emit_tile_products(self.tiling, reduction, registers)
        body = (
            ir.Allocate(registers.node, ir.Scope.THREAD),
            *registers.clear(),
            *sums,
            *registers.combine(),
            *self._emit_epilogue(registers, cells, region),
        )
        return (ir.Block(body),)

    def _emit_tile_products(
        self, tiling: AmxTiling, reduction: Reduction, registers: accumulators.Accumulators
    ) -> tuple[ir.Stmt, ...]:
        """Return the products of tiles: for each step of the reduction, one of each part."""
        remaining = registers.remaining
        at = next(k for k, name in enumerate(remaining) if name in registers.axes)

        def product(region: Region, parts: tuple[int, int]) -> tuple[ir.Stmt, ...]:
            return (registers.update(region, amx_term(reduction, self.tiles, region, *parts)),)

        def products(inner: Region) -> tuple[ir.Stmt, ...]:
            bodies = (partial(product, parts=parts) for parts in tiling.products)
            return tuple(
                stmt for body in bodies for stmt in self._loops(remaining[at:], inner, body)
            )

        return self._loops(remaining[:at], registers.region, products)

    def _emit_accumulation(
        self,
        remaining: tuple[str, ...],
        region: Region,
        cells: list[str],
        update: Callable[[Region], tuple[ir.Stmt, ...]],
    ) -> tuple[ir.Stmt, ...]:
        """Return the loops of the reduction, with prefetches of the epilogue's operands."""
        is_bounded = bool(remaining) and self.tree.axes[remaining[0][0]].bound is not None
        if self.prefetches and remaining and remaining[0] not in self.packs and not is_bounded:
            outside = self.order[: len(self.order) - len(remaining)]
            around = outside[-1] if outside else None
            parts = prefetching_loop(self.nest, region, around, remaining[0], cells, self.kinds)
            if parts is not None:
                return parts.wrap(self._loops(remaining[1:], parts.inside, update, packs=True))
        return self._loops(remaining, region, update, packs=True)

    def _emit_epilogue(
        self, registers: accumulators.Accumulators, cells: list[str], region: Region
    ) -> tuple[ir.Stmt, ...]:
        """Return the epilogue of a register tile.

        An epilogue that needs many registers runs as a loop, on a copy of the accumulators:
        unrolled for all of them, it would spill them while they accumulate. So does a long one, for
        the compiler's sake.
        """
        is_direct = (
            self.tiling is None
            and not accumulators.has_expensive_epilogue(self.nest)
            and not accumulators.has_long_epilogue(self.nest, self.tree, self.kinds)
        )
        if is_direct or any(
            self.kinds[name] is ir.AxisKind.VECTOR and self.tree.is_reduced(name)
            for name in self.order
        ):
            return self._loops(cells, region, registers.store_results)
        copy = replace(registers, node=TensorNode(len(self.nodes), ("results",)))
        self.nodes[copy.node] = registers.info
        return (
            ir.Allocate(copy.node, ir.Scope.KERNEL),
            *self._loops(cells, registers.region, lambda inner: copy.copy_from(registers, inner)),
            *self._loops(cells, region, copy.store_results, unrolls=False),
        )

    def _emit_term(self, reduction: Reduction, region: Region) -> ir.Expr:
        """Return the term at a point, with packed operands loaded from their buffers."""
        packed: dict[int, ir.Expr] = {}
        for pairs in self.packs.values():
            for pack, node in pairs:
                factor = reduction.factors[pack.operand]
                cell = ir.Load(node, self._packed_indices(pack, region), self.nodes[node].dtype)
                packed[pack.operand] = as_format(cell, factor.dtype)
        term = with_factors(reduction.term, packed)
        return substitute_in_expr(term, region.substitution())
