"""Hoist packing: copies of operands that are invariant in the loop over rows are made once.

    for block:                                  for k0: for m, k1: packed[k0, m, k1] = b[k, m]
        for k0:                            -->  for block:
            for m, k1: packed[m, k1] = b[k, m]      for k0:
            ... packed[m, k1] ...                       ... packed[k0, m, k1] ...

As all blocks use the copies, vector operands with a large stride are packed even if that would not
pay for a single block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import strides
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import Pack, Schedule, root_of
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Expr, Load
from ocannl_core.schedule.apply.nest_state import apply_transforms


def hoist_packing(
    nest: Nest, schedule: Schedule, nodes: NodeInfos, is_invariant: Callable[[Expr], bool]
) -> Schedule:
    """Return a schedule that packs invariant operands before any of its loops."""
    if nest.reduction is None or not schedule:
        return schedule
    state = apply_transforms(nest, schedule)
    tree, order, factors = state.tree, state.order, nest.reduction.factors

    def leaves(factor: Expr, loops: Sequence[str]) -> tuple[str, ...]:
        axes = tree.axes_of(factor)
        return tuple(leaf for leaf in loops if root_of(leaf) in axes)

    def hoist(pack: Pack) -> Pack:
        factor = factors[pack.operand]
        if pack.inside is None or not is_invariant(factor):
            return pack
        outside = order[: order.index(pack.inside) + 1]
        return replace(pack, inside=None, axes=(*leaves(factor, outside), *pack.axes))

    packed = {each.operand for each in schedule if isinstance(each, Pack)}
    is_vectorized = state.kinds[order[-1]] is AxisKind.VECTOR
    added = tuple(
        Pack(position, None, leaves(factor, order))
        for position, factor in enumerate(factors)
        if position not in packed
        and is_vectorized
        and is_invariant(factor)
        and _has_strided_vectors(nest, factor, root_of(order[-1]), nodes)
    )
    hoisted = (hoist(each) if isinstance(each, Pack) else each for each in schedule)
    return (*hoisted, *added)


def _has_strided_vectors(nest: Nest, factor: Expr, vector_axis: str, nodes: NodeInfos) -> bool:
    """Return True if a vector operand is reused, and its vectors are not adjacent in memory."""
    if not isinstance(factor, Load):
        return False
    steps = strides(nest.axes, (factor,), nodes)
    extents = {axis.name: axis.extent for axis in nest.axes}
    reduced = [axis.name for axis in nest.reduced if extents[axis.name] > 1]
    is_used_again = any(
        extents[axis.name] > 1 and not steps[axis.name] for axis in nest.output_axes
    )
    distance = max((steps[name] for name in reduced), default=0)
    return is_used_again and steps[vector_axis] == 1 and distance > extents[vector_axis]
