"""The nests that chains are made of."""

from __future__ import annotations

from ocannl_core import settings
from ocannl_core.dtypes import float32
from ocannl_core.fast_dataclass import replace
from ocannl_core.indexing import IndexVar
from ocannl_core.kernels.nest import KernelNest, kernel_nest
from ocannl_core.kernels.nest_plan import NestKernel, NestStep
from ocannl_core.kernels.nodes import Kernel, NodeInfos
from ocannl_core.loopir.nodes import Gather, Load, LoadMerge, LocalRead, Scoped, Unary
from ocannl_core.loopir.ranges import Range, index_range
from ocannl_core.loopir.traverse import walk
from ocannl_core.ops import BinaryOp


def nest_of(step: NestStep, nodes: NodeInfos) -> KernelNest | None:
    """Return the nest of a step; also that of a product behind a condition on positions, if it may
    be computed where that does not hold.
    """
    match step:
        case NestKernel(nest):
            return nest
        case Kernel(body, schedule=()):
            found = kernel_nest(body, is_speculative=True)
            return _with_flags(found) if found is not None and _is_inside(found, nodes) else None
        case _:
            return None


def _with_flags(nest: KernelNest) -> KernelNest:
    """Return a nest whose sum may use the instructions that other sums may use.

    Sums in kernels that are no nests have been widened as well, as the rounding of their results
    shows.
    """
    reduction = nest.reduction
    if reduction is None or reduction.op is not BinaryOp.ADD:
        return nest
    total = LocalRead(reduction.result)
    parts = [part for store in nest.epilogue for part in walk(store)]
    rounded = [
        part
        for part in parts
        if isinstance(part, Unary) and part.arg == total and part.dtype.is_narrow
    ]
    is_widened = bool(rounded) and parts.count(total) == len(rounded)
    may_pair = settings.current().accumulation == "fast"
    changed = replace(
        reduction, is_widened=reduction.dtype is float32 and is_widened, may_pair=may_pair
    )
    return replace(nest, reduction=changed)


def _is_inside(nest: KernelNest, nodes: NodeInfos) -> bool:
    """Return True if no iteration of a nest loads a cell beyond a node."""
    ranges: dict[IndexVar, Range] = {
        axis.var: Range(axis.start, axis.start + axis.extent - 1) for axis in nest.axes
    }
    for root in nest.roots:
        for each in walk(root):
            if isinstance(each, Load):
                for index, extent in zip(each.indices, nodes[each.node].buffer_dims, strict=True):
                    reach = index_range(index, ranges)
                    if reach is None or reach.low < 0 or reach.high >= extent:
                        return False
    return True


def is_sum(nest: KernelNest, *, starts_neutral: bool = True) -> bool:
    """Return True if a nest adds up floats, each sum from zero on, without rounding every term.

    Args:
        nest: The nest.
        starts_neutral: False to allow other numbers than zero.
    """
    reduction = nest.reduction
    return (
        reduction is not None
        and reduction.op is BinaryOp.ADD
        and reduction.dtype.is_float
        and (reduction.starts_neutral or not starts_neutral)
        and not nest.rounds_often
    )


def is_plain(nest: KernelNest) -> bool:
    """Return True if the axes of a nest count from 0, and it computes nothing inside of loads."""
    if any(axis.start or axis.is_shifting or axis.extent < 1 for axis in nest.axes):
        return False
    return not any(
        isinstance(each, Scoped | LoadMerge | Gather) for root in nest.roots for each in walk(root)
    )
