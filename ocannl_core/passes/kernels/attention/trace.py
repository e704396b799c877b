"""Values of a row and a column as functions of products and of statistics of the row.

    nest s[q, t] = the sum of a[q, d] * b[t, d]     a product: s is a score
    nest m[q] max= s[q, t]                          a row maximum
    nest e[q, t] = exp(s[q, t] - m[q])              an expression, computed where it is read
    nest l[q] += e[q, t]                            a row sum
    nest o[q, e] += e[q, t] / l[q] * v[t, e]        the nest from which values are traced

The value of a cell is traced backwards, from the nest that reads it to the nests that compute it,
as far as these are products of rows and columns, statistics of such products, or functions of them.
In a forward pass the statistics run along with the columns. A backward pass loads them: it
recomputes what depends on both the row and the column. Whatever no product is part of is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, LoopVar, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, substitute_in_store
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.conversions import as_format, unconverted, unwidened
from ocannl_core.ir.loops.nodes import Binary, Expr, Load, Local, LocalRead, Store, Unary
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import Kind
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.kernels.attention.fused_attention import (
    Product,
    RowMaximum,
    Sum,
    factors_of,
    joined,
    replaced_score,
)
from ocannl_core.passes.kernels.defining_stores import DefiningStore, DefiningStores


class NoAttentionError(Exception):
    """Nests are no attention."""


@dataclass(slots=True)
class Trace:
    """The values of a row and a column.

    Products and statistics are variables numbered by the positions of their nests.
    """

    defined: DefiningStores
    axes: tuple[LoopAxis, ...]
    """The axes of rows and columns: what depends on others is loaded."""
    rows: LoopVar
    columns: LoopVar
    is_online: bool = False
    """True if the statistics of rows run along with the columns; False if they are loaded."""
    products: dict[int, Product] = field(default_factory=dict)
    maximum: RowMaximum | None = None
    row_sums: dict[int, Sum] = field(default_factory=dict)
    members: dict[int, dict[IndexVar, AxisIndex]] = field(default_factory=dict)
    """The values of the variables of the nests that computed values, by position."""
    cells: dict[TensorNode, Store] = field(default_factory=dict)
    """The stores whose values are known, with these values."""
    reads: set[tuple[TensorNode, int]] = field(default_factory=set)
    """The nodes that expressions load, with the positions of the nests that state them."""

    def value(self, expr: Expr, at: int) -> Expr:
        """Return an expression of a later nest as a function of products and statistics."""

        def expand(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices):
                    found = self._cell(node, indices, at)
                    return expr if found is None else found
                case _:
                    return expr

        return traverse.map_expr(expr, expand)

    def varies(self, expr: Expr) -> bool:
        """Return True if an expression depends on the column."""
        scores = {each.result for each in self.products.values()}
        is_direct = self.columns in traverse.free_variables(expr)
        return is_direct or not scores.isdisjoint(traverse.locals_of(expr))

    def statistics(self, expr: Expr) -> frozenset[Local]:
        """Return the statistics that an expression depends on."""
        scores = {each.result for each in self.products.values()}
        return frozenset(traverse.locals_of(expr)) - scores

    def row_stores(self) -> tuple[Store, ...]:
        """Return the stores of functions of rows and their statistics alone."""
        column = VarIndex(self.columns)
        return tuple(
            store
            for _, store in sorted(self.cells.items(), key=lambda each: self._order(each[0]))
            if column not in store.indices and not self.varies(store.value)
        )

    def _order(self, node: TensorNode) -> int:
        found = self.defined.of(node)
        assert found is not None
        return found.position

    def _cell(self, node: TensorNode, indices: Sequence[AxisIndex], at: int) -> Expr | None:
        """Return the value of a cell; None if it is to be loaded."""
        definition = self.defined.of(node)
        used = {index.var for index in indices if isinstance(index, VarIndex)}
        needed = {self.rows} if self.is_online else {self.rows, self.columns}
        if definition is None or definition.position >= at or not needed <= used:
            return None
        if not all(isinstance(index, VarIndex | FixedIndex) for index in indices):
            return None
        values = definition.iteration(indices)
        if not self._has_domains(definition.nest, values):
            return None
        at = definition.position
        if self.members.get(at, values) != values:
            raise NoAttentionError
        if node not in self.cells and not self._trace(definition, values):
            return None
        return self.cells[node].value

    def _has_domains(self, nest: Nest, values: dict[IndexVar, AxisIndex]) -> bool:
        """Return True if axes of a nest run over the same positions as the variables for them."""
        domains: dict[IndexVar, object] = {axis.var: axis.domain for axis in self.axes}
        return all(
            domains.get(index.var) == axis.domain
            for axis in nest.output_axes
            if isinstance(index := values[axis.var], VarIndex)
        )

    def _trace(self, definition: DefiningStore, values: dict[IndexVar, AxisIndex]) -> bool:
        """Add the value of a store, and of all stores of its nest if statistics run along; return
        False if it is to be loaded.
        """
        nest, at, own = definition.nest, definition.position, definition.store
        results: dict[Expr, Expr] = {}
        if nest.reduction is not None:
            is_product = VarIndex(self.columns) in values.values()
            reduce = self._product if is_product else self._statistic
            result = reduce(nest, at, values)
            if result is None:
                return False
            results = {LocalRead(nest.reduction.result): LocalRead(result)}
        found: dict[TensorNode, Store] = {}
        for store in last_stores(nest.epilogue if self.is_online else (own,), results):
            moved = substitute_in_store(store, values)
            found[store.node] = replace(moved, value=self.value(moved.value, at))
        if not all(map(self.defined.of, found)):
            raise NoAttentionError
        if not traverse.locals_of(found[own.node].value):
            self.products.pop(at, None)
            return False
        stated = [store.value for store in nest.epilogue if store.node in found]
        stated += [] if nest.reduction is None else [nest.reduction.term]
        self.reads |= {(node, at) for each in stated for node in traverse.nodes_of(each)}
        self.members[at] = values
        self.cells |= found
        return True

    def _product(self, nest: Nest, at: int, values: dict[IndexVar, AxisIndex]) -> Local | None:
        """Add the product of a nest; return None if it is none of rows and columns."""
        reduction = nest.required_reduction
        result = Local(at, reduction.dtype)
        if at in self.products:
            return result
        if not is_sum(nest) or len(reduction.factors) != 2 or len(nest.reduced) != 1:
            return None
        if nest.reduced[0].bound or (self.is_online and self.products):
            return None
        terms = replace(nest.reduced[0], var=fresh_var(nest.reduced[0].var.hint))
        moved = {**values, nest.reduced[0].var: VarIndex(terms.var)}
        batch = {axis.var for axis in self.axes if axis.extent > 1} - {self.columns}
        for left, right in (reduction.factors, reduction.factors[::-1]):
            own, other = (traverse.substitute_in_expr(each, moved) for each in (left, right))
            of_rows, of_columns = (set(traverse.free_variables(each)) for each in (own, other))
            if self.columns in of_rows or self.rows in of_columns:
                continue
            if self.is_online and (of_columns - of_rows) & batch:
                continue  # columns of several axes, as heads and their cells
            if self.rows in of_rows and self.columns in of_columns:
                self.products[at] = Product(result, own, other, terms)
                return result
        return None

    def _statistic(self, nest: Nest, at: int, values: dict[IndexVar, AxisIndex]) -> Local | None:
        """Add the statistic of rows that a nest computes; return None if it is to be loaded."""
        reduction = nest.required_reduction
        (columns,) = (axis for axis in self.axes if axis.var == self.columns)
        reduced = [axis for axis in nest.reduced if axis.extent > 1]
        if len(reduced) != 1 or reduced[0].domain != columns.domain:
            return None
        inside: dict[IndexVar, AxisIndex] = {axis.var: FixedIndex(0) for axis in nest.reduced}
        inside |= {**values, reduced[0].var: VarIndex(self.columns)}
        term = self.value(traverse.substitute_in_expr(reduction.term, inside), at)
        if not traverse.locals_of(term):
            return None
        result = Local(at, reduction.dtype)
        if reduction.op is BinaryOp.MAX and reduction.starts_neutral:
            is_known = self.maximum is not None or self.statistics(term)
            if is_known or not result.dtype.is_float or term.dtype is not result.dtype:
                raise NoAttentionError
            self.maximum = RowMaximum(result, term)
            return result
        found = self.online_sum(result, term) if is_sum(nest) else None
        if found is None:
            raise NoAttentionError
        self.row_sums[at] = found
        return result

    def online_sum(self, result: Local, term: Expr) -> Sum | None:
        """Return a sum of terms over the columns; None if it cannot run along with them."""
        dtype = result.dtype
        if dtype.kind is not Kind.FLOAT:
            return None
        numerators, denominators = factors_of(term)
        waiting = [each for each in numerators if not self.varies(each)]
        waiting_divisors = [each for each in denominators if not self.varies(each)]
        running = [each for each in numerators if self.varies(each)]
        divisors = [each for each in denominators if self.varies(each)]
        if any(self.statistics(each) for each in divisors):
            return None
        dependent = [each for each in running if self.statistics(each)]
        shift = exponential = None
        if dependent:
            maximum = self.maximum
            if len(dependent) > 1 or maximum is None:
                return None
            shift = self._shift(dependent[0], maximum)
            if shift is None:
                return None
            exponential = replaced_score(dependent[0], maximum.term, LocalRead(maximum.result))
        rounded = unwidened(term).dtype
        term = joined(running, divisors, dtype)
        if dependent and dependent == running and not divisors:  # at most 1
            term = as_format(as_format(term, rounded), dtype)
        return Sum(result, term, shift, exponential, tuple(waiting), tuple(waiting_divisors))

    def _shift(self, factor: Expr, maximum: RowMaximum) -> Expr | None:
        """Return `b` of a factor `exp(a - b)`: `a` the maximum's term, `b` a function of that."""
        match unconverted(factor):
            case Unary(UnaryOp.EXP | UnaryOp.EXP2, Binary(BinaryOp.SUB, first, shift)):
                pass
            case _:
                return None
        is_known = self.statistics(shift) == {maximum.result} and not self.varies(shift)
        return shift if is_known and first in (maximum.term, unwidened(maximum.term)) else None

    def check(self, at: int) -> None:
        """Check that no step up to a later one has stored to the nodes that expressions load."""
        if any(self.defined.is_changed((node,), since, at + 1) for node, since in self.reads):
            raise NoAttentionError


@dataclass(frozen=True, slots=True)
class Sides:
    """The factors of a product, one of which is traced."""

    weights: Expr
    """The factor of rows and columns."""
    operand: Expr
    """The factor of columns and cells."""
    rows: LoopAxis
    """The greatest axis of rows."""
    columns: LoopAxis
    """The reduced axis."""
    head_axis: LoopAxis
    batch: tuple[LoopAxis, ...]
    """The other axes of rows."""


def sides_of(nest: Nest) -> Iterator[Sides]:
    """Yield the sides of a product, with each of its factors as the operand."""
    reduction = nest.reduction
    if reduction is None or len(nest.reduced) != 1:
        return
    (columns,) = nest.reduced
    factors = reduction.factors
    for at in range(len(factors) - 1, -1, -1):
        operand = factors[at]
        weights = joined([*factors[:at], *factors[at + 1 :]], [], reduction.dtype)
        ours, theirs = traverse.free_variables(weights), traverse.free_variables(operand)
        rows = [
            a for a in nest.output_axes if a.var in ours and a.var not in theirs and a.extent > 1
        ]
        cells = [
            a for a in nest.output_axes if a.var in theirs and a.var not in ours and a.extent > 1
        ]
        if rows and len(cells) == 1 and columns.var in ours and columns.var in theirs:
            row = max(rows, key=lambda axis: axis.extent)
            batch = tuple(axis for axis in nest.output_axes if axis not in (row, cells[0]))
            yield Sides(weights, operand, row, columns, cells[0], batch)


def is_sum(nest: Nest, *, starts_neutral: bool = True) -> bool:
    """Return True if a nest sums floats, from 0 if `starts_neutral`, and rounds no single term."""
    reduction = nest.reduction
    return (
        reduction is not None
        and reduction.op is BinaryOp.ADD
        and reduction.dtype.is_float
        and (reduction.starts_neutral or not starts_neutral)
        and not nest.rounds_often
    )


def last_stores(epilogue: Iterable[Store], results: dict[Expr, Expr]) -> tuple[Store, ...]:
    """Return the last store to each node of an epilogue, with its earlier stores forwarded and
    other expressions of results, in an order in which none overwrites a later one's load.
    """
    last: dict[TensorNode, Store] = {}
    for store in epilogue:

        def forward(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices) if node in last:
                    if last[node].indices != indices:
                        raise NoAttentionError
                    return last[node].value
                case _:
                    return results.get(expr, expr)

        value = traverse.map_expr(store.value, forward)
        before = last.pop(store.node, None)
        if before is not None and before.indices != store.indices:
            raise NoAttentionError
        last[store.node] = replace(store, value=value)
    pending, ordered = list(last.values()), list[Store]()
    while pending:
        for store in pending:
            others = [each for each in pending if each is not store]
            if all(store.node not in traverse.nodes_of(each.value) for each in others):
                break
        else:
            raise NoAttentionError
        ordered.append(store)
        pending.remove(store)
    return tuple(ordered)
