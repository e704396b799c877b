"""One thread of a flash-attention block: its cells, its arrays, and the products of one tile.

Each thread multiplies its rows and columns term by term. Where an instruction of a subgroup
multiplies small matrices, the loops inside are its tile: those over rows, columns and terms that
one thread has cells of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    VarIndex,
    affine_sum,
    fresh_var,
)
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format
from ocannl_core.ir.loops.loop_nests import conjunction
from ocannl_core.ir.loops.traverse import map_expr, walk
from ocannl_core.ir.loops.unit_products import product_nest
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.passes.kernels.attention.attention_tiles import AttentionTile
from ocannl_core.passes.kernels.attention.fused_attention import FusedAttention
from ocannl_core.passes.kernels.attention.tile_copies import Side
from ocannl_core.schedule.machine_model import WALK_TERMS


def unrolled(
    name: str, extent: int, body: Callable[[AxisIndex], tuple[ir.Stmt, ...]]
) -> tuple[ir.Stmt, ...]:
    """Return statements for each of some positions, written out."""
    if extent == 1:
        return body(FixedIndex(0))
    var = fresh_var(name)
    return (ir.For(var, 0, extent, ir.Block(body(VarIndex(var))), ir.AxisKind.UNROLLED),)


@dataclass(slots=True)
class Arrays:
    """The arrays of a kernel."""

    known: NodeInfos
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    shared: list[TensorNode] = field(default_factory=list)
    private: list[TensorNode] = field(default_factory=list)

    @property
    def every(self) -> NodeInfos:
        """The nodes of the program and the arrays."""
        return {**self.known, **self.nodes}

    def new(
        self, name: str, dtype: DType, *dims: int, scope: ir.Scope = ir.Scope.THREAD
    ) -> TensorNode:
        """Return a new array for the whole kernel."""
        node = TensorNode(len(self.nodes), (name,))
        self.nodes[node] = NodeInfo(dtype, dims)
        (self.shared if scope is ir.Scope.GROUP else self.private).append(node)
        return node

    def new_vector(self, name: str, dtype: DType, lanes: int) -> TensorNode:
        """Return a new array, which the statements that use it allocate."""
        node = TensorNode(len(self.nodes), (name,))
        self.nodes[node] = NodeInfo(dtype, (lanes,))
        return node

    def read(self, node: TensorNode, *indices: AxisIndex) -> ir.Load:
        return ir.Load(node, indices, self.nodes[node].dtype)

    def resolved(
        self, expr: ir.Expr, held: Mapping[ir.Local, TensorNode], *indices: AxisIndex
    ) -> ir.Expr:
        """Return an expression that reads variables from the arrays that hold them."""

        def read(expr: ir.Expr) -> ir.Expr:
            match expr:
                case ir.LocalRead(local) if local in held:
                    return self.read(held[local], *indices)
                case _:
                    return expr

        return map_expr(expr, read) if held else expr

    def accumulate(
        self, cell: ir.Load, left: ir.Expr, right: ir.Expr, *, is_fused: bool
    ) -> ir.Store:
        """Return the addition of a product to a cell."""
        dtype = cell.dtype
        left, right = as_format(left, dtype), as_format(right, dtype)
        if is_fused:
            total: ir.Expr = ir.Ternary(TernaryOp.FMA, left, right, cell, dtype)
        else:
            product = ir.Binary(BinaryOp.MUL, left, right, dtype)
            total = ir.Binary(BinaryOp.ADD, cell, product, dtype)
        return ir.Store(cell.node, cell.indices, total)


@dataclass(frozen=True, slots=True)
class AttentionThread:
    """The cells of one thread."""

    attention: FusedAttention
    tile: AttentionTile
    arrays: Arrays
    digits: tuple[tuple[LoopVar, int], ...]
    row: AxisIndex
    """The first row of the thread in a tile."""
    column: AxisIndex
    """The number of the thread along the columns."""
    rows: Side
    around: dict[IndexVar, AxisIndex]
    """The values of the variables of the other axes of rows."""

    def own_row(self, x: AxisIndex) -> AxisIndex:
        """Return the row of the tile that is the thread's x-th one."""
        return affine_sum((1, self.row), (self.tile.row_step, x))

    def own_column(self, y: AxisIndex, lane: AxisIndex) -> AxisIndex:
        """Return the column of the tile that is a lane of the thread's y-th vector of columns."""
        return self._position(self.tile.column_lanes, y, lane)

    def own_cell(self, z: AxisIndex, lane: AxisIndex) -> AxisIndex:
        """Return the cell of a row that is a lane of the thread's z-th vector of cells."""
        return self._position(self.tile.lanes, z, lane)

    def _position(self, lanes: int, vector: AxisIndex, lane: AxisIndex) -> AxisIndex:
        return affine_sum((lanes, self.column), (lanes * self.tile.threads[1], vector), (1, lane))

    def for_rows(self, body: Callable[[AxisIndex], tuple[ir.Stmt, ...]]) -> tuple[ir.Stmt, ...]:
        """Return statements for each row of the thread."""
        return unrolled("x", self.tile.rows, body)

    def for_columns(
        self, body: Callable[[AxisIndex, AxisIndex], tuple[ir.Stmt, ...]]
    ) -> tuple[ir.Stmt, ...]:
        """Return statements for each column of the thread."""
        lanes = self.tile.column_lanes
        return unrolled(
            "y",
            self.tile.columns // lanes,
            lambda y: unrolled("lane", lanes, lambda lane: body(y, lane)),
        )

    def score(self, node: TensorNode, x: AxisIndex, y: AxisIndex, lane: AxisIndex) -> ir.Load:
        """Return the score of a row and a column."""
        return self.arrays.read(node, x, self.held_column(y, lane))

    def held_column(self, y: AxisIndex, lane: AxisIndex) -> AxisIndex:
        """Return the position of a column among the thread's columns."""
        return affine_sum((self.tile.column_lanes, y), (1, lane))

    def result(self, node: TensorNode, x: AxisIndex, z: AxisIndex, lane: AxisIndex) -> ir.Load:
        """Return the sum of a row and a cell."""
        return self.arrays.read(node, x, affine_sum((self.tile.lanes, z), (1, lane)))

    def of_row(self, x: AxisIndex) -> dict[IndexVar, AxisIndex]:
        """Return the values of the variables of a row."""
        return {**self.around, self.attention.rows.var: self.rows.position(self.own_row(x))}

    def of_score(
        self, columns: Side, x: AxisIndex, y: AxisIndex, lane: AxisIndex
    ) -> dict[IndexVar, AxisIndex]:
        """Return the values of the variables of a row and a column."""
        column = columns.position(self.own_column(y, lane))
        return {**self.of_row(x), self.attention.columns.var: column}

    def is_inside(
        self, columns: Side, x: AxisIndex, y: AxisIndex, lane: AxisIndex, needed: ir.Expr
    ) -> ir.Expr | None:
        """Return the condition that a column, and a row where cells of it are loaded, is inside."""
        found = columns.is_inside(self.own_column(y, lane))
        known = self.arrays.known
        loads = any(isinstance(each, ir.Load) and each.node in known for each in walk(needed))
        return conjunction([found, self.rows.is_inside(self.own_row(x)) if loads else None])


_Factors = tuple[ir.Load, ir.Load, ir.Load]
"""A sum and its factors."""
_Cell = Callable[[AxisIndex, AxisIndex, AxisIndex, AxisIndex], _Factors]
"""A function of a row, a vector, a lane and a term."""


def scores_of(
    thread: AttentionThread, scores: TensorNode, left: TensorNode, right: TensorNode, terms: int
) -> tuple[ir.Stmt, ...]:
    """Return the statements that compute the scores of a thread."""
    arrays = thread.arrays
    zero = ir.Const(0.0, arrays.nodes[scores].dtype)

    def clear(x: AxisIndex, y: AxisIndex, lane: AxisIndex) -> tuple[ir.Stmt, ...]:
        cell = thread.score(scores, x, y, lane)
        return (ir.Store(cell.node, cell.indices, zero),)

    def cell(x: AxisIndex, y: AxisIndex, lane: AxisIndex, at: AxisIndex) -> _Factors:
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
) -> tuple[ir.Stmt, ...]:
    """Return the statements that add the second product of a tile of columns."""
    arrays, tile = thread.arrays, thread.tile

    def cell(x: AxisIndex, z: AxisIndex, lane: AxisIndex, at: AxisIndex) -> _Factors:
        return (
            thread.result(results, x, z, lane),
            arrays.read(weights, thread.own_row(x), at),
            arrays.read(operand, at, thread.own_cell(z, lane)),
        )

    return _products(thread, (tile.cells // tile.lanes, tile.lanes), tile.block_columns, cell)


def _products(
    thread: AttentionThread, vectors: tuple[int, int], terms: int, cell: _Cell
) -> tuple[ir.Stmt, ...]:
    """Return the products of the rows of a thread with vectors of columns or cells."""
    count, lanes = vectors
    tile, arrays = thread.tile, thread.arrays
    instruction = tile.instruction
    if instruction is None:
        stride = min(WALK_TERMS, terms)
        step = fresh_var("term")

        def add(x: AxisIndex, y: AxisIndex, lane: AxisIndex, at: AxisIndex) -> tuple[ir.Stmt, ...]:
            own, left, right = cell(x, y, lane, affine_sum((stride, VarIndex(step)), (1, at)))
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
        return (ir.For(step, 0, terms // stride, ir.Block(body)),)
    depth = instruction.terms
    high = tile.tile_rows

    def multiply(block: AxisIndex, x: AxisIndex, y: AxisIndex) -> tuple[ir.Stmt, ...]:
        row, lane, term = fresh_var("x"), fresh_var("lane"), fresh_var("term")
        at = affine_sum((depth, block), (1, VarIndex(term)))
        own, left, right = cell(affine_sum((high, x), (1, VarIndex(row))), y, VarIndex(lane), at)
        loops = ((row, high), (lane, lanes), (term, depth))
        return (product_nest(loops, arrays.accumulate(own, left, right, is_fused=True)),)

    return unrolled(
        "term",
        terms // depth,
        lambda block: unrolled(
            "x", tile.rows // high, lambda x: unrolled("y", count, lambda y: multiply(block, x, y))
        ),
    )
