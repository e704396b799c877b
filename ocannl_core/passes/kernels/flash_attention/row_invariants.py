"""The values of rows and of columns that terms read.

Each thread computes its rows' invariants once, into registers; the threads of a block compute the
invariants of each tile of columns together, into shared memory.
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex
from ocannl_core.ir.loops.nodes import Const, Expr, Local, LocalRead, Scope, Stmt, Store
from ocannl_core.ir.loops.traverse import map_expr, substitute_in_expr
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.flash_attention.attention_thread import AttentionThread
from ocannl_core.passes.kernels.flash_attention.softmax_terms import where
from ocannl_core.passes.kernels.flash_attention.tile_copies import Side, TileCopies


@dataclass(frozen=True, slots=True)
class Invariants:
    """The arrays that hold such values."""

    thread: AttentionThread
    rows: dict[Local, TensorNode]
    columns: dict[Local, TensorNode]

    @classmethod
    def of(cls, thread: AttentionThread) -> Invariants:
        """Return the new arrays of a thread and its block."""
        attention, tile, make = thread.attention, thread.tile, thread.arrays.new
        rows = {
            each.result: make("of_row", each.result.dtype, tile.rows)
            for each in attention.row_invariants
        }
        columns = {
            each.result: make("of_column", each.result.dtype, tile.block_columns, scope=Scope.GROUP)
            for each in attention.column_invariants
        }
        return cls(thread, rows, columns)

    def of_rows(self) -> tuple[Stmt, ...]:
        """Return the statements that compute the values of the rows of a thread."""
        thread = self.thread

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            inside = thread.rows.is_inside(thread.own_row(x))
            stmts: list[Stmt] = []
            for each in thread.attention.row_invariants:
                value = substitute_in_expr(each.value, thread.of_row(x))
                if inside is not None:
                    value = where(inside, value, Const(0.0, value.dtype))
                stmts.append(Store(self.rows[each.result], (x,), value))
            return tuple(stmts)

        return thread.for_rows(row) if self.rows else ()

    def of_columns(self, copies: TileCopies, columns: Side) -> tuple[Stmt, ...]:
        """Return the statements that compute the values of a tile of columns."""
        around = self.thread.around
        return tuple(
            stmt
            for each in self.thread.attention.column_invariants
            for stmt in copies.fill_line(
                self.columns[each.result], substitute_in_expr(each.value, around), columns
            )
        )

    def at_column(self, expr: Expr, y: AxisIndex, lane: AxisIndex) -> Expr:
        """Return an expression with the values of a column of the thread."""
        arrays, at = self.thread.arrays, self.thread.own_column(y, lane)

        def read(expr: Expr) -> Expr:
            match expr:
                case LocalRead(local) if local in self.columns:
                    return arrays.read(self.columns[local], at)
                case _:
                    return expr

        return map_expr(expr, read) if self.columns else expr
