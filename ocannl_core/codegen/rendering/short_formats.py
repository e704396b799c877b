"""Values of formats that are computed in wider ones: narrow floats, and short integers."""

from __future__ import annotations

from ocannl_core.codegen.text.precedence import CExpr, Precedence
from ocannl_core.ir.loops import nodes as ir
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


def is_exact(expr: ir.Expr) -> bool:
    """Return True if computing in float32 gives an exact number of the narrow format."""
    match expr:
        case ir.Load() | ir.Gather() | ir.LocalRead() | ir.Scoped() | ir.Const():
            return True
        case ir.Unary(op) | ir.Binary(op) | ir.Ternary(op):
            return bool(op.value.needs_no_rounding)
        case _:
            return False


def is_arithmetic(expr: ir.Expr) -> bool:
    """Return True if a value is the result of one operation in the expression's format."""
    match expr:
        case ir.Unary(op, arg, dtype):
            return op in _ARITHMETIC and arg.dtype is dtype
        case ir.Binary(op, left, _, dtype):
            return op in _ARITHMETIC and left.dtype is dtype
        case ir.Ternary(TernaryOp.FMA):
            return True
        case _:
            return False


def match_narrow_load(expr: ir.Expr) -> ir.Load | None:
    """Return the load of a narrow cell that an expression widens to float32; None for others."""
    match expr:
        case ir.Load(_, _, dtype) if dtype.is_narrow:
            return expr
        case ir.Unary(UnaryOp.IDENTITY, ir.Load(_, _, dtype) as load, wide) if (
            dtype.is_narrow and wide is float32
        ):
            return load
        case _:
            return None


def match_short_load(expr: ir.Expr) -> ir.Load | None:
    """Return the load of a short integer that an expression converts; None for others."""
    match expr:
        case ir.Unary(UnaryOp.IDENTITY, ir.Load(_, _, dtype) as load) if dtype.is_short_integer:
            return load
        case _:
            return None


def exceeds_format(expr: ir.Expr) -> bool:
    """Return True if computing a short integer in int32 may give bits beyond its width."""
    if expr.dtype is bool_:
        return isinstance(expr, ir.IndexValue)
    match expr:
        case ir.Unary(op):
            return op in (UnaryOp.IDENTITY, UnaryOp.NEG, UnaryOp.ABS, UnaryOp.BIT_NOT)
        case ir.Binary(op):
            return op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL)
        case _:
            return isinstance(expr, ir.IndexValue)


def address_of(cell: str) -> tuple[CExpr, CExpr]:
    """Return the array and the offset of a cell of a packed format: `a[2 * i]` --> `a`, `2 * i`."""
    array, _, offset = cell.partition("[")
    offset = offset.removesuffix("]")
    return CExpr(array), CExpr(offset, Precedence.PRIMARY if offset.isdigit() else Precedence.OR)
