"""The strategies of a reduction: how buffers are filled, and which loops add up the products.

Accumulators are cleared before and read by the epilogue after the loops that a strategy emits. The
kind of the buffers of packed operands (`BufferKind`) decides the strategy:

    Accumulation    terms one by one, from memory or from buffers
    TileProducts    tile registers of a processor (`amx_tiles`)
    StagedProducts  a software pipeline, by numbers or by fragments of a warp (`software_pipelines`)
    RingProducts    a ring of stages for asynchronous products (`wgmma_pipeline`)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from ocannl_core.ir.indexing import AxisIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import Reduction, with_factors
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.ir.loops.unit_products import product_nest
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply import loop_ends
from ocannl_core.schedule.apply.accumulators import Accumulators
from ocannl_core.schedule.apply.axis_tree import Region
from ocannl_core.schedule.apply.emission import Emission
from ocannl_core.schedule.apply.nest_state import NestState
from ocannl_core.schedule.apply.operand_buffers import FilledBuffer
from ocannl_core.schedule.apply.packing import Body
from ocannl_core.schedule.apply.prefetch import PrefetchingLoop, packing_loop, prefetching_loop

Conditions = Iterator[tuple[str, bool]]
"""Conditions on schedules, each with True if it holds; later ones may need those before."""


class Accumulation:
    """Terms are added one by one; buffers are filled in the loops that they are packed inside of.

    Attributes:
        outlines_epilogue: True if the epilogue always runs on a copy of the accumulators.
    """

    outlines_epilogue: ClassVar[bool] = False

    def __init__(self, emission: Emission, buffers: Mapping[int, FilledBuffer]) -> None:
        self.emission = emission
        self.buffers = buffers

    @classmethod
    def conditions(cls, state: NestState) -> Conditions:
        """Yield the rules of its schedules."""
        yield from ()

    @property
    def state(self) -> NestState:
        return self.emission.state

    @property
    def reduction(self) -> Reduction:
        return self.state.nest.required_reduction

    def whole(self, region: Region) -> Region:
        """Return the region that accumulators are computed for."""
        return region

    def fill(self, inside: str | None, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the statements that fill the buffers of a loop in one of its iterations."""
        found = [each for each in self.buffers.values() if each.pack.inside == inside]
        stmts = tuple(stmt for each in found for stmt in each.fill(region))
        return (ir.Barrier(), *stmts, ir.Barrier()) if stmts and self.state.is_on_blocks else stmts

    def sums(self, registers: Accumulators, region: Region) -> tuple[ir.Stmt, ...]:
        """Return the loops that add up all terms."""
        state, emission = self.state, self.emission

        def update(inner: Region) -> tuple[ir.Stmt, ...]:
            end = loop_ends.lane_end(state.order[-1], state.kinds, inner) if state.order else None
            return (registers.update(inner, self.term(inner), end),)

        if not state.is_on_blocks:
            return self._prefetching(registers, region, update)
        # with buffers all threads come to the barriers, and terms beyond an axis are zero
        stmts = emission.loops(state.inside, region, update, fills=True, guards=not self.buffers)
        if self.buffers:
            return stmts
        reduced = [axis.name for axis in state.nest.reduced if axis.name in state.device_axes]
        return region.guarded(reduced, stmts)

    def _prefetching(
        self, registers: Accumulators, region: Region, update: Body
    ) -> tuple[ir.Stmt, ...]:
        """Return the loops of a processor, with prefetches of the epilogue's operands."""
        state, emission = self.state, self.emission
        outer, *others = state.inside or ("",)
        is_open = state.prefetches and outer and state.tree.axes[outer[0]].bound is None
        if is_open and all(each.pack.inside != outer for each in self.buffers.values()):
            around = state.outside[-1] if state.outside else None
            cells = [name for name in registers.axes if not state.tree.is_reduced(name)]
            parts = prefetching_loop(state.nest, region, around, outer, cells, state.kinds)
            if parts is None:
                parts = self._packing_ahead(region, outer)
            if parts is not None:
                return parts.wrap(emission.loops(others, parts.inside, update, fills=True))
        return emission.loops(state.inside, region, update, fills=True)

    def _packing_ahead(self, region: Region, outer: str) -> PrefetchingLoop | None:
        """Return the loop over terms with prefetches of the operands that are packed next."""
        state, nodes = self.state, self.emission.operands
        if nodes is None:
            return None
        loads = [
            (each.operand, each.pack.inside)
            for each in self.buffers.values()
            if isinstance(each.operand, ir.Load) and each.pack.inside in state.outside
        ]
        return packing_loop(region, loads, state.outside, outer, state.kinds, nodes)

    def term(self, region: Region) -> ir.Expr:
        """Return the term at a point, with packed operands loaded from their buffers."""
        packed = {operand: each.cell(region) for operand, each in self.buffers.items()}
        term = with_factors(self.reduction.term, packed)
        return substitute_in_expr(term, region.substitution())

    def tile_product(
        self, registers: Accumulators, leaves: tuple[str, ...], region: Region
    ) -> tuple[ir.Stmt, ...]:
        """Return the product that one instruction may compute, of numbers if without loops."""
        if not leaves:
            return (registers.update(region, self.term(region)),)
        variables = [fresh_var(region.tree.hint(leaf)) for leaf in leaves]
        own: dict[str, AxisIndex] = dict(zip(leaves, map(VarIndex, variables), strict=True))
        inner = region.at(own)
        loops = list(zip(variables, map(region.tree.max_extent, leaves), strict=True))
        return (product_nest(loops, registers.update(inner, self.term(inner))),)


def is_wide_product(reduction: Reduction | None) -> bool:
    """Return True for a sum of products in a format that is not narrow."""
    return (
        reduction is not None
        and reduction.op is BinaryOp.ADD
        and reduction.dtype.is_float
        and not reduction.dtype.is_narrow
    )
