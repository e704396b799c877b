"""How much computing an expression costs, in additions; decides what is shared or moved."""

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
from ocannl_core.ops import BinaryOp, UnaryOp

MOST_DEPTH = 48
"""Levels of the deepest expression that substitution may build. Renderers and C compilers recurse
over expressions."""

_FREE = 0
_DIVISION = 4
_FUNCTION = 10
_HASH = 40

_COSTS: dict[UnaryOp | BinaryOp, int] = {
    **dict.fromkeys((UnaryOp.SQRT, UnaryOp.RECIP, BinaryOp.DIV, BinaryOp.MOD), _DIVISION),
    **dict.fromkeys(
        (
            UnaryOp.EXP,
            UnaryOp.LOG,
            UnaryOp.EXP2,
            UnaryOp.LOG2,
            UnaryOp.SIN,
            UnaryOp.COS,
            UnaryOp.TANH,
            UnaryOp.RECIP_SQRT,
            BinaryOp.POW,
        ),
        _FUNCTION,
    ),
    BinaryOp.THREEFRY4X32: _HASH,
}


def own_cost(node: Node, inside: Sequence[int]) -> int:
    """Returns the cost of a node whose children have these costs; of a loop, for all iterations."""
    match node:
        case LocalRead() | Const() | ConstBits() | IndexValue():
            return _FREE
        case For(_, start, stop):
            return max(0, stop - start) * sum(inside)
        case Unary(op) | Binary(op):
            return _COSTS.get(op, 1) + sum(inside)
        case _:
            return 1 + sum(inside)


def depth(root: Node) -> int:
    """Return the number of levels of an expression or statement."""
    return fold(root, lambda _, inside: 1 + max(inside, default=0))


def cost(expr: Expr) -> int:
    """Returns what computing an expression once costs."""
    return fold(expr, own_cost)
