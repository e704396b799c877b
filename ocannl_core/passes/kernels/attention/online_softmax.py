"""Online softmax: the running maximum and sums of each row, and their corrections."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import as_format, unconverted
from ocannl_core.ir.loops.traverse import substitute_in_expr, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.attention.attention_thread import Arrays, AttentionThread, unrolled
from ocannl_core.passes.kernels.attention.fused_attention import (
    FusedAttention,
    Sum,
    exponential_of,
    inside_or,
    replaced,
    replaced_score,
    where,
)
from ocannl_core.passes.kernels.attention.tile_copies import Side, TileCopies


@dataclass(frozen=True, slots=True)
class Invariants:
    """The arrays that hold values of rows and of columns that terms read.

    Each thread computes its rows' invariants once, into registers; the threads of a block compute
    the invariants of each tile of columns together, into shared memory.
    """

    thread: AttentionThread
    rows: dict[ir.Local, TensorNode]
    columns: dict[ir.Local, TensorNode]

    @classmethod
    def of(cls, thread: AttentionThread) -> Invariants:
        """Return the new arrays of a thread and its block."""
        attention, tile, make = thread.attention, thread.tile, thread.arrays.new
        rows = [each.result for each in attention.row_invariants]
        columns = [each.result for each in attention.column_invariants]
        width, group = tile.block_columns, ir.Scope.GROUP
        return cls(
            thread,
            {each: make("of_row", each.dtype, tile.rows) for each in rows},
            {each: make("of_column", each.dtype, width, scope=group) for each in columns},
        )

    def of_rows(self) -> tuple[ir.Stmt, ...]:
        """Return the statements that compute the values of the rows of a thread."""
        thread = self.thread

        def row(x: AxisIndex) -> tuple[ir.Stmt, ...]:
            inside, values = thread.rows.is_inside(thread.own_row(x)), thread.of_row(x)
            return tuple(
                ir.Store(
                    self.rows[each.result],
                    (x,),
                    inside_or(inside, substitute_in_expr(each.value, values)),
                )
                for each in thread.attention.row_invariants
            )

        return thread.for_rows(row) if self.rows else ()

    def of_columns(self, copies: TileCopies, columns: Side) -> tuple[ir.Stmt, ...]:
        """Return the statements that compute the values of a tile of columns."""
        around = self.thread.around
        return tuple(
            stmt
            for each in self.thread.attention.column_invariants
            for stmt in copies.fill_line(
                self.columns[each.result], substitute_in_expr(each.value, around), columns
            )
        )


LEAST = float("-inf")
"""The maximum of no scores."""


@dataclass(slots=True)
class OnlineSoftmax:
    """The running statistics of the rows of a thread."""

    thread: AttentionThread
    kept: TensorNode
    results: TensorNode
    """Its sums of the second product."""
    row_sums: dict[ir.Local, TensorNode]
    others: dict[ir.Local, TensorNode]
    invariants: Invariants
    maximum: TensorNode | None = None
    shift: TensorNode | None = None
    """The array of the shift of each row, by which sums are corrected."""
    _numbering: int = 100

    @property
    def attention(self) -> FusedAttention:
        return self.thread.attention

    @property
    def arrays(self) -> Arrays:
        return self.thread.arrays

    @property
    def sums(self) -> tuple[Sum, ...]:
        return (*self.attention.row_sums, self.attention.output)

    @property
    def _shift(self) -> ir.Expr | None:
        """The expression of the maximum by which sums are corrected: one for all sums."""
        return next((each.shift for each in self.sums if each.shift is not None), None)

    def _local(self, dtype: DType) -> ir.Local:
        self._numbering += 1
        return ir.Local(self._numbering, dtype)

    def resolved(self, expr: ir.Expr, x: AxisIndex) -> ir.Expr:
        """Return an expression with the statistics of a row."""
        held = {**self.row_sums, **self.invariants.rows}
        if self.attention.maximum is not None and self.maximum is not None:
            held[self.attention.maximum.result] = self.maximum
        return self.arrays.resolved(expr, held, x)

    def _of_row(self, expr: ir.Expr, x: AxisIndex) -> ir.Expr:
        """Return an expression of a row and its statistics, for a row of the thread."""
        return substitute_in_expr(self.resolved(expr, x), self.thread.of_row(x))

    def cleared(self) -> tuple[ir.Stmt, ...]:
        """Return the statements that give every statistic its first value."""
        attention, tile, make = self.attention, self.thread.tile, self.arrays.new
        if attention.maximum is not None:
            self.maximum = make("maximum", attention.maximum.result.dtype, tile.rows)
            if self._shift is not None:
                self.shift = make("shift", self._shift.dtype, tile.rows)

        def row(x: AxisIndex) -> tuple[ir.Stmt, ...]:
            stmts: list[ir.Stmt] = []
            if self.maximum is not None:
                stmts.append(self._set(self.maximum, LEAST, x))
            if self.shift is not None:
                stmts.append(self._set(self.shift, 0.0, x))
            stmts += [self._set(node, 0.0, x) for node in self.row_sums.values()]
            stmts += unrolled("z", tile.cells, lambda z: (self._set(self.results, 0.0, x, z),))
            return tuple(stmts)

        return self.thread.for_rows(row)

    def _set(self, node: TensorNode, value: float, *indices: AxisIndex) -> ir.Store:
        return ir.Store(node, indices, ir.Const(value, self.arrays.nodes[node].dtype))

    def advance(self, weights: TensorNode, columns: Side) -> tuple[ir.Stmt, ...]:
        """Return the statements that add a tile of columns to the statistics."""
        return self.thread.for_rows(lambda x: self._advance_row(weights, columns, x))

    def _advance_row(self, weights: TensorNode, columns: Side, x: AxisIndex) -> tuple[ir.Stmt, ...]:
        attention, arrays = self.attention, self.arrays
        stmts: list[ir.Stmt] = []
        if self.maximum is not None and attention.maximum is not None:
            stmts += self._advance_maximum(self.maximum, x)

        def weigh(y: AxisIndex, lane: AxisIndex) -> tuple[ir.Stmt, ...]:
            found: list[ir.Stmt] = []
            known: dict[ir.Expr, ir.Local] = {}
            for each in self.sums:
                own = unconverted(each.term)
                if own not in known:
                    local = known[own] = self._local(own.dtype)
                    term = self._term(replace(each, term=own), columns, x, y, lane)
                    found += [ir.DeclareLocal(local), ir.SetLocal(local, term)]
            for each in attention.row_sums:
                node, dtype = self.row_sums[each.result], each.result.dtype
                own = unconverted(each.term)
                value = as_format(replaced(each.term, own, ir.LocalRead(known[own])), dtype)
                total = ir.Binary(BinaryOp.ADD, arrays.read(node, x), value, dtype)
                found.append(ir.Store(node, (x,), total))
            position = self.thread.own_row(x), self.thread.own_column(y, lane)
            weight = ir.LocalRead(known[unconverted(attention.output.term)])
            value = as_format(weight, arrays.nodes[weights].dtype)
            return (*found, ir.Store(weights, position, value))

        return (*stmts, *self.thread.for_columns(weigh))

    def _advance_maximum(self, maximum: TensorNode, x: AxisIndex) -> tuple[ir.Stmt, ...]:
        """Return the statements that update the maximum of a row, and correct its sums by it."""
        attention, tile, arrays = self.attention, self.thread.tile, self.arrays
        assert attention.maximum is not None
        dtype = attention.maximum.result.dtype
        local, before = self._local(dtype), self._local(dtype)
        stmts: list[ir.Stmt] = [
            ir.DeclareLocal(local),
            ir.SetLocal(local, arrays.read(self.kept, x, FixedIndex(0))),
        ]
        for y in range(1, tile.columns):
            own = arrays.read(self.kept, x, FixedIndex(y))
            stmts.append(
                ir.SetLocal(local, ir.Binary(BinaryOp.MAX, ir.LocalRead(local), own, dtype))
            )
        stmts.append(ir.SubgroupReduce(local, ir.LocalRead(local), BinaryOp.MAX, tile.threads[1]))
        old = arrays.read(maximum, x)
        stmts += [
            ir.DeclareLocal(before),
            ir.SetLocal(before, old),
            ir.Store(maximum, (x,), ir.Binary(BinaryOp.MAX, old, ir.LocalRead(local), dtype)),
        ]
        if self.shift is None:
            return tuple(stmts)
        stmts += self._correct(self.shift, before, x)
        return tuple(stmts)

    def _correct(self, shift: TensorNode, before: ir.Local, x: AxisIndex) -> list[ir.Stmt]:
        attention, tile, arrays = self.attention, self.thread.tile, self.arrays
        assert self.maximum is not None
        assert self._shift is not None
        wide = attention.output.result.dtype
        old, new = self._local(shift_dtype := self._shift.dtype), self._local(shift_dtype)
        least = ir.Const(LEAST, before.dtype)
        value = self._of_row(self._shift, x)
        is_empty = ir.Binary(BinaryOp.EQ, arrays.read(self.maximum, x), least, before.dtype)
        was_empty = ir.Binary(BinaryOp.EQ, ir.LocalRead(before), least, before.dtype)
        factor = self._local(wide)
        exponential = next(e.exponential for e in self.sums if e.exponential is not None)
        difference = ir.Binary(
            BinaryOp.SUB,
            as_format(ir.LocalRead(old), wide),
            as_format(ir.LocalRead(new), wide),
            wide,
        )
        stmts: list[ir.Stmt] = [
            ir.DeclareLocal(old),
            ir.SetLocal(old, arrays.read(shift, x)),
            ir.DeclareLocal(new),
            ir.SetLocal(new, where(is_empty, ir.Const(0.0, shift_dtype), value)),
            ir.Store(shift, (x,), ir.LocalRead(new)),
            ir.DeclareLocal(factor),
            ir.SetLocal(
                factor,
                where(was_empty, ir.Const(1.0, wide), exponential_of(exponential, difference)),
            ),
        ]
        for each in attention.row_sums:
            if each.shift is not None:
                node = self.row_sums[each.result]
                stmts.append(self._scaled(node, factor, x))
        if attention.output.shift is not None:
            stmts += unrolled(
                "z", tile.cells, lambda z: (self._scaled(self.results, factor, x, z),)
            )
        return stmts

    def _scaled(self, node: TensorNode, factor: ir.Local, *indices: AxisIndex) -> ir.Store:
        dtype = self.arrays.nodes[node].dtype
        own = self.arrays.read(node, *indices)
        return ir.Store(
            node,
            indices,
            ir.Binary(BinaryOp.MUL, own, as_format(ir.LocalRead(factor), dtype), dtype),
        )

    def _term(
        self, each: Sum, columns: Side, x: AxisIndex, y: AxisIndex, lane: AxisIndex
    ) -> ir.Expr:
        attention, arrays = self.attention, self.arrays
        term = replaced_score(each.term, attention.score, self.thread.score(self.kept, x, y, lane))
        term = arrays.resolved(term, self.others, x, self.thread.held_column(y, lane))
        term = arrays.resolved(term, self.invariants.columns, self.thread.own_column(y, lane))
        if each.shift is not None and self.shift is not None:
            term = replaced(term, each.shift, arrays.read(self.shift, x))
        inside = self.thread.is_inside(columns, x, y, lane, each.term)
        if each.shift is not None and not any(
            isinstance(part, ir.Load) and part.node in arrays.known for part in walk(term)
        ):
            inside = None  # the score is minus infinity there
        term = substitute_in_expr(self.resolved(term, x), self.thread.of_score(columns, x, y, lane))
        return inside_or(inside, term)

    def complete(self) -> tuple[ir.Stmt, ...]:
        """Return the statements that combine the sums of the threads of a row."""
        tile, arrays = self.thread.tile, self.arrays

        def row(x: AxisIndex) -> tuple[ir.Stmt, ...]:
            stmts: list[ir.Stmt] = []
            for each in self.attention.row_sums:
                node, local = self.row_sums[each.result], self._local(each.result.dtype)
                own = arrays.read(node, x)
                empty, declared = self.term_of_empty(each, x)
                stmts += [
                    ir.DeclareLocal(local),
                    ir.SubgroupReduce(local, own, BinaryOp.ADD, tile.threads[1]),
                    *declared,
                    ir.Store(node, (x,), self.finished(each, ir.LocalRead(local), empty, x)),
                ]
            return tuple(stmts)

        return self.thread.for_rows(row)

    def term_of_empty(self, each: Sum, x: AxisIndex) -> tuple[ir.Expr | None, tuple[ir.Stmt, ...]]:
        """Return what a row whose maximum is minus infinity adds to a sum, zero for other rows, and
        the statements that compute it.

        Where the maximum is minus infinity, so are all scores, and each term is what it is at that
        maximum: zero, or no number.
        """
        if each.exponential is None or self.maximum is None:
            return None, ()
        dtype = each.result.dtype
        maximum = self.arrays.read(self.maximum, x)
        is_empty = ir.Binary(BinaryOp.EQ, maximum, ir.Const(LEAST, maximum.dtype), maximum.dtype)
        local = self._local(dtype)
        value = inside_or(is_empty, as_format(self._of_row(each.exponential, x), dtype))
        return ir.LocalRead(local), (ir.DeclareLocal(local), ir.SetLocal(local, value))

    def finished(self, each: Sum, total: ir.Expr, empty: ir.Expr | None, x: AxisIndex) -> ir.Expr:
        """Return a sum with the factors that waited for all columns."""
        dtype = each.result.dtype
        if empty is not None:
            total = ir.Binary(BinaryOp.ADD, total, empty, dtype)
        for factors, op in ((each.numerators, BinaryOp.MUL), (each.denominators, BinaryOp.DIV)):
            for factor in factors:
                own = as_format(self._of_row(factor, x), dtype)
                total = ir.Binary(op, total, own, dtype)
        return total
