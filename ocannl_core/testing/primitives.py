"""Which primitives mean something in which format, how exact they are, and telling operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ocannl_core.dtypes import DType, Kind, float16, float32, float64, round_to
from ocannl_core.ops import COMPARISONS, BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.testing.compare import EXACT, Tolerance

_U, _B, _T = UnaryOp, BinaryOp, TernaryOp

_ANYWHERE: tuple[Op, ...] = (_U.IDENTITY, _B.FIRST, _B.SECOND, _T.WHERE)
_NUMBERS: tuple[Op, ...] = (
    *_ANYWHERE,
    _U.RELU,
    _U.NEG,
    _U.NOT,
    _B.ADD,
    _B.SUB,
    _B.MUL,
    _B.DIV,
    _B.MOD,
    _B.RELU_GATE,
    *sorted(COMPARISONS, key=lambda op: op.value.name),
    _B.OR,
    _B.AND,
    _B.MAX,
    _B.MIN,
    _T.FMA,
)
_EXACT_ON_FLOATS: tuple[Op, ...] = (
    *_NUMBERS,
    _U.SAT01,
    _U.SQRT,
    _U.RECIP,
    _U.TRUNC,
    _B.SAT01_GATE,
)
_LIBRARY_FUNCTIONS: tuple[Op, ...] = (
    _U.EXP,
    _U.LOG,
    _U.EXP2,
    _U.LOG2,
    _U.SIN,
    _U.COS,
    _U.TANH,
    _U.RECIP_SQRT,
    _B.POW,
)


def exact_primitives(dtype: DType) -> tuple[Op, ...]:
    """Returns the primitives whose result in this format is the same on every backend."""
    match dtype.kind:
        case Kind.FLOAT:
            return _EXACT_ON_FLOATS
        case Kind.SIGNED | Kind.UNSIGNED:
            return _NUMBERS
        case Kind.WORD:
            return _ANYWHERE


def primitives(dtype: DType) -> tuple[Op, ...]:
    """Returns the primitives whose operands and result are numbers of this format."""
    return exact_primitives(dtype) + (_LIBRARY_FUNCTIONS if dtype.is_float else ())


def tolerance(op: Op, dtype: DType) -> Tolerance:
    """Returns how far one application of a primitive may be from the reference.

    Functions that a mathematical library provides are within 4 ulp in float64 and float32, powers
    in float32 within 8; narrower formats compute in float32 and round, which may move a result by
    1 ulp.
    """
    if op not in _LIBRARY_FUNCTIONS:
        return EXACT
    if dtype not in (float32, float64):
        return Tolerance(1)
    return Tolerance(8 if op is BinaryOp.POW and dtype is float32 else 4)


def accumulators(dtype: DType) -> tuple[BinaryOp, ...]:
    """Returns the accumulating primitives that are exact in this format."""
    finite = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.OR, BinaryOp.AND)
    return (*finite, BinaryOp.MAX, BinaryOp.MIN) if dtype.is_float else finite


def telling_values(dtype: DType) -> tuple[Any, ...]:
    """Returns numbers of the format at which implementations go wrong, as Python numbers."""
    if dtype.kind is Kind.WORD:
        return ((0, 0, 0, 0), (1, 2, 3, 4), (2**32 - 1, 0, 2**31, 0xDEADBEEF))
    if dtype.is_float:
        return _telling_floats(dtype)
    return _telling_integers(dtype)


def _telling_integers(dtype: DType) -> tuple[int, ...]:
    bits = 8 * dtype.nbytes
    is_signed = dtype.kind is Kind.SIGNED
    high = 2 ** (bits - is_signed) - 1
    half = 2 ** (bits // 2)
    chosen = (0, 1, 2, 3, 7, 10, 100, half, half + 1, high - 1, high)
    return (*chosen, -1, -2, -7, -100, -high, -high - 1) if is_signed else chosen


def _telling_floats(dtype: DType) -> tuple[float, ...]:
    limits: Any
    if dtype in (float16, float32, float64):
        limits = np.finfo(dtype.name)
    else:
        import ml_dtypes

        limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    positive = (0.0, 1.0, 2.0, 3.0, 0.5, 0.1, math.pi, 7.0, 12.5, 100.0, math.inf)
    edges = (float(limits.max), float(limits.smallest_normal), float(limits.smallest_subnormal))
    chosen = list(dict.fromkeys(round_to(value, dtype) for value in (*positive, *edges)))
    return (*chosen, -0.0, *(-v for v in chosen[1:]), math.nan)
