"""Which expressions of narrow floats, computed in float32, have to be rounded, and how."""

from __future__ import annotations

from ocannl_core.dtypes import float32
from ocannl_core.loopir.nodes import (
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
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp

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
"""Operations of which NaN is that of an operand, or the processor's own."""


def is_exact(expr: Expr) -> bool:
    """True if computing in float32 gives a number of the narrow format already."""
    match expr:
        case Load() | Gather() | LocalRead() | Scoped() | Const():
            return True
        case Unary(op) | Binary(op) | Ternary(op):
            return bool(op.value.needs_no_rounding)
        case _:
            return False


def is_arithmetic(expr: Expr) -> bool:
    """True if a processor's operation on numbers of the expression's own format gives its value."""
    match expr:
        case Unary(op, arg, dtype):
            return op in _ARITHMETIC and arg.dtype is dtype
        case Binary(op, left, _, dtype):
            return op in _ARITHMETIC and left.dtype is dtype
        case Ternary(TernaryOp.FMA):
            return True
        case _:
            return False


def narrow_cell(expr: Expr) -> Load | None:
    """Returns the cell of a narrow format that an expression of float32 vectors is the value of."""
    match expr:
        case Load(_, _, dtype) if dtype.is_narrow:
            return expr
        case Unary(UnaryOp.IDENTITY, Load(_, _, dtype) as load, wide) if (
            dtype.is_narrow and wide is float32
        ):
            return load
        case _:
            return None
