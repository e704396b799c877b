"""The values of rows and of columns that terms read: each is computed once, into registers."""

from __future__ import annotations

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import AxisIndex, IndexVar
from ocannl_core.kernel_passes.online_reductions.chain import Invariant
from ocannl_core.kernel_passes.online_reductions.copies import Side
from ocannl_core.kernel_passes.online_reductions.terms import where
from ocannl_core.kernel_passes.online_reductions.thread import ChainThread
from ocannl_core.loopir.nodes import Const, Expr, Local, LocalRead, Stmt, Store
from ocannl_core.loopir.traverse import map_expr, substitute_in_expr
from ocannl_core.node import TensorNode


@dataclass(frozen=True, slots=True)
class Invariants:
    """The arrays of a thread that hold such values.

    Attributes:
        thread: The thread.
        rows: The array of each value of a row.
        columns: The array of each value of a column.
    """

    thread: ChainThread
    rows: dict[Local, TensorNode]
    columns: dict[Local, TensorNode]

    @classmethod
    def of(cls, thread: ChainThread) -> Invariants:
        """Return the new arrays of a thread."""

        def arrays(
            name: str, values: tuple[Invariant, ...], extent: int
        ) -> dict[Local, TensorNode]:
            make = thread.arrays.new
            return {each.result: make(name, each.result.dtype, extent) for each in values}

        chain, tile = thread.chain, thread.tile
        rows = arrays("of_row", chain.row_invariants, tile.rows)
        return cls(thread, rows, arrays("of_column", chain.column_invariants, tile.columns))

    def of_rows(self) -> tuple[Stmt, ...]:
        """Return the statements that compute the values of the rows of a thread."""
        thread = self.thread
        if not self.rows:
            return ()

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            inside = thread.rows.is_inside(thread.own_row(x))
            values = thread.of_row(x)
            return tuple(
                _stored(self.rows[each.result], x, each, values, inside)
                for each in thread.chain.row_invariants
            )

        return thread.for_rows(row)

    def of_columns(self, columns: Side) -> tuple[Stmt, ...]:
        """Return the statements that compute the values of the columns of a thread in a tile."""
        thread = self.thread
        if not self.columns:
            return ()

        def column(y: AxisIndex, lane: AxisIndex) -> tuple[Stmt, ...]:
            own = thread.own_column(y, lane)
            inside = columns.is_inside(own)
            position = columns.position(own)
            values = {**thread.around, thread.chain.columns.var: position}
            at = thread.held_column(y, lane)
            return tuple(
                _stored(self.columns[each.result], at, each, values, inside)
                for each in thread.chain.column_invariants
            )

        return thread.for_columns(column)

    def at_column(self, expr: Expr, y: AxisIndex, lane: AxisIndex) -> Expr:
        """Return an expression with the values of a column."""
        arrays, at = self.thread.arrays, self.thread.held_column(y, lane)

        def read(expr: Expr) -> Expr:
            match expr:
                case LocalRead(local) if local in self.columns:
                    return arrays.read(self.columns[local], at)
                case _:
                    return expr

        return map_expr(expr, read) if self.columns else expr


def _stored(
    node: TensorNode,
    at: AxisIndex,
    invariant: Invariant,
    values: dict[IndexVar, AxisIndex],
    inside: Expr | None,
) -> Store:
    value = substitute_in_expr(invariant.value, values)
    if inside is not None:
        value = where(inside, value, Const(0.0, value.dtype))
    return Store(node, (at,), value)
