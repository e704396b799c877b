"""Values of formats that are computed in wider ones: narrow floats, and short integers."""

from __future__ import annotations

from ocannl_core.codegen.text.precedence import CExpr, Precedence
from ocannl_core.ir.loops.nodes import (
    Binary,
    Const,
    Expr,
    Gather,
    IndexValue,
    Load,
    LocalRead,
    Scoped,
    Ternary,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import bool_, float32
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


def exceeds_format(expr: Expr) -> bool:
    """Return True if computing a short integer in int32 may give bits beyond its width."""
    if expr.dtype is bool_:
        return isinstance(expr, IndexValue)
    match expr:
        case Unary(op):
            return op in (UnaryOp.IDENTITY, UnaryOp.NEG, UnaryOp.ABS, UnaryOp.BIT_NOT)
        case Binary(op):
            return op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL)
        case _:
            return isinstance(expr, IndexValue)


def place_of(cell: str) -> tuple[CExpr, CExpr]:
    """Return the array and the offset of a cell of a packed format: `a[2 * i]` --> `a`, `2 * i`."""
    array, _, offset = cell.partition("[")
    offset = offset.removesuffix("]")
    return CExpr(array), CExpr(offset, Precedence.PRIMARY if offset.isdigit() else Precedence.OR)
