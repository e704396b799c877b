"""Apply tensor-core tiles: products that the threads of a warp compute together (`mma.sync`).

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
its threads run the instruction.

Operands are copied ahead as in any pipeline (`software_pipelines`).
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import Reduction, with_factors
from ocannl_core.ir.kernels.transforms import TileMatrix
from ocannl_core.ir.loops.nodes import Stmt
from ocannl_core.ir.loops.unit_products import product_nest
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.apply_block_schedule import Rules
from ocannl_core.schedule.apply.block_axes import Numbers
from ocannl_core.schedule.apply.software_pipelines import PipelineEmitter
from ocannl_core.schedule.apply.thread_accumulator import ThreadAccumulator


@dataclass(slots=True)
class TensorCoreEmitter(PipelineEmitter):
    """The statements of one thread of a warp."""

    @property
    def tile(self) -> TileMatrix:
        found = self._one(TileMatrix)
        assert found is not None
        return found

    def _rules(self) -> Rules:
        reduction, tile = self.nest.reduction, self._one(TileMatrix)
        is_product = (
            reduction is not None
            and reduction.op is BinaryOp.ADD
            and reduction.dtype.is_float
            and not reduction.dtype.is_narrow
        )
        # zero-argument super() refers to the class before slots
        rules = [
            *PipelineEmitter._rules(self),
            ("A schedule of warps has one tile.", tile is not None),
            ("Warps add up products, in a format that is not narrow.", is_product),
        ]
        if not all(is_kept for _, is_kept in rules):
            return rules
        assert tile is not None
        serial, tree = self.axes.serial, self.axes.tree
        leaves = (tile.rows, tile.lanes, tile.terms)
        return [
            *rules,
            (
                "Rows, columns and terms of a tile are the innermost loops of a thread.",
                serial[-3:] == leaves
                and [tree.is_reduced(each) for each in leaves] == [False, False, True],
            ),
            (
                "Copies run ahead along a loop around the tile.",
                serial.index(self.pipeline.axis) < len(serial) - 3,
            ),
        ]

    def _products(
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
            loops = list(zip(variables, map(self.axes.extent, leaves), strict=True))
            return (product_nest(loops, accumulator.add(at, term, is_fused=True)),)

        return self.axes.loops(names, point, product, is_guarded=False)
