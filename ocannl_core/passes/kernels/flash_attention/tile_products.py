"""The two products of flash attention, on one tile of columns.

Each thread multiplies its rows and columns term by term. Where an instruction of a subgroup
multiplies small matrices, the loops inside are its tile: those over rows, columns and terms that
one thread has cells of.
"""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.ir.indexing import AxisIndex, VarIndex, fresh_var
from ocannl_core.ir.loops.nodes import AxisKind, Block, Const, For, Load, Stmt, Store
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.flash_attention.attention_thread import (
    AttentionThread,
    joined,
    unrolled,
)
from ocannl_core.schedule.machine_model import WALK_TERMS

_Cell = Callable[[AxisIndex, AxisIndex, AxisIndex, AxisIndex], tuple[Load, Load, Load]]
"""A sum and its factors, for a row, a vector, a lane and a term."""


def scores_of(
    thread: AttentionThread, scores: TensorNode, left: TensorNode, right: TensorNode, terms: int
) -> tuple[Stmt, ...]:
    """Return the statements that compute the scores of a thread."""
    arrays = thread.arrays
    zero = Const(0.0, arrays.nodes[scores].dtype)

    def clear(x: AxisIndex, y: AxisIndex, lane: AxisIndex) -> tuple[Stmt, ...]:
        cell = thread.score(scores, x, y, lane)
        return (Store(cell.node, cell.indices, zero),)

    def cell(x: AxisIndex, y: AxisIndex, lane: AxisIndex, at: AxisIndex) -> tuple[Load, Load, Load]:
        return (
            thread.score(scores, x, y, lane),
            arrays.read(left, thread.own_row(x), at),
            arrays.read(right, thread.own_column(y, lane), at),
        )

    cleared = thread.for_rows(lambda x: thread.for_columns(lambda y, lane: clear(x, y, lane)))
    vectors = thread.tile.columns // thread.tile.column_lanes, thread.tile.column_lanes
    return (*cleared, *_products(thread, vectors, terms, cell))


def weighted_sums(
    thread: AttentionThread, results: TensorNode, weights: TensorNode, operand: TensorNode
) -> tuple[Stmt, ...]:
    """Return the statements that add the second product of a tile of columns."""
    arrays, tile = thread.arrays, thread.tile

    def cell(x: AxisIndex, z: AxisIndex, lane: AxisIndex, at: AxisIndex) -> tuple[Load, Load, Load]:
        return (
            thread.result(results, x, z, lane),
            arrays.read(weights, thread.own_row(x), at),
            arrays.read(operand, at, thread.own_cell(z, lane)),
        )

    return _products(thread, (tile.cells // tile.lanes, tile.lanes), tile.block_columns, cell)


def _products(
    thread: AttentionThread, vectors: tuple[int, int], terms: int, cell: _Cell
) -> tuple[Stmt, ...]:
    """Return the products of the rows of a thread with vectors of columns or cells."""
    count, lanes = vectors
    tile, arrays = thread.tile, thread.arrays
    instruction = tile.instruction
    if instruction is None:
        stride = min(WALK_TERMS, terms)
        step = fresh_var("term")

        def add(x: AxisIndex, y: AxisIndex, lane: AxisIndex, inner: AxisIndex) -> tuple[Stmt, ...]:
            own, left, right = cell(x, y, lane, joined((stride, VarIndex(step)), (1, inner)))
            return (arrays.accumulate(own, left, right, is_fused=tile.is_fused),)

        body = unrolled(
            "term",
            stride,
            lambda inner: thread.for_rows(
                lambda x: unrolled(
                    "y", count, lambda y: unrolled("lane", lanes, lambda n: add(x, y, n, inner))
                )
            ),
        )
        return (For(step, 0, terms // stride, Block(body)),)
    depth = instruction.terms
    high = tile.tile_rows

    def multiply(block: AxisIndex, x: AxisIndex, y: AxisIndex) -> tuple[Stmt, ...]:
        row, lane, term = fresh_var("x"), fresh_var("lane"), fresh_var("term")
        at = joined((depth, block), (1, VarIndex(term)))
        own, left, right = cell(joined((high, x), (1, VarIndex(row))), y, VarIndex(lane), at)
        stmts: tuple[Stmt, ...] = (arrays.accumulate(own, left, right, is_fused=True),)
        for var, extent in ((term, depth), (lane, lanes), (row, high)):
            stmts = (For(var, 0, extent, Block(stmts), AxisKind.TILE),)
        return stmts

    return unrolled(
        "term",
        terms // depth,
        lambda block: unrolled(
            "x",
            tile.rows // high,
            lambda x: unrolled("y", count, lambda y: multiply(block, x, y)),
        ),
    )
