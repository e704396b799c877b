"""Split long reductions to few cells into partial results, on which several threads can work.

    for j in range(32):                          for p in range(16): for j in range(32):
        for i in range(50176):                       for i in range(3136):
            c[j] += a[i, j]             -->              partial[p, j] += a[3136 * p + i, j]
                                                 for j in range(32): for p in range(16):
                                                     c[j] += partial[p, j]

How many parts there are depends on the extents alone, and they are combined in order: the bits do
not depend on the number of threads. They do depend on whether there are parts, as they do on every
order of additions.
"""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.rounding import ceil_div, power_below
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, Reduction, iterations, with_letters
from ocannl_core.ir.kernels.nest_plan import NestPlan, NestReplacement, replace_nests
from ocannl_core.ir.kernels.transforms import AXIS_LETTERS
from ocannl_core.ir.loops.nodes import Load, LocalRead, Store
from ocannl_core.ir.loops.traverse import free_variables, substitute_in_expr, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule import machine_model as machine
from ocannl_core.schedule.rules.vectorizable import is_vectorizable

_PARTS = (machine.PARTIAL_SUMS, machine.PARTIAL_SUMS // 2)
"""The numbers of parts: enough for many threads to have equal shares."""


def split_reductions(plan: NestPlan, *, on_blocks: bool) -> NestPlan:
    """Split long reductions to few cells of kernels that run alone into partial results.

    Args:
        on_blocks: True for a device with thread blocks, of which many work on the parts.
    """
    split = split_nest_on_blocks if on_blocks else split_nest
    return replace_nests(
        plan,
        lambda nest: split(nest) if is_vectorizable(nest, plan.nodes) else None,
        "partial results for ",
    )


def split_nest(
    nest: Nest,
    least_terms: int = machine.MIN_PARTIAL_TERMS,
    least_work: int = machine.MIN_SPLIT_TERMS,
) -> NestReplacement | None:
    """Return nests that compute parts of a reduction and then combine them; None if there are
    enough cells for several threads, or too few terms.

    Args:
        least_terms: The least terms of a part.
        least_work: The least terms of all cells together.
    """
    reduction = _divisible(nest)
    if reduction is None:
        return None
    terms = iterations(nest.reduced)
    cells = iterations(nest.output_axes)
    parts = next((parts for parts in _PARTS if terms >= least_terms * parts), 0)
    if terms > machine.MAX_PART_TERMS * _PARTS[0]:  # fewer would lose the last digits of a long sum
        parts = ceil_div(terms, machine.MAX_PART_TERMS)
    elif not parts or cells * terms < least_work or cells >= _PARTS[0] * _block(nest, reduction):
        return None
    axis = _cut_axis(nest.reduced, parts)
    return _divided(nest, reduction, axis, min(parts, axis.extent))


def split_nest_on_blocks(nest: Nest) -> NestReplacement | None:
    """Return nests of parts for thread blocks; None if cells keep blocks busy, or terms are few."""
    reduction = _divisible(nest)
    if reduction is None:
        return None
    terms = iterations(nest.reduced)
    cells = iterations(nest.output_axes)
    longest = max((axis.extent for axis in nest.reduced), default=0)
    # a block with several cells has enough work with fewer terms of each
    least = machine.MIN_GRID_TERMS // max(1, min(cells, machine.MIN_GRID_CELLS))
    blocks, tiles = max(1, cells // machine.CELLS_OF_BLOCK), _product_tiles(nest, reduction)
    if tiles:
        blocks, least = tiles, machine.MIN_TILE_TERMS
    most = min(machine.MAX_GRID_PARTS // blocks, terms // least, longest)
    if most < machine.MIN_GRID_PARTS:
        return None
    parts = power_below(most)
    axis = _cut_axis(nest.reduced, parts)
    # no rest, which would be one more kernel, where a number of parts at least half as large allows
    even = [each for each in range(parts, parts // 2, -1) if axis.extent % each == 0]
    return _divided(nest, reduction, axis, even[0] if even else parts)


def _divisible(nest: Nest) -> Reduction | None:
    """Return the reduction of a nest, if it has one that may be divided."""
    if len(nest.axes) >= len(AXIS_LETTERS) or any(axis.is_shifting for axis in nest.axes):
        return None
    if any(axis.bound is not None for axis in nest.reduced):
        return None  # the number of terms is known at run time only
    return nest.reduction


def _product_tiles(nest: Nest, reduction: Reduction) -> int:
    """Return the tiles of a product that thread blocks compute; 0 for other reductions."""
    from ocannl_core.schedule.rules.block_tiles import product_axes

    if len(reduction.factors) != 2 or reduction.op is not BinaryOp.ADD:
        return 0
    axes = product_axes(nest)
    if axes is None or min(axes.row.extent, axes.column.extent) < machine.MIN_BLOCK_TILE:
        return 0
    others = iterations(axis for axis in nest.output_axes if axis not in (axes.row, axes.column))
    return (
        ceil_div(axes.row.extent, machine.GRID_TILE)
        * ceil_div(axes.column.extent, machine.GRID_TILE)
        * others
    )


def _block(nest: Nest, reduction: Reduction) -> int:
    rows = {axis.var for axis in nest.output_axes if axis.extent > 1}
    is_shared = all(not rows.issubset(free_variables(factor)) for factor in reduction.factors)
    if is_shared or _is_across(nest, reduction):
        return machine.PRODUCT_TILE_CELLS
    return machine.ROW_TILE_CELLS if _is_along(nest, reduction) else machine.SUM_TILE_CELLS


def _is_along(nest: Nest, reduction: Reduction) -> bool:
    """Return True if the terms of each cell are neighbors in memory."""
    summed = {axis.var for axis in nest.reduced}
    loads = [each for each in walk(reduction.term) if isinstance(each, Load) and each.indices]
    return bool(loads) and not any(
        summed.isdisjoint(indexing.variables(each.indices[-1]))
        for each in loads
        if not summed.isdisjoint(free_variables(each))
    )


def _is_across(nest: Nest, reduction: Reduction) -> bool:
    """Return True if sums across the rows of memory share a factor: parts read it in its order."""
    rows = {axis.var for axis in nest.output_axes if axis.extent > 1}
    summed = {axis.var for axis in nest.reduced}
    return any(not rows.issubset(free_variables(factor)) for factor in reduction.factors) and any(
        rows.issubset(free_variables(factor))
        and summed.isdisjoint(indexing.variables(factor.indices[-1]))
        for factor in reduction.factors
        if isinstance(factor, Load) and factor.indices
    )


def _cut_axis(reduced: Iterable[LoopAxis], parts: int) -> LoopAxis:
    """Return the axis to split: the outermost that makes equal parts, or else the longest."""
    axes = list(reduced)
    even = [axis for axis in axes if axis.extent % parts == 0]
    return even[0] if even else max(axes, key=lambda axis: axis.extent)


def _divided(nest: Nest, reduction: Reduction, axis: LoopAxis, parts: int) -> NestReplacement:
    size, rest = divmod(axis.extent, parts)
    count = parts + (rest > 0)
    node = TensorNode(0, ("partial",))
    stored = _in_memory_order(nest)
    info = NodeInfo(reduction.dtype, (count, *(each.extent for each in stored)))
    cells = tuple(indexing.affine([(1, each.var)], -each.start) for each in stored)

    part = indexing.fresh_var("part")
    inner = replace(axis, start=0, extent=size)
    position = indexing.affine([(size, part), (1, axis.var)], axis.start)
    numbered = LoopAxis("", part, 0, parts)
    nests = [
        _partial(
            nest, reduction, inner, position, node, (indexing.VarIndex(part), *cells), (numbered,)
        )
    ]
    if rest:
        last = replace(axis, start=axis.start + parts * size, extent=rest)
        at = (indexing.FixedIndex(parts), *cells)
        nests.append(_partial(nest, reduction, last, indexing.VarIndex(axis.var), node, at, ()))
    number = indexing.fresh_var("part")
    term = Load(node, (indexing.VarIndex(number), *cells), reduction.dtype)
    axes = (*nest.output_axes, LoopAxis("", number, 0, count, is_reduced=True))
    nests.append(Nest(with_letters(axes), replace(reduction, term=term), nest.epilogue))
    return NestReplacement(tuple(nests), {node: info})


def _in_memory_order(nest: Nest) -> list[LoopAxis]:
    """Return the output axes in the order of memory, so that vectors are contiguous in both."""
    indices = nest.epilogue[0].indices

    def position(axis: LoopAxis) -> int:
        found = [at for at, index in enumerate(indices) if axis.var in indexing.variables(index)]
        return max(found, default=-1)

    return sorted(nest.output_axes, key=position)


def _partial(
    nest: Nest,
    reduction: Reduction,
    axis: LoopAxis,
    position: indexing.AxisIndex,
    node: TensorNode,
    cell: tuple[indexing.AxisIndex, ...],
    outer: tuple[LoopAxis, ...],
) -> Nest:
    """Return the nest that reduces along a piece of an axis.

    Args:
        position: The position along the whole axis at each iteration of the piece.
        outer: Axes of cells outside of the axes of the whole.
    """
    values: dict[indexing.IndexVar, indexing.AxisIndex] = {axis.var: position}
    axes = [axis if each.var == axis.var else each for each in nest.axes]
    store = Store(node, cell, LocalRead(reduction.result))
    partial = replace(
        reduction, term=substitute_in_expr(reduction.term, values), initial=reduction.neutral
    )
    return Nest(with_letters((*outer, *axes)), partial, (store,))
