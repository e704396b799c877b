"""Apply a WGMMA schedule: a TMA multistage pipeline, in which one thread copies operands for all.

The stages are a ring, which takes turns in shared memory.

    ring k10; tile i1110 j111 k11; pack 0 inside k10 as i1 k11; pack 1 inside k10 as k11 j1

        -->  for k0, k10 in range(4):
               barrier                                   the stage is free
               if this is the first thread:
                 for r, c in copy: staged0[k10, r, c] = a[...] inside of the array, 0.0 beyond
                 for r, c in copy: staged1[k10, r, c] = b[...] likewise
               barrier                                   the stage is complete
               for j10, i1110, j111, k11 in tile:
                 sums[j10, i1110, j111] = fma(staged0[...], staged1[...], sums[...])

The statements mean the same on any device. On one with WGMMA, asynchronous products of a warpgroup,
warps are specialised: one of them makes the copies, some stages ahead of the others, and both
barriers become barriers of a stage; the renderer verifies that the cells of the threads are those
of the instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import Reduction, with_factors
from ocannl_core.ir.kernels.transforms import Pack, Ring, TileMatrix
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format
from ocannl_core.ir.loops.loop_nests import loops_around
from ocannl_core.ir.loops.unit_products import RingStage, product_nest
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.apply_block_schedule import Rules, SharedOperand, ThreadEmitter
from ocannl_core.schedule.apply.block_axes import Numbers
from ocannl_core.schedule.apply.software_pipelines import staged_factor
from ocannl_core.schedule.apply.thread_accumulator import ThreadAccumulator


@dataclass(slots=True)
class WgmmaPipelineEmitter(ThreadEmitter):
    """The statements of one thread.

    Attributes:
        staged: The operands in shared memory, in the order of the term.
    """

    staged: list[SharedOperand] = field(default_factory=list)

    @property
    def ring(self) -> str:
        return next(each.axis for each in self.schedule if isinstance(each, Ring))

    @property
    def tile(self) -> tuple[str, ...]:
        """The leaves of a tile: those inside of the ring."""
        return self.axes.serial[self.axes.serial.index(self.ring) + 1 :]

    def _rules(self) -> Rules:
        reduction, tree, serial = self.nest.reduction, self.axes.tree, self.axes.serial
        is_product = (
            reduction is not None
            and reduction.op is BinaryOp.ADD
            and reduction.dtype.is_float
            and not reduction.dtype.is_narrow
            and len(reduction.factors) == 2
        )
        rings = [each.axis for each in self.schedule if isinstance(each, Ring)]
        is_around = len(rings) == 1 and rings[0] in serial and rings[0][1:] == "10"
        rules = [
            (
                "Stages of a ring have products of two factors, in a format that is not narrow.",
                is_product,
            ),
            (
                "A schedule has one ring, along the stages of blocks of terms, such as k10.",
                is_around,
            ),
        ]
        if not all(is_kept for _, is_kept in rules):
            return rules
        tiles = [each for each in self.schedule if isinstance(each, TileMatrix)]
        packs = [each for each in self.schedule if isinstance(each, Pack)]
        outer = serial[: serial.index(self.ring) + 1]
        return [
            *rules,
            (
                "Rows, columns and terms of a tile are the innermost loops of a thread.",
                len(tiles) == 1
                and len(self.tile) == 4
                and self.tile[1:] == (tiles[0].rows, tiles[0].lanes, tiles[0].terms)
                and [tree.is_reduced(each) for each in self.tile] == [False, False, False, True],
            ),
            ("Only reduced loops are around the tile of a ring.", all(map(tree.is_reduced, outer))),
            (
                "Both factors are packed along two axes inside of the ring.",
                sorted(each.operand for each in packs) == [0, 1]
                and all(each.inside == self.ring and len(each.axes) == 2 for each in packs),
            ),
            ("A ring has two stages or more.", self.axes.extent(self.ring) > 1),
            (
                "Axes of the product have no ends at run time.",
                not any(each.bound for each in self.nest.axes),
            ),
            ("Threads of a block share no result of a tile.", not self.reduced_threads),
        ]

    def _shared_operands(self, reduction: Reduction) -> dict[str, list[SharedOperand]]:
        packs = [each for each in self.schedule if isinstance(each, Pack)]
        for pack in sorted(packs, key=lambda each: each.operand):
            dims = (self.axes.extent(self.ring), *map(self.axes.extent, pack.axes))
            node = self._new_array("staged", dims, ir.Scope.GROUP)
            dtype = staged_factor(reduction, pack.operand).dtype
            self.nodes[node] = NodeInfo(dtype, dims)
            self.staged.append(SharedOperand(pack, node))
        return {self.ring: self.staged}

    def _copy(
        self, reduction: Reduction, each: SharedOperand, numbers: Numbers
    ) -> tuple[ir.Stmt, ...]:
        """Return the copy of an operand to its stage."""
        names = each.pack.axes
        variables = [fresh_var("copy") for _ in names]
        positions: dict[str, AxisIndex] = dict(zip(names, map(VarIndex, variables), strict=True))
        value = self._padded(staged_factor(reduction, each.pack.operand), numbers, positions)
        store = ir.Store(each.node, (numbers[self.ring], *positions.values()), value)
        loops = list(zip(variables, map(self.axes.extent, names), strict=True))
        return (loops_around(loops, store, kind=ir.AxisKind.COPY),)

    def _is_padded(self, root: str, positions: Mapping[str, AxisIndex]) -> bool:
        """Return True for the axes of a stage, even if no stage exceeds them: their ends are those
        of the array that is copied.
        """
        return any(name[0] == root for name in positions)

    def _accumulate(
        self,
        reduction: Reduction,
        accumulator: ThreadAccumulator,
        packs: Mapping[str, Sequence[SharedOperand]],
        numbers: Numbers,
    ) -> tuple[ir.Stmt, ...]:
        serial = self.axes.serial
        outer = serial[: serial.index(self.ring) + 1]
        first = ir.LoopBound(self.axes.joint_number(self.axes.block, numbers), 1)

        def stage(point: Numbers) -> tuple[ir.Stmt, ...]:
            copies = [stmt for each in self.staged for stmt in self._copy(reduction, each, point)]
            product = self._product(reduction, accumulator, point)
            # steps beyond the last one have no terms
            root = self.ring[0]
            names = (f"{root}0", self.ring)
            steps = -(-self.axes.extent(root) // self.axes.extent(f"{root}11"))
            is_rounded = self.axes.count(names) > steps
            end = ir.LoopBound(self.axes.joint_number(names, point), steps) if is_rounded else None
            return RingStage(first, tuple(copies), product, end).stmts()

        return self.axes.loops(outer, numbers, stage, is_guarded=False, unrolls=False)

    def _product(
        self, reduction: Reduction, accumulator: ThreadAccumulator, point: Numbers
    ) -> ir.For:
        """Return the products of a stage."""
        variables = {leaf: fresh_var(self.axes.tree.hint(leaf)) for leaf in self.tile}
        at = {**point, **{leaf: VarIndex(var) for leaf, var in variables.items()}}
        factors = {
            each.pack.operand: self._staged_cell(reduction, each, at) for each in self.staged
        }
        term = with_factors(reduction.term, factors)
        loops = [(var, self.axes.extent(leaf)) for leaf, var in variables.items()]
        return product_nest(loops, accumulator.add(at, term, is_fused=True))

    def _staged_cell(self, reduction: Reduction, each: SharedOperand, numbers: Numbers) -> ir.Expr:
        places = tuple(self.axes.position(name, numbers) for name in each.pack.axes)
        dtype = self.nodes[each.node].dtype
        cell = ir.Load(each.node, (numbers[self.ring], *places), dtype)
        return as_format(cell, reduction.dtype)
