"""Application of primitives to operands of several number formats.

- Operands are converted to the target's number format where it holds their numbers, otherwise to
  their promoted format. Comparisons and logical primitives always work in that; the condition of
  `where` keeps its format; words are never converted.
"""

from __future__ import annotations

from math import isinf
from typing import Protocol, assert_never

from ocannl_core.base import settings
from ocannl_core.base.errors import LoweringError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.nodes import Binary, Expr, Ternary, Unary
from ocannl_core.ir.numbers.dtypes import SHORT_RANGE, DType, constant_limit, promote, uint4x32
from ocannl_core.ir.numbers.primitives import (
    COMPARISONS,
    HASHES,
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    working_format,
)


class ErrorFactory(Protocol):
    """A function that returns an error about the current assignment."""

    def __call__(self, rule: str, found: str = "", fix: str = "") -> LoweringError: ...


@dataclass(frozen=True, slots=True)
class Conversions:
    """The conversions of one assignment.

    Attributes:
        error: Returns an error about it.
    """

    error: ErrorFactory

    def apply(self, op: Op, args: list[Expr], dtype: DType) -> Expr:
        """Return a primitive applied to operands, as an expression of the target's format."""
        match op, args:
            case BinaryOp.FIRST, [first, _]:
                return self.convert(first, dtype)
            case BinaryOp.SECOND, [_, second]:
                return self.convert(second, dtype)
            case UnaryOp.IDENTITY, [arg]:
                return self.convert(arg, dtype)
            case UnaryOp.WORD, [arg]:
                self.must_be_word(dtype, op)
                self.must_be_number(arg.dtype, op)
                return Unary(UnaryOp.WORD, arg, dtype)
            case BinaryOp(), [key, counter] if op in HASHES:
                for each in (dtype, key.dtype, counter.dtype):
                    self.must_be_word(each, op)
                return Binary(op, key, counter, dtype)
            case UnaryOp.UNIFORM, [arg]:
                self.must_be_word(arg.dtype, op)
                self.must_be_number(dtype, op)
                return Unary(UnaryOp.UNIFORM, arg, dtype)
            case BinaryOp(), [left, right] if op in COMPARISONS:
                common = promote(left.dtype, right.dtype)
                self.must_be_number(dtype, op)
                return Binary(op, self.convert(left, common), self.convert(right, common), dtype)
            case ((BinaryOp.OR | BinaryOp.AND), [left, right]):
                common = promote(left.dtype, right.dtype)
                both = self.convert(left, common), self.convert(right, common)
                return self.convert(Binary(op, *both, common), dtype)
            case UnaryOp.NOT, [arg]:
                return self.convert(Unary(op, arg, arg.dtype), dtype)
            case TernaryOp.WHERE, [condition, first, second]:
                self.must_be_number(condition.dtype, op)
                first, second = self.convert(first, dtype), self.convert(second, dtype)
                return Ternary(op, condition, first, second, dtype)
        self.must_be_number(dtype, op)
        working = working_format(op, [arg.dtype for arg in args], (), dtype)
        value = self.computed(op, [self.convert(arg, working) for arg in args], working)
        return self.convert(value, dtype)

    def computed(self, op: Op, args: list[Expr], dtype: DType) -> Expr:
        """Return a primitive applied to operands in its working format."""
        match op:
            case UnaryOp():
                return Unary(op, args[0], dtype)
            case BinaryOp():
                return Binary(op, args[0], args[1], dtype)
            case TernaryOp():
                return Ternary(op, args[0], args[1], args[2], dtype)
            case _:
                assert_never(op)

    def convert(self, expr: Expr, dtype: DType) -> Expr:
        if expr.dtype is dtype:
            return expr
        if uint4x32 in (expr.dtype, dtype):
            raise self.error(
                "Numbers and random words do not convert into each other.",
                f"{expr.dtype} where {dtype} is needed",
                "use `uniform` to make a number of a word, and threefry4x32 to make words",
            )
        return Unary(UnaryOp.IDENTITY, expr, dtype)

    def must_be_word(self, dtype: DType, op: Op) -> None:
        if dtype is not uint4x32:
            raise self.error(
                f"The primitive {op.value.name} works on random words.",
                f"{dtype}",
                "oc.word(x) makes words of the bits of numbers, oc.random_words() random ones",
            )

    def must_be_number(self, dtype: DType, op: Op) -> None:
        if dtype is uint4x32:
            raise self.error(
                f"The primitive {op.value.name} works on numbers.",
                f"{dtype}",
                "oc.uniform_of(words) makes numbers of random words",
            )

    def check_magnitude(self, value: float, dtype: DType) -> None:
        """Refuse constants near or beyond the end of a narrow range."""
        if dtype not in SHORT_RANGE:
            return
        cutoff = settings.current().half_constant_cutoff
        limit = constant_limit(dtype, cutoff)
        if limit <= abs(value) and not (isinf(value) and dtype.has_infinities):
            raise self.error(
                f"A constant in {dtype} is less than {limit:g} in magnitude, far from the end of "
                "the format's range.",
                f"{value:g}",
                'compute with it in a wider format: dtype="bfloat16" or dtype="float32", where '
                "the tensor beside it is made"
                + ("; or raise the setting half_constant_cutoff" if limit == cutoff else ""),
            )
