"""The operators in place of each primitive: one function for each row of the table."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ocannl_core.assignments import BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_onnx.formats import Format
from ocannl_onnx.writing.emitter import BOOL, INT64, Emitter


class Calculation:
    """Operators on numbers of one format; methods take and return names of values."""

    def __init__(self, emit: Emitter, format: Format) -> None:
        self.emit = emit
        self.format = format

    def number(self, value: float) -> str:
        return self.emit.constant(value, self.format)

    def truth(self, name: str) -> str:
        """Return a number as a truth value."""
        return self.emit.cast(name, self.format, BOOL)

    def of_truth(self, name: str) -> str:
        """Return a truth value as 0 or 1."""
        return self.emit.cast(name, BOOL, self.format)

    def where(self, condition: str, a: str, b: str) -> str:
        return self.emit("Where", condition, a, b)

    def less(self, a: str, b: str) -> str:
        return self.emit("Less", a, b)

    def is_zero(self, a: str) -> str:
        return self.emit("Equal", a, self.number(0))


Rule = Callable[..., str]
"""A function of a calculation and the operands, which returns the result."""

RULES: dict[Op, Rule] = {}


def _rule(*ops: Op) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register


def _operator(name: str) -> Rule:
    def rule(c: Calculation, *operands: str) -> str:
        return c.emit(name, *operands)

    return rule


_SAME: dict[Op, str] = {
    UnaryOp.EXP: "Exp",
    UnaryOp.LOG: "Log",
    UnaryOp.SIN: "Sin",
    UnaryOp.COS: "Cos",
    UnaryOp.SQRT: "Sqrt",
    UnaryOp.RECIP: "Reciprocal",
    UnaryOp.TANH: "Tanh",
    UnaryOp.ABS: "Abs",
    UnaryOp.SIGN: "Sign",
    UnaryOp.ERF: "Erf",
    UnaryOp.TAN: "Tan",
    UnaryOp.ASIN: "Asin",
    UnaryOp.ACOS: "Acos",
    UnaryOp.ATAN: "Atan",
    UnaryOp.SINH: "Sinh",
    UnaryOp.COSH: "Cosh",
    BinaryOp.ADD: "Add",
    BinaryOp.SUB: "Sub",
    BinaryOp.MUL: "Mul",
    BinaryOp.MAX: "Max",
    BinaryOp.MIN: "Min",
}
"""The operators of the same meaning."""

RULES |= {
    UnaryOp.IDENTITY: lambda c, a: a,
    BinaryOp.FIRST: lambda c, a, b: a,
    BinaryOp.SECOND: lambda c, a, b: b,
    **{op: _operator(name) for op, name in _SAME.items()},
}


@_rule(UnaryOp.RELU)
def _relu(c: Calculation, a: str) -> str:
    return c.emit("Relu", a) if c.format.is_float else c.emit("Max", a, c.number(0))


@_rule(UnaryOp.NEG)
def _neg(c: Calculation, a: str) -> str:
    return c.emit("Sub", c.number(0), a) if c.format.is_unsigned else c.emit("Neg", a)


@_rule(BinaryOp.POW)
def _pow(c: Calculation, a: str, b: str) -> str:
    """Raise to a power; of unsigned integers, for which ONNX has none, modulo 2**64."""
    if not c.format.is_unsigned:
        return c.emit("Pow", a, b)
    signed = (c.emit.cast(each, c.format, INT64) for each in (a, b))
    return c.emit.cast(c.emit("Pow", *signed), INT64, c.format)


@_rule(UnaryOp.SAT01)
def _sat01(c: Calculation, a: str) -> str:
    return c.emit("Clip", a, c.number(0), c.number(1))


@_rule(UnaryOp.RECIP_SQRT)
def _recip_sqrt(c: Calculation, a: str) -> str:
    return c.emit("Reciprocal", c.emit("Sqrt", a))


@_rule(UnaryOp.EXP2)
def _exp2(c: Calculation, a: str) -> str:
    return c.emit("Pow", c.number(2), a)


@_rule(UnaryOp.LOG2)
def _log2(c: Calculation, a: str) -> str:
    return c.emit("Div", c.emit("Log", a), c.number(math.log(2)))


@_rule(UnaryOp.EXPM1)
def _expm1(c: Calculation, a: str) -> str:
    """Near 0, where `exp(a) - 1` cancels, it is `2 t / (1 - t)` with `t = tanh(a / 2)`."""
    one = c.number(1)
    t = c.emit("Tanh", c.emit("Mul", a, c.number(0.5)))
    near = c.emit("Div", c.emit("Add", t, t), c.emit("Sub", one, t))
    is_near = c.less(c.emit("Abs", a), one)
    return c.where(is_near, near, c.emit("Sub", c.emit("Exp", a), one))


@_rule(UnaryOp.LOG1P)
def _log1p(c: Calculation, a: str) -> str:
    """Near 0, where `1 + a` loses digits, it is `2 atanh(a / (2 + a))`."""
    t = c.emit("Atanh", c.emit("Div", a, c.emit("Add", a, c.number(2))))
    is_near = c.less(c.emit("Abs", a), c.number(0.5))
    return c.where(is_near, c.emit("Add", t, t), c.emit("Log", c.emit("Add", a, c.number(1))))


@_rule(UnaryOp.TRUNC)
def _trunc(c: Calculation, a: str) -> str:
    if not c.format.is_float:
        return a
    is_negative = c.less(a, c.number(0))
    return c.where(is_negative, c.emit("Ceil", a), c.emit("Floor", a))


@_rule(UnaryOp.FLOOR)
def _floor(c: Calculation, a: str) -> str:
    return c.emit("Floor", a) if c.format.is_float else a


@_rule(UnaryOp.CEIL)
def _ceil(c: Calculation, a: str) -> str:
    return c.emit("Ceil", a) if c.format.is_float else a


@_rule(UnaryOp.ROUND)
def _round(c: Calculation, a: str) -> str:
    return c.emit("Round", a) if c.format.is_float else a


@_rule(UnaryOp.NOT)
def _not(c: Calculation, a: str) -> str:
    return c.of_truth(c.emit("Not", c.truth(a)))


@_rule(UnaryOp.BIT_NOT)
def _bit_not(c: Calculation, a: str) -> str:
    return _not(c, a) if c.format.is_float else c.emit("BitwiseNot", a)


@_rule(BinaryOp.DIV)
def _div(c: Calculation, a: str, b: str) -> str:
    if c.format.is_float:
        return c.emit("Div", a, b)
    zero = c.is_zero(b)
    quotient = c.emit("Div", a, c.where(zero, c.number(1), b))
    return c.where(zero, c.number(0), quotient)


@_rule(BinaryOp.MOD)
def _mod(c: Calculation, a: str, b: str) -> str:
    if not c.format.is_float:
        zero = c.is_zero(b)
        rest = c.emit("Mod", a, c.where(zero, c.number(1), b))
        return c.where(zero, c.number(0), rest)
    rest, is_moved = _rest(c, a, b)
    return c.where(is_moved, c.emit("Add", rest, b), rest)


def _rest(c: Calculation, a: str, b: str) -> tuple[str, str]:
    """Return the rest of the truncated quotient, and whether it has the sign of `b` only after an
    addition of `b`, by which the quotient is 1 less.
    """
    rest, zero = c.emit("Mod", a, b, fmod=1), c.number(0)
    is_other = c.emit("Xor", c.less(rest, zero), c.less(b, zero))
    return rest, c.emit("And", is_other, c.emit("Not", c.is_zero(rest)))


@_rule(BinaryOp.FLOOR_DIV)
def _floor_div(c: Calculation, a: str, b: str) -> str:
    """Divide as Python does: of integers the truncated quotient, less 1 if a negative one is not
    exact; of floats, the remainder is taken away first.
    """
    if not c.format.is_float:
        zero = c.is_zero(b)
        divisor = c.where(zero, c.number(1), b)
        quotient = c.emit("Div", a, divisor)
        if not c.format.is_unsigned:
            _, is_less = _rest(c, a, divisor)
            quotient = c.emit("Sub", quotient, c.of_truth(is_less))
        return c.where(zero, c.number(0), quotient)
    rest, is_less = _rest(c, a, b)
    exact = c.emit("Sub", _div(c, c.emit("Sub", a, rest), b), c.of_truth(is_less))
    floor = c.emit("Floor", exact)
    is_more = c.emit("Greater", c.emit("Sub", exact, floor), c.number(0.5))
    whole = c.where(is_more, c.emit("Add", floor, c.number(1)), floor)
    return c.where(c.is_zero(b), c.emit("Div", a, b), whole)


@_rule(BinaryOp.ATAN2)
def _atan2(c: Calculation, a: str, b: str) -> str:
    """The sign of a height of 0 is seen in its reciprocal. Two infinities have the ratio 1."""
    zero, pi = c.number(0), c.number(np.pi)
    above = c.emit("Not", c.emit("Or", c.less(a, zero), c.less(c.emit("Reciprocal", a), zero)))
    left = c.emit("Or", c.less(b, zero), c.less(c.emit("Reciprocal", b), zero))
    ratio = c.emit("Div", a, c.emit("Abs", b))
    is_origin = c.emit("And", c.is_zero(a), c.is_zero(b))
    is_infinite = c.emit("And", c.emit("IsInf", a), c.emit("IsInf", b))
    ratio = c.where(is_infinite, c.emit("Sign", a), c.where(is_origin, a, ratio))
    angle, turn = c.emit("Atan", ratio), c.where(above, pi, c.emit("Neg", pi))
    return c.where(left, c.emit("Sub", turn, angle), angle)


@_rule(BinaryOp.RELU_GATE)
def _relu_gate(c: Calculation, a: str, b: str) -> str:
    return c.where(c.less(c.number(0), a), b, c.number(0))


@_rule(BinaryOp.SAT01_GATE)
def _sat01_gate(c: Calculation, a: str, b: str) -> str:
    inside = c.emit("And", c.less(c.number(0), a), c.less(a, c.number(1)))
    return c.where(inside, b, c.number(0))


def _comparison(name: str) -> Rule:
    def rule(c: Calculation, a: str, b: str) -> str:
        return c.of_truth(c.emit(name, a, b))

    return rule


RULES[BinaryOp.LT] = _comparison("Less")
RULES[BinaryOp.LE] = _comparison("LessOrEqual")
RULES[BinaryOp.EQ] = _comparison("Equal")


@_rule(BinaryOp.NE)
def _ne(c: Calculation, a: str, b: str) -> str:
    return c.of_truth(c.emit("Not", c.emit("Equal", a, b)))


@_rule(BinaryOp.OR)
def _or(c: Calculation, a: str, b: str) -> str:
    return c.of_truth(c.emit("Or", c.truth(a), c.truth(b)))


@_rule(BinaryOp.AND)
def _and(c: Calculation, a: str, b: str) -> str:
    return c.of_truth(c.emit("And", c.truth(a), c.truth(b)))


def _bits(name: str, logical: str) -> Rule:
    def rule(c: Calculation, a: str, b: str) -> str:
        if c.format.is_float:
            return c.of_truth(c.emit(logical, c.truth(a), c.truth(b)))
        return c.emit(name, a, b)

    return rule


RULES[BinaryOp.BIT_AND] = _bits("BitwiseAnd", "And")
RULES[BinaryOp.BIT_OR] = _bits("BitwiseOr", "Or")
RULES[BinaryOp.BIT_XOR] = _bits("BitwiseXor", "Xor")


@_rule(TernaryOp.FMA)
def _fma(c: Calculation, a: str, b: str, d: str) -> str:
    return c.emit("Add", c.emit("Mul", a, b), d)


REDUCTIONS: dict[BinaryOp, str] = {
    BinaryOp.ADD: "ReduceSum",
    BinaryOp.MUL: "ReduceProd",
    BinaryOp.MAX: "ReduceMax",
    BinaryOp.MIN: "ReduceMin",
}
"""The operators that accumulate along axes."""
