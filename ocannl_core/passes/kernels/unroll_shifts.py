"""Unroll the axes that shift windows of results, for the thread blocks of a device.

    for k in range(3):                        for i in range(9): c[i] += a[i] * b[0]
        for i in range(9):             -->    for i in range(9): c[i + 1] += a[i] * b[1]
            c[i + k] += a[i] * b[k]           for i in range(9): c[i + 2] += a[i] * b[2]

Windows overlap, so that threads must not add to them at the same time. For one position of the
windows all cells are distinct; the positions become kernels that run one after the other, in the
order of the axis. Each cell gets its terms in the same order as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar
from ocannl_core.ir.kernels.nest import (
    KernelNest,
    is_independent,
    substitute_in_store,
    with_letters,
)
from ocannl_core.ir.kernels.nest_plan import NestPlan, NestReplacement
from ocannl_core.ir.loops.traverse import substitute_in_expr
from ocannl_core.schedule.machine_model import MAX_UNROLLED_SHIFTS


def unroll_shifts(plan: NestPlan) -> NestPlan:
    """Replace nests with shifting axes by one nest for each position of their windows."""

    def unrolled(nest: KernelNest) -> NestReplacement | None:
        nests = tuple(_unrolled(nest))
        return NestReplacement(nests, {}) if nests and all(map(is_independent, nests)) else None

    return plan.replace_nests(unrolled)


def _unrolled(nest: KernelNest) -> Iterator[KernelNest]:
    """Yield the nests of all positions, in order; none without shifting axes, or for too many."""
    shifting = [axis for axis in nest.axes if axis.is_shifting]
    count = prod(axis.extent for axis in shifting)
    reduction = nest.reduction
    if not shifting or reduction is None or count > MAX_UNROLLED_SHIFTS:
        return
    if any(axis.bound is not None for axis in shifting):
        return
    kept = with_letters(axis for axis in nest.axes if not axis.is_shifting)
    ranges = (range(axis.start, axis.start + axis.extent) for axis in shifting)
    for positions in product(*ranges):
        values: dict[IndexVar, AxisIndex] = {
            axis.var: FixedIndex(at) for axis, at in zip(shifting, positions, strict=True)
        }
        term = substitute_in_expr(reduction.term, values)
        initial = substitute_in_expr(reduction.initial, values)
        epilogue = tuple(substitute_in_store(store, values) for store in nest.epilogue)
        yield KernelNest(kept, replace(reduction, term=term, initial=initial), epilogue)
