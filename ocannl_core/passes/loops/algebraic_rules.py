"""Algebraic simplification rules that are exact, bit for bit, in IEEE arithmetic of every format.

A NaN counts as one value. A rule maps an expression to its replacement, or to None if it does not
apply; its text shows `before --> after`, where `x` and `y` stand for any expression and `c` for a
constant. A rule of a commutative operator is tried for both orders of the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import FixedIndex
from ocannl_core.ir.loops.nodes import Binary, Const, Expr, IndexValue, Ternary, Unary
from ocannl_core.ir.numbers.dtypes import DType, bool_, extremes, holds, round_to
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp, meaning_in
from ocannl_core.passes.loops.value_analysis import (
    constant,
    is_finite_nonnegative,
    is_leaf,
    is_never_negative_zero,
    is_number,
    is_truth_value,
    value_of,
)

_U, _B, _T = UnaryOp, BinaryOp, TernaryOp

Replacement = Callable[[Expr], Expr | None]
"""A function to the replacement of an expression; None if the rule does not apply."""


@dataclass(frozen=True, slots=True)
class AlgebraicRule:
    """One identity."""

    text: str
    """`before --> after`, with its condition."""
    replacement: Replacement


RULES: dict[Op, tuple[AlgebraicRule, ...]] = {}
"""The rules by the operator at the root, in the order in which they are tried."""


def _rule(text: str, *roots: Op) -> Callable[[Replacement], Replacement]:
    """Return a decorator that registers a rule for expressions with some operators at the root."""

    def register(replacement: Replacement) -> Replacement:
        for root in roots:
            RULES[root] = (*RULES.get(root, ()), AlgebraicRule(text, replacement))
        return replacement

    return register


def simplify_once(expr: Expr) -> Expr | None:
    """Apply the first rule that matches an expression; return None if none does."""
    match expr:
        case Unary(op) | Binary(op) | Ternary(op):
            folded = fold_constants(expr)
            if folded is not None:
                return folded
            rules = RULES.get(op, ())
            orders = orders_of(expr) if rules else ()
            for law in rules:
                for each in orders:
                    replacement = law.replacement(each)
                    if replacement is not None:
                        return replacement
            return None
        case IndexValue(FixedIndex(value), dtype):  # index value 3 --> 3
            return constant(value, dtype)
        case _:
            return None


def orders_of(expr: Expr) -> tuple[Expr, ...]:
    """Return an expression, and the one with exchanged operands if its primitive commutes."""
    if isinstance(expr, Binary) and expr.op.value.is_commutative:
        return expr, Binary(expr.op, expr.right, expr.left, expr.dtype)
    return (expr,)


def apply_rules(expr: Expr) -> Expr:
    """Apply rules to an expression with simplified operands until none matches."""
    while True:
        simpler = simplify_once(expr)
        if simpler is None:
            return expr
        expr = simpler


def fold_constants(expr: Unary | Binary | Ternary) -> Expr | None:
    """op(c, c) --> c, computed by the exact meaning of the primitive."""
    match expr:
        case Unary(op, arg, dtype):
            args: tuple[Expr, ...] = (arg,)
        case Binary(op, left, right, dtype):
            args = (left, right)
        case Ternary(op, first, second, third, dtype):
            args = (first, second, third)
    values = [value_of(arg) for arg in args]
    if any(value is None for value in values):
        return None
    meaning = meaning_in(op, args[0].dtype, dtype)
    return constant(round_to(meaning(*values), dtype), dtype)


@_rule(
    "x as its own format --> x; narrow(widen(x)) --> narrow(x), widening being exact", _U.IDENTITY
)
def _drop_conversion(expr: Expr) -> Expr | None:
    match expr:
        case Unary(_U.IDENTITY, arg, dtype) if arg.dtype is dtype:
            return arg
        case Unary(_U.IDENTITY, Unary(_U.IDENTITY, arg, middle), dtype) if holds(middle, arg.dtype):
            return arg if arg.dtype is dtype else Unary(_U.IDENTITY, arg, dtype)
        case _:
            return None


@_rule("first(x, y) --> x; second(x, y) --> y", _B.FIRST, _B.SECOND)
def _select_operand(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.FIRST, left):
            return left
        case Binary(_B.SECOND, _, right):
            return right
        case _:
            return None


@_rule(
    "where(c, x, y) --> x or y; where(not x, y, z) --> where(x, z, y); where(x, y, y) --> y; "
    "where(x, 1, 0) --> x if x is 0 or 1",
    _T.WHERE,
)
def _simplify_where(expr: Expr) -> Expr | None:
    match expr:
        case Ternary(_T.WHERE, condition, first, second) if value_of(condition) is not None:
            return first if value_of(condition) != 0 else second
        case Ternary(_T.WHERE, Unary(_U.NOT, condition), first, second, dtype):
            return Ternary(_T.WHERE, condition, second, first, dtype)
        case Ternary(_T.WHERE, _, first, second) if is_leaf(first) and first == second:
            return first
        case Ternary(_T.WHERE, condition, one, zero, dtype) if condition.dtype is dtype:
            is_flag = is_number(one, 1.0) and is_number(zero, 0.0) and is_truth_value(condition)
            return condition if is_flag else None
        case _:
            return None


@_rule("relu_gate(c, x), sat01_gate(c, x) --> x or 0", _B.RELU_GATE, _B.SAT01_GATE)
def _fold_gate(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.RELU_GATE, gate, value, dtype) if value_of(gate) is not None:
            return value if value_of(gate) > 0 else Const(0.0, dtype)
        case Binary(_B.SAT01_GATE, gate, value, dtype) if value_of(gate) is not None:
            return value if 0 < value_of(gate) < 1 else Const(0.0, dtype)
        case _:
            return None


@_rule("x + -0.0, x - 0.0 --> x; x + 0.0 --> x if x is never -0.0; -0.0 - x --> -x", _B.ADD, _B.SUB)
def _drop_neutral_term(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.ADD, x, zero) if _vanishes_in_sum(zero, x):
            return x
        case Binary(_B.SUB, x, zero) if is_number(zero, 0.0):
            return x
        case Binary(_B.SUB, x, zero) if is_number(zero, -0.0) and is_never_negative_zero(x):
            return x
        case Binary(_B.SUB, zero, x, dtype) if is_number(zero, 0.0 if dtype.is_integer else -0.0):
            return Unary(_U.NEG, x, dtype)
        case _:
            return None


def _vanishes_in_sum(zero: Expr, x: Expr) -> bool:
    return is_number(zero, -0.0) or (is_number(zero, 0.0) and is_never_negative_zero(x))


@_rule("x + -y --> x - y; -x + y --> y - x; x - -y --> x + y; not in bool", _B.ADD, _B.SUB)
def _absorb_negation(expr: Expr) -> Expr | None:
    if expr.dtype is bool_:  # sums and differences of truths are no inverses
        return None
    match expr:
        case Binary(_B.ADD, x, Unary(_U.NEG, y), dtype):
            return Binary(_B.SUB, x, y, dtype)
        case Binary(_B.SUB, x, Unary(_U.NEG, y), dtype):
            return Binary(_B.ADD, x, y, dtype)
        case _:
            return None


@_rule(
    "(x + c) + d --> x + (c + d), c - (x + d) --> (c - d) - x, and the like; x - x --> 0; integers",
    _B.ADD,
    _B.SUB,
)
def _fold_integer_sum(expr: Expr) -> Expr | None:
    if not expr.dtype.is_integer:
        return None
    match expr:
        case Binary(_B.SUB, x, y) if is_leaf(x) and x == y:
            return constant(0, expr.dtype)
        case Binary(_B.ADD | _B.SUB as op, inner, c) if value_of(c) is not None:
            return _add_to_sum(inner, value_of(c) if op is _B.ADD else -value_of(c))
        case Binary(_B.SUB, c, Binary(_B.ADD, x, d)) if _are_constants(c, d):
            return _build_difference(value_of(c) - value_of(d), x)
        case Binary(_B.SUB, c, Binary(_B.ADD, d, x)) if _are_constants(c, d):
            return _build_difference(value_of(c) - value_of(d), x)
        case Binary(_B.SUB, c, Binary(_B.SUB, x, d)) if _are_constants(c, d):
            return _build_difference(value_of(c) + value_of(d), x)
        case Binary(_B.SUB, c, Binary(_B.SUB, d, x)) if _are_constants(c, d):
            return _build_sum(x, value_of(c) - value_of(d))
        case _:
            return None


def _add_to_sum(expr: Expr, step: int) -> Expr | None:
    """Return an integer sum with a constant, plus another constant."""
    match expr:
        case Binary(_B.ADD, x, c) if value_of(c) is not None:
            return _build_sum(x, value_of(c) + step)
        case Binary(_B.ADD, c, x) if value_of(c) is not None:
            return _build_sum(x, value_of(c) + step)
        case Binary(_B.SUB, x, c) if value_of(c) is not None:
            return _build_sum(x, step - value_of(c))
        case Binary(_B.SUB, c, x) if value_of(c) is not None:
            return _build_difference(value_of(c) + step, x)
        case _:
            return None


def _are_constants(*exprs: Expr) -> bool:
    return all(value_of(each) is not None for each in exprs)


def _build_sum(x: Expr, number: int) -> Expr | None:
    c = constant(number, x.dtype)
    return None if c is None else Binary(_B.ADD, x, c, x.dtype)


def _build_difference(number: int, x: Expr) -> Expr | None:
    c = constant(number, x.dtype)
    return None if c is None else Binary(_B.SUB, c, x, x.dtype)


@_rule("x * 1, 1 * x, x / 1 --> x", _B.MUL, _B.DIV)
def _drop_neutral_factor(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.MUL | _B.DIV, x, one) if is_number(one, 1.0):
            return x
        case _:
            return None


@_rule("x * -1, x / -1 --> -x; -x * -y --> x * y; -x / -y --> x / y", _B.MUL, _B.DIV)
def _simplify_signs(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.MUL | _B.DIV, x, c, dtype) if is_number(c, -1.0):
            return Unary(_U.NEG, x, dtype)
        case Binary(_B.MUL | _B.DIV as op, Unary(_U.NEG, x), Unary(_U.NEG, y), dtype):
            return Binary(op, x, y, dtype) if dtype.is_float or op is _B.MUL else None
        case _:
            return None


@_rule("x * 0 --> 0 if x is certainly finite and positive, or an integer", _B.MUL, _B.DIV)
def _fold_zero_product(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.MUL, x, zero) if is_number(zero, 0.0) and _vanishes_times_zero(x):
            return zero
        case Binary(_B.DIV, zero, _, dtype) if dtype.is_integer and is_number(zero, 0.0):
            return zero
        case _:
            return None


def _vanishes_times_zero(x: Expr) -> bool:
    return x.dtype.is_integer or is_finite_nonnegative(x)


@_rule(
    "(x * c) * d --> x * (c * d) for integers, and for powers of two that are at least 1", _B.MUL
)
def _fold_factors(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.MUL, Binary(_B.MUL, x, d), c, dtype) if _are_constants(c, d):
            return _build_product(x, value_of(d), value_of(c), dtype)
        case Binary(_B.MUL, Binary(_B.MUL, d, x), c, dtype) if _are_constants(c, d):
            return _build_product(x, value_of(d), value_of(c), dtype)
        case _:
            return None


def _build_product(x: Expr, first: float, second: float, dtype: DType) -> Expr | None:
    if dtype.is_integer:
        c = constant(first * second, dtype)
        return None if c is None else Binary(_B.MUL, x, c, dtype)
    if not all(abs(c) >= 1 and _is_power_of_two(c) for c in (first, second)):
        return None
    product: float = round_to(first * second, dtype)
    return Binary(_B.MUL, x, Const(product, dtype), dtype) if math.isfinite(product) else None


def _is_power_of_two(value: float) -> bool:
    return math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5


@_rule("x / 2**n --> x * 2**-n if that is a number of the format", _B.DIV)
def _replace_power_of_two_divisor(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.DIV, x, divisor, dtype) if dtype.is_float:
            factor = _exact_reciprocal(value_of(divisor), dtype)
            return None if factor is None else Binary(_B.MUL, x, Const(factor, dtype), dtype)
        case _:
            return None


def _exact_reciprocal(value: float | None, dtype: DType) -> float | None:
    if value is None or not _is_power_of_two(value):
        return None
    factor: float = round_to(1.0 / value, dtype)
    return factor if math.isfinite(factor) and factor * value == 1.0 else None


@_rule("fma(x, 1, y) --> x + y; fma(x, -1, y) --> y - x; fma(x, y, -0.0) --> x * y", _T.FMA)
def _simplify_fma(expr: Expr) -> Expr | None:
    match expr:
        case Ternary(_T.FMA, x, one, y, dtype) if is_number(one, 1.0):
            return Binary(_B.ADD, x, y, dtype)
        case Ternary(_T.FMA, one, x, y, dtype) if is_number(one, 1.0):
            return Binary(_B.ADD, x, y, dtype)
        case Ternary(_T.FMA, x, y, zero, dtype) if is_number(
            zero, 0.0 if dtype.is_integer else -0.0
        ):
            return Binary(_B.MUL, x, y, dtype)
        case Ternary(_T.FMA, x, c, y, dtype) if is_number(c, -1.0):
            return Binary(_B.SUB, y, x, dtype)
        case Ternary(_T.FMA, c, x, y, dtype) if is_number(c, -1.0):
            return Binary(_B.SUB, y, x, dtype)
        case _:
            return None


@_rule("x ** 0 --> 1; x ** 1 --> x; x ** -1 --> recip(x)", _B.POW)
def _simplify_power(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.POW, _, exponent, dtype) if is_number(exponent, 0.0):
            return constant(1, dtype)
        case Binary(_B.POW, x, exponent) if is_number(exponent, 1.0):
            return x
        case Binary(_B.POW, x, exponent, dtype) if is_number(exponent, -1.0) and dtype.is_float:
            return Unary(_U.RECIP, x, dtype)
        case _:
            return None


@_rule(
    "max(x, -inf), min(x, inf) --> x, and so at the ends of integers; max(x, x), min(x, x) --> x",
    _B.MAX,
    _B.MIN,
)
def _drop_neutral_extremum(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.MAX | _B.MIN as op, x, c, dtype) if _is_extreme(c, op, dtype):
            return x
        case Binary(_B.MAX | _B.MIN as op, c, x, dtype) if _is_extreme(c, op, dtype):
            return x
        case Binary(_B.MAX | _B.MIN, x, y) if is_leaf(x) and x == y:
            return x
        case _:
            return None


def _is_extreme(expr: Expr, op: BinaryOp, dtype: DType) -> bool:
    if dtype.is_float:
        return is_number(expr, -math.inf if op is _B.MAX else math.inf)
    lowest, highest = extremes(dtype)
    return bool(value_of(expr) == (lowest if op is _B.MAX else highest))


@_rule("x || 0, x && 1 --> x if x is 0 or 1; x && 0 --> 0; x || 1 --> 1", _B.OR, _B.AND)
def _simplify_logic(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.OR | _B.AND as op, x, c) if is_truth_value(x) and _is_neutral(c, op):
            return x
        case Binary(_B.OR | _B.AND as op, _, c, dtype) if _is_dominant(c, op):
            return constant(int(op is _B.OR), dtype)
        case _:
            return None


def _is_neutral(expr: Expr, op: BinaryOp) -> bool:
    return is_number(expr, 0.0 if op is _B.OR else 1.0)


def _is_dominant(expr: Expr, op: BinaryOp) -> bool:
    value = value_of(expr)
    return value is not None and (value != 0) == (op is _B.OR)


@_rule(
    "x < x --> 0; x == x, x <= x --> 1 and x != x --> 0 for integers and indices",
    _B.EQ,
    _B.NE,
    _B.LT,
    _B.LE,
)
def _fold_equal_operands(expr: Expr) -> Expr | None:
    match expr:
        case Binary(op, left, right, dtype) if is_leaf(left) and left == right:
            if op is _B.LT:
                return constant(0, dtype)
            if left.dtype.holds_integers or isinstance(left, IndexValue):
                return constant(int(op is not _B.NE), dtype)
            return None
        case _:
            return None


@_rule("x == 1, x != 0 --> x and x == 0, x != 1 --> not(x), if x is 0 or 1", _B.EQ, _B.NE)
def _simplify_truth_comparison(expr: Expr) -> Expr | None:
    match expr:
        case Binary(_B.EQ | _B.NE as op, x, c, dtype) if (
            is_truth_value(x) and x.dtype is dtype and value_of(x) is None and _is_bit(c)
        ):
            return x if (value_of(c) == 1) == (op is _B.EQ) else Unary(_U.NOT, x, dtype)
        case _:
            return None


def _is_bit(expr: Expr) -> bool:
    value = value_of(expr)
    return value is not None and value in (0, 1)


@_rule(
    "--x --> x; relu, sat01, trunc twice --> once; trunc(integer) --> it; not(x == y) --> x != y; "
    "not(not(x)) --> x if x is 0 or 1",
    _U.NEG,
    _U.NOT,
    _U.RELU,
    _U.SAT01,
    _U.TRUNC,
)
def _collapse_repetition(expr: Expr) -> Expr | None:
    match expr:
        case Unary(_U.NEG, Unary(_U.NEG, x)):
            return x
        case Unary(_U.RELU | _U.SAT01 | _U.TRUNC as op, Unary(inner)) if inner is op:
            return expr.arg
        case Unary(_U.TRUNC, x) if x.dtype.is_integer:
            return x
        case Unary(_U.NOT, Binary(_B.EQ | _B.NE as op, x, y), dtype):
            return Binary(_B.NE if op is _B.EQ else _B.EQ, x, y, dtype)
        case Unary(_U.NOT, Unary(_U.NOT, x)) if is_truth_value(x):
            return x
        case _:
            return None
