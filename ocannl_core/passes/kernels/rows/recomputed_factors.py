"""Flash-attention backward: recompute a factor of a product from the products that it depends on.

    nest s[q, t] = the sum of a[q, d] * b[t, d]
    nest w[q, t] = exp(s[q, t] - m[q]) / l[q]
    nest o[t, e] = the sum of w[q, t] * g[q, e]     w = f(s, m, l): the sums need neither s nor w

The value of a cell is traced backwards, from the nest that reads it to the nests that compute it,
as far as these are products of rows and columns or functions of such products. What depends on the
row or the column alone is loaded, as is what no product is part of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, LoopVar, VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis
from ocannl_core.ir.kernels.nest_plan import nest_of
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Binary, Expr, Load, Local, LocalRead, Store
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.defining_stores import DefiningStore, DefiningStores, is_plain
from ocannl_core.passes.kernels.rows.fused_attention import (
    FusedAttention,
    Invariant,
    Product,
    Sum,
    replaced,
)
from ocannl_core.passes.kernels.rows.trace_attention import (
    NoAttentionError,
    before_overwriting,
    is_sum,
)

_MOST_PRODUCTS = 2
"""The products that an attention recomputes, at most: each has two tiles in shared memory."""
_MOST_INVARIANTS = 16
"""The values of rows or columns that a thread keeps, at most."""


@dataclass(slots=True)
class Recomputation:
    """The recomputation of values of a row and a column.

    Attributes:
        defined: The nodes that one store computes.
        products: The products that values are functions of, by the positions of their nests; the
            results are variables of these numbers.
        values: The values of the variables of those nests.
        expanded: The nodes whose cells are recomputed.
        members: The positions of the nests that computed them.
        reads: The nodes that expressions load, with the positions of the nests that state them.
    """

    defined: DefiningStores
    rows: LoopVar
    columns: LoopVar
    products: dict[int, Product] = field(default_factory=dict)
    values: dict[int, dict[IndexVar, AxisIndex]] = field(default_factory=dict)
    expanded: set[TensorNode] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    reads: set[tuple[TensorNode, int]] = field(default_factory=set)

    def value(self, expr: Expr, at: int) -> Expr:
        """Return an expression as a function of products, to be computed at a later position."""

        def expand(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices):
                    definition = self.defined.of(node)
                    if definition is None:
                        return expr
                    found = self._expanded(definition, indices, at)
                    return expr if found is None else found
                case _:
                    return expr

        return traverse.map_expr(expr, expand)

    def _expanded(
        self, definition: DefiningStore, indices: Sequence[AxisIndex], at: int
    ) -> Expr | None:
        """Return the value of a cell; None if that is to be loaded."""
        nest, store = definition.nest, definition.store
        used = {index.var for index in indices if isinstance(index, VarIndex)}
        if not {self.rows, self.columns} <= used or definition.position >= at:
            return None
        if not all(isinstance(index, VarIndex | FixedIndex) for index in indices):
            return None
        values, value = definition.iteration(indices), store.value
        before = set(self.products), set(self.expanded), set(self.members)
        if nest.reduction is not None:
            if not self._add_product(definition, values):
                return None
            result = LocalRead(Local(definition.position, nest.reduction.dtype))
            value = replaced(value, LocalRead(nest.reduction.result), result)
        stated = (value,) if nest.reduction is None else (value, nest.reduction.term)
        self.reads |= {(node, definition.position) for e in stated for node in traverse.nodes_of(e)}
        value = traverse.substitute_in_expr(value, values)
        value = self.value(value, definition.position)
        if not any(local.id in self.products for local in traverse.locals_of(value)):
            products, self.expanded, self.members = before
            self.products = {n: each for n, each in self.products.items() if n in products}
            return None
        self.expanded.add(store.node)
        self.members.add(definition.position)
        return value

    def _add_product(self, definition: DefiningStore, values: dict[IndexVar, AxisIndex]) -> bool:
        """Add the product of a nest; return False if it is none of rows and columns."""
        nest, at = definition.nest, definition.position
        reduction = nest.reduction
        assert reduction is not None
        if not is_sum(nest) or len(reduction.factors) != 2 or len(nest.reduced) != 1:
            return False
        if at in self.products:
            if self.values[at] != values:
                raise NoAttentionError
            return True
        terms = replace(nest.reduced[0], var=fresh_var(nest.reduced[0].var.hint))
        moved = {**values, nest.reduced[0].var: VarIndex(terms.var)}
        for left, right in (reduction.factors, reduction.factors[::-1]):
            own, other = (traverse.substitute_in_expr(each, moved) for each in (left, right))
            of_rows, of_columns = traverse.free_variables(own), traverse.free_variables(other)
            if self.columns in of_rows or self.rows in of_columns:
                continue
            if self.rows in of_rows and self.columns in of_columns:
                self.products[at] = Product(Local(at, reduction.dtype), own, other, terms)
                self.values[at] = values
                return True
        return False

    def check(self, exprs: Sequence[Expr], at: int) -> None:
        """Check that no step since has stored to the nodes that recomputed expressions load."""
        loaded = {node for expr in exprs for node in traverse.nodes_of(expr)}
        if self.defined.is_changed(loaded, at - 1, at + 1):
            raise NoAttentionError
        if any(self.defined.is_changed((node,), since, at) for node, since in self.reads):
            raise NoAttentionError


@dataclass(frozen=True, slots=True)
class RecomputedProduct:
    """A product that recomputes one of its factors."""

    position: int
    nest: KernelNest
    attention: FusedAttention
    nests: tuple[KernelNest, ...]
    recomputation: Recomputation


def recomputed_product(
    defined: DefiningStores, at: int, matrices: Collection[TensorNode]
) -> RecomputedProduct | None:
    """Return the attention of a product with a factor that recomputes one of some matrices."""
    nest = nest_of(defined.plan.steps[at])
    if nest is None or not is_plain(nest) or any(axis.bound for axis in nest.axes):
        return None
    if not is_sum(nest, starts_neutral=False):
        return None
    for sides in sides_of(nest):
        try:
            found = _of_factor(defined, at, nest, sides)
        except NoAttentionError:
            continue
        if found is not None and not found.recomputation.expanded.isdisjoint(matrices):
            return found
    return None


@dataclass(frozen=True, slots=True)
class Sides:
    """The factors of a product, one of which is recomputed.

    Attributes:
        weights: The factor of rows and columns.
        operand: The factor of columns and cells.
        rows: The greatest axis of rows.
        columns: The reduced axis.
    """

    weights: Expr
    operand: Expr
    rows: LoopAxis
    columns: LoopAxis
    cells: LoopAxis


def sides_of(nest: KernelNest) -> Iterator[Sides]:
    """Yield the sides of a product of two factors, with each of them as the recomputed one."""
    reduction = nest.reduction
    assert reduction is not None
    factors = reduction.factors
    if len(factors) != 2 or len(nest.reduced) != 1:
        return
    (columns,) = nest.reduced
    for weights, operand in (factors, factors[::-1]):
        ours, theirs = traverse.free_variables(weights), traverse.free_variables(operand)
        rows = [a for a in nest.cells if a.var in ours and a.var not in theirs and a.extent > 1]
        cells = [a for a in nest.cells if a.var in theirs and a.var not in ours and a.extent > 1]
        if rows and len(cells) == 1 and columns.var in ours and columns.var in theirs:
            row = max(rows, key=lambda axis: axis.extent)
            yield Sides(weights, operand, row, columns, cells[0])


def _of_factor(
    defined: DefiningStores, at: int, nest: KernelNest, sides: Sides
) -> RecomputedProduct | None:
    rows, columns, cells = sides.rows, sides.columns, sides.cells
    recomputation = Recomputation(defined, rows.var, columns.var)
    term = recomputation.value(sides.weights, at)
    products = recomputation.products
    if not products or len(products) > _MOST_PRODUCTS:
        return None
    factors = [factor for each in products.values() for factor in (each.left, each.right)]
    recomputation.check([term, sides.operand, *factors], at)
    batch = tuple(axis for axis in nest.cells if axis not in (rows, cells))
    attention = _numbered(nest, batch, (rows, columns, cells), products, term, sides.operand)
    steps = (defined.plan.steps[position] for position in products)
    nests = tuple(found for step in steps if (found := nest_of(step)) is not None)
    return RecomputedProduct(at, nest, attention, nests, recomputation)


def _numbered(
    nest: KernelNest,
    batch: tuple[LoopAxis, ...],
    axes: tuple[LoopAxis, LoopAxis, LoopAxis],
    products: Mapping[int, Product],
    term: Expr,
    operand: Expr,
) -> FusedAttention:
    """Return the attention of some products and a term, with variables numbered from 0."""
    reduction = nest.reduction
    assert reduction is not None
    rows, columns, cells = axes
    scores: list[Product] = []
    renumbered: dict[Expr, Expr] = {}  # at once: numbers of both kinds overlap
    for number, each in enumerate(products.values()):
        local = Local(number, each.result.dtype)
        renumbered[LocalRead(each.result)] = LocalRead(local)
        scores.append(replace(each, result=local))
    term = traverse.map_expr(term, lambda expr: renumbered.get(expr, expr))
    result = Local(len(scores), reduction.dtype)
    invariants: dict[bool, list[Invariant]] = {True: [], False: []}
    for expr in sorted(_invariants(term, rows.var, columns.var), key=traverse.size, reverse=True):
        if not any(each == expr for each in traverse.walk(term)):
            continue
        number = len(scores) + 1 + sum(map(len, invariants.values()))
        own = Invariant(Local(number, expr.dtype), expr)
        term = replaced(term, expr, LocalRead(own.result))
        invariants[columns.var not in traverse.free_variables(expr)].append(own)
    if max(map(len, invariants.values())) > _MOST_INVARIANTS:
        raise NoAttentionError
    output = Sum(result, term, None, None)
    total: Expr = LocalRead(result)
    if not reduction.starts_neutral:
        total = Binary(BinaryOp.ADD, reduction.initial, total, reduction.dtype)
    return FusedAttention(
        batch,
        rows,
        columns,
        tuple(scores),
        LocalRead(scores[0].result),
        None,
        (),
        output,
        operand,
        cells,
        _epilogue(nest, LocalRead(reduction.result), total),
        row_invariants=tuple(invariants[True]),
        column_invariants=tuple(invariants[False]),
    )


def _epilogue(nest: KernelNest, old: Expr, total: Expr) -> tuple[Store, ...]:
    """Return the last store to each node of an epilogue, with another expression of its sum."""
    last: dict[TensorNode, Store] = {}
    for store in nest.epilogue:

        def forward(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices) if node in last:
                    if last[node].indices != indices:
                        raise NoAttentionError
                    return last[node].value
                case _:
                    return total if expr == old else expr

        value = traverse.map_expr(store.value, forward)
        before = last.pop(store.node, None)
        if before is not None and before.indices != store.indices:
            raise NoAttentionError
        last[store.node] = replace(store, value=value)
    stores = before_overwriting(tuple(last.values()))
    if stores is None:
        raise NoAttentionError
    return stores


def _invariants(expr: Expr, rows: LoopVar, columns: LoopVar) -> list[Expr]:
    """Return the greatest parts of a term that load, and depend on the row or the column alone."""
    variables = traverse.free_variables(expr)
    loads = any(isinstance(each, Load) for each in traverse.walk(expr))
    if loads and not traverse.locals_of(expr) and not {rows, columns} <= set(variables):
        return [expr]
    found: list[Expr] = []
    for each in traverse.children(expr):
        found += _invariants(each, rows, columns)  # type: ignore[arg-type]
    return list(dict.fromkeys(found))
