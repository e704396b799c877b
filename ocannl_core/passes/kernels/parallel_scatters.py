"""Division of a scatter among thread blocks or threads.

Iterations of the outer loop may write the same cell, so that they run one after the other. The
thread blocks of a device divide the positions cyclically:

    for t in range(4096):                        for p in grid(128):
        scatter(c[ids[t], o]) += x[t, o]   -->     for t in range(4096):
                                                     if ids[t] % 128 == p:
                                                       scatter(c[ids[t], o]) += x[t, o]

Each block writes the positions with one remainder, and no other: every cell gets its values in the
order of the loops, and no two blocks access the same cell. A block reads all positions, which are
few numbers, but waits for the cells of its own only.

The threads of a processor divide the columns into strips:

    for t in range(4096):                      for t in range(4096):
      for o in range(256):                       for p in range(4):  # parallel
        scatter(c[ids[t], o]) += x[t, o]   -->     for o in range(64):
                                                     scatter(c[ids[t], 64 * p + o]) += ...

Each thread runs all iterations of the outer loop for strips of its own. On one thread the order of
all statements is the same as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.rounding import ceil_div, power_below
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.dependence import AccessSet, iterations_are_independent
from ocannl_core.ir.kernels.nest_recognition import perfect_loops
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import contains, map_expr, substitute_in_stmt, walk, with_loops
from ocannl_core.ir.numbers.dtypes import Kind, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.ir.target import ThreadBlocks
from ocannl_core.schedule.machine_model import CACHE_LINE_BYTES, MIN_CYCLIC_SCATTERS

_KINDS = frozenset({Kind.SIGNED, Kind.UNSIGNED})


def distribute_scatter_cyclically(
    stmts: Sequence[ir.Stmt],
    serial: Sequence[ir.For],
    independent: Sequence[ir.For],
    nodes: NodeInfos,
    blocks: ThreadBlocks,
) -> tuple[ir.For, ir.Stmt] | None:
    """Return a loop over parts of the positions of a scatter, and the scatter of a part; None if
    there are few iterations, or if other cells of the node are read.

    Args:
        serial: The loops whose iterations may write the same cell.
    """
    match stmts:
        case (ir.Scatter(node) as scatter,):
            position = scatter.position
        case _:
            return None
    dtype = position.dtype
    own = scatter.own
    others = (
        each
        for each in walk(scatter)
        if isinstance(each, ir.Load | ir.LoadMerge | ir.Gather)
        and each.node is node
        and each != own
    )
    if dtype.kind not in _KINDS or dtype.is_packed or any(True for _ in others):
        return None
    if prod(loop.stop - loop.start for loop in serial) < MIN_CYCLIC_SCATTERS:
        return None
    busy = ceil_div(prod(loop.stop - loop.start for loop in independent), blocks.threads)
    bits, extent = 8 * dtype.nbytes, nodes[node].buffer_dims[scatter.axis]
    if dtype.kind is Kind.UNSIGNED and extent >= 1 << bits:
        return None  # every number of the format is a position
    count = power_below(min(blocks.processors // max(1, busy), extent, 1 << (bits - 2)))
    if count < 2:
        return None
    part = fresh_var("part")
    rest = ir.Binary(BinaryOp.BIT_AND, position, ir.Const(count - 1, dtype), dtype)
    is_own = ir.Binary(BinaryOp.EQ, rest, ir.IndexValue(VarIndex(part), dtype), dtype)
    # no position of the axis, where nothing is stored
    outside = ir.Const(-1 if dtype.kind is Kind.SIGNED else extent, dtype)
    chosen = ir.Ternary(TernaryOp.WHERE, is_own, position, outside, dtype)

    def on_expr(expr: ir.Expr) -> ir.Expr:
        return (
            replace(expr, position=chosen) if expr == own and isinstance(expr, ir.Gather) else expr
        )

    part_of_scatter = replace(scatter, position=chosen, value=map_expr(scatter.value, on_expr))
    return ir.For(part, 0, count, ir.Block()), part_of_scatter


_STRIPS = tuple(lines * CACHE_LINE_BYTES // float32.nbytes for lines in (4, 2, 1))
"""Columns of a strip: whole cache lines of float32, so that no two threads write to one."""
_FEWEST = 4
"""The least number of strips, for threads to have about as many each."""


def scatter_in_strips(stmt: ir.For, touched: AccessSet) -> ir.For | None:
    """Return loops around a scatter in parallel strips; None if these are dependent or few."""
    loops, inner = perfect_loops(ir.Block((stmt,)))
    columns = loops[-1]
    extent = columns.stop - columns.start
    strip = next((n for n in _STRIPS if extent % n == 0 and extent >= n * _FEWEST), None)
    if strip is None or len(loops) < 2 or any(loop.bound is not None for loop in loops):
        return None
    if any(loop.kind is not ir.AxisKind.SERIAL for loop in loops):
        return None
    if not any(contains(part, ir.Scatter) for part in inner):
        return None
    if not iterations_are_independent(columns, touched):
        return None
    part, column = fresh_var(columns.var.hint), fresh_var(columns.var.hint)
    moved: dict[IndexVar, AxisIndex] = {
        columns.var: affine([(strip, part), (1, column)], columns.start)
    }
    body = ir.For(column, 0, strip, substitute_in_stmt(ir.Block(inner), moved))
    strips = ir.For(part, 0, extent // strip, ir.Block((body,)), ir.AxisKind.PARALLEL)
    outermost, *others = loops[:-1]
    return replace(outermost, body=with_loops(others, ir.Block((strips,))))
