"""Recognition of attention: nests, traced as expressions of scores, row maxima and row sums.

Each result becomes an expression at one row and one column.

    nest s[q, t] = ...               the product: s is its score
    nest m[q] max= s[q, t]           a row maximum of the score
    nest e[q, t] = exp(s - m)        an expression, computed where it is read
    nest l[q] += e[q, t]             a sum of that expression
    nest o[q, e] += e / l * v        the second product
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, LoopVar, VarIndex, variables
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis, Reduction, substitute_in_store
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Expr, Load, Local, LocalRead, Store
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.defining_stores import is_plain
from ocannl_core.passes.kernels.rows.fused_attention import (
    Columns,
    FusedAttention,
    Product,
    RowMaximum,
    Sum,
    factors_of,
    joined,
    online_sum,
    replaced_score,
)


def is_sum(nest: KernelNest, *, starts_neutral: bool = True) -> bool:
    """Return True if a nest sums floats, from 0 if `starts_neutral`, and rounds no single term."""
    reduction = nest.reduction
    return (
        reduction is not None
        and reduction.op is BinaryOp.ADD
        and reduction.dtype.is_float
        and (reduction.starts_neutral or not starts_neutral)
        and not nest.rounds_often
    )


def before_overwriting(stores: tuple[Store, ...]) -> tuple[Store, ...] | None:
    """Return stores in an order in which none overwrites a later one's load; None without one."""
    pending, ordered = list(stores), list[Store]()
    while pending:
        for store in pending:
            others = [each for each in pending if each is not store]
            if all(store.node not in traverse.nodes_of(each.value) for each in others):
                break
        else:
            return None
        ordered.append(store)
        pending.remove(store)
    return tuple(ordered)


class NoAttentionError(Exception):
    """Nests are no attention."""


@dataclass(frozen=True, slots=True)
class _Definition:
    """The value of a cell of a node."""

    indices: tuple[AxisIndex, ...]
    value: Expr


@dataclass(slots=True)
class AttentionTrace:
    """An attention as far as it has been traced.

    Attributes:
        parts: The factors of the first product and the axis of its terms.
        batch: The axes of rows without the one that tiles run along.
        defined: The nodes that the attention computes so far.
    """

    product: KernelNest
    parts: Product
    batch: tuple[LoopAxis, ...]
    rows: LoopAxis
    columns: LoopAxis
    defined: dict[TensorNode, _Definition] = field(default_factory=dict)
    _maximum: RowMaximum | None = None
    _row_sums: list[Sum] = field(default_factory=list)
    _numbering: int = 1

    @classmethod
    def of(cls, nest: KernelNest) -> tuple[AttentionTrace, ...]:
        """Return the traces that may begin with a product, one for each factor of rows."""
        reduction = nest.reduction
        if reduction is None or not is_sum(nest) or not is_plain(nest):
            return ()
        if len(reduction.factors) != 2 or len(nest.reduced) != 1 or nest.reduced[0].bound:
            return ()
        return tuple(
            trace for at in (0, 1) if (trace := cls._oriented(nest, reduction, at)) is not None
        )

    @classmethod
    def _oriented(cls, nest: KernelNest, reduction: Reduction, at: int) -> AttentionTrace | None:
        own, other = nest.factor_variables[at], nest.factor_variables[1 - at]
        rows = [axis for axis in nest.cells if axis.var in own and axis.var not in other]
        columns = [axis for axis in nest.cells if axis.var in other and axis.var not in own]
        columns = [axis for axis in columns if axis.extent > 1] or columns
        if not rows or len(columns) != 1:
            return None
        row = max(rows, key=lambda axis: axis.extent)
        result = Local(0, reduction.dtype)
        left, right = reduction.factors[at], reduction.factors[1 - at]
        batch = tuple(axis for axis in nest.cells if axis not in (row, columns[0]))
        parts = Product(result, left, right, nest.reduced[0])
        trace = cls(nest, parts, batch, row, columns[0])
        try:
            trace._define(nest, {reduction.result: LocalRead(result)}, {})
        except NoAttentionError:
            return None
        return trace

    @property
    def _axes(self) -> dict[LoopVar, LoopAxis]:
        return {axis.var: axis for axis in (*self.batch, self.rows, self.columns)}

    @property
    def row_stores(self) -> tuple[Store, ...]:
        """The nodes that are functions of rows and their statistics alone, as stores."""
        return tuple(
            Store(node, found.indices, found.value)
            for node, found in self.defined.items()
            if not self._known.varies(found.value)
            and not any(self.columns.var in variables(index) for index in found.indices)
        )

    def add(self, nest: KernelNest) -> FusedAttention | None:
        """Add a nest that reads results; return the attention if it is complete."""
        if not is_plain(nest) or not nest.gathered.isdisjoint(self.defined):
            raise NoAttentionError
        values, free = self._match(nest)
        reduction = nest.reduction
        if reduction is None:
            if free:
                raise NoAttentionError
            self._define(nest, {}, values)
            return None
        if traverse.locals_of(reduction.term):
            raise NoAttentionError
        columns = [axis for axis in nest.reduced if axis.extent > 1]
        if len(columns) != 1 or values.get(columns[0].var) != VarIndex(self.columns.var):
            raise NoAttentionError
        if free:
            return self._second_product(nest, reduction, values, free)
        term = self._resolved(reduction.term, values)
        if reduction.op is BinaryOp.MAX and reduction.starts_neutral:
            self._add_maximum(reduction, term)
            result = self._maximum.result if self._maximum is not None else None
        else:
            result = self._add_row_sum(nest, reduction, term)
        assert result is not None
        self._define(nest, {reduction.result: LocalRead(result)}, values)
        return None

    def _new_local(self, reduction: Reduction) -> Local:
        self._numbering += 1
        return Local(self._numbering - 1, reduction.dtype)

    @property
    def _known(self) -> Columns:
        row_sums = frozenset(each.result for each in self._row_sums)
        return Columns(self.columns.var, self.parts.result, self._maximum, row_sums)

    def _add_maximum(self, reduction: Reduction, term: Expr) -> None:
        if self._maximum is not None or self._known.statistics(term):
            raise NoAttentionError
        if not reduction.dtype.is_float or term.dtype is not reduction.dtype:
            raise NoAttentionError
        self._maximum = RowMaximum(self._new_local(reduction), term)

    def _add_row_sum(self, nest: KernelNest, reduction: Reduction, term: Expr) -> Local:
        if not is_sum(nest):
            raise NoAttentionError
        result = self._new_local(reduction)
        found = online_sum(result, *factors_of(term), self._known)
        if found is None:
            raise NoAttentionError
        self._row_sums.append(found)
        return result

    def _second_product(
        self,
        nest: KernelNest,
        reduction: Reduction,
        values: Mapping[IndexVar, AxisIndex],
        free: list[LoopAxis],
    ) -> FusedAttention:
        """Return the attention that a product with the columns completes."""
        if len(free) != 1 or not is_sum(nest):
            raise NoAttentionError
        (cells,) = free
        term = self._resolved(reduction.term, values)
        numerators, denominators = factors_of(term)
        known = self._known
        operand = [each for each in numerators if cells.var in traverse.free_variables(each)]
        others = [each for each in numerators if cells.var not in traverse.free_variables(each)]
        if not operand or any(cells.var in traverse.free_variables(each) for each in denominators):
            raise NoAttentionError
        for each in operand:
            if known.statistics(each) or self.parts.result in traverse.locals_of(each):
                raise NoAttentionError
            if self.rows.var in traverse.free_variables(each):
                raise NoAttentionError
        result = self._new_local(reduction)
        output = online_sum(result, others, denominators, known)
        if output is None or not known.varies(output.term):
            raise NoAttentionError
        self._define(nest, {reduction.result: LocalRead(result)}, values)
        epilogue = tuple(
            Store(node, self.defined[node].indices, self.defined[node].value)
            for node in dict.fromkeys(store.node for store in nest.epilogue)
        )
        for store in epilogue:
            del self.defined[store.node]
        ordered = before_overwriting(epilogue)
        if ordered is None:
            raise NoAttentionError
        maximum = self._maximum
        attention = FusedAttention(
            self.batch,
            self.rows,
            self.columns,
            (self.parts,),
            LocalRead(self.parts.result) if maximum is None else maximum.term,
            maximum,
            tuple(self._row_sums),
            output,
            joined(operand, [], reduction.dtype),
            cells,
            ordered,
        )
        self._check(attention)
        return attention

    def _check(self, attention: FusedAttention) -> None:
        """Check that no term needs a score that is not kept."""
        sums = (*attention.row_sums, attention.output)
        shifts = {each.shift for each in sums if each.shift is not None}
        exponentials = {unwidened(e.exponential) for e in sums if e.exponential is not None}
        if len(shifts) > 1 or len(exponentials) > 1:
            raise NoAttentionError
        for each in sums:
            kept = replaced_score(each.term, attention.score, _KEPT)
            if self.parts.result in traverse.locals_of(kept):
                raise NoAttentionError
            if each.shift is not None and attention.maximum is not None:
                left = traverse.map_expr(kept, lambda e, old=each.shift: _KEPT if e == old else e)  # type: ignore[misc]
                if attention.maximum.result in traverse.locals_of(left):
                    raise NoAttentionError
        if any(
            self.parts.result in traverse.locals_of(store.value) for store in attention.epilogue
        ):
            raise NoAttentionError

    def _match(self, nest: KernelNest) -> tuple[dict[IndexVar, AxisIndex], list[LoopAxis]]:
        """Return the values of the variables of a nest, and its axes outside of the attention."""
        axes, own = self._axes, {axis.var: axis for axis in nest.axes}
        values: dict[IndexVar, AxisIndex] = {}
        for root in nest.roots:
            for each in traverse.walk(root):
                if isinstance(each, Load) and each.node in self.defined:
                    pattern = self.defined[each.node].indices
                    for index, known in zip(each.indices, pattern, strict=True):
                        match index, known:
                            case VarIndex(var), VarIndex() if var in own:
                                if values.setdefault(var, known) != known:
                                    raise NoAttentionError
                            case _ if index == known:
                                pass
                            case _:
                                raise NoAttentionError
        if len(set(values.values())) < len(values):
            raise NoAttentionError
        for var, index in values.items():
            assert isinstance(index, VarIndex)
            assert isinstance(index.var, LoopVar)
            assert isinstance(var, LoopVar)
            if own[var].domain != axes[index.var].domain:
                raise NoAttentionError
        free = [axis for axis in nest.axes if axis.var not in values and axis.extent > 1]
        fixed: dict[IndexVar, AxisIndex] = {
            axis.var: FixedIndex(0) for axis in nest.axes if axis.extent == 1
        }
        return {**fixed, **values}, free

    def _resolved(self, expr: Expr, values: Mapping[IndexVar, AxisIndex]) -> Expr:
        def resolve(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices) if node in self.defined:
                    found = self.defined[node]
                    if indices != found.indices:
                        raise NoAttentionError
                    return found.value
                case _:
                    return expr

        return traverse.map_expr(traverse.substitute_in_expr(expr, values), resolve)

    def _define(
        self, nest: KernelNest, results: Mapping[Local, Expr], values: Mapping[IndexVar, AxisIndex]
    ) -> None:
        own: set[TensorNode] = set()
        for store in nest.epilogue:
            if set(traverse.locals_of(store)) - set(results):
                raise NoAttentionError
            if store.node in self.defined and store.node not in own:
                raise NoAttentionError
            own.add(store.node)
            # results first: the locals of nests are numbered apart from the attention's
            value = traverse.map_expr(
                store.value, lambda e: results.get(e.local, e) if isinstance(e, LocalRead) else e
            )
            moved = substitute_in_store(replace(store, value=value), values)
            before = self.defined.get(store.node)
            if before is not None and before.indices != moved.indices:
                raise NoAttentionError
            self.defined[store.node] = _Definition(moved.indices, self._resolved(moved.value, {}))


_KEPT = LocalRead(Local(-1, float32))
"""Stands for a value that the attention keeps."""
