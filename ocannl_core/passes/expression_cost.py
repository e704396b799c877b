"""Cost of expressions, in additions; common subexpressions and code motion depend on it."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.loopir.nodes import (
    Binary,
    Const,
    ConstBits,
    Expr,
    For,
    IndexValue,
    LocalRead,
    Unary,
)
from ocannl_core.loopir.traverse import Node, fold
from ocannl_core.machine_model import OPERATION_COSTS

MOST_DEPTH = 48
"""Levels of the deepest expression that substitution may build. Renderers and C compilers recurse
over expressions.
"""

_FREE = 0


def own_cost(node: Node, inside: Sequence[int]) -> int:
    """Return the cost of a node given the costs of its children; for a loop, of all iterations."""
    match node:
        case LocalRead() | Const() | ConstBits() | IndexValue():
            return _FREE
        case For(_, start, stop):
            return max(0, stop - start) * sum(inside)
        case Unary(op) | Binary(op):
            return OPERATION_COSTS.get(op, 1) + sum(inside)
        case _:
            return 1 + sum(inside)


def depth(root: Node) -> int:
    """Return the number of levels of an expression or statement."""
    return fold(root, lambda _, inside: 1 + max(inside, default=0))


def cost(expr: Expr) -> int:
    """Return the cost of computing an expression once."""
    return fold(expr, own_cost)
