"""The contraction nests that an attention is made of."""

from __future__ import annotations

from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestStep
from ocannl_core.ir.loops.nodes import Gather, LoadMerge, Scoped, Store
from ocannl_core.ir.loops.traverse import nodes_of, walk
from ocannl_core.ir.numbers.primitives import BinaryOp


def nest_of(step: NestStep) -> KernelNest | None:
    """Return the nest of a step, if it is one."""
    return step.nest if isinstance(step, NestKernel) else None


def is_sum(nest: KernelNest, *, starts_neutral: bool = True) -> bool:
    """Return True if a nest adds up floats, each sum from zero on, without rounding every term.

    Args:
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


def before_overwriting(stores: tuple[Store, ...]) -> tuple[Store, ...] | None:
    """Return stores, whose values load what was in memory before all of them, in an order in which
    none overwrites what a later one loads; None if there is none.
    """
    pending, ordered = list(stores), list[Store]()
    while pending:
        for store in pending:
            others = [each for each in pending if each is not store]
            if all(store.node not in nodes_of(each.value) for each in others):
                break
        else:
            return None
        ordered.append(store)
        pending.remove(store)
    return tuple(ordered)
