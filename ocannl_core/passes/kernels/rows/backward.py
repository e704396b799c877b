"""Flash-attention backward: the steps that read the matrices of an attention recompute them.

    nest s, m, e, l, w, o      the attention: o = f(s) @ v, where m and l are statistics of rows
    nest p = g @ v.T           a further product of rows and columns
    nest d = the sum of w * p  a sum over columns, which is one over cells as well
    nest u = f'(s, p, m, l, d) a function of products
    nest u @ b, u.T @ a        products that recompute u

No kernel stores a matrix of rows and columns if all readers of such a matrix recompute it, and the
attention stores its statistics.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from math import prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import NestPlan, mentioned, nest_of, written
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Binary, Expr, Load, Local, LocalRead
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.defining_stores import DefiningStores, is_plain
from ocannl_core.passes.kernels.rows.attention import FusedAttention, Invariant, Sum, replaced
from ocannl_core.passes.kernels.rows.backward_delta import FactoredSum, factored_sum
from ocannl_core.passes.kernels.rows.trace import (
    NoAttentionError,
    Sides,
    Trace,
    is_sum,
    last_stores,
    sides_of,
)

_MOST_PRODUCTS = 2
"""The products that an attention recomputes, at most: each has two tiles in shared memory."""
_MOST_INVARIANTS = 16
"""The values of rows or columns that a thread keeps, at most."""


@dataclass(slots=True)
class BackwardSteps:
    """The steps of flash-attention backward, which recompute matrices.

    Attributes:
        matrices: The nodes that no kernel stores.
        removed: The positions of steps that computed them for others.
    """

    plan: NestPlan
    attention: tuple[int, ...]
    matrices: set[TensorNode]
    removed: set[int] = field(default_factory=set)
    products: dict[int, RecomputedProduct] = field(default_factory=dict)
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
        after = [nest for each in self.products.values() for nest in each.nests]
        return sum(map(_size, after)) - sum(map(_size, before))


def _size(nest: KernelNest) -> int:
    return prod(axis.extent for axis in nest.axes)


def find_backward(
    plan: NestPlan,
    members: tuple[int, ...],
    attention: FusedAttention,
    matrices: Collection[TensorNode],
) -> BackwardSteps | None:
    """Return the steps that recompute the matrices of an attention; None if some step cannot."""
    backward = BackwardSteps(plan, members, set(matrices))
    defined = DefiningStores(plan, may_end=True)
    while readers := backward.readers():
        at = readers[0]
        product = _recomputed_product(defined, at, backward.matrices)
        if product is not None:
            backward.products[at] = product
            traced = product.trace
        else:
            total = factored_sum(defined, at, members[-1])
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
        backward.removed |= traced.members.keys() - set(members)
    stored = {node for at in backward.removed for node in written(plan.steps[at])}
    is_whole = stored <= backward.matrices <= set(plan.scratch)
    loads = backward.loads() | attention.loaded
    return backward if is_whole and backward.matrices.isdisjoint(loads) else None


def _is_recomputable(plan: NestPlan, at: int) -> bool:
    """Return True if a step is a function of cells, or of the sums of a product."""
    nest = nest_of(plan.steps[at])
    return nest is not None and (nest.reduction is None or is_sum(nest))


@dataclass(frozen=True, slots=True)
class RecomputedProduct:
    """A product that recomputes one of its factors.

    Attributes:
        nests: The nests of the products that it recomputes.
    """

    nest: KernelNest
    attention: FusedAttention
    nests: tuple[KernelNest, ...]
    trace: Trace


def _recomputed_product(
    defined: DefiningStores, at: int, matrices: Collection[TensorNode]
) -> RecomputedProduct | None:
    """Return the attention of a product with a factor that recomputes one of some matrices."""
    nest = nest_of(defined.plan.steps[at])
    if nest is None or not is_plain(nest) or any(axis.bound for axis in nest.axes):
        return None
    if not is_sum(nest, starts_neutral=False):
        return None
    for sides in sides_of(nest):
        trace = Trace(defined, nest.axes, sides.rows.var, sides.columns.var)
        try:
            attention = _of_factor(trace, at, nest, sides)
        except NoAttentionError:
            continue
        if attention is not None and not trace.cells.keys().isdisjoint(matrices):
            steps = (defined.plan.steps[position] for position in trace.products)
            nests = tuple(found for step in steps if (found := nest_of(step)) is not None)
            return RecomputedProduct(nest, attention, nests, trace)
    return None


def _of_factor(trace: Trace, at: int, nest: KernelNest, sides: Sides) -> FusedAttention | None:
    """Return the attention of the products that a factor depends on."""
    reduction = nest.reduction
    assert reduction is not None
    term = trace.value(sides.weights, at)
    products = tuple(trace.products.values())
    if not products or len(products) > _MOST_PRODUCTS:
        return None
    trace.check(at)
    invariants: dict[bool, list[Invariant]] = {True: [], False: []}
    found = _invariants(term, sides.rows.var, sides.columns.var)
    for expr in sorted(found, key=traverse.size, reverse=True):
        if not any(each == expr for each in traverse.walk(term)):
            continue
        number = len(trace.defined.plan.steps) + sum(map(len, invariants.values()))
        own = Invariant(Local(number, expr.dtype), expr)
        term = replaced(term, expr, LocalRead(own.result))
        invariants[sides.columns.var not in traverse.free_variables(expr)].append(own)
    if max(map(len, invariants.values())) > _MOST_INVARIANTS:
        return None
    result = Local(at, reduction.dtype)
    total: Expr = LocalRead(result)
    if not reduction.starts_neutral:
        total = Binary(BinaryOp.ADD, reduction.initial, total, reduction.dtype)
    return FusedAttention(
        sides.batch,
        sides.rows,
        sides.columns,
        products,
        LocalRead(products[0].result),
        None,
        (),
        Sum(result, term, None, None),
        sides.operand,
        sides.cells,
        last_stores(nest.epilogue, {LocalRead(reduction.result): total}),
        row_invariants=tuple(invariants[True]),
        column_invariants=tuple(invariants[False]),
    )


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
