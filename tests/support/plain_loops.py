"""Kernels of much work without vectors, with the reasons for some.

A product keeps its schedule, regardless of its readers. Kernels that have none are those of
`PLAIN`, each with its reason, which `docs/explanation/schedules.md` states for users.
"""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.ir.indexing import LoopVar, as_affine, variables
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    CheckPositions,
    Const,
    For,
    Gather,
    IndexValue,
    Load,
    Scatter,
    Scoped,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.traverse import Node, children, walk
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.schedule.cost_model import estimated_cycles
from ocannl_core.schedule.rules.vectorizable import is_simple_power

LEAST_CYCLES = 100_000
"""A kernel of so few takes less than a twentieth of a millisecond."""

Test = Callable[[Kernel], bool]


def fills(kernel: Kernel) -> bool:
    """Return True if a kernel sets cells to a number: a call of the C library does."""
    return all(not isinstance(part, Load | Gather | Scoped) for part in walk(kernel.body))


def follows_positions(kernel: Kernel) -> bool:
    """Return True if a kernel reads or writes cells whose positions are numbers in memory, and adds
    up no products of them.
    """
    parts = list(walk(kernel.body))
    has_sums = any(isinstance(part, Scoped) and any(map(is_loop, walk(part))) for part in parts)
    return not has_sums and any(
        isinstance(part, Gather | Scatter | CheckPositions) for part in parts
    )


def is_loop(part: object) -> bool:
    return isinstance(part, For)


def moves_cells(kernel: Kernel) -> bool:
    """Return True if a kernel copies cells to positions apart from each other, of one node or of
    several that positions choose.
    """
    pending: list[Node] = [kernel.body]
    while pending:
        part = pending.pop()
        match part:
            case Ternary(TernaryOp.WHERE, condition, first, second) if any(
                isinstance(each, IndexValue) for each in walk(condition)
            ):
                pending += [first, second]
                continue
            case Unary(UnaryOp.IDENTITY) | Binary(BinaryOp.ADD, Const(0.0)):
                pass
            case Unary() | Binary() | Ternary() | Scoped():
                return False
        pending += children(part)
    return True


def stores_apart(kernel: Kernel) -> bool:
    """Return True if a kernel writes no neighboring cells: vectors are as fast as compilers."""
    stores = [part for part in walk(kernel.body) if isinstance(part, Store)]
    lasts = [as_affine(store.indices[-1])[0] for store in stores if store.indices]
    return bool(lasts) and all(abs(step) > 1 for terms in lasts for step, _ in terms)


def does_little(kernel: Kernel) -> bool:
    """Return True if a kernel computes every cell once, by five operations at most: compilers
    vectorize its loops.
    """
    pending: list[tuple[Node, frozenset[LoopVar]]] = [(kernel.body, frozenset())]
    while pending:
        part, around = pending.pop()
        match part:
            case Scoped() | Gather() | Scatter():
                return False
            case For(var):
                around |= {var}
            case Store(_, indices, value):
                used = {var for index in indices for var in variables(index)}
                steps = sum(isinstance(each, Unary | Binary | Ternary) for each in walk(value))
                if not around <= used or steps > 5:
                    return False
        pending += [(child, around) for child in children(part)]
    return True


PLAIN: dict[str, Test] = {
    "fill": fills,
    "computed positions": follows_positions,
    "moved cells": moves_cells,
    "cells apart": stores_apart,
    "a few operations": does_little,
}


def calls_functions(kernel: Kernel) -> bool:
    """Return True if a kernel calls elementary functions, which compilers do not vectorize, of
    cells that it stores one by one.
    """
    if any(isinstance(part, Scatter) for part in walk(kernel.body)):
        return False
    return any(
        isinstance(part, Unary | Binary)
        and part.op.value.has_vector_code
        and part.dtype is float32
        and not is_simple_power(part)
        for part in walk(kernel.body)
    )


def reason(kernel: Kernel) -> str | None:
    """Return the reason for plain loops."""
    if calls_functions(kernel):
        return None
    return next((name for name, test in PLAIN.items() if test(kernel)), None)


def has_vectors(kernel: Kernel) -> bool:
    """Return True if some loops of a kernel run in lanes."""
    return any(isinstance(each, For) and each.kind is AxisKind.VECTOR for each in walk(kernel.body))


def unexplained(plan: Plan) -> list[tuple[str, int]]:
    """Return the titles and estimated cycles of kernels of much work that have neither vectors nor
    a reason.
    """
    return [
        (kernel.title, cycles)
        for kernel in plan.kernels
        if isinstance(kernel, Kernel) and not has_vectors(kernel)
        if (cycles := estimated_cycles(kernel.body, plan.nodes)) >= LEAST_CYCLES
        if reason(kernel) is None
    ]
