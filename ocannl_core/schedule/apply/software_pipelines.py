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

Products of a stage are fused multiply-adds of register tiles here, and matrix instructions in
`tensor_core_tiles`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeVar

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.ir.kernels.nest import Reduction, with_factors
from ocannl_core.ir.kernels.transforms import Pack, Pipeline, Stage, TileMatrix, schedule_text
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format, unwidened
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.schedule.apply.apply_block_schedule import (
    PADDING_CELLS,
    Rules,
    SharedOperand,
    ThreadEmitter,
)
from ocannl_core.schedule.apply.block_axes import Numbers
from ocannl_core.schedule.apply.thread_accumulator import ThreadAccumulator

T = TypeVar("T", TileMatrix, Pipeline)


def staged_factor(reduction: Reduction, operand: int) -> ir.Expr:
    """Return the expression of a factor in shared memory: narrow if both have one format."""
    factors = [unwidened(factor) for factor in reduction.factors]
    return (factors if factors[0].dtype is factors[1].dtype else reduction.factors)[operand]


@dataclass(slots=True)
class PipelineEmitter(ThreadEmitter, ABC):
    """The statements of one thread whose operands are copied ahead.

    Attributes:
        staged: The operands in shared memory, by their position in the term.
    """

    staged: dict[int, SharedOperand] = field(default_factory=dict)

    def _one(self, kind: type[T]) -> T | None:
        found = [each for each in self.schedule if isinstance(each, kind)]
        return found[0] if len(found) == 1 else None

    @property
    def pipeline(self) -> Pipeline:
        found = self._one(Pipeline)
        assert found is not None
        return found

    def _stage(self, operand: int) -> Stage:
        return next(
            each for each in self.schedule if isinstance(each, Stage) and each.operand == operand
        )

    def _rules(self) -> Rules:
        """Return the rules of a schedule with a pipeline, the later ones only if it has one."""
        reduction, pipeline = self.nest.reduction, self._one(Pipeline)
        rules = [
            ("A schedule has one pipeline.", pipeline is not None),
            (
                "Operands of a pipeline are two factors.",
                reduction is not None and len(reduction.factors) == 2,
            ),
        ]
        if not all(is_kept for _, is_kept in rules):
            return rules
        assert pipeline is not None
        serial, tree = self.axes.serial, self.axes.tree
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
                "Copies run ahead along a reduced loop around all tiles.",
                pipeline.stages >= 2
                and cut < len(serial)
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
        rows, cells = (self.axes.extent(name) for name in pack.axes)
        if stage.rows and rows % stage.rows:
            return False
        return stage.pitch >= cells and cells % max(1, stage.width) == 0

    def _shared_operands(self, reduction: Reduction) -> dict[str, list[SharedOperand]]:
        for pack in self.schedule:
            if not isinstance(pack, Pack):
                continue
            stage = self._stage(pack.operand)
            rows = self.axes.extent(pack.axes[0])
            group = (rows, stage.pitch)
            if stage.rows:
                group = (rows // stage.rows, stage.rows * stage.pitch + stage.skip)
            dims = (self.pipeline.stages, *group)
            node = self._new_array("staged", dims, ir.Scope.GROUP)
            self.nodes[node] = NodeInfo(self._staged_dtype(reduction, pack.operand), dims)
            self.staged[pack.operand] = SharedOperand(pack, node)
        return {self.pipeline.axis: list(self.staged.values())}

    def _staged_dtype(self, reduction: Reduction, operand: int) -> DType:
        return staged_factor(reduction, operand).dtype

    def _copies(
        self, reduction: Reduction, stage: int, point: Numbers, step: AxisIndex
    ) -> tuple[ir.Stmt, ...]:
        """Return the statements by which the threads of a block copy the operands of a step."""
        inner = {**point, self.pipeline.axis: step}
        return tuple(
            stmt
            for at in sorted(self.staged)
            for stmt in self._copy(reduction, self.staged[at], stage, inner)
        )

    def _copy(
        self, reduction: Reduction, each: SharedOperand, stage: int, point: Numbers
    ) -> tuple[ir.Stmt, ...]:
        pack, form = each.pack, self._stage(each.pack.operand)
        width = max(1, form.width)
        # single cells are copied in the order of memory
        order = (
            self._fill_order(reduction.factors[pack.operand], pack)
            if width == 1
            else list(pack.axes)
        )
        row = None if order[-1] == pack.axes[-1] else PADDING_CELLS
        copied = self._distribute(order, point, width, row)
        factor = staged_factor(reduction, pack.operand)
        value = self._padded(factor, point, copied.positions)
        extents = {loop.var: loop.stop for loop in copied.loops} | self._extents(point)
        places = copied.positions[pack.axes[0]], copied.positions[pack.axes[1]]
        cell = (FixedIndex(stage), *self._place(form, places, extents))
        stmts: tuple[ir.Stmt, ...] = (ir.Store(each.node, cell, value),)
        if form.width:
            stmts = (ir.For(copied.lane, 0, width, ir.Block(stmts), ir.AxisKind.COPY),)
        return copied.around(stmts)

    def _accumulate(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        packs: Mapping[str, Sequence[SharedOperand]],
        numbers: Numbers,
    ) -> tuple[ir.Stmt, ...]:
        serial, axis = self.axes.serial, self.pipeline.axis
        outer = serial[: serial.index(axis)]

        def steps(point: Numbers) -> tuple[ir.Stmt, ...]:
            # threads may still read the stages of the iteration before
            meeting = (ir.Barrier(),) if self.axes.count(outer) > 1 else ()
            return (*meeting, *self._steps(reduction, accumulator, point))

        return self.axes.loops(outer, numbers, steps, is_guarded=False)

    def _steps(
        self, reduction: Reduction, accumulator: ThreadAccumulator, point: Numbers
    ) -> tuple[ir.Stmt, ...]:
        """Return the loop over stages, and the copies before it."""
        stages, count = self.pipeline.stages, self.axes.extent(self.pipeline.axis)
        ahead = stages - 1
        stmts: list[ir.Stmt] = []
        for first in range(ahead):
            if first < count:
                stmts += self._copies(reduction, first, point, FixedIndex(first))
            if first < ahead - 1:
                stmts.append(ir.Barrier(ahead - 1))
        turn, turns = fresh_var(self.axes.tree.hint(self.pipeline.axis)), -(-count // stages)
        body: list[ir.Stmt] = []
        for stage in range(min(stages, count)):
            step = affine([(stages, turn)] if turns > 1 else [], stage)
            own: list[ir.Stmt] = [ir.Barrier(ahead - 1)]
            own += self._next_copies(reduction, point, stage, turn if turns > 1 else None)
            own += self._products(
                reduction, accumulator, stage, {**point, self.pipeline.axis: step}
            )
            is_last = stages * (turns - 1) + stage >= count
            body += guarded(ir.LoopBound(step, count), tuple(own)) if is_last else own
        if turns == 1:
            return (*stmts, *body)
        return (*stmts, ir.For(turn, 0, turns, ir.Block(tuple(body))))

    def _next_copies(
        self, reduction: Reduction, point: Numbers, stage: int, turn: IndexVar | None
    ) -> tuple[ir.Stmt, ...]:
        """Return the copies for the last step that a stage is free for."""
        stages, count = self.pipeline.stages, self.axes.extent(self.pipeline.axis)
        first = stage + stages - 1
        step = affine([] if turn is None else [(stages, turn)], first)
        if first >= count:
            return ()
        last = first + stages * (-(-count // stages) - 1)
        copies = self._copies(reduction, first % stages, point, step)
        return copies if last < count else guarded(ir.LoopBound(step, count), copies)

    def _extents(self, numbers: Numbers) -> dict[IndexVar, int]:
        """Return the iterations of leaves by their variables."""
        return {
            index.var: self.axes.extent(leaf)
            for leaf, index in numbers.items()
            if isinstance(index, VarIndex) and leaf != self.pipeline.axis
        }

    def _place(
        self, form: Stage, place: tuple[AxisIndex, AxisIndex], extents: Mapping[IndexVar, int]
    ) -> tuple[AxisIndex, AxisIndex]:
        """Return the indices of a staged cell, after the indices of the stage.

        Args:
            place: The row and the column of the cell.
        """
        row, column = place
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
                where=f"schedule {schedule_text(self.schedule)!r}",
            )
        own, first = as_affine(column)
        scaled = [(form.pitch * step, var) for step, var in inner]
        return affine(outer, groups), affine([*scaled, *own], form.pitch * rest + first)

    @abstractmethod
    def _products(
        self, reduction: Reduction, accumulator: ThreadAccumulator, stage: int, point: Numbers
    ) -> tuple[ir.Stmt, ...]:
        """Return the products of one stage."""

    def _staged_cell(
        self, reduction: Reduction, each: SharedOperand, stage: int, numbers: Numbers
    ) -> ir.Expr:
        row, column = (self.axes.position(name, numbers) for name in each.pack.axes)
        form = self._stage(each.pack.operand)
        places = self._place(form, (row, column), self._extents(numbers))
        dtype = self.nodes[each.node].dtype
        cell = ir.Load(each.node, (FixedIndex(stage), *places), dtype)
        return as_format(cell, reduction.dtype)


@dataclass(slots=True)
class RegisterTileEmitter(PipelineEmitter):
    """The statements of a thread that adds up the products of a register tile."""

    def _products(
        self, reduction: Reduction, accumulator: ThreadAccumulator, stage: int, point: Numbers
    ) -> tuple[ir.Stmt, ...]:
        serial = self.axes.serial

        def product(inner: Numbers) -> tuple[ir.Stmt, ...]:
            factors = {
                operand: self._staged_cell(reduction, each, stage, inner)
                for operand, each in self.staged.items()
            }
            term = substitute_in_expr(
                with_factors(reduction.term, factors), self.axes.values(inner)
            )
            return (accumulator.add(inner, term, is_fused=self.is_fused),)

        names = serial[serial.index(self.pipeline.axis) + 1 :]
        return self.axes.loops(names, point, product, is_guarded=False)
