"""Copies of the tiles of flash attention to the memory that the threads of a block share.

The digits of a thread's number run along a row of the tile as far as they fit, in vectors where
memory is aligned; the digits that are left run along its rows, and loops along the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.kernels.nest_accesses import is_vector
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import condition, conjunction, guarded_by
from ocannl_core.ir.loops.traverse import substitute_in_expr, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.kernels.attention.fused_attention import inside_or
from ocannl_core.schedule.apply.shared_fill import distribute_cyclically
from ocannl_core.schedule.apply.vector_accesses import NewArray, vector_iterations


@dataclass(frozen=True, slots=True)
class Side:
    """One axis of a tile."""

    axis: LoopAxis
    first: indexing.AxisIndex
    """The position along it of the first cell of the tile."""
    extent: int
    may_exceed: bool
    """True if some cells of a tile are beyond the axis."""
    needs_zeros: bool = True
    """True if those are zeros."""

    def position(self, at: indexing.AxisIndex) -> indexing.AxisIndex:
        """Return the position along the axis of a cell of the tile."""
        return indexing.affine_sum((1, self.first), (1, at))

    def end(self, at: indexing.AxisIndex) -> ir.LoopBound | None:
        """Return the guard of a cell; None if it is inside of the axis."""
        if not self.may_exceed:
            return None
        position = self.position(at)
        return self.axis.bound_at(position) or ir.LoopBound(position, self.axis.extent)

    def is_inside(self, at: indexing.AxisIndex) -> ir.Expr | None:
        """Return the condition that a cell is inside of the axis; None if it always is."""
        end = self.end(at)
        return None if end is None else condition(end)


@dataclass(frozen=True, slots=True)
class TileCopies:
    """The copies of one kernel."""

    digits: tuple[tuple[indexing.AxisIndex, int], ...]
    """The digits of a thread's number, the outermost first, and their iterations."""
    nodes: NodeInfos
    vector_bytes: int
    new_array: NewArray

    def fill(
        self, node: TensorNode, info: NodeInfo, factor: ir.Expr, rows: Side, columns: Side
    ) -> tuple[ir.Stmt, ...]:
        """Return the copy of a factor to an array, of which the columns are contiguous."""
        lanes = self._lanes(factor, rows, columns)
        cells = distribute_cyclically(
            self.digits, {"row": rows.extent, "column": columns.extent}, lanes
        )
        indices = row, column = cells.positions["row"], cells.positions["column"]
        values: dict[indexing.IndexVar, indexing.AxisIndex] = {
            rows.axis.var: rows.position(row),
            columns.axis.var: columns.position(column),
        }
        value = substitute_in_expr(factor, values)
        if lanes == 1:
            inside = conjunction([rows.is_inside(row), columns.is_inside(column)])
            return cells.around((ir.Store(node, indices, inside_or(inside, value)),))
        terms = [each for each in indexing.as_affine(column)[0] if each[1] is not cells.lane]
        end = columns.end(indexing.affine(terms))
        if end is not None:  # of whole vectors
            vector = indexing.affine([(step // lanes, var) for step, var in terms])
            end = ir.LoopBound(vector, columns.axis.extent // lanes)
        ends = [each for each in (rows.end(row), end) if each is not None]
        return cells.around(self._vectors(node, info, value, indices, cells.lane, lanes, ends))

    def fill_line(self, node: TensorNode, value: ir.Expr, columns: Side) -> tuple[ir.Stmt, ...]:
        """Return the statements that compute a value of each column of a tile."""
        cells = distribute_cyclically(self.digits, {"column": columns.extent}, 1)
        along = cells.positions["column"]
        value = substitute_in_expr(value, {columns.axis.var: columns.position(along)})
        value = inside_or(columns.is_inside(along), value)
        return cells.around((ir.Store(node, (along,), value),))

    def _vectors(
        self,
        node: TensorNode,
        info: NodeInfo,
        value: ir.Expr,
        indices: tuple[indexing.AxisIndex, ...],
        lane: indexing.LoopVar,
        lanes: int,
        ends: Sequence[ir.LoopBound],
    ) -> tuple[ir.Stmt, ...]:
        cells = [
            (each.node, each.indices)
            for each in walk(value)
            if isinstance(each, ir.Load)
            and is_vector(each.indices, self.nodes[each.node], lane, lanes)
        ]
        is_aligned = info.dims[-1] % lanes == 0
        if is_aligned and lanes * info.dtype.nbytes <= self.vector_bytes:
            cells.append((node, indices))
        return vector_iterations(
            cells,
            lane,
            lanes,
            (ir.Store(node, indices, value),),
            {**self.nodes, node: info},
            self.new_array,
            partial(guarded_by, ends) if ends else None,
        )

    def _lanes(self, factor: ir.Expr, rows: Side, columns: Side) -> int:
        """Return the neighboring cells that a thread loads at once."""
        loads = [each for each in walk(factor) if isinstance(each, ir.Load)]
        if not loads or not self.vector_bytes:
            return 1
        lanes = self.vector_bytes // max(each.dtype.nbytes for each in loads)
        if lanes < 2 or columns.axis.extent % lanes or columns.axis.bound is not None:
            return 1
        if columns.extent % lanes or not all(
            isinstance(each, ir.Load | ir.Binary | ir.Unary | ir.Const) for each in walk(factor)
        ):
            return 1
        ends = any(each.may_exceed and each.needs_zeros for each in (rows, columns))
        if ends and not (len(loads) == 1 and _keeps_zero(factor)):
            return 1
        lane = indexing.fresh_var("lane")
        values: dict[indexing.IndexVar, indexing.AxisIndex] = {
            rows.axis.var: rows.position(indexing.VarIndex(indexing.fresh_var("row"))),
            columns.axis.var: columns.position(
                indexing.affine([(lanes, indexing.fresh_var("vector")), (1, lane)])
            ),
        }
        moved = [substitute_in_expr(each, values) for each in loads]
        used = [
            each
            for each in moved
            if isinstance(each, ir.Load)
            and any(lane in indexing.variables(at) for at in each.indices)
        ]
        are_vectors = all(
            is_vector(each.indices, self.nodes[each.node], lane, lanes) for each in used
        )
        return lanes if used and are_vectors else 1


def _keeps_zero(factor: ir.Expr) -> bool:
    """Return True if a factor of one load is zero where that is."""
    while True:
        match factor:
            case ir.Load():
                return True
            case ir.Unary(UnaryOp.IDENTITY, arg):
                factor = arg
            case ir.Binary(BinaryOp.MUL, arg, ir.Const()) | ir.Binary(
                BinaryOp.MUL, ir.Const(), arg
            ):
                factor = arg
            case _:
                return False
