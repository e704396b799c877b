"""Assignments that combine a variable with a value, `x += y` in C."""

from __future__ import annotations

from ocannl_core.ir.loops.nodes import Binary, Expr, Gather, Load, LocalRead
from ocannl_core.ir.numbers.dtypes import float32, float64, uint32, uint64
from ocannl_core.ir.numbers.primitives import BinaryOp

_COMPOUND = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV})


def compound_symbol(value: Expr, left: Load | LocalRead | Gather) -> str:
    """Return the operator if `left = left op right` may be written as `left op= right`, else ""."""
    match value:
        case Binary(op, first, _, dtype) if op in _COMPOUND and first == left:
            as_is = dtype in (float32, float64)
            wraps = dtype in (uint32, uint64) and op is not BinaryOp.DIV
            return op.value.symbol if as_is or wraps else ""
        case _:
            return ""
