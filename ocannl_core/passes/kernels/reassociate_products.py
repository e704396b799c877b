"""Reassociation: sums of products of several factors are computed as a chain of contractions.

    for i, l:                                    for i, k:
        for j, k:                                    for j:
            d[i, l] += a[i, j] * b[j, k]                 sums[i, k] += a[i, j] * b[j, k]
                       * c[k, l]           -->   for i, l:
                                                     for k:
                                                         d[i, l] += sums[i, k] * c[k, l]

A factor that does not depend on a reduced axis can be multiplied with the sum over that axis. A
contraction sums the products of the factors that depend on its axes, and the next ones have fewer
axes. All their orders are tried, and the one with the fewest multiplications is used; a nest for
which it saves little stays as it is. Like every reordering of a sum this one rounds differently;
integers are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, Reduction, with_letters, with_value
from ocannl_core.ir.kernels.nest_accesses import strides
from ocannl_core.ir.kernels.nest_plan import NestPlan, NestReplacement, replace_nests
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.nodes import Binary, Expr, Load, LocalRead, Store
from ocannl_core.ir.loops.traverse import free_variables, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.machine_model import (
    LANES_SUM_COST,
    MIN_SAVED_OPERATIONS,
    STORE_AND_LOAD_COST,
)
from ocannl_core.schedule.rules.vectorizable import is_vectorizable

_MOST_FACTORS = 6
_MOST_AXES = 8
"""Nests with more factors or reduced axes are left alone: all orders are tried."""
_MOST_LEFT = 0.8
"""The most of the multiplications that contractions may leave."""

_Names = frozenset[str]


def reassociate_products(plan: NestPlan) -> NestPlan:
    """Compute sums of products of several factors as a chain of contractions if that saves work."""
    return replace_nests(plan, lambda nest: reassociate_nest(nest, plan.nodes), "sums for ")


def reassociate_nest(
    nest: Nest,
    nodes: NodeInfos,
    least_saved: int = MIN_SAVED_OPERATIONS,
    most_left: float = _MOST_LEFT,
) -> NestReplacement | None:
    """Return nests that compute sums of some of the factors first; None if that saves too little.

    Args:
        least_saved: The least multiplications to be saved.
        most_left: The most of the multiplications that contractions may leave.
    """
    reduction = nest.reduction
    if reduction is None or reduction.op is not BinaryOp.ADD:
        return None
    values = [_Factor(factor, _axes_of(factor, nest)) for factor in reduction.factors]
    varying = tuple(value.axes for value in values if value.axes)
    summed = frozenset(axis.name for axis in nest.reduced if not axis.is_shifting)
    if len(varying) > _MOST_FACTORS or len(summed) > _MOST_AXES:
        return None
    extents = {axis.name: axis.extent for axis in nest.axes}
    lanes: dict[_Names, _Names] = {}
    for value in values:
        steps = strides(nest.axes, [e for e in walk(value.expr) if isinstance(e, Load)], nodes)
        along = frozenset(name for name, step in steps.items() if step == 1)
        lanes[value.axes] = lanes.get(value.axes, frozenset()) | along
    whole, *others = _orders(varying, summed, extents, lanes)
    best = min(others, key=lambda order: order.work, default=whole)
    if whole.work - best.work < least_saved or best.work > most_left * whole.work:
        return None
    if not is_vectorizable(nest, nodes):
        return None
    return _Builder(nest, reduction, nodes).built(values, best.groups)


def _axes_of(factor: Expr, nest: Nest) -> _Names:
    used = set(free_variables(factor))
    return frozenset(axis.name for axis in nest.axes if axis.var in used)


@dataclass(frozen=True, slots=True)
class _Factor:
    expr: Expr
    axes: _Names


@dataclass(frozen=True, slots=True)
class _EliminationOrder:
    """The axes that the contractions before the last one sum over."""

    groups: tuple[_Names, ...]
    """For each contraction, its axes."""
    work: int
    """The multiplications of all contractions, about."""


def _work(factors: int, extents: Iterable[int]) -> int:
    return prod(extents) * max(1, factors - 1)


def _orders(
    values: tuple[_Names, ...],
    summed: _Names,
    extents: Mapping[str, int],
    lanes: Mapping[_Names, _Names],
) -> Iterator[_EliminationOrder]:
    """Yield all orders of contractions for the axes of factors, some of which are summed over.

    Args:
        lanes: For the axes of a factor, those along which it is contiguous.
    """
    yield _EliminationOrder((), _work(len(values), extents.values()))
    groups: dict[tuple[_Names, ...], set[str]] = {}
    for name in sorted(summed):
        groups.setdefault(tuple(each for each in values if name in each), set()).add(name)
    for together, names in groups.items():
        inside = frozenset[str]().union(*together)
        if not together or (len(together) == len(values) and inside == extents.keys()):
            continue
        made = inside - names
        rest = tuple(each for each in values if each not in together)
        work = _work(len(together), (extents[each] for each in inside))
        # a factor with all axes, as the matrix of a product with a vector, is read along vectors
        long = {each for each in inside if extents[each] > 1}
        is_across = any(long <= each and names & lanes.get(each, frozenset()) for each in together)
        cell = STORE_AND_LOAD_COST + (LANES_SUM_COST if is_across else 0)
        work += cell * prod(extents[each] for each in made)
        left = {name: extent for name, extent in extents.items() if name not in names}
        for order in _orders((*rest, made), summed - names, left, lanes):
            yield _EliminationOrder((frozenset(names), *order.groups), work + order.work)


class _Builder:
    def __init__(self, nest: Nest, reduction: Reduction, nodes: NodeInfos) -> None:
        self._nest = nest
        self._reduction = reduction
        self._nodes = dict(nodes)
        self._made: dict[TensorNode, NodeInfo] = {}

    def built(self, values: Sequence[_Factor], groups: Iterable[_Names]) -> NestReplacement:
        """Return the nests that sum over groups of axes, and then over the others."""
        nests: list[Nest] = []
        left, done = list(values), frozenset[str]()
        for names in groups:
            together = [value for value in left if value.axes & names]
            left = [value for value in left if not value.axes & names]
            contraction, value = self._contraction(together, names)
            nests.append(contraction)
            left.append(value)
            done |= names
        nests.append(self._last(left, done))
        return NestReplacement(tuple(nests), self._made)

    def _contraction(self, values: Sequence[_Factor], names: _Names) -> tuple[Nest, _Factor]:
        """Return the nest that sums products over some axes, and the factor that it computes."""
        reduction = self._reduction
        inside = frozenset[str]().union(*(value.axes for value in values))
        axes = [
            replace(axis, is_reduced=axis.name in names, is_shifting=False)
            for axis in self._nest.axes
            if axis.name in inside
        ]
        stored = self._in_memory_order([axis for axis in axes if not axis.is_reduced], values)
        cell = tuple(affine([(1, axis.var)], -axis.start) for axis in stored)
        node = TensorNode(0, ("sums",))
        info = NodeInfo(reduction.dtype, tuple(axis.extent for axis in stored))
        self._made[node] = self._nodes[node] = info
        partial = replace(reduction, term=self._product(values), initial=reduction.neutral)
        store = Store(node, cell, LocalRead(reduction.result))
        value = _Factor(Load(node, cell, reduction.dtype), inside - names)
        return Nest(with_letters(axes), partial, (store,)), value

    def _in_memory_order(
        self, axes: Sequence[LoopAxis], values: Sequence[_Factor]
    ) -> list[LoopAxis]:
        """Return axes with one innermost along which a factor is contiguous, for vectors."""
        loads = [each for value in values for each in walk(value.expr) if isinstance(each, Load)]
        steps = [strides(axes, [load], self._nodes) for load in loads]
        return sorted(axes, key=lambda axis: any(step[axis.name] == 1 for step in steps))

    def _last(self, values: Sequence[_Factor], done: _Names) -> Nest:
        """Return the nest that sums over the remaining axes and runs the epilogue."""
        nest, reduction = self._nest, self._reduction
        axes = [axis for axis in nest.axes if axis.name not in done]
        term = self._product(values)
        if not any(axis.is_reduced for axis in axes) and not reduction.starts_neutral:
            # of one term, so that what it starts from is read before any cell is written
            axes.append(LoopAxis("", fresh_var("once"), 0, 1, is_reduced=True))
        if any(axis.is_reduced for axis in axes):
            return Nest(with_letters(axes), replace(reduction, term=term), nest.epilogue)
        result = LocalRead(reduction.result)
        epilogue = tuple(with_value(store, result, term) for store in nest.epilogue)
        return Nest(with_letters(axes), None, epilogue)

    def _product(self, values: Iterable[_Factor]) -> Expr:
        dtype = self._reduction.dtype
        return reduce(
            lambda left, right: Binary(BinaryOp.MUL, left, right, dtype),
            (value.expr for value in values),
        )
