"""Software pipelining of thread blocks: copies to shared memory run ahead of their use.

    pipeline k0 in 3

        -->  two stages of both operands are copied
             for k0:
               barrier                                         the next stage is complete
               a stage is copied to the place of the last one
               the products of a stage are added up

Copies are COPY loops, which run ahead of the barrier that waits for them. Stages take turns in an
array; their number is a constant in every statement, so the loop over terms is written out for as
many iterations as there are stages. Operands are padded with zeros beyond their axes.

The products of a stage are fused multiply-adds of register tiles, or of tiles that the threads of a
warp compute together (`mma.sync`):

    tile i1110 j1111 k11  -->  for k10, i110, j110:
                                 for i1110 in tile(2), j1111 in tile(2), k11 in tile(16):
                                   sums[i110, j110, i1110, j1111] = fma(a[...], b[...], sums[...])

Each thread adds up its own cells, so that the statements mean the same on any device. On one with a
matrix instruction a subgroup executes the innermost loops as one instruction; the renderer verifies
that the cells of its threads run the instruction.
"""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.errors import UsageError
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.ir.kernels.transforms import Pipeline, StageForm, schedule_text
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format, unwidened
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.schedule.apply.accumulators import Accumulators
from ocannl_core.schedule.apply.axis_tree import Region
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.operand_buffers import SharedBuffer
from ocannl_core.schedule.apply.reduction_strategy import Accumulation, Conditions, is_wide_product
from ocannl_core.schedule.machine_model import PADDING_CELLS


class StageBuffer(SharedBuffer):
    """An operand in stages of shared memory: narrow if both factors have one format."""

    _label = "staged"

    @property
    def _staged(self) -> ir.Expr:
        """The expression that is copied."""
        reduction = self.state.nest.required_reduction
        narrow = [unwidened(factor) for factor in reduction.factors]
        is_narrow = narrow[0].dtype is narrow[1].dtype
        return (narrow if is_narrow else reduction.factors)[self.pack.operand]

    @property
    def _dtype(self) -> DType:
        return self._staged.dtype

    def staged_cell(self, stage: AxisIndex, indices: tuple[AxisIndex, ...]) -> ir.Expr:
        """Return the value of the operand in a stage."""
        cell = ir.Load(self.node, (stage, *indices), self._dtype)
        return as_format(cell, self.operand.dtype)


class PipelineBuffer(StageBuffer):
    """Stages that the threads of a block copy together, ahead of their use."""

    @property
    def _form(self) -> StageForm:
        return self.state.forms[self.pack.operand]

    def _stage(self, region: Region) -> AxisIndex:
        _, offset = as_affine(region.numbers[self.state.pipeline.axis])
        return FixedIndex(offset % self.state.pipeline.stages)

    def _dims(self) -> tuple[int, ...]:
        form, rows = self._form, self.tree.max_extent(self.pack.axes[0])
        group = (rows, form.pitch)
        if form.rows:
            group = (rows // form.rows, form.rows * form.pitch + form.skip)
        return (self.state.pipeline.stages, *group)

    def fill(self, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statements by which the threads of a block copy a stage."""
        pack, form = self.pack, self._form
        width = max(1, form.width)
        # single cells are copied in the order of memory
        order = self._fill_order() if width == 1 else list(pack.axes)
        row = None if order[-1] == pack.axes[-1] else PADDING_CELLS
        copied = self.distributed(region, order, width, row)
        value = self.padded(self._staged, region.at(copied.positions))
        extents = {loop.var: loop.stop for loop in copied.loops} | self._extents(region)
        position = copied.positions[pack.axes[0]], copied.positions[pack.axes[1]]
        cell = (self._stage(region), *self._indices(position, extents))
        stmts: tuple[ir.Stmt, ...] = (ir.Store(self.node, cell, value),)
        if form.width:
            stmts = (ir.For(copied.lane, 0, width, ir.Block(stmts), ir.AxisKind.COPY),)
        return copied.around(stmts)

    def cell(self, region: Region) -> ir.Expr:
        row, column = map(region.position, self.pack.axes)
        indices = self._indices((row, column), self._extents(region))
        return self.staged_cell(self._stage(region), indices)

    def _extents(self, region: Region) -> dict[IndexVar, int]:
        """Return the iterations of leaves by their variables."""
        return {
            index.var: self.tree.max_extent(leaf)
            for leaf, index in region.numbers.items()
            if isinstance(index, VarIndex) and leaf in self.state.kinds
            if leaf != self.state.pipeline.axis
        }

    def _indices(
        self, position: tuple[AxisIndex, AxisIndex], extents: Mapping[IndexVar, int]
    ) -> tuple[AxisIndex, AxisIndex]:
        """Return the indices of a staged cell, after the indices of the stage.

        Args:
            position: The row and the column of the cell.
        """
        row, column = position
        form = self._form
        if not form.rows:
            return row, column
        terms, offset = as_affine(row)
        groups, rest = divmod(offset, form.rows)
        outer = [(step // form.rows, var) for step, var in terms if step % form.rows == 0]
        inner = [(step, var) for step, var in terms if step % form.rows]
        if rest + sum(step * (extents[var] - 1) for step, var in inner) >= form.rows:
            raise UsageError(
                "Whole digits of the thread index count the rows of a group in shared memory.",
                found=schedule_text((form,)),
            )
        own, first = as_affine(column)
        scaled = [(form.pitch * step, var) for step, var in inner]
        return affine(outer, groups), affine([*scaled, *own], form.pitch * rest + first)


class StagedProducts(Accumulation):
    """Copies run ahead of the products of register tiles, or of fragments of a warp."""

    @classmethod
    def conditions(cls, state: NestState) -> Conditions:
        reduction, pipeline, tree = state.nest.reduction, state.copies, state.tree
        yield "A schedule has one pipeline.", pipeline is not None
        assert isinstance(pipeline, Pipeline)
        yield (
            "Operands of a pipeline are two factors.",
            reduction is not None and len(reduction.factors) == 2,
        )
        tile, serial = state.tile, state.serial
        if tile is not None:
            yield (
                "Warps add up products, in a format that is not narrow.",
                is_wide_product(reduction),
            )
        cut = serial.index(pipeline.axis) if pipeline.axis in serial else len(serial)
        yield (
            "Copies run ahead along a reduced loop around all tiles.",
            pipeline.stages >= 2
            and cut < len(serial)
            and all(map(tree.is_reduced, serial[: cut + 1])),
        )
        yield (
            "Both factors are packed along two axes inside of the pipeline, and staged.",
            len(state.packs) == 2
            and set(state.forms) == {0, 1}
            and all(each.inside == pipeline.axis and len(each.axes) == 2 for each in state.packs),
        )
        for each in state.packs:
            form = state.forms[each.operand]
            rows, cells = map(tree.max_extent, each.axes)
            are_whole_groups = not form.rows or rows % form.rows == 0
            is_long_enough = form.pitch >= cells and cells % max(1, form.width) == 0
            yield (
                "Rows of a staged operand are whole copies, no longer than their pitch.",
                are_whole_groups and is_long_enough,
            )
        yield "Threads of a block share no result of a tile.", not state.reduced_threads
        if tile is not None:
            leaves = (tile.rows, tile.lanes, tile.terms)
            yield (
                "Rows, columns and terms of a tile are the innermost loops of a thread.",
                serial[-3:] == leaves
                and [tree.is_reduced(each) for each in leaves] == [False, False, True],
            )
            yield "Copies run ahead along a loop around the tile.", cut < len(serial) - 3

    def fill(self, inside: str | None, region: Region) -> tuple[ir.Stmt, ...]:
        return ()

    def _copies(self, region: Region, step: AxisIndex) -> tuple[ir.Stmt, ...]:
        """Return the statements by which the threads of a block copy the operands of a step."""
        inner = region.at({self.state.pipeline.axis: step})
        return tuple(stmt for at in sorted(self.buffers) for stmt in self.buffers[at].fill(inner))

    def sums(self, registers: Accumulators, region: Region) -> tuple[ir.Stmt, ...]:
        inside, axis = self.state.inside, self.state.pipeline.axis
        outer = inside[: inside.index(axis)]

        def steps(point: Region) -> tuple[ir.Stmt, ...]:
            # threads may still read the stages of the iteration before
            meeting = (ir.Barrier(),) if self.state.tree.count(outer) > 1 else ()
            return (*meeting, *self._steps(registers, point))

        return self.emission.loops(outer, region, steps, guards=False)

    def _steps(self, registers: Accumulators, point: Region) -> tuple[ir.Stmt, ...]:
        """Return the loop over stages, and the copies before it."""
        tree, pipeline = self.state.tree, self.state.pipeline
        axis, stages = pipeline.axis, pipeline.stages
        count = tree.max_extent(axis)
        ahead = stages - 1
        stmts: list[ir.Stmt] = []
        for first in range(ahead):
            if first < count:
                stmts += self._copies(point, FixedIndex(first))
            if first < ahead - 1:
                stmts.append(ir.Barrier(ahead - 1))
        turn, turns = fresh_var(tree.hint(axis)), ceil_div(count, stages)
        body: list[ir.Stmt] = []
        for stage in range(min(stages, count)):
            step = affine([(stages, turn)] if turns > 1 else [], stage)
            own: list[ir.Stmt] = [ir.Barrier(ahead - 1)]
            own += self._next_copies(point, stage, turn if turns > 1 else None)
            own += self._products(registers, point.at({axis: step}))
            is_last = stages * (turns - 1) + stage >= count
            body += guarded(ir.LoopBound(step, count), tuple(own)) if is_last else own
        if turns == 1:
            return (*stmts, *body)
        return (*stmts, ir.For(turn, 0, turns, ir.Block(tuple(body))))

    def _next_copies(self, point: Region, stage: int, turn: IndexVar | None) -> tuple[ir.Stmt, ...]:
        """Return the copies for the last step that a stage is free for."""
        tree, pipeline = self.state.tree, self.state.pipeline
        stages, count = pipeline.stages, tree.max_extent(pipeline.axis)
        first = stage + stages - 1
        step = affine([] if turn is None else [(stages, turn)], first)
        if first >= count:
            return ()
        last = first + stages * (ceil_div(count, stages) - 1)
        copies = self._copies(point, step)
        return copies if last < count else guarded(ir.LoopBound(step, count), copies)

    def _products(self, registers: Accumulators, point: Region) -> tuple[ir.Stmt, ...]:
        state = self.state
        after = state.inside[state.inside.index(self.state.pipeline.axis) + 1 :]
        leaves = after[-3:] if state.tile is not None else ()

        def product(inner: Region) -> tuple[ir.Stmt, ...]:
            return self.tile_product(registers, leaves, inner)

        outer = after[: len(after) - len(leaves)]
        return self.emission.loops(outer, point, product, guards=False)
