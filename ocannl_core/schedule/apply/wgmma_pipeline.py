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
warps are specialized: one of them makes the copies, some stages ahead of the others, and both
barriers become barriers of a stage; the renderer verifies that the cells of the threads are those
of the instruction.
"""

from __future__ import annotations

from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import AxisIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.transforms import inner_of, outer_of, root_of
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import loops_around
from ocannl_core.ir.loops.unit_products import RingStage
from ocannl_core.schedule.apply.accumulators import Accumulators
from ocannl_core.schedule.apply.axis_tree import Region
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.reduction_strategy import Accumulation, Conditions, is_wide_product
from ocannl_core.schedule.apply.software_pipelines import StageBuffer


class RingBuffer(StageBuffer):
    """A stage for each iteration of the ring, which one thread copies."""

    def _dims(self) -> tuple[int, ...]:
        return tuple(map(self.tree.max_extent, (self.state.ring, *self.pack.axes)))

    def fill(self, region: Region) -> tuple[ir.Stmt, ...]:
        names = self.pack.axes
        variables = [fresh_var("copy") for _ in names]
        positions: dict[str, AxisIndex] = dict(zip(names, map(VarIndex, variables), strict=True))
        value = self.padded(self._staged, region.at(positions))
        stage = region.numbers[self.state.ring]
        store = ir.Store(self.node, (stage, *positions.values()), value)
        loops = list(zip(variables, map(self.tree.max_extent, names), strict=True))
        return (loops_around(loops, store, kind=ir.AxisKind.COPY),)

    def _has_padding(self, root: str) -> bool:
        """Return True for the axes of a stage, even if no stage exceeds them: their ends are those
        of the array that is copied.
        """
        return any(root_of(name) == root for name in self.pack.axes)

    def cell(self, region: Region) -> ir.Expr:
        indices = tuple(map(region.position, self.pack.axes))
        return self.staged_cell(region.numbers[self.state.ring], indices)


class RingProducts(Accumulation):
    """One thread copies a stage for all, which then multiply it, tile by tile."""

    @classmethod
    def conditions(cls, state: NestState) -> Conditions:
        reduction, tree, serial, ring = state.nest.reduction, state.tree, state.serial, state.ring
        yield (
            "Stages of a ring have products of two factors, in a format that is not narrow.",
            is_wide_product(reduction) and reduction is not None and len(reduction.factors) == 2,
        )
        yield (
            "A schedule has one ring, along the stages of blocks of terms, such as k10.",
            ring in serial and ring == outer_of(inner_of(root_of(ring))),
        )
        cut = serial.index(ring) + 1
        tile, given = serial[cut:], state.tile
        yield (
            "Rows, columns and terms of a tile are the innermost loops of a thread.",
            given is not None
            and len(tile) == 4
            and tile[1:] == (given.rows, given.lanes, given.terms)
            and [tree.is_reduced(each) for each in tile] == [False, False, False, True],
        )
        yield (
            "Only reduced loops are around the tile of a ring.",
            all(map(tree.is_reduced, serial[:cut])),
        )
        yield (
            "Both factors are packed along two axes inside of the ring.",
            len(state.packs) == 2
            and all(each.inside == ring and len(each.axes) == 2 for each in state.packs),
        )
        yield "A ring has two stages or more.", tree.max_extent(ring) > 1
        yield (
            "Axes of the product have no ends at run time.",
            not any(each.bound for each in state.nest.axes),
        )
        yield "Threads of a block share no result of a tile.", not state.reduced_threads

    def fill(self, inside: str | None, region: Region) -> tuple[ir.Stmt, ...]:
        return ()

    def sums(self, registers: Accumulators, region: Region) -> tuple[ir.Stmt, ...]:
        state, tree = self.state, self.state.tree
        cut = state.inside.index(state.ring) + 1
        first = ir.LoopBound(region.joint_number(state.block), 1)
        root = root_of(state.ring)
        names = (outer_of(root), state.ring)
        steps = ceil_div(tree.max_extent(root), tree.max_extent(inner_of(inner_of(root))))
        is_rounded = tree.count(names) > steps

        def stage(point: Region) -> tuple[ir.Stmt, ...]:
            copies = (self.buffers[at].fill(point) for at in sorted(self.buffers))
            flat = tuple(stmt for stmts in copies for stmt in stmts)
            (product,) = self.tile_product(registers, state.inside[cut:], point)
            assert isinstance(product, ir.For)
            # steps beyond the last one have no terms
            end = ir.LoopBound(point.joint_number(names), steps) if is_rounded else None
            return RingStage(first, flat, product, end).stmts()

        return self.emission.loops(state.inside[:cut], region, stage, guards=False, unrolls=False)
