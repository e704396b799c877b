"""Collapse axes whose iterations run along memory together.

    for i in range(37):                             for f in range(2257):
        for j in range(61):                 -->         y[_, f] = exp(x[_, f])
            y[i, j] = exp(x[i, j])

Rows of 61 cells begin at no multiple of a vector; 2257 cells have vectors, and one end. Two axes
are one if every index that depends on either of them depends on both as on `61 * i + j`: of one
axis of a node, or of neighboring axes of which the inner ones are covered from end to end. The new
index then counts the cells of all of these axes (`SubAxis`). A node that lacks one of the axes,
such as a bias, keeps them apart.

Cells keep their operations, and terms their order: axes that are reduced are one only if they are
neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from operator import itemgetter

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, is_independent, map_parts, with_letters
from ocannl_core.ir.kernels.nest_plan import NestPlan, map_nests
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops.nodes import Expr, IndexValue, Load, LoadMerge, Store
from ocannl_core.ir.loops.traverse import free_variables, map_expr

_LEAST_TERMS = 8192
"""Shorter sums keep their axes on processors. An extent at run time keeps them apart, too, and adds
up in the order of a constant size.
"""


def collapse_axes(plan: NestPlan, *, lanes: int = 0) -> NestPlan:
    """Collapse the axes of kernels that run alone.

    Args:
        lanes: As for `collapsed`.
    """
    return map_nests(plan, lambda nest: collapsed(nest, plan.nodes, lanes=lanes))


def collapsed(nest: Nest, nodes: NodeInfos, *, lanes: int = 0) -> Nest:
    """Return a nest in which no two axes can be one; itself if it has none that can.

    Args:
        lanes: The cells of a vector, to collapse axes of cells only if their rows have a length
            that is no multiple of it, and axes of many terms; 0 to collapse all.
    """
    while True:
        found = next(_with_one_fewer(nest, nodes, lanes), None)
        if found is None:
            return nest
        nest = found


def _with_one_fewer(nest: Nest, nodes: NodeInfos, lanes: int) -> Iterator[Nest]:
    """Yield the nest with two of its axes as one, for each pair that allows it."""
    pairs = [each for each in _pairs_of_cells(nest) if not lanes or each.inner.extent % lanes != 0]
    if not lanes or prod(axis.extent for axis in nest.reduced) >= _LEAST_TERMS:
        pairs += _reduced_pairs(nest)
    for pair in pairs:
        if all(len(used & {pair.outer.var, pair.inner.var}) != 1 for _, used in nest.reached):
            found = pair.apply(nest, nodes)
            if found is not None and is_independent(found):
                yield found


def _pairs_of_cells(nest: Nest) -> Iterator[_Pair]:
    """Yield pairs of axes that are neighbors in the memory of a result, the outer one first."""
    cells = {axis.var: axis for axis in nest.output_axes if _is_plain(axis)}
    steps = [
        (at, -step, var)
        for at, index in enumerate(nest.epilogue[0].indices)
        for step, var in indexing.as_affine(index)[0]
    ]
    order = [var for *_, var in sorted(steps, key=itemgetter(0, 1))]
    for first, second in pairwise(order):
        if first in cells and second in cells:
            outer, inner = cells[first], cells[second]
            yield _Pair(outer, inner, indexing.fresh_var(inner.var.hint))


def _reduced_pairs(nest: Nest) -> Iterator[_Pair]:
    """Yield pairs of reduced axes that are neighbors in the order of terms."""
    for outer, inner in pairwise(nest.reduced):
        if _is_plain(outer) and _is_plain(inner):
            yield _Pair(outer, inner, indexing.fresh_var(inner.var.hint))


def _is_plain(axis: LoopAxis) -> bool:
    """Return True if the iterations of an axis are numbers from 0 to a constant."""
    return axis.start == 0 and axis.extent > 0 and axis.bound is None and not axis.is_shifting


class _ApartError(Exception):
    """An index depends on the axes in another way than on their joint number."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two axes, and the variable of both as one."""

    outer: LoopAxis
    """The axis whose iterations are further apart in memory."""
    inner: LoopAxis
    joint: indexing.LoopVar
    """The number of an iteration of both: `inner.extent * outer + inner`."""

    def apply(self, nest: Nest, nodes: NodeInfos) -> Nest | None:
        """Return a nest with one axis in place of both; None if an index keeps them apart."""

        def on_store(store: Store) -> Store:
            indices = self._indices(store.indices, nodes[store.node].buffer_dims)
            return replace(store, indices=indices, value=self._in_expr(store.value, nodes))

        try:
            found = map_parts(nest, lambda expr: self._in_expr(expr, nodes), on_store)
        except _ApartError:
            return None
        extent = self.outer.extent * self.inner.extent
        axes = [
            replace(self.inner, var=self.joint, extent=extent) if axis is self.inner else axis
            for axis in nest.axes
            if axis is not self.outer
        ]
        return replace(found, axes=with_letters(axes))

    def _in_expr(self, expr: Expr, nodes: NodeInfos) -> Expr:
        def on_expr(each: Expr) -> Expr:
            match each:
                case Load(node, indices) | LoadMerge(node, indices):
                    new = self._indices(indices, nodes[node].buffer_dims)
                    return each if new is indices else replace(each, indices=new)
                case IndexValue(index):
                    return replace(each, index=self._index(index))
                case _:
                    return each

        found = map_expr(expr, on_expr)
        if {self.outer.var, self.inner.var}.intersection(free_variables(found)):
            raise _ApartError
        return found

    def _indices(
        self, indices: tuple[indexing.AxisIndex, ...], dims: Sequence[int]
    ) -> tuple[indexing.AxisIndex, ...]:
        outer = _positions_of(self.outer.var, indices)
        inner = _positions_of(self.inner.var, indices)
        if not outer and not inner:
            return indices
        if len(outer) != 1 or len(inner) != 1:
            raise _ApartError
        (first,), (last,) = outer, inner
        if first == last:
            return (*indices[:first], self._index(indices[first]), *indices[first + 1 :])
        # rows from end to end: x[i + 2, j] is x[_, 61 * (i + 2) + j]
        is_covered = first < last and indices[last] == indexing.VarIndex(self.inner.var)
        between = zip(indices[first + 1 : last], dims[first + 1 : last], strict=True)
        if not is_covered or not all(_is_within_row(*each) for each in between):
            raise _ApartError
        if prod(dims[first + 1 : last + 1]) != self.inner.extent:
            raise _ApartError
        terms, offset = indexing.as_affine(indices[first])
        rest = [(self.inner.extent * c, var) for c, var in terms if var is not self.outer.var]
        if (1, self.outer.var) not in terms:
            raise _ApartError
        index = indexing.affine([*rest, (1, self.joint)], self.inner.extent * offset)
        sub_axes = (indexing.SubAxis(),) * (last - first)
        return (*indices[:first], *sub_axes, index, *indices[last + 1 :])

    def _index(self, index: indexing.AxisIndex) -> indexing.AxisIndex:
        """Return an index by the joint number: `61 * i + j + 2` is `f + 2`."""
        if not {self.outer.var, self.inner.var}.intersection(indexing.variables(index)):
            return index
        terms, offset = indexing.as_affine(index)
        steps: dict[indexing.IndexVar, int] = {var: step for step, var in terms}
        outer, inner = steps.pop(self.outer.var, 0), steps.pop(self.inner.var, 0)
        if outer != self.inner.extent * inner:
            raise _ApartError
        rest = [(step, var) for var, step in steps.items()]
        return indexing.affine([*rest, (inner, self.joint)], offset)


def _positions_of(var: indexing.LoopVar, indices: Sequence[indexing.AxisIndex]) -> list[int]:
    return [at for at, index in enumerate(indices) if var in indexing.variables(index)]


def _is_within_row(index: indexing.AxisIndex, dim: int) -> bool:
    """Return True for an index that adds nothing between two others."""
    return isinstance(index, indexing.SubAxis) or (dim == 1 and index == indexing.FixedIndex(0))
