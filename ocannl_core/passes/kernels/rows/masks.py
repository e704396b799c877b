"""The values of expressions in columns that a mask hides.

    weight[q, t] = where(t <= q, ..., 0)            or    exp(where(t <= q, ..., -inf) - ...)

Behind the diagonal scores are minus infinity and weights zero, so that no maximum, sum or product
with finite factors would change.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp


def hidden_value(
    expr: ir.Expr,
    is_mask: Callable[[ir.Expr], bool],
    loaded: Callable[[ir.Load], float | None] = lambda load: None,
) -> float | None:
    """Return the constant value of an expression in columns that a mask hides; None if unknown.

    Args:
        is_mask: Returns True for conditions that hold in no hidden column.
        loaded: Returns the value of a load.
    """

    def value(expr: ir.Expr) -> float | None:
        match expr:
            case ir.Const(number):
                return float(number)
            case ir.Load():
                return loaded(expr)
            case ir.Unary(UnaryOp.IDENTITY, arg):
                return value(arg)
            case ir.Unary(UnaryOp.NEG, arg):
                return _negative(value(arg))
            case ir.Unary(UnaryOp.EXP | UnaryOp.EXP2, arg):
                return 0.0 if value(arg) == -math.inf else None
            case ir.Binary(BinaryOp.MUL, left, right):
                return _product(value(left), value(right))
            case ir.Binary(BinaryOp.DIV, left, right):
                return 0.0 if value(left) == 0.0 and value(right) != 0.0 else None
            case ir.Binary(BinaryOp.ADD, left, right):
                return _sum(value(left), value(right))
            case ir.Binary(BinaryOp.SUB, left, right):
                return _sum(value(left), _negative(value(right)))
            case ir.Ternary(TernaryOp.FMA, left, right, added):
                return _sum(_product(value(left), value(right)), value(added))
            case ir.Ternary(TernaryOp.WHERE, condition, chosen, other):
                if is_mask(condition):
                    return value(other)
                found = value(chosen)
                return found if found == value(other) else None
            case _:
                return None

    return value(expr)


def _negative(number: float | None) -> float | None:
    return None if number is None else -number


def _product(left: float | None, right: float | None) -> float | None:
    """Return 0 if one factor is 0; the other may be unknown, but not known to be infinite."""
    return 0.0 if 0.0 in (left, right) and not {left, right} & {math.inf, -math.inf} else None


def _sum(left: float | None, right: float | None) -> float | None:
    """Return the sum of two numbers, of which one may be unknown."""
    if -math.inf in (left, right) and math.inf not in (left, right):
        return -math.inf
    return None if left is None or right is None else left + right
