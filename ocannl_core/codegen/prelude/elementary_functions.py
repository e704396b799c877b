"""Functions of one number that generated C calls by name."""

from __future__ import annotations

from ocannl_core.ir.numbers.primitives import UnaryOp

WHOLE_FUNCTIONS = {
    UnaryOp.ABS: "fabs",
    UnaryOp.TRUNC: "trunc",
    UnaryOp.FLOOR: "floor",
    UnaryOp.CEIL: "ceil",
    UnaryOp.ROUND: "rint",
}
"""Exact functions of the C library, under its names."""

MAPPED_FUNCTIONS = frozenset(
    {
        UnaryOp.EXP,
        UnaryOp.LOG,
        UnaryOp.EXP2,
        UnaryOp.LOG2,
        UnaryOp.SIN,
        UnaryOp.COS,
        UnaryOp.SQRT,
        UnaryOp.TANH,
        UnaryOp.EXPM1,
        UnaryOp.LOG1P,
        UnaryOp.ERF,
        UnaryOp.TAN,
        UnaryOp.ASIN,
        UnaryOp.ACOS,
        UnaryOp.ATAN,
        UnaryOp.SINH,
        UnaryOp.COSH,
        *WHOLE_FUNCTIONS,
    }
)
"""Functions that are called for each lane."""
