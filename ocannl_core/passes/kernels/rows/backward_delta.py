"""Delta of flash-attention backward: the row sum of `dO * O` in place of a sum over columns.

    o[q, e] = the sum of w[q, t] * v[t, e]
    p[q, t] = the sum of g[q, e] * v[t, e]
    d[q]    = the sum of w[q, t] * p[q, t]     =     the sum of g[q, e] * o[q, e]

The sum over cells reads no matrix of rows and columns.
"""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, substitute
from ocannl_core.ir.kernels.nest import KernelNest, with_letters, with_value
from ocannl_core.ir.kernels.nest_plan import NestKernel, nest_of
from ocannl_core.ir.loops.conversions import as_format
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, Load, LocalRead, Store, Unary
from ocannl_core.ir.loops.traverse import free_variables, locals_of, substitute_in_expr
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.kernels.defining_stores import DefiningStores, is_plain
from ocannl_core.passes.kernels.rows.attention import Product, factors_of
from ocannl_core.passes.kernels.rows.trace import NoAttentionError, Sides, Trace, is_sum, sides_of


@dataclass(frozen=True, slots=True)
class FactoredSum:
    """A sum over cells that replaces a sum over columns, and the trace of its terms."""

    step: NestKernel
    trace: Trace


def factored_sum(defined: DefiningStores, at: int, product: int) -> FactoredSum | None:
    """Return the sum over cells that a sum over columns is equal to; None if it is to none.

    Args:
        at: The position of the sum over columns.
        product: The position of the product with the same weights, which comes before it.
    """
    steps = defined.plan.steps
    step = steps[at]
    own, other = nest_of(step), nest_of(steps[product])
    if not isinstance(step, NestKernel) or own is None or other is None or product >= at:
        return None
    if not all(is_sum(each) and is_plain(each) for each in (own, other)):
        return None
    if len(own.reduced) != 1 or any(axis.bound for axis in (*own.axes, *other.axes)):
        return None
    for rows in own.cells:
        trace = Trace(defined, own.axes, rows.var, own.reduced[0].var)
        for sides in sides_of(other):
            try:
                found = _factored(trace, own, at, other, product, sides)
            except NoAttentionError:
                continue
            if found is not None:
                return FactoredSum(step.with_nest(found), trace)
    return None


def _factored(
    trace: Trace, own: KernelNest, at: int, other: KernelNest, product: int, sides: Sides
) -> KernelNest | None:
    assert own.reduction is not None
    dtype = own.reduction.dtype
    term = trace.value(own.reduction.term, at)
    theirs = Trace(trace.defined, other.axes, sides.rows.var, sides.columns.var)
    weights = theirs.value(sides.weights, product)
    further = [each for n, each in trace.products.items() if n not in theirs.products]
    values = _correspondence(theirs, trace)
    if len(further) != 1 or values is None:
        return None
    (scores,) = further
    values[sides.cells.var] = VarIndex(scores.terms.var)
    if sides.cells.domain != scores.terms.domain or sides.columns.domain != own.reduced[0].domain:
        return None
    if substitute_in_expr(sides.operand, values) != scores.right:
        return None
    if not set(free_variables(weights)) <= set(values):
        return None
    quotient = _quotient(term, substitute_in_expr(weights, values), scores)
    result = _result(other)
    if quotient is None or result is None:
        return None
    if any(own.reduced[0].var in free_variables(e) or locals_of(e) for e in quotient.factors):
        return None
    if trace.defined.is_changed((result.node,), product, at):
        return None
    trace.check(at)
    indices = tuple(substitute(index, values) for index in result.indices)
    sums = Load(result.node, indices, result.value.dtype)
    factors = as_format(scores.left, dtype), as_format(sums, dtype)
    reduction = replace(own.reduction, term=Binary(BinaryOp.MUL, *factors, dtype))
    total = quotient.applied(LocalRead(reduction.result))
    epilogue = tuple(
        with_value(store, LocalRead(reduction.result), total) for store in own.epilogue
    )
    return KernelNest(with_letters((*own.cells, scores.terms)), reduction, epilogue)


def _correspondence(theirs: Trace, ours: Trace) -> dict[IndexVar, AxisIndex] | None:
    """Return the variables of a trace by the variables of another with its products."""
    found: dict[IndexVar, AxisIndex] = {}
    for number in theirs.products:
        if number not in ours.products:
            return None
        for var, index in theirs.members[number].items():
            if isinstance(index, VarIndex):
                at = ours.members[number][var]
                if found.setdefault(index.var, at) != at:
                    return None
    return found


def _result(nest: KernelNest) -> Store | None:
    """Return the store of a sum itself, if the nest stores nothing else to that node."""
    assert nest.reduction is not None
    for store in nest.epilogue:
        value = store.value
        while isinstance(value, Unary) and value.op is UnaryOp.IDENTITY:
            value = value.arg
        if value == LocalRead(nest.reduction.result):
            same = [each for each in nest.epilogue if each.node is store.node]
            return store if len(same) == 1 else None
    return None


@dataclass(frozen=True, slots=True)
class _Quotient:
    numerators: tuple[Expr, ...]
    denominators: tuple[Expr, ...]
    is_negative: bool = False

    @property
    def factors(self) -> tuple[Expr, ...]:
        return (*self.numerators, *self.denominators)

    def applied(self, total: Expr) -> Expr:
        """Return the product of a sum and the quotient."""
        dtype = total.dtype
        for each in self.numerators:
            total = Binary(BinaryOp.MUL, total, each, dtype)
        for each in self.denominators:
            total = Binary(BinaryOp.DIV, total, each, dtype)
        return Unary(UnaryOp.NEG, total, dtype) if self.is_negative else total


def _quotient(term: Expr, weights: Expr, scores: Product) -> _Quotient | None:
    """Return what a term is of the product of some weights and scores; None if nothing is left."""
    ours, theirs = _parts(term), _parts(weights)
    numerators, denominators = list(ours.numerators), list(ours.denominators)
    for each in numerators:
        value = each
        while isinstance(value, Unary) and value.op is UnaryOp.IDENTITY:
            value = value.arg
        if value == LocalRead(scores.result):
            numerators.remove(each)
            break
    else:
        return None
    for left, common in ((numerators, theirs.numerators), (denominators, theirs.denominators)):
        for each in common:
            if each not in left:
                return None
            left.remove(each)
    is_negative = ours.is_negative != theirs.is_negative
    return _Quotient(tuple(numerators), tuple(denominators), is_negative)


def _parts(expr: Expr) -> _Quotient:
    match expr:
        case Unary(UnaryOp.NEG, arg, dtype):
            found = _parts(as_format(arg, dtype))
            return replace(found, is_negative=not found.is_negative)
        case Binary(BinaryOp.ADD, Const(0.0), arg, dtype):
            return _parts(as_format(arg, dtype))
        case _:
            pass
    numerators, denominators = factors_of(expr)
    return _Quotient(tuple(numerators), tuple(denominators))
