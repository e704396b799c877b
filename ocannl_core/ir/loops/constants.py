"""Constants, index values and selections among constants, as expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from ocannl_core.ir.indexing import AxisIndex, StaticExtent, as_affine, variables
from ocannl_core.ir.loops.nodes import Binary, Const, ConstBits, Expr, IndexValue, Ternary, Unary
from ocannl_core.ir.numbers.dtypes import DType, int32, int64, round_to, uint4x32, uint64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp


def constant(value: float, dtype: DType) -> Expr:
    """Return the constant nearest to a number; large integers are bit patterns."""
    number = round_to(value, dtype)
    if dtype.is_integer and abs(number) > 2**53:
        return ConstBits(number & (2**64 - 1), dtype)
    return Const(number, dtype)


def index_value(index: AxisIndex, dtype: DType) -> Expr:
    """Return the value of an index as a number or a word."""
    if dtype is uint4x32:
        return Unary(UnaryOp.WORD, IndexValue(index, uint64), dtype)
    return IndexValue(index, dtype)


def select_constant(constants: list[Expr], offset: AxisIndex) -> Expr:
    """Return the constant whose position is the offset modulo their number."""
    position = Binary(BinaryOp.MOD, IndexValue(offset, int64), Const(len(constants), int64), int64)
    value = constants[-1]
    for place, each in reversed(list(enumerate(constants[:-1]))):
        here = Binary(BinaryOp.EQ, position, Const(place, int64), int64)
        value = Ternary(TernaryOp.WHERE, here, each, value, each.dtype)
    return value


def index_product(factors: Sequence[AxisIndex]) -> Expr:
    """Return the product of indices, as an integer that holds it for all values of extents."""
    extents = (var for index in factors for var in variables(index))
    most = prod(var.maximum for var in extents if isinstance(var, StaticExtent))
    most *= prod(coefficient for index in factors for coefficient, _ in as_affine(index)[0])
    dtype = int32 if most < 2**31 else int64
    values: list[Expr] = [IndexValue(index, dtype) for index in factors]
    return reduce(lambda left, right: Binary(BinaryOp.MUL, left, right, dtype), values)
