"""Flash-attention backward: the steps that read the matrices of an attention recompute them.

    nest s, m, e, l, w, o      the attention: o = f(s) @ v, where m and l are statistics of rows
    nest p = g @ v.T           a further product of rows and columns
    nest d = the sum of w * p  a sum over columns, which is one over cells as well
    nest u = f'(s, p, m, l, d) a function of products
    nest u @ b, u.T @ a        products that recompute u

No kernel stores a matrix of rows and columns if all readers of such a matrix recompute it, and the
attention stores its statistics.

`Delta` is such a sum `d` in another form: where `o` is in memory,

    d[q] = the sum of w[q, t] * p[q, t]     =     the sum of g[q, e] * o[q, e]

and the sum over cells reads no matrix of rows and columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, VarIndex, substitute
from ocannl_core.ir.kernels.nest import Nest, iterations, with_letters, with_value
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, mentioned, nest_of, written
from ocannl_core.ir.loops.conversions import as_format, unconverted
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, Load, LocalRead, Store, Unary
from ocannl_core.ir.loops.traverse import free_variables, locals_of, substitute_in_expr
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.kernels.attention.fused_attention import Product, factors_of, joined
from ocannl_core.passes.kernels.attention.recognize_attention import TracedAttention, attentions_at
from ocannl_core.passes.kernels.attention.trace import (
    NoAttentionError,
    Sides,
    Trace,
    is_sum,
    sides_of,
)
from ocannl_core.passes.kernels.defining_stores import DefiningStores, is_plain


@dataclass(frozen=True, slots=True)
class FactoredSum:
    """A sum over cells that replaces a sum over columns, and the trace of its terms."""

    step: NestKernel
    trace: Trace


@dataclass(slots=True)
class BackwardSteps:
    """The steps of flash-attention backward, which recompute matrices."""

    plan: NestPlan
    attention: tuple[int, ...]
    matrices: set[TensorNode]
    """The nodes that no kernel stores."""
    removed: set[int] = field(default_factory=set)
    """The positions of steps that computed them for others."""
    products: dict[int, TracedAttention] = field(default_factory=dict)
    sums: dict[int, FactoredSum] = field(default_factory=dict)

    @property
    def members(self) -> frozenset[int]:
        """The positions of all its steps."""
        return frozenset((*self.attention, *self.removed, *self.products, *self.sums))

    def readers(self) -> list[int]:
        """Return the positions of other steps that mention its matrices."""
        members = self.members
        return [
            at
            for at, step in enumerate(self.plan.steps)
            if at not in members and not self.matrices.isdisjoint(mentioned(step))
        ]

    def loads(self) -> frozenset[TensorNode]:
        """Return the nodes that its new steps load."""
        found = [each.attention.loaded for each in self.products.values()]
        found += [mentioned(each.step) for each in self.sums.values()]
        return frozenset().union(*found)

    def matrix_bytes(self) -> int:
        """Return the bytes of its matrices."""
        return sum(self.plan.nodes[node].nbytes for node in self.matrices)

    def traffic(self) -> int:
        """Return the bytes of matrices that its steps load and store one by one."""
        return sum(
            self.plan.nodes[node].nbytes
            for node in self.matrices
            for step in self.plan.steps
            if node in mentioned(step)
        )

    def recomputed(self) -> int:
        """Return the multiplications that its steps do beyond the plan's."""
        before = [
            nest
            for at in self.removed
            if (nest := nest_of(self.plan.steps[at])) is not None and nest.reduction is not None
        ]
        after = [nest for each in self.products.values() for nest in each.nests[:-1]]
        return sum(map(_size, after)) - sum(map(_size, before))


def _size(nest: Nest) -> int:
    return iterations(nest.axes)


def find_backward(found: TracedAttention, matrices: Collection[TensorNode]) -> BackwardSteps | None:
    """Return the steps that recompute the matrices of an attention; None if some step cannot."""
    plan, defined = found.plan, found.trace.defined
    backward = BackwardSteps(plan, found.members, set(matrices))
    while readers := backward.readers():
        at = readers[0]
        product = _recomputed_product(defined, at, backward.matrices)
        if product is not None:
            backward.products[at] = product
            traced = product.trace
        else:
            total = _factored_sum(defined, at, found.position)
            if total is not None:
                backward.sums[at] = total
                traced = total.trace
            elif _is_recomputable(plan, at) and all(map(defined.of, written(plan.steps[at]))):
                backward.removed.add(at)
                backward.matrices |= written(plan.steps[at])
                continue
            else:
                return None
        backward.matrices |= traced.cells.keys()
        backward.removed |= traced.members.keys() - set(found.members)
    stored = {node for at in backward.removed for node in written(plan.steps[at])}
    is_whole = stored <= backward.matrices <= set(plan.scratch)
    loads = backward.loads() | found.attention.loaded
    return backward if is_whole and backward.matrices.isdisjoint(loads) else None


def _is_recomputable(plan: NestPlan, at: int) -> bool:
    """Return True if a step is a function of cells, or of the sums of a product."""
    nest = nest_of(plan.steps[at])
    return nest is not None and (nest.reduction is None or is_sum(nest))


def _recomputed_product(
    defined: DefiningStores, at: int, matrices: Collection[TensorNode]
) -> TracedAttention | None:
    """Return the attention of a product with a factor that recomputes one of some matrices."""
    for found in attentions_at(defined, at, is_online=False):
        if not found.trace.cells.keys().isdisjoint(matrices):
            return found
    return None


def _factored_sum(defined: DefiningStores, at: int, product: int) -> FactoredSum | None:
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
    for rows in own.output_axes:
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
    trace: Trace, own: Nest, at: int, other: Nest, product: int, sides: Sides
) -> Nest | None:
    reduction = own.required_reduction
    dtype, term = reduction.dtype, trace.value(reduction.term, at)
    theirs = Trace(trace.defined, other.axes, sides.rows.var, sides.columns.var)
    weights = theirs.value(sides.weights, product)
    further = [each for n, each in trace.products.items() if n not in theirs.products]
    values = _correspondence(theirs, trace)
    if len(further) != 1 or values is None:
        return None
    (scores,) = further
    values[sides.head_axis.var] = VarIndex(scores.terms.var)
    if (
        sides.head_axis.domain != scores.terms.domain
        or sides.columns.domain != own.reduced[0].domain
    ):
        return None
    if substitute_in_expr(sides.operand, values) != scores.right:
        return None
    if not set(free_variables(weights)) <= set(values):
        return None
    quotient = _quotient(term, substitute_in_expr(weights, values), scores)
    result = _result(other)
    if quotient is None or result is None:
        return None
    numerators, denominators, is_negative = quotient
    factors = (*numerators, *denominators)
    if any(own.reduced[0].var in free_variables(each) or locals_of(each) for each in factors):
        return None
    if trace.defined.is_changed((result.node,), product, at):
        return None
    trace.check(at)
    indices = tuple(substitute(index, values) for index in result.indices)
    sums = Load(result.node, indices, result.value.dtype)
    product_of_cells = joined([as_format(scores.left, dtype), as_format(sums, dtype)], [], dtype)
    reduction = replace(reduction, term=product_of_cells)
    total = joined([LocalRead(reduction.result), *numerators], denominators, dtype)
    total = Unary(UnaryOp.NEG, total, dtype) if is_negative else total
    epilogue = tuple(
        with_value(store, LocalRead(reduction.result), total) for store in own.epilogue
    )
    return Nest(with_letters((*own.output_axes, scores.terms)), reduction, epilogue)


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


def _result(nest: Nest) -> Store | None:
    """Return the store of a sum itself, if the nest stores nothing else to that node."""
    for store in nest.epilogue:
        if unconverted(store.value) == LocalRead(nest.required_reduction.result):
            same = [each for each in nest.epilogue if each.node is store.node]
            return store if len(same) == 1 else None
    return None


_Quotient = tuple[list[Expr], list[Expr], bool]
"""Factors, divisors, and True for a negative quotient."""


def _quotient(term: Expr, weights: Expr, scores: Product) -> _Quotient | None:
    """Return what a term is of the product of some weights and scores; None if nothing is left."""
    numerators, denominators, is_negative = _parts(term)
    common, common_divisors, is_opposite = _parts(weights)
    score = next((e for e in numerators if unconverted(e) == LocalRead(scores.result)), None)
    if score is None:
        return None
    for left, taken in ((numerators, [score, *common]), (denominators, common_divisors)):
        for each in taken:
            if each not in left:
                return None
            left.remove(each)
    return numerators, denominators, is_negative != is_opposite


def _parts(expr: Expr) -> _Quotient:
    match expr:
        case Unary(UnaryOp.NEG, arg, dtype):
            numerators, denominators, is_negative = _parts(as_format(arg, dtype))
            return numerators, denominators, not is_negative
        case Binary(BinaryOp.ADD, Const(0.0), arg, dtype):
            return _parts(as_format(arg, dtype))
        case _:
            return *factors_of(expr), False
