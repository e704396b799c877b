"""Apply tiles of warps: products of blocks that the threads of a subgroup compute together.

    tile i1110 j1111 k11; pipeline k0 in 2

        -->  a stage of both operands is copied
             for k0:
               barrier                                         the stage is complete
               the next stage is copied to the other half
               for k10, i110, j110:
                 for i1110 in tile(2), j1111 in tile(2), k11 in tile(16):
                   sums[i110, j110, i1110, j1111] = fma(a[...], b[...], sums[...])

Each thread adds up its own cells, from operands that all threads of a block have copied to shared
memory, so that the statements mean the same on any device. On one with a matrix instruction a
subgroup executes the innermost loops as one instruction; the renderer verifies that the cells of
its threads are those of the instruction.

Copies are COPY loops, which run ahead of the barrier that waits for them. Stages take turns in an
array; their number is a constant in every statement, so the loop over terms is written out for as
many iterations as there are stages. Operands are padded with zeros beyond their axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ocannl_core.dtypes import DType
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.kernels.nest import KernelNest, Reduction, with_factors
from ocannl_core.kernels.transforms import (
    Pack,
    Pipeline,
    Schedule,
    Stage,
    TileMatrix,
    schedule_text,
)
from ocannl_core.loopir.nodes import (
    AxisKind,
    Barrier,
    Block,
    Expr,
    For,
    Load,
    LoopBound,
    Scope,
    Stmt,
    Store,
    Unary,
)
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.schedule.apply.block_axes import BlockAxes, Numbers
from ocannl_core.schedule.apply.loop_ends import guarded
from ocannl_core.schedule.apply.scheduled_nest import ScheduledNest
from ocannl_core.schedule.apply.thread_accumulator import ThreadAccumulator
from ocannl_core.schedule.apply.thread_blocks import (
    SharedOperand,
    ThreadEmitter,
    is_for_blocks,
)


def is_for_warps(schedule: Schedule) -> bool:
    """Return True if a schedule for thread blocks has tiles or stages."""
    own = (TileMatrix, Pipeline, Stage)
    return is_for_blocks(schedule) and any(isinstance(each, own) for each in schedule)


def staged_expr(factor: Expr) -> Expr:
    """Return the expression of a factor in shared memory: a narrow one before it is widened."""
    match factor:
        case Unary(UnaryOp.IDENTITY, arg) if arg.dtype.is_narrow and arg.dtype.is_float:
            return arg
        case _:
            return factor


def apply_warp_schedule(nest: KernelNest, schedule: Schedule) -> ScheduledNest:
    """Return a nest whose sums warps compute tile by tile.

    Raises:
        UsageError: for a schedule that does not fit the nest.
    """
    axes = BlockAxes.of(nest, schedule)
    emitter = WarpEmitter(axes, nest, schedule)
    emitter.verify()
    inside = emitter.thread_body(axes.thread_numbers)
    return ScheduledNest((), (), axes.around(inside, tuple(emitter.shared)), emitter.nodes)


@dataclass(slots=True)
class WarpEmitter(ThreadEmitter):
    """The statements of one thread of a warp.

    Attributes:
        staged: The operands in shared memory, by their position in the term.
    """

    staged: dict[int, SharedOperand] = field(default_factory=dict)

    # ----- parts of the schedule --------------------------------------------------------------

    def _one(self, kind: type[TileMatrix] | type[Pipeline]) -> TileMatrix | Pipeline | None:
        found = [each for each in self.schedule if isinstance(each, kind)]
        return found[0] if len(found) == 1 else None

    @property
    def tile(self) -> TileMatrix:
        found = self._one(TileMatrix)
        assert isinstance(found, TileMatrix)
        return found

    @property
    def pipeline(self) -> Pipeline:
        found = self._one(Pipeline)
        assert isinstance(found, Pipeline)
        return found

    def _stage(self, operand: int) -> Stage:
        return next(
            each for each in self.schedule if isinstance(each, Stage) and each.operand == operand
        )

    def verify(self) -> None:
        """Check that the schedule describes tiles of this nest.

        Raises:
            UsageError: if it does not.
        """
        for rule, is_kept in self._rules():
            if not is_kept:
                raise UsageError(rule, found=schedule_text(self.schedule))

    def _rules(self) -> Sequence[tuple[str, bool]]:
        reduction, tile, pipeline = self.nest.reduction, self._one(TileMatrix), self._one(Pipeline)
        is_product = (
            reduction is not None
            and reduction.op is BinaryOp.ADD
            and reduction.dtype.is_float
            and not reduction.dtype.is_narrow
            and len(reduction.factors) == 2
        )
        rules = [
            ("A schedule of warps has one tile and one pipeline.", bool(tile and pipeline)),
            ("Warps add up products of two factors, in a format that is not narrow.", is_product),
        ]
        if not all(is_kept for _, is_kept in rules):
            return rules
        assert isinstance(tile, TileMatrix)
        assert isinstance(pipeline, Pipeline)
        serial, tree = self.axes.serial, self.axes.tree
        leaves = (tile.rows, tile.lanes, tile.terms)
        cut = serial.index(pipeline.axis) if pipeline.axis in serial else len(serial)
        packs = [each for each in self.schedule if isinstance(each, Pack)]
        stages = [each for each in self.schedule if isinstance(each, Stage)]
        operands = [sorted(each.operand for each in found) for found in (packs, stages)]
        is_copied_inside = all(
            each.inside == pipeline.axis and len(each.axes) == 2 for each in packs
        )
        return [
            *rules,
            (
                "Rows, columns and terms of a tile are the innermost loops of a thread.",
                serial[-3:] == leaves
                and [tree.is_reduced(each) for each in leaves] == [False, False, True],
            ),
            (
                "Copies run ahead along a reduced loop around all tiles.",
                pipeline.stages >= 2
                and cut < len(serial) - 3
                and all(map(tree.is_reduced, serial[: cut + 1])),
            ),
            (
                "Both factors are packed along two axes inside of the pipeline, and staged.",
                operands == [[0, 1], [0, 1]] and is_copied_inside,
            ),
            (
                "Rows of a staged operand are whole copies, no longer than their pitch.",
                operands != [[0, 1], [0, 1]]
                or all(self._fits(pack, self._stage(pack.operand)) for pack in packs if pack.axes),
            ),
            ("Threads of a block share no result of a tile.", not self.reduced_threads),
        ]

    def _fits(self, pack: Pack, stage: Stage) -> bool:
        cells = self.axes.extent(pack.axes[-1])
        return stage.pitch >= cells and cells % max(1, stage.width) == 0

    # ----- shared memory ----------------------------------------------------------------------

    def _shared_operands(self, reduction: Reduction) -> dict[str, list[SharedOperand]]:
        for pack in self.schedule:
            if not isinstance(pack, Pack):
                continue
            stage = self._stage(pack.operand)
            dims = (self.pipeline.stages, self.axes.extent(pack.axes[0]), stage.pitch)
            node = self._new_array("staged", dims, Scope.GROUP)
            self.nodes[node] = NodeInfo(self._staged_dtype(reduction, pack.operand), dims)
            self.staged[pack.operand] = SharedOperand(pack, node)
        return {self.pipeline.axis: list(self.staged.values())}

    def _staged_factor(self, reduction: Reduction, operand: int) -> Expr:
        """Return the expression that is staged: narrow if those of both factors are the same."""
        factors = [staged_expr(factor) for factor in reduction.factors]
        return (factors if factors[0].dtype is factors[1].dtype else reduction.factors)[operand]

    def _staged_dtype(self, reduction: Reduction, operand: int) -> DType:
        return self._staged_factor(reduction, operand).dtype

    def _copies(
        self, reduction: Reduction, stage: int, point: Numbers, step: AxisIndex, left: str = ""
    ) -> tuple[Stmt, ...]:
        """Return the statements by which the threads of a block copy the operands of a step.

        Args:
            reduction: The reduction.
            stage: The stage that receives them.
            point: The numbers of the leaves around.
            step: The number of the step.
            left: The axis of the terms, if there may be no such step: the stage is zero then.
        """
        inner = {**point, self.pipeline.axis: step}
        return tuple(
            stmt
            for at in sorted(self.staged)
            for stmt in self._copy(reduction, self.staged[at], stage, inner, left)
        )

    def _copy(
        self,
        reduction: Reduction,
        each: SharedOperand,
        stage: int,
        point: Numbers,
        left: str,
    ) -> tuple[Stmt, ...]:
        form = self._stage(each.pack.operand)
        width = max(1, form.width)
        outer, inner = each.pack.axes
        counts = {inner: self.axes.extent(inner) // width, outer: self.axes.extent(outer)}
        dealt, guards = self._deal(counts, point)
        loops: list[For] = []
        positions: dict[str, AxisIndex] = {}
        for name, (terms, covered) in dealt.items():
            if covered < counts[name]:
                var = fresh_var("copy")
                count = counts[name] // covered
                loops.append(For(var, 0, count, Block(), AxisKind.UNROLLED))
                terms = [*terms, (covered, var)]
            positions[name] = affine(terms, 0)
        var = fresh_var("cell")
        first, _ = as_affine(positions[inner])
        own = [(1, var)] if form.width > 1 else []
        positions[inner] = affine([*((width * step, each) for step, each in first), *own], 0)
        factor = self._staged_factor(reduction, each.pack.operand)
        value = self._padded(factor, point, positions, left)
        cell = (FixedIndex(stage), positions[outer], positions[inner])
        stmts: tuple[Stmt, ...] = (Store(each.node, cell, value),)
        if form.width:
            stmts = (For(var, 0, width, Block(stmts), AxisKind.COPY),)
        for guard in guards:
            stmts = guarded(guard, stmts)
        for loop in loops:
            stmts = (For(loop.var, 0, loop.stop, Block(stmts), loop.kind),)
        return stmts

    def _deal(
        self, counts: Mapping[str, int], point: Numbers
    ) -> tuple[dict[str, tuple[list[tuple[int, IndexVar]], int]], list[LoopBound]]:
        """Deal the threads of a block to axes of copies.

        Args:
            counts: The copies along each axis, that which is contiguous in memory first.
            point: The numbers of the leaves.

        Returns:
            For each axis the terms of the position, and the copies that they reach; guards of the
            threads that are left.
        """
        dealt: dict[str, tuple[list[tuple[int, IndexVar]], int]] = {
            name: ([], 1) for name in counts
        }
        guards: list[LoopBound] = []
        for leaf in reversed(self.axes.block):
            size = self.axes.extent(leaf)
            if size == 1:
                continue
            for name, count in counts.items():
                terms, covered = dealt[name]
                if count % (covered * size) == 0:
                    digit, _ = as_affine(point[leaf])
                    own = [(covered * factor, var) for factor, var in digit]
                    dealt[name] = [*terms, *own], covered * size
                    break
            else:
                guards.append(LoopBound(point[leaf], 1))
        return dealt, guards

    # ----- sums -------------------------------------------------------------------------------

    def _accumulate(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        packs: Mapping[str, Sequence[SharedOperand]],
        numbers: Numbers,
    ) -> tuple[Stmt, ...]:
        serial, axis = self.axes.serial, self.pipeline.axis
        outer = serial[: serial.index(axis)]

        def steps(point: Numbers) -> tuple[Stmt, ...]:
            # threads may still read the stages of the iteration before
            meeting = (Barrier(),) if self.axes.count(outer) > 1 else ()
            return (*meeting, *self._steps(reduction, accumulator, point))

        return self.axes.loops(outer, numbers, steps, is_guarded=False)

    def _steps(
        self, reduction: Reduction, accumulator: ThreadAccumulator, point: Numbers
    ) -> tuple[Stmt, ...]:
        """Return the loop over stages, and the copies before it."""
        stages, count = self.pipeline.stages, self.axes.extent(self.pipeline.axis)
        ahead = stages - 1
        stmts: list[Stmt] = []
        for first in range(ahead):
            if first < count:
                stmts += self._copies(reduction, first, point, FixedIndex(first))
            if first < ahead - 1:
                stmts.append(Barrier(ahead - 1))
        turn, turns = fresh_var(self.axes.tree.hint(self.pipeline.axis)), -(-count // stages)
        body: list[Stmt] = []
        for stage in range(min(stages, count)):
            step = affine([(stages, turn)] if turns > 1 else [], stage)
            own: list[Stmt] = [Barrier(ahead - 1)]
            own += self._next_copies(reduction, point, stage, turn if turns > 1 else None)
            own += self._tiles(reduction, accumulator, stage, {**point, self.pipeline.axis: step})
            is_last = stages * (turns - 1) + stage >= count
            body += guarded(LoopBound(step, count), tuple(own)) if is_last else own
        if turns == 1:
            return (*stmts, *body)
        return (*stmts, For(turn, 0, turns, Block(tuple(body))))

    def _next_copies(
        self, reduction: Reduction, point: Numbers, stage: int, turn: IndexVar | None
    ) -> tuple[Stmt, ...]:
        """Return the copies for the last step that a stage is free for."""
        stages, count = self.pipeline.stages, self.axes.extent(self.pipeline.axis)
        first = stage + stages - 1
        step = affine([] if turn is None else [(stages, turn)], first)
        if first >= count:
            return ()
        last = first + stages * (-(-count // stages) - 1)
        left = "" if last < count else self.pipeline.axis[0]
        return self._copies(reduction, first % stages, point, step, left)

    def _tiles(
        self, reduction: Reduction, accumulator: ThreadAccumulator, stage: int, point: Numbers
    ) -> tuple[Stmt, ...]:
        """Return the products of one stage."""
        serial, tile = self.axes.serial, self.tile
        names = serial[serial.index(self.pipeline.axis) + 1 : -3]
        leaves = (tile.rows, tile.lanes, tile.terms)

        def product(inner: Numbers) -> tuple[Stmt, ...]:
            variables = [fresh_var(self.axes.tree.hint(leaf)) for leaf in leaves]
            own = dict(zip(leaves, map(VarIndex, variables), strict=True))
            at = {**inner, **own}
            factors = {
                operand: self._staged_cell(reduction, each, stage, at)
                for operand, each in self.staged.items()
            }
            term = with_factors(reduction.term, factors)
            stmts: tuple[Stmt, ...] = (accumulator.add(at, term, is_fused=True),)
            for leaf, var in reversed(list(zip(leaves, variables, strict=True))):
                loop = For(var, 0, self.axes.extent(leaf), Block(stmts), AxisKind.TILE)
                stmts = (loop,)
            return stmts

        return self.axes.loops(names, point, product, is_guarded=False)

    def _staged_cell(
        self, reduction: Reduction, each: SharedOperand, stage: int, numbers: Numbers
    ) -> Expr:
        node: TensorNode = each.node
        places = tuple(self.axes.position(name, numbers) for name in each.pack.axes)
        dtype = self.nodes[node].dtype
        cell = Load(node, (FixedIndex(stage), *places), dtype)
        return cell if dtype is reduction.dtype else Unary(UnaryOp.IDENTITY, cell, reduction.dtype)
