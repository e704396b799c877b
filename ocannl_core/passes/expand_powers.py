"""Powers with small whole exponents as products."""

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


def as_product(base: Expr, exponent: int, fresh: Fresh) -> Expr:
    """Returns `base ** exponent`, where the exponent is at least 2, by squaring and multiplying.

    x ** 3  -->  x * x * x
    x ** 6  -->  {v: v = x * x * x; v = v * v}
    f(x) ** 2  -->  {v: v = f(x); v = v * v}
    f(x) ** 3  -->  {v: w = f(x); v = w * w * w}

    Args:
        base: What is multiplied; computed once.
        exponent: The number of factors.
        fresh: Gives new variables.
    """
    if is_leaf(base):
        return _product_of_leaf(base, exponent, fresh)
    total = fresh(base)
    if exponent == 2:
        square = _product_of_leaf(LocalRead(total), 2, fresh)
        return Scoped(total, Block((SetLocal(total, base), SetLocal(total, square))))
    copy = fresh(base)
    value = _product_of_leaf(LocalRead(copy), exponent, fresh)
    body = (DeclareLocal(copy), SetLocal(copy, base), SetLocal(total, value))
    return Scoped(total, Block(body))


def _product_of_leaf(base: Expr, exponent: int, fresh: Fresh) -> Expr:
    def times(left: Expr, right: Expr) -> Expr:
        return Binary(BinaryOp.MUL, left, right, base.dtype)

    if exponent == 2:
        return times(base, base)
    if exponent == 3:
        return times(times(base, base), base)
    total = fresh(base)
    leading = 3 if exponent >> exponent.bit_length() - 2 == 3 else 2
    steps: list[Stmt] = [SetLocal(total, _product_of_leaf(base, leading, fresh))]
    for digit in bin(exponent)[4:]:
        square = times(LocalRead(total), LocalRead(total))
        steps.append(SetLocal(total, times(square, base) if digit == "1" else square))
    return Scoped(total, Block(tuple(steps)))
