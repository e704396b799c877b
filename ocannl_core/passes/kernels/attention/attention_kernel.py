"""Emission of a flash-attention kernel for the thread blocks of a device.

    for b in grid(batch), i in grid(tiles of rows):
      for r, c in block(threads along rows and columns):
        copy the rows' factors to shared memory; values of rows
        for t in range(tiles of columns):
          barrier; copy the columns' factors; values of columns; barrier
          scores = products of rows and columns                 # cells of a thread, in registers
          maximum' = max(maximum, scores), across the threads of a row
          correction = exp(shift(maximum) - shift(maximum'))
          weights = exp(scores - shift(maximum')), to shared memory
          sums = sums * correction + weights                    # partial sums of a thread
          barrier
          results = results * correction + weights * columns' second factor
        sums across the threads of a row; the stores

Without a maximum, weights are functions of the scores and of values of rows and columns. Scores
beyond the last column are minus infinity where there is a maximum, and weights are zero. Tiles of
columns whose weights are zero in every row by a comparison of positions are left out; the blocks
whose walks are longest come first in the grid.
"""

from __future__ import annotations

from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    VarIndex,
    affine,
    affine_sum,
    fresh_var,
)
from ocannl_core.ir.kernels.nest import substitute_in_store
from ocannl_core.ir.kernels.nest_accesses import is_vector
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.traverse import substitute_in_expr, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.kernels.attention.attention_thread import (
    Arrays,
    AttentionThread,
    scores_of,
    unrolled,
    weighted_sums,
)
from ocannl_core.passes.kernels.attention.attention_tiles import AttentionTile, shared_arrays
from ocannl_core.passes.kernels.attention.causal_mask import CausalMask, causal_mask
from ocannl_core.passes.kernels.attention.fused_attention import FusedAttention, inside_or, replaced
from ocannl_core.passes.kernels.attention.online_softmax import LEAST, Invariants, OnlineSoftmax
from ocannl_core.passes.kernels.attention.tile_copies import Side, TileCopies
from ocannl_core.schedule.apply.vector_accesses import vector_iterations
from ocannl_core.schedule.machine_model import ATTENTION_DIGIT


def emit_attention(
    attention: FusedAttention, tile: AttentionTile, nodes: NodeInfos
) -> tuple[ir.Block, dict[TensorNode, NodeInfo]]:
    """Return the statements of the kernel of an attention, and the arrays that they use."""
    arrays = Arrays(nodes)
    digits, row, column = _threads(tile)
    batch = [(axis, fresh_var(axis.var.hint)) for axis in attention.batch]
    tile_of_rows = fresh_var(attention.rows.var.hint)
    count = ceil_div(attention.rows.extent, tile.block_rows)
    mask = causal_mask(attention)
    # the blocks with the longest walks first, so that short ones fill the processors at the end
    is_reversed = mask is not None and not mask.is_falling
    first = (
        _tile(tile.block_rows, tile_of_rows, count, is_reversed=is_reversed)
        if count > 1
        else FixedIndex(0)
    )
    exceeds = attention.rows.bound is not None or count * tile.block_rows > attention.rows.extent
    rows = Side(attention.rows, first, tile.block_rows, exceeds, needs_zeros=False)
    around: dict[IndexVar, AxisIndex] = {
        axis.var: VarIndex(var) if axis.extent > 1 else FixedIndex(0) for axis, var in batch
    }
    thread = AttentionThread(attention, tile, arrays, digits, row, column, rows, around)
    stmts = _statements(thread, mask)
    stmts = (*(ir.Allocate(node, ir.Scope.THREAD) for node in arrays.private), *stmts)
    for var, extent in reversed(digits):
        stmts = (ir.For(var, 0, extent, ir.Block(stmts), ir.AxisKind.BLOCK),)
    stmts = (*(ir.Allocate(node, ir.Scope.GROUP) for node in arrays.shared), *stmts)
    grid = [(v, axis.extent, axis.bound_at(VarIndex(v))) for axis, v in batch if axis.extent > 1]
    grid += [(tile_of_rows, count, None)] if count > 1 or not grid else []
    for var, extent, end in reversed(grid):
        stmts = (ir.For(var, 0, extent, ir.Block(stmts), ir.AxisKind.GRID, bound=end),)
    return ir.Block(stmts), arrays.nodes


def _threads(tile: AttentionTile) -> tuple[tuple[tuple[LoopVar, int], ...], AxisIndex, AxisIndex]:
    """Return the loops of a block, the first row of a thread, and its number along the columns."""
    down, across = tile.threads
    digits: list[tuple[LoopVar, int]] = []
    row: list[tuple[int, AxisIndex]] = []
    warps = down // tile.row_step
    if warps > 1:
        var = fresh_var("warp")
        digits.append((var, warps))
        row.append((tile.row_step * tile.rows, VarIndex(var)))
    if tile.row_step > 1:
        var = fresh_var("row")
        digits.append((var, tile.row_step))
        row.append((1, VarIndex(var)))
    column: list[tuple[int, AxisIndex]] = []
    if across > ATTENTION_DIGIT:
        var = fresh_var("column")
        digits.append((var, across // ATTENTION_DIGIT))
        column.append((ATTENTION_DIGIT, VarIndex(var)))
    var = fresh_var("column")
    digits.append((var, min(across, ATTENTION_DIGIT)))
    column.append((1, VarIndex(var)))
    return tuple(digits), affine_sum(*row), affine_sum(*column)


def _tile(size: int, number: LoopVar, count: int, *, is_reversed: bool) -> AxisIndex:
    """Return the first position of a tile by its number, from the last one on if reversed."""
    return affine([(-size if is_reversed else size, number)], size * (count - 1) * is_reversed)


def _statements(thread: AttentionThread, mask: CausalMask | None) -> tuple[ir.Stmt, ...]:
    attention, tile, arrays = thread.attention, thread.tile, thread.arrays
    output = attention.output
    shared = shared_arrays(attention, tile)
    factors = [
        arrays.new(name, tile.staged(each).dtype, *dims, scope=ir.Scope.GROUP)
        for name, each, dims in shared.factors
    ]
    count = len(attention.products)
    lefts, rights, weights = factors[:count], factors[count : 2 * count], factors[-1]
    operand = factors[2 * count] if shared.reused is None else rights[shared.reused]
    scores = [
        arrays.new("scores", each.result.dtype, tile.rows, tile.columns)
        for each in attention.products
    ]
    kept = scores[0]
    if attention.score.dtype is not attention.products[0].result.dtype:
        kept = arrays.new("kept", attention.score.dtype, tile.rows, tile.columns)
    results = arrays.new("results", output.result.dtype, tile.rows, tile.cells)
    row_sums = {
        e.result: arrays.new("row_sum", e.result.dtype, tile.rows) for e in attention.row_sums
    }
    others = {e.result: node for e, node in zip(attention.products[1:], scores[1:], strict=True)}
    invariants = Invariants.of(thread)
    statistics = OnlineSoftmax(thread, kept, results, row_sums, others, invariants)
    digits = tuple((VarIndex(var), extent) for var, extent in thread.digits)
    copies = TileCopies(digits, arrays.every, tile.vector_bytes, arrays.new_vector)
    depths = [
        Side(each.terms, FixedIndex(0), terms, terms > each.terms.extent)
        for each, terms in zip(attention.products, shared.terms, strict=True)
    ]
    walk_var = fresh_var(attention.columns.var.hint)
    count = ceil_div(attention.columns.extent, tile.block_columns)
    is_falling = mask is not None and mask.is_falling
    first = _tile(tile.block_columns, walk_var, count, is_reversed=is_falling)
    ends = attention.columns.bound
    exceeds = ends is not None or count * tile.block_columns > attention.columns.extent
    columns = Side(attention.columns, first, tile.block_columns, exceeds)
    width = tile.block_cells
    cells = Side(
        attention.head_axis,
        FixedIndex(0),
        width,
        width > attention.head_axis.extent,
        needs_zeros=False,
    )

    def fill(node: TensorNode, factor: ir.Expr, along: Side, across: Side) -> tuple[ir.Stmt, ...]:
        factor = substitute_in_expr(tile.staged(factor), thread.around)
        return copies.fill(node, arrays.nodes[node], factor, along, across)

    cleared = statistics.cleared()
    products = list(
        zip(attention.products, lefts, rights, depths, scores, shared.terms, strict=True)
    )
    inside: list[ir.Stmt] = [ir.Barrier()]
    for product, _, right, depth, _, _ in products:
        inside += fill(right, product.right, columns, depth)
    if shared.reused is None:
        inside += fill(operand, attention.operand, columns, cells)
    inside += [*invariants.of_columns(copies, columns), ir.Barrier()]
    for _, left, right, _, own, terms in products:
        inside += scores_of(thread, own, left, right, terms)
    inside += [
        *_keep(thread, scores[0], kept, columns),
        *statistics.advance(weights, columns),
        ir.Barrier(),
        *weighted_sums(thread, results, weights, operand),
    ]
    bound = None if mask is None else mask.last_tile(columns, thread.rows)
    if bound is None and ends is not None:
        bound = attention.columns.bound_at(first)
    before = [
        s for e, left, _, depth, *_ in products for s in fill(left, e.left, thread.rows, depth)
    ]
    return (
        *before,
        *invariants.of_rows(),
        *cleared,
        ir.For(walk_var, 0, count, ir.Block(tuple(inside)), bound=bound),
        *statistics.complete(),
        *_stores(thread, results, statistics),
    )


def _keep(
    thread: AttentionThread, scores: TensorNode, kept: TensorNode, columns: Side
) -> tuple[ir.Stmt, ...]:
    """Return the value of each score that the attention keeps, from the sums of products."""
    attention = thread.attention
    has_maximum = attention.maximum is not None
    own = ir.LocalRead(attention.products[0].result)
    if attention.score == own and not (has_maximum and columns.may_exceed):
        return ()

    def cell(x: AxisIndex, y: AxisIndex, lane: AxisIndex) -> tuple[ir.Stmt, ...]:
        value = replaced(attention.score, own, thread.score(scores, x, y, lane))
        inside = thread.is_inside(columns, x, y, lane, value)
        value = substitute_in_expr(value, thread.of_score(columns, x, y, lane))
        value = inside_or(inside, value, LEAST if has_maximum else 0.0)
        target = thread.score(kept, x, y, lane)
        return (ir.Store(kept, target.indices, value),)

    return thread.for_rows(lambda x: thread.for_columns(lambda y, lane: cell(x, y, lane)))


def _stores(
    thread: AttentionThread, results: TensorNode, statistics: OnlineSoftmax
) -> tuple[ir.Stmt, ...]:
    attention, tile, arrays = thread.attention, thread.tile, thread.arrays
    lanes = tile.lanes
    full = attention.head_axis.extent

    def cells(x: AxisIndex, z: AxisIndex, empty: ir.Expr | None) -> tuple[ir.Stmt, ...]:
        lane = fresh_var("lane")
        inner: AxisIndex = VarIndex(lane) if lanes > 1 else FixedIndex(0)
        position = thread.own_cell(z, inner)
        values = {**thread.of_row(x), attention.head_axis.var: position}
        own = thread.result(results, x, z, inner)
        stmts: list[ir.Stmt] = [
            ir.Store(own.node, own.indices, statistics.finished(attention.output, own, empty, x))
        ]
        for store in attention.epilogue:
            value = statistics.resolved(store.value, x)
            value = replaced(value, ir.LocalRead(attention.output.result), own)
            stmts.append(substitute_in_store(ir.Store(store.node, store.indices, value), values))
        bound = attention.head_axis.bound_at(position)
        if bound is None and tile.block_cells > full:
            bound = ir.LoopBound(position, full)
        if lanes == 1:
            return guarded(bound, tuple(stmts))
        whole = full % lanes == 0 and attention.head_axis.bound is None
        if not whole:
            inside = guarded(bound, tuple(stmts))
            return (ir.For(lane, 0, lanes, ir.Block(inside), ir.AxisKind.UNROLLED),)
        cells = [
            (each.node, each.indices)
            for stmt in stmts
            for each in walk(stmt)
            if isinstance(each, ir.Load | ir.Store)
            and each.node in arrays.known
            and is_vector(each.indices, arrays.known[each.node], lane, lanes)
        ]
        vectors = vector_iterations(
            cells, lane, lanes, tuple(stmts), arrays.every, arrays.new_vector
        )
        vector = affine_sum((1, thread.column), (tile.threads[1], z))
        is_partial = tile.block_cells > full
        return guarded(ir.LoopBound(vector, full // lanes) if is_partial else None, vectors)

    def row(x: AxisIndex) -> tuple[ir.Stmt, ...]:
        empty, declared = statistics.term_of_empty(attention.output, x)
        stmts = unrolled("z", tile.cells // lanes, lambda z: cells(x, z, empty))
        of_row = [
            substitute_in_store(
                ir.Store(store.node, store.indices, statistics.resolved(store.value, x)),
                thread.of_row(x),
            )
            for store in attention.row_stores
        ]
        once = guarded(ir.LoopBound(thread.column, 1), tuple(of_row))
        return guarded(thread.rows.end(thread.own_row(x)), (*declared, *stmts, *once))

    return thread.for_rows(row)
