"""Online softmax: the running maximum and sums of each row, and their corrections."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, FixedIndex
from ocannl_core.ir.loops.nodes import (
    Binary,
    Const,
    DeclareLocal,
    Expr,
    Load,
    Local,
    LocalRead,
    SetLocal,
    Stmt,
    Store,
    SubgroupReduce,
)
from ocannl_core.ir.loops.traverse import map_expr, substitute_in_expr, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.flash_attention.attention_thread import (
    Arrays,
    AttentionThread,
    unrolled,
)
from ocannl_core.passes.kernels.flash_attention.fused_attention import FusedAttention, Sum
from ocannl_core.passes.kernels.flash_attention.row_invariants import Invariants
from ocannl_core.passes.kernels.flash_attention.softmax_terms import (
    as_format,
    exponential_of,
    replaced,
    replaced_score,
    where,
)
from ocannl_core.passes.kernels.flash_attention.tile_copies import Side

LEAST = float("-inf")
"""The maximum of no scores."""


@dataclass(slots=True)
class OnlineSoftmax:
    """The running statistics of the rows of a thread.

    Attributes:
        results: Its sums of the second product.
        row_sums: The array of each sum over the columns of a row.
        others: The scores of further products.
        invariants: The values of rows and columns.
        maximum: The array of the maximum of each row.
        shift: The array of its shift, by which sums are corrected.
    """

    thread: AttentionThread
    kept: TensorNode
    results: TensorNode
    row_sums: dict[Local, TensorNode]
    others: dict[Local, TensorNode]
    invariants: Invariants
    maximum: TensorNode | None = None
    shift: TensorNode | None = None
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
    def _shift(self) -> Expr | None:
        """The expression of the maximum by which sums are corrected: one for all sums."""
        return next((each.shift for each in self.sums if each.shift is not None), None)

    def _local(self, dtype: DType) -> Local:
        self._numbering += 1
        return Local(self._numbering, dtype)

    def resolved(self, expr: Expr, x: AxisIndex) -> Expr:
        """Return an expression with the statistics of a row."""
        arrays = self.arrays
        held = {**self.row_sums, **self.invariants.rows}
        if self.attention.maximum is not None and self.maximum is not None:
            held[self.attention.maximum.result] = self.maximum

        def read(expr: Expr) -> Expr:
            match expr:
                case LocalRead(local) if local in held:
                    return arrays.read(held[local], x)
                case _:
                    return expr

        return map_expr(expr, read)

    def cleared(self) -> tuple[Stmt, ...]:
        """Return the statements that give every statistic its first value."""
        attention, tile, make = self.attention, self.thread.tile, self.arrays.new
        if attention.maximum is not None:
            self.maximum = make("maximum", attention.maximum.result.dtype, tile.rows)
            if self._shift is not None:
                self.shift = make("shift", self._shift.dtype, tile.rows)

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            stmts: list[Stmt] = []
            if self.maximum is not None:
                stmts.append(self._set(self.maximum, LEAST, x))
            if self.shift is not None:
                stmts.append(self._set(self.shift, 0.0, x))
            stmts += [self._set(node, 0.0, x) for node in self.row_sums.values()]
            stmts += unrolled("z", tile.cells, lambda z: (self._set(self.results, 0.0, x, z),))
            return tuple(stmts)

        return self.thread.for_rows(row)

    def _set(self, node: TensorNode, value: float, *indices: AxisIndex) -> Store:
        return Store(node, indices, Const(value, self.arrays.nodes[node].dtype))

    def advance(self, weights: TensorNode, columns: Side) -> tuple[Stmt, ...]:
        """Return the statements that add a tile of columns to the statistics."""
        return self.thread.for_rows(lambda x: self._advance_row(weights, columns, x))

    def _advance_row(self, weights: TensorNode, columns: Side, x: AxisIndex) -> tuple[Stmt, ...]:
        attention, arrays = self.attention, self.arrays
        stmts: list[Stmt] = []
        if self.maximum is not None and attention.maximum is not None:
            stmts += self._advance_maximum(self.maximum, x)

        def weigh(y: AxisIndex, lane: AxisIndex) -> tuple[Stmt, ...]:
            found: list[Stmt] = []
            known: dict[Expr, Local] = {}
            for each in self.sums:
                if each.term not in known:
                    local = known[each.term] = self._local(each.result.dtype)
                    term = self._term(each, columns, x, y, lane)
                    found += [DeclareLocal(local), SetLocal(local, term)]
            for each in attention.row_sums:
                node, dtype = self.row_sums[each.result], each.result.dtype
                value = as_format(LocalRead(known[each.term]), dtype)
                total = Binary(BinaryOp.ADD, arrays.read(node, x), value, dtype)
                found.append(Store(node, (x,), total))
            place = self.thread.own_row(x), self.thread.own_column(y, lane)
            own = as_format(LocalRead(known[attention.output.term]), arrays.nodes[weights].dtype)
            return (*found, Store(weights, place, own))

        return (*stmts, *self.thread.for_columns(weigh))

    def _advance_maximum(self, maximum: TensorNode, x: AxisIndex) -> tuple[Stmt, ...]:
        """Return the statements that take the scores of a tile into the maximum of a row, and
        correct the sums by it.
        """
        attention, tile, arrays = self.attention, self.thread.tile, self.arrays
        assert attention.maximum is not None
        dtype = attention.maximum.result.dtype
        local, before = self._local(dtype), self._local(dtype)
        stmts: list[Stmt] = [
            DeclareLocal(local),
            SetLocal(local, arrays.read(self.kept, x, FixedIndex(0))),
        ]
        for y in range(1, tile.columns):
            own = arrays.read(self.kept, x, FixedIndex(y))
            stmts.append(SetLocal(local, Binary(BinaryOp.MAX, LocalRead(local), own, dtype)))
        stmts.append(SubgroupReduce(local, LocalRead(local), BinaryOp.MAX, tile.threads[1]))
        old = arrays.read(maximum, x)
        stmts += [
            DeclareLocal(before),
            SetLocal(before, old),
            Store(maximum, (x,), Binary(BinaryOp.MAX, old, LocalRead(local), dtype)),
        ]
        if self.shift is None:
            return tuple(stmts)
        stmts += self._correct(self.shift, before, x)
        return tuple(stmts)

    def _correct(self, shift: TensorNode, before: Local, x: AxisIndex) -> list[Stmt]:
        attention, tile, arrays = self.attention, self.thread.tile, self.arrays
        assert self.maximum is not None
        assert self._shift is not None
        wide = attention.output.result.dtype
        old, new = self._local(shift_dtype := self._shift.dtype), self._local(shift_dtype)
        least = Const(LEAST, before.dtype)
        value = substitute_in_expr(self.resolved(self._shift, x), self.thread.of_row(x))
        is_empty = Binary(BinaryOp.EQ, arrays.read(self.maximum, x), least, before.dtype)
        was_empty = Binary(BinaryOp.EQ, LocalRead(before), least, before.dtype)
        factor = self._local(wide)
        exponential = next(e.exponential for e in self.sums if e.exponential is not None)
        difference = Binary(
            BinaryOp.SUB, as_format(LocalRead(old), wide), as_format(LocalRead(new), wide), wide
        )
        stmts: list[Stmt] = [
            DeclareLocal(old),
            SetLocal(old, arrays.read(shift, x)),
            DeclareLocal(new),
            SetLocal(new, where(is_empty, Const(0.0, shift_dtype), value)),
            Store(shift, (x,), LocalRead(new)),
            DeclareLocal(factor),
            SetLocal(
                factor,
                where(was_empty, Const(1.0, wide), exponential_of(exponential, difference)),
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

    def _scaled(self, node: TensorNode, factor: Local, *indices: AxisIndex) -> Store:
        dtype = self.arrays.nodes[node].dtype
        own = self.arrays.read(node, *indices)
        return Store(
            node, indices, Binary(BinaryOp.MUL, own, as_format(LocalRead(factor), dtype), dtype)
        )

    def _term(self, each: Sum, columns: Side, x: AxisIndex, y: AxisIndex, lane: AxisIndex) -> Expr:
        """Return the term of a sum at one column."""
        attention, arrays = self.attention, self.arrays
        term = replaced_score(each.term, attention.score, self.thread.score(self.kept, x, y, lane))
        for local, node in self.others.items():
            term = replaced(term, LocalRead(local), self.thread.score(node, x, y, lane))
        term = self.invariants.at_column(term, y, lane)
        if each.shift is not None and self.shift is not None:
            term = replaced(term, each.shift, arrays.read(self.shift, x))
        inside = self.thread.is_inside(columns, x, y, lane, each.term)
        if each.shift is not None and not any(
            isinstance(part, Load) and part.node in arrays.known for part in walk(term)
        ):
            inside = None  # the score is minus infinity there
        term = substitute_in_expr(self.resolved(term, x), self.thread.of_score(columns, x, y, lane))
        return term if inside is None else where(inside, term, Const(0.0, term.dtype))

    def complete(self) -> tuple[Stmt, ...]:
        """Return the statements that combine the sums of the threads of a row."""
        tile, arrays = self.thread.tile, self.arrays

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            stmts: list[Stmt] = []
            for each in self.attention.row_sums:
                node, local = self.row_sums[each.result], self._local(each.result.dtype)
                own = arrays.read(node, x)
                empty, declared = self.term_of_empty(each, x)
                stmts += [
                    DeclareLocal(local),
                    SubgroupReduce(local, own, BinaryOp.ADD, tile.threads[1]),
                    *declared,
                    Store(node, (x,), self.finished(each, LocalRead(local), empty, x)),
                ]
            return tuple(stmts)

        return self.thread.for_rows(row)

    def term_of_empty(self, each: Sum, x: AxisIndex) -> tuple[Expr | None, tuple[Stmt, ...]]:
        """Return what a row whose maximum is minus infinity adds to a sum, zero for other rows, and
        the statements that compute it.

        Where the maximum is minus infinity, so are all scores, and each term is what it is at that
        maximum: zero, or no number.
        """
        if each.exponential is None or self.maximum is None:
            return None, ()
        dtype = each.result.dtype
        maximum = self.arrays.read(self.maximum, x)
        is_empty = Binary(BinaryOp.EQ, maximum, Const(LEAST, maximum.dtype), maximum.dtype)
        values = self.thread.of_row(x)
        term = substitute_in_expr(self.resolved(each.exponential, x), values)
        local = self._local(dtype)
        value = where(is_empty, as_format(term, dtype), Const(0.0, dtype))
        return LocalRead(local), (DeclareLocal(local), SetLocal(local, value))

    def finished(self, each: Sum, total: Expr, empty: Expr | None, x: AxisIndex) -> Expr:
        """Return a sum with the factors that waited for all columns."""
        dtype = each.result.dtype
        values = self.thread.of_row(x)
        if empty is not None:
            total = Binary(BinaryOp.ADD, total, empty, dtype)
        for factors, op in ((each.numerators, BinaryOp.MUL), (each.denominators, BinaryOp.DIV)):
            for factor in factors:
                own = substitute_in_expr(self.resolved(factor, x), values)
                total = Binary(op, total, as_format(own, dtype), dtype)
        return total
