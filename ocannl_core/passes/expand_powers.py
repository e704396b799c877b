"""Expansion of powers with small integer exponents into products."""

from __future__ import annotations

from ocannl_core.loopir.nodes import (
    Binary,
    Block,
    DeclareLocal,
    Expr,
    LocalRead,
    Scoped,
    SetLocal,
    Stmt,
)
from ocannl_core.ops import BinaryOp
from ocannl_core.passes.local_variables import Fresh
from ocannl_core.passes.value_analysis import is_leaf


def expand_power(base: Expr, exponent: int, fresh: Fresh) -> Expr:
    """Expand `base ** exponent` into squarings and multiplications.

    x ** 3  -->  x * x * x
    x ** 6  -->  {v: v = x * x * x; v = v * v}
    f(x) ** 2  -->  {v: v = f(x); v = v * v}
    f(x) ** 3  -->  {v: w = f(x); v = w * w * w}

    Args:
        base: The factor; computed once.
        exponent: The number of factors, at least 2.
        fresh: Makes new scalars.
    """
    if is_leaf(base):
        return _multiply_leaf(base, exponent, fresh)
    total = fresh(base)
    if exponent == 2:
        square = _multiply_leaf(LocalRead(total), 2, fresh)
        return Scoped(total, Block((SetLocal(total, base), SetLocal(total, square))))
    copy = fresh(base)
    value = _multiply_leaf(LocalRead(copy), exponent, fresh)
    body = (DeclareLocal(copy), SetLocal(copy, base), SetLocal(total, value))
    return Scoped(total, Block(body))


def _multiply_leaf(base: Expr, exponent: int, fresh: Fresh) -> Expr:
    def times(left: Expr, right: Expr) -> Expr:
        return Binary(BinaryOp.MUL, left, right, base.dtype)

    if exponent == 2:
        return times(base, base)
    if exponent == 3:
        return times(times(base, base), base)
    total = fresh(base)
    leading = 3 if exponent >> exponent.bit_length() - 2 == 3 else 2
    steps: list[Stmt] = [SetLocal(total, _multiply_leaf(base, leading, fresh))]
    for digit in bin(exponent)[4:]:
        square = times(LocalRead(total), LocalRead(total))
        steps.append(SetLocal(total, times(square, base) if digit == "1" else square))
    return Scoped(total, Block(tuple(steps)))
