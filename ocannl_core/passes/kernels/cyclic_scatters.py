"""Cyclic distribution of the positions of a scatter among the thread blocks of a device.

    for t in range(4096):                        for p in grid(128):
        scatter(c[ids[t], o]) += x[t, o]   -->     for t in range(4096):
                                                     if ids[t] % 128 == p:
                                                       scatter(c[ids[t], o]) += x[t, o]

Iterations may write the same cell, so that they run one after the other. Here each block writes the
positions with one remainder, and no other: every cell gets its values in the order of the loops,
and no two blocks access the same cell. A block reads all positions, which are few numbers, but
waits for the cells of its own only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    Expr,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Scatter,
    Stmt,
    Ternary,
)
from ocannl_core.ir.loops.traverse import map_expr, walk
from ocannl_core.ir.numbers.dtypes import Kind
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.ir.target import ThreadBlocks
from ocannl_core.schedule.machine_model import MIN_CYCLIC_SCATTERS

_KINDS = frozenset({Kind.SIGNED, Kind.UNSIGNED})


def distribute_scatter_cyclically(
    stmts: Sequence[Stmt],
    serial: Sequence[For],
    independent: Sequence[For],
    nodes: NodeInfos,
    blocks: ThreadBlocks,
) -> tuple[For, Stmt] | None:
    """Return a loop over parts of the positions of a scatter, and the scatter of a part; None if
    there are few iterations, or if other cells of the node are read.

    Args:
        stmts: The statements inside of all loops.
        serial: The loops whose iterations may write the same cell.
        independent: The other loops.
        nodes: Extents and formats.
    """
    match stmts:
        case (Scatter(node) as scatter,):
            position = scatter.position
        case _:
            return None
    dtype = position.dtype
    own = scatter.own
    others = (
        each
        for each in walk(scatter)
        if isinstance(each, Load | LoadMerge | Gather) and each.node is node and each != own
    )
    if dtype.kind not in _KINDS or dtype.is_packed or any(True for _ in others):
        return None
    if prod(loop.stop - loop.start for loop in serial) < MIN_CYCLIC_SCATTERS:
        return None
    busy = -(-prod(loop.stop - loop.start for loop in independent) // blocks.threads)
    bits, extent = 8 * dtype.nbytes, nodes[node].buffer_dims[scatter.axis]
    if dtype.kind is Kind.UNSIGNED and extent >= 1 << bits:
        return None  # every number of the format is a position
    count = min(blocks.processors // max(1, busy), extent, 1 << (bits - 2))
    count = 1 << max(0, count.bit_length() - 1)
    if count < 2:
        return None
    part = fresh_var("part")
    rest = Binary(BinaryOp.BIT_AND, position, Const(count - 1, dtype), dtype)
    is_own = Binary(BinaryOp.EQ, rest, IndexValue(VarIndex(part), dtype), dtype)
    # no position of the axis, where nothing is stored
    outside = Const(-1 if dtype.kind is Kind.SIGNED else extent, dtype)
    chosen = Ternary(TernaryOp.WHERE, is_own, position, outside, dtype)

    def on_expr(expr: Expr) -> Expr:
        return replace(expr, position=chosen) if expr == own and isinstance(expr, Gather) else expr

    part_of_scatter = replace(scatter, position=chosen, value=map_expr(scatter.value, on_expr))
    return For(part, 0, count, Block()), part_of_scatter
