"""Primitives by number format, their accuracy, and operands at which implementations fail."""

from __future__ import annotations

import math
from typing import Any

from ocannl_core.ir.numbers.dtypes import DType, Kind, extremes, float32, float64, round_to
from ocannl_core.ir.numbers.primitives import (
    PRIMITIVES,
    BinaryOp,
    Op,
    Signature,
    TernaryOp,
    UnaryOp,
)
from ocannl_core.testing.compare import EXACT, Tolerance

_MISSING_ON_INTEGERS = frozenset(
    op for op in PRIMITIVES if op.value.is_real and op is not BinaryOp.DIV
)
"""Primitives whose results are floats; division alone has a meaning of its own for integers."""


def exact_primitives(dtype: DType) -> tuple[Op, ...]:
    """Return the primitives whose result in this format is the same on every backend."""
    return tuple(op for op in primitives(dtype) if tolerance(op, dtype) is EXACT)


def primitives(dtype: DType) -> tuple[Op, ...]:
    """Return the primitives whose operands and result are numbers of this format."""
    on_numbers = tuple(op for op in PRIMITIVES if op.value.signature is Signature.NUMBERS)
    match dtype.kind:
        case Kind.FLOAT:
            return on_numbers
        case Kind.SIGNED | Kind.UNSIGNED | Kind.BOOL:
            return tuple(op for op in on_numbers if op not in _MISSING_ON_INTEGERS)
        case Kind.WORD:  # words support only operations that move values
            return (UnaryOp.IDENTITY, BinaryOp.FIRST, BinaryOp.SECOND, TernaryOp.WHERE)


def tolerance(op: Op, dtype: DType) -> Tolerance:
    """Return the accepted error of one application of a primitive.

    Formats narrower than float32 compute in float32 and round, which may move a result by 1 ulp.
    """
    if op.value.ulps == 0 or not dtype.is_float:
        return EXACT
    return Tolerance(op.value.ulps if dtype in (float32, float64) else 1)


def accumulators(dtype: DType) -> tuple[BinaryOp, ...]:
    """Return the accumulating primitives that are exact in this format."""
    finite = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.OR, BinaryOp.AND)
    return (*finite, BinaryOp.MAX, BinaryOp.MIN) if dtype.is_float else finite


def special_values(dtype: DType) -> tuple[Any, ...]:
    """Return special values of a format, at which implementations fail, as Python numbers."""
    if dtype.kind is Kind.WORD:
        return ((0, 0, 0, 0), (1, 2, 3, 4), (2**32 - 1, 0, 2**31, 0xDEADBEEF))
    if dtype.is_float:
        return _special_floats(dtype)
    return _special_integers(dtype)


def _special_integers(dtype: DType) -> tuple[int, ...]:
    if dtype.kind is Kind.BOOL:
        return (0, 1)
    bits = 8 * dtype.nbytes
    is_signed = dtype.kind is Kind.SIGNED
    high = 2 ** (bits - is_signed) - 1
    half = 2 ** (bits // 2)
    chosen = (0, 1, 2, 3, 7, 10, 100, half, half + 1, high - 1, high)
    return (*chosen, -1, -2, -7, -100, -high, -high - 1) if is_signed else chosen


def _special_floats(dtype: DType) -> tuple[float, ...]:
    positive = (0.0, 1.0, 2.0, 3.0, 0.5, 0.1, math.pi, 7.0, 12.5, 100.0, extremes(dtype)[1])
    edges = (dtype.greatest, dtype.least * 2 ** (dtype.significand - 1), dtype.least)
    chosen = list(dict.fromkeys(round_to(value, dtype) for value in (*positive, *edges)))
    return (*chosen, -0.0, *(-v for v in chosen[1:]), math.nan)
