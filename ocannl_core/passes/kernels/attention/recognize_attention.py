"""Recognition of attention: two products, with functions and statistics of rows between them.

A product ends an attention if one of its factors can be traced to products of rows and columns, and
all that the trace has found can run along with the columns. No pattern is a formula: softmax,
scores with masks and weights without a maximum are traced alike, and so are the products of a
backward pass, whose factors are functions of several products and of statistics in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestPlan, nest_of
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Binary, Expr, Load, Local, LocalRead
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.attention.fused_attention import (
    FusedAttention,
    Invariant,
    Sum,
    replaced,
    replaced_score,
)
from ocannl_core.passes.kernels.attention.trace import (
    NoAttentionError,
    Sides,
    Trace,
    is_sum,
    last_stores,
    sides_of,
)
from ocannl_core.passes.kernels.defining_stores import DefiningStores, is_plain

_MOST_PRODUCTS = 2
"""The products that an attention recomputes, at most: each has two tiles in shared memory."""
_MOST_INVARIANTS = 16
"""The values of rows or columns that a thread keeps, at most."""


@dataclass(frozen=True, slots=True)
class TracedAttention:
    """An attention in a plan."""

    attention: FusedAttention
    trace: Trace
    """The values that its last nest reads."""
    position: int
    """The position of that nest."""
    nests: tuple[Nest, ...]
    """The nests of its products; the last one comes last."""

    @property
    def plan(self) -> NestPlan:
        return self.trace.defined.plan

    @property
    def members(self) -> tuple[int, ...]:
        """The positions of its nests."""
        return (*sorted(self.trace.members), self.position)


def attentions_at(
    defined: DefiningStores, at: int, *, is_online: bool
) -> Iterator[TracedAttention]:
    """Yield the attentions that end with a step.

    Args:
        is_online: True if statistics of rows run along with the columns; False if they are loaded.
    """
    nest = nest_of(defined.plan.steps[at])
    if nest is None or not is_sum(nest, starts_neutral=is_online) or not is_plain(nest):
        return
    if not is_online and any(axis.bound for axis in nest.axes):
        return
    for sides in sides_of(nest):
        axes = tuple(axis for axis in nest.axes if axis != sides.head_axis)
        trace = Trace(defined, axes, sides.rows.var, sides.columns.var, is_online)
        try:
            attention = _attention(trace, nest, at, sides)
        except NoAttentionError:
            continue
        if attention is not None:
            steps = (defined.plan.steps[position] for position in (*trace.products, at))
            nests = tuple(found for step in steps if (found := nest_of(step)) is not None)
            yield TracedAttention(attention, trace, at, nests)


def _attention(trace: Trace, nest: Nest, at: int, sides: Sides) -> FusedAttention | None:
    reduction = nest.required_reduction
    term = trace.value(sides.weights, at)
    products = tuple(trace.products.values())
    if not products or len(products) > _MOST_PRODUCTS:
        return None
    result = Local(at, reduction.dtype)
    total: Expr = LocalRead(result)
    if not reduction.starts_neutral:
        total = Binary(BinaryOp.ADD, reduction.initial, total, reduction.dtype)
    stores = last_stores(nest.epilogue, {LocalRead(reduction.result): total})
    epilogue = tuple(replace(each, value=trace.value(each.value, at)) for each in stores)
    trace.check(at)
    of_rows, of_columns = list[Invariant](), list[Invariant]()
    if trace.is_online:
        output = trace.online_sum(result, term)
        if output is None or not trace.varies(output.term):
            return None
    else:
        for expr in sorted(
            _invariant_parts(term, trace.rows, trace.columns), key=traverse.size, reverse=True
        ):
            if not any(each == expr for each in traverse.walk(term)):
                continue
            number = len(trace.defined.plan.steps) + len(of_rows) + len(of_columns)
            own = Invariant(Local(number, expr.dtype), expr)
            term = replaced(term, expr, LocalRead(own.result))
            varies = trace.columns in traverse.free_variables(expr)
            (of_columns if varies else of_rows).append(own)
        if max(len(of_rows), len(of_columns)) > _MOST_INVARIANTS:
            return None
        output = Sum(result, term, None, None)
    maximum = trace.maximum
    attention = FusedAttention(
        sides.batch,
        sides.rows,
        sides.columns,
        products,
        LocalRead(products[0].result) if maximum is None else maximum.term,
        maximum,
        tuple(each for _, each in sorted(trace.row_sums.items())),
        output,
        sides.operand,
        sides.head_axis,
        epilogue,
        row_invariants=tuple(of_rows),
        column_invariants=tuple(of_columns),
    )
    return attention if not trace.is_online or _is_complete(attention) else None


def _is_complete(attention: FusedAttention) -> bool:
    """Return True if no term needs a score that is not kept."""
    sums = (*attention.row_sums, attention.output)
    shifts = {each.shift for each in sums if each.shift is not None}
    exponentials = {unwidened(each.exponential) for each in sums if each.exponential is not None}
    if len(shifts) > 1 or len(exponentials) > 1:
        return False
    kept = [store.value for store in attention.epilogue]
    for each in sums:
        term = replaced_score(each.term, attention.score, _KEPT)
        kept.append(term)
        if each.shift is not None and attention.maximum is not None:
            term = traverse.map_expr(term, lambda e, old=each.shift: _KEPT if e == old else e)  # type: ignore[misc]
            if attention.maximum.result in traverse.locals_of(term):
                return False
    (product,) = attention.products
    return not any(product.result in traverse.locals_of(each) for each in kept)


_KEPT = LocalRead(Local(-1, float32))
"""Stands for a value that the attention keeps."""


def _invariant_parts(expr: Expr, rows: LoopVar, columns: LoopVar) -> list[Expr]:
    variables = traverse.free_variables(expr)
    loads = traverse.contains(expr, Load)
    if loads and not traverse.locals_of(expr) and not {rows, columns} <= set(variables):
        return [expr]
    found: list[Expr] = []
    for each in traverse.children(expr):
        found += _invariant_parts(each, rows, columns)  # type: ignore[arg-type]
    return list(dict.fromkeys(found))
