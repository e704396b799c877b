"""Cost of expressions, in additions; common subexpressions and code motion depend on it."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import Node, fold, walk
from ocannl_core.schedule.machine_model import MAX_RECOMPUTED_OPERATIONS, OPERATION_COSTS

MOST_DEPTH = 48
"""Levels of the deepest expression that substitution may build. Renderers and C compilers recurse
over expressions.
"""
MOST_NODES = 256
"""Nodes of the largest value that substitution may copy to each of its readers."""

_FREE = 0


def own_cost(node: Node, inside: Sequence[int]) -> int:
    """Return the cost of a node given the costs of its children; for a loop, of all iterations."""
    match node:
        case ir.LocalRead() | ir.Const() | ir.ConstBits() | ir.IndexValue():
            return _FREE
        case ir.For(_, start, stop):
            return max(0, stop - start) * sum(inside)
        case ir.Unary(op) | ir.Binary(op):
            return OPERATION_COSTS[op] + sum(inside)
        case _:
            return 1 + sum(inside)


def depth(root: Node) -> int:
    """Return the number of levels of an expression or statement."""
    return fold(root, lambda _, inside: 1 + max(inside, default=0))


def size(root: Node) -> int:
    """Return the number of nodes of an expression or statement."""
    return fold(root, lambda _, inside: 1 + sum(inside))


def cost(expr: ir.Expr) -> int:
    """Return the cost of computing an expression once."""
    return fold(expr, own_cost)


def is_cheap(expr: ir.Expr) -> bool:
    """Return True if computing an expression again takes no longer than loading its value: a few
    operations on numbers that are loaded anyway, none of them a division or a function.
    """
    operations = 0
    for each in walk(expr):
        match each:
            case ir.Load() | ir.LocalRead() | ir.Const() | ir.ConstBits() | ir.IndexValue():
                pass
            case ir.Unary() | ir.Binary() | ir.Ternary() if own_cost(each, ()) == 1:
                operations += 1
            case _:
                return False
    return operations <= MAX_RECOMPUTED_OPERATIONS
