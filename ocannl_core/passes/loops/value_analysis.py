"""Value analysis of expressions: constants, ranges, signs, and differences."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import conversions
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, index_range, subtract
from ocannl_core.ir.numbers.dtypes import DType, Kind, Number, extremes, round_to, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp

_MASK = 0xFFFFFFFF
_DEPTH = 4
"""The depth to which the analysis descends; most facts are visible at the root."""


def value_of(expr: ir.Expr) -> Number:
    """Return the number or word that a constant denotes in its format; None for others."""
    match expr:
        case ir.Const(value, dtype):
            return round_to(value, dtype)
        case ir.ConstBits(bits, dtype) if dtype is uint4x32:
            return (bits & _MASK, bits >> 32 & _MASK, 0, 0)
        case ir.ConstBits(bits, dtype):
            return round_to(bits, dtype)
        case _:
            return None


def constant(value: Number, dtype: DType) -> ir.Expr | None:
    """Return the constant that denotes a number or word; None if no constant does."""
    if dtype is uint4x32:
        low, high, *rest = value
        return None if any(rest) else ir.ConstBits(low | high << 32, dtype)
    return conversions.constant(value, dtype)


def is_number(expr: ir.Expr, number: float) -> bool:
    """Return True if the expression is a constant of exactly this value; 0.0 is not -0.0."""
    value = value_of(expr)
    if value is None or isinstance(value, tuple) or value != number:
        return False
    return isinstance(value, int) or math.copysign(1.0, value) == math.copysign(1.0, number)


def is_leaf(expr: ir.Expr) -> bool:
    """Return True if computing the expression twice costs next to nothing."""
    return isinstance(expr, ir.Load | ir.LocalRead | ir.Const | ir.ConstBits | ir.IndexValue)


def is_truth_value(expr: ir.Expr) -> bool:
    """Return True if the expression is certainly 0 or 1, and no -0."""
    if expr.dtype.kind is Kind.BOOL:
        return True
    match expr:
        case ir.Unary(op) | ir.Binary(op):
            return bool(op.value.gives_truth)
        case _:
            return is_number(expr, 0.0) or is_number(expr, 1.0)


def is_never_negative_zero(expr: ir.Expr, depth: int = _DEPTH) -> bool:
    """Return True if the expression is certainly not -0.0."""
    if not expr.dtype.is_float:
        return True
    match expr:
        case ir.Const():
            return not is_number(expr, -0.0)
        case ir.IndexValue():
            return True
        case ir.Unary(UnaryOp.IDENTITY, arg):
            return arg.dtype.is_integer
        case ir.Unary(UnaryOp.UNIFORM):
            return is_finite_nonnegative(expr)
        case ir.Unary(op):
            return op.value.is_never_negative_zero
        case ir.Binary(BinaryOp.ADD, left, right) if depth:
            # a sum is -0.0 only if both terms are
            return any(is_never_negative_zero(each, depth - 1) for each in (left, right))
        case _:
            return is_truth_value(expr)


def is_finite_nonnegative(expr: ir.Expr) -> bool:
    """Return True if the expression is certainly finite, no NaN, not negative and not -0.0."""
    match expr:
        case ir.Const():
            value = value_of(expr)
            return bool(math.isfinite(value) and value >= 0 and not is_number(expr, -0.0))
        case ir.Unary(UnaryOp.UNIFORM, dtype=dtype):
            return dtype.is_float and dtype.nbytes > 1  # shorter floats are arbitrary bit patterns
        case _:
            return is_truth_value(expr)


def fits(reach: Range, dtype: DType) -> bool:
    """Return True if every integer of a range is representable in the format."""
    if dtype.is_float:
        limit = 1 << dtype.significand
        return -limit <= reach.low and reach.high <= limit
    if dtype.kind is Kind.WORD:
        return False
    least, greatest = extremes(dtype)
    return bool(least <= reach.low and reach.high <= greatest)


def is_finite(value: Number) -> bool:
    """Return True if a value is a number, neither infinite nor NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


def integer_range(expr: ir.Expr, ranges: Mapping[indexing.IndexVar, Range]) -> Range | None:
    """Return the range of an index value or an integer, if its format can represent all of it."""
    match expr:
        case ir.IndexValue(index, dtype) if not isinstance(
            index, indexing.ConcatIndex | indexing.ComputedIndex
        ):
            reach = index_range(index, ranges)
            return reach if reach is not None and fits(reach, dtype) else None
        case ir.Const():
            value = value_of(expr)
            if not is_finite(value) or abs(value) > 2**53:
                return None
            return Range(int(value), int(value)) if value == int(value) else None
        case _:
            return None


def index_of(expr: ir.Expr) -> indexing.AxisIndex:
    """Return an index of the same value as an index value or an integer."""
    return (
        expr.index if isinstance(expr, ir.IndexValue) else indexing.FixedIndex(int(value_of(expr)))
    )


@dataclass(frozen=True, slots=True)
class PositionDifference:
    """The difference of two positions, as an index, and its range."""

    index: indexing.AxisIndex
    reach: Range

    def compare(self, op: BinaryOp) -> bool | None:
        """Return the result of comparing the positions; None if it varies or is unknown."""
        low, high = self.reach.low, self.reach.high
        match op:
            case BinaryOp.LT:
                return True if high < 0 else False if low >= 0 else None
            case BinaryOp.LE:
                return True if high <= 0 else False if low > 0 else None
            case _:
                if low == high == 0:
                    return op is BinaryOp.EQ
                return op is BinaryOp.NE if low > 0 or high < 0 or self._skips_zero() else None

    def _skips_zero(self) -> bool:
        """Return True for 2*i + 1, for example."""
        terms, offset = indexing.as_affine(self.index)
        step = math.gcd(*(coefficient for coefficient, _ in terms))
        return step > 0 and offset % step != 0


def difference(
    left: ir.Expr, right: ir.Expr, ranges: Mapping[indexing.IndexVar, Range]
) -> PositionDifference | None:
    """Return the difference of two positions; None for other values.

    i + 2, 5   -->   i - 3
    """
    if integer_range(left, ranges) is None or integer_range(right, ranges) is None:
        return None
    apart = subtract(index_of(left), index_of(right))
    reach = index_range(apart, ranges)
    return None if reach is None else PositionDifference(apart, reach)
