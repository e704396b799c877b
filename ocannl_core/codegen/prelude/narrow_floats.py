"""Rounding of narrow floats that are computed in float32."""

from __future__ import annotations

from ocannl_core.ir.loops.nodes import (
    Binary,
    Const,
    Expr,
    Gather,
    Load,
    LocalRead,
    Scoped,
    Ternary,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp

_ARITHMETIC = frozenset(
    {
        UnaryOp.NEG,
        UnaryOp.RECIP,
        UnaryOp.SQRT,
        UnaryOp.RECIP_SQRT,
        BinaryOp.ADD,
        BinaryOp.SUB,
        BinaryOp.MUL,
        BinaryOp.DIV,
    }
)
"""Operations that return the NaN of an operand, or the default NaN of the processor."""


def is_exact(expr: Expr) -> bool:
    """Return True if computing in float32 gives an exact number of the narrow format."""
    match expr:
        case Load() | Gather() | LocalRead() | Scoped() | Const():
            return True
        case Unary(op) | Binary(op) | Ternary(op):
            return bool(op.value.needs_no_rounding)
        case _:
            return False


def is_arithmetic(expr: Expr) -> bool:
    """Return True if a value is the result of one operation in the expression's format."""
    match expr:
        case Unary(op, arg, dtype):
            return op in _ARITHMETIC and arg.dtype is dtype
        case Binary(op, left, _, dtype):
            return op in _ARITHMETIC and left.dtype is dtype
        case Ternary(TernaryOp.FMA):
            return True
        case _:
            return False


def match_narrow_load(expr: Expr) -> Load | None:
    """Return the load of a narrow cell that an expression widens to float32; None for others."""
    match expr:
        case Load(_, _, dtype) if dtype.is_narrow:
            return expr
        case Unary(UnaryOp.IDENTITY, Load(_, _, dtype) as load, wide) if (
            dtype.is_narrow and wide is float32
        ):
            return load
        case _:
            return None
