"""Squares of cells: nests without a reduction in which rows of one node are columns of another.

    for i, j: y[i, j] = x[j, i] * b[j]   -->   for blocks of i and j: for i1, j1 in a square:
                                                   square[i1, j1] = x[j, i]      (in registers)
                                               for i1: for 16 lanes j1: y[i, j] = square * b[j]

Two vectorized axes are a square: rows along the first of them are lanes along the second one. Cells
of the rest, in blocks that are no squares, are loaded one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.ir.indexing import LoopVar, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import turned_loads
from ocannl_core.ir.kernels.transforms import root_of
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply.accumulators import epilogue_stores
from ocannl_core.schedule.apply.axis_tree import Region


def is_whole_square(region: Region, square: Sequence[str]) -> bool:
    """Return True if a region has as many rows as each of them has lanes."""
    row, lane = square
    widest = region.tree.max_extent(lane)
    counts = [[run.count for run in region.ranges(name)] for name in (row, lane)]
    return counts == [[widest], [widest]] and widest > 1


def emit_square(
    nest: Nest, region: Region, square: Sequence[str], nodes: dict[TensorNode, NodeInfo]
) -> tuple[ir.Stmt, ...]:
    """Return the statements of a whole square; add the nodes that hold transposed cells."""
    (rows,), (lanes,) = (region.ranges(name) for name in square)
    width = lanes.count

    def loops(
        row: LoopVar, lane: LoopVar, kind: ir.AxisKind, stmts: tuple[ir.Stmt, ...]
    ) -> ir.Stmt:
        inner = ir.For(lane, 0, width, ir.Block(stmts), ir.AxisKind.VECTOR)
        return ir.For(row, 0, width, ir.Block((inner,)), kind)

    def inside(row: LoopVar, lane: LoopVar) -> Region:
        outer = region.bind(square[0], rows, VarIndex(row))
        return outer.bind(square[1], lanes, VarIndex(lane))

    row, lane = (fresh_var(region.tree.hint(name)) for name in square)
    axes = [region.tree.axes[root_of(name)].var for name in square]
    loads = turned_loads(nest, *axes)
    match nest.epilogue:
        case (ir.Store(value=ir.Load() as value),) if value in loads:
            copy = epilogue_stores(nest, inside(row, lane), {})
            return (loops(row, lane, ir.AxisKind.VECTOR, copy),)
    stmts: list[ir.Stmt] = []
    values: dict[ir.Expr, ir.Expr] = {}
    here = inside(row, lane).substitution()
    for number, load in enumerate(loads):
        node = TensorNode(number, ("square",))
        nodes[node] = NodeInfo(load.dtype, (width, width))
        values[substitute_in_expr(load, here)] = ir.Load(
            node, (VarIndex(row), VarIndex(lane)), load.dtype
        )
        own = fresh_var(row.hint), fresh_var(lane.hint)
        cell = substitute_in_expr(load, inside(*own).substitution())
        copy = (ir.Store(node, (VarIndex(own[0]), VarIndex(own[1])), cell),)
        stmts += [ir.Allocate(node, ir.Scope.KERNEL), loops(*own, ir.AxisKind.VECTOR, copy)]
    stores = epilogue_stores(nest, inside(row, lane), values)
    return (*stmts, loops(row, lane, ir.AxisKind.SERIAL, stores))
