"""Values in a number format: constants, indices, and primitives of operands of several formats.

- Operands are converted to the target's number format where it holds their numbers, otherwise to
  their promoted format. Comparisons and logical primitives always work in that; the condition of
  `where` keeps its format; words are never converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import isinf, prod
from typing import Protocol, assert_never

from ocannl_core.base import settings
from ocannl_core.base.errors import LoweringError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, StaticExtent, as_affine, variables
from ocannl_core.ir.loops.nodes import Binary, Const, ConstBits, Expr, IndexValue, Ternary, Unary
from ocannl_core.ir.numbers import dtypes, primitives


class ErrorFactory(Protocol):
    """A function that returns an error about the current assignment."""

    def __call__(self, rule: str, found: str = "", fix: str = "") -> LoweringError: ...


@dataclass(frozen=True, slots=True)
class Conversions:
    """The conversions of one assignment."""

    error: ErrorFactory

    def apply(self, op: primitives.Op, args: list[Expr], dtype: dtypes.DType) -> Expr:
        """Return a primitive applied to operands, as an expression of the target's format."""
        match op, args:
            case primitives.BinaryOp.FIRST, [first, _]:
                return self.convert(first, dtype)
            case primitives.BinaryOp.SECOND, [_, second]:
                return self.convert(second, dtype)
            case primitives.UnaryOp.IDENTITY, [arg]:
                return self.convert(arg, dtype)
            case primitives.UnaryOp.WORD, [arg]:
                self.must_be_word(dtype, op)
                self.must_be_number(arg.dtype, op)
                return Unary(primitives.UnaryOp.WORD, arg, dtype)
            case primitives.BinaryOp(), [key, counter] if op in primitives.HASHES:
                for each in (dtype, key.dtype, counter.dtype):
                    self.must_be_word(each, op)
                return Binary(op, key, counter, dtype)
            case primitives.UnaryOp.UNIFORM, [arg]:
                self.must_be_word(arg.dtype, op)
                self.must_be_number(dtype, op)
                return Unary(primitives.UnaryOp.UNIFORM, arg, dtype)
            case primitives.UnaryOp.BITCAST, [arg]:
                self.must_be_number(arg.dtype, op)
                if arg.dtype.bits != dtype.bits:
                    raise self.error(
                        "A bitcast is between formats of the same width.",
                        f"{arg.dtype} and {dtype}",
                        'state the format of the operand where it is made: dtype="float32"',
                    )
                return arg if arg.dtype is dtype else Unary(op, arg, dtype)
            case primitives.BinaryOp(), [left, right] if op in primitives.COMPARISONS:
                common = dtypes.promote(left.dtype, right.dtype)
                self.must_be_number(dtype, op)
                return Binary(op, self.convert(left, common), self.convert(right, common), dtype)
            case ((primitives.BinaryOp.OR | primitives.BinaryOp.AND), [left, right]):
                common = dtypes.promote(left.dtype, right.dtype)
                both = self.convert(left, common), self.convert(right, common)
                return self.convert(Binary(op, *both, common), dtype)
            case primitives.UnaryOp.NOT, [arg]:
                return self.convert(Unary(op, arg, arg.dtype), dtype)
            case primitives.TernaryOp.WHERE, [condition, first, second]:
                self.must_be_number(condition.dtype, op)
                first, second = self.convert(first, dtype), self.convert(second, dtype)
                return Ternary(op, condition, first, second, dtype)
        self.must_be_number(dtype, op)
        working = primitives.working_format(op, [arg.dtype for arg in args], (), dtype)
        value = self.computed(op, [self.convert(arg, working) for arg in args], working)
        return self.convert(value, dtype)

    def computed(self, op: primitives.Op, args: list[Expr], dtype: dtypes.DType) -> Expr:
        """Return a primitive applied to operands in its working format."""
        match op:
            case primitives.UnaryOp():
                return Unary(op, args[0], dtype)
            case primitives.BinaryOp():
                return Binary(op, args[0], args[1], dtype)
            case primitives.TernaryOp():
                return Ternary(op, args[0], args[1], args[2], dtype)
            case _:
                assert_never(op)

    def convert(self, expr: Expr, dtype: dtypes.DType) -> Expr:
        if expr.dtype is dtype:
            return expr
        if dtypes.uint4x32 in (expr.dtype, dtype):
            raise self.error(
                "Numbers and random words do not convert into each other.",
                f"{expr.dtype} where {dtype} is needed",
                "use `uniform` to make a number of a word, and threefry4x32 to make words",
            )
        return Unary(primitives.UnaryOp.IDENTITY, expr, dtype)

    def must_be_word(self, dtype: dtypes.DType, op: primitives.Op) -> None:
        if dtype is not dtypes.uint4x32:
            raise self.error(
                f"The primitive {op.value.name} works on random words.",
                f"{dtype}",
                "oc.random.word(x) makes words of the bits of numbers, oc.random.words() random "
                "ones",
            )

    def must_be_number(self, dtype: dtypes.DType, op: primitives.Op) -> None:
        if dtype is dtypes.uint4x32:
            raise self.error(
                f"The primitive {op.value.name} works on numbers.",
                f"{dtype}",
                "oc.random.uniform_of(words) makes numbers of random words",
            )

    def check_magnitude(self, value: float, dtype: dtypes.DType) -> None:
        """Refuse constants near or beyond the end of a narrow range."""
        if dtype not in dtypes.SHORT_RANGE:
            return
        cutoff = settings.current().half_constant_cutoff
        limit = dtypes.constant_limit(dtype, cutoff)
        if limit <= abs(value) and not (isinf(value) and dtype.has_infinities):
            raise self.error(
                f"A constant in {dtype} is less than {limit:g} in magnitude, far from the end of "
                "the format's range.",
                f"{value:g}",
                'compute with it in a wider format: dtype="bfloat16" or dtype="float32", where '
                "the tensor beside it is made"
                + ("; or raise the setting half_constant_cutoff" if limit == cutoff else ""),
            )


def as_format(expr: Expr, dtype: dtypes.DType) -> Expr:
    """Return an expression in a number format."""
    return expr if expr.dtype is dtype else Unary(primitives.UnaryOp.IDENTITY, expr, dtype)


def unconverted(expr: Expr) -> Expr:
    """Return an expression without the conversions around it."""
    while isinstance(expr, Unary) and expr.op is primitives.UnaryOp.IDENTITY:
        expr = expr.arg
    return expr


def unwidened(expr: Expr) -> Expr:
    """Return a narrow float, or a byte, before it is widened to a format of the same kind of
    numbers; other expressions as they are.
    """
    match expr:
        case Unary(primitives.UnaryOp.IDENTITY, arg) if arg.dtype.is_narrow:
            return arg
        case Unary(primitives.UnaryOp.IDENTITY, arg, dtypes.int32) if arg.dtype in (
            dtypes.int8,
            dtypes.uint8,
        ):
            return arg
        case _:
            return expr


def constant(value: float, dtype: dtypes.DType) -> Expr:
    """Return the constant nearest to a number; large integers are bit patterns."""
    number = dtypes.round_to(value, dtype)
    if dtype.is_integer and abs(number) > 2**53:
        return ConstBits(number & (2**64 - 1), dtype)
    return Const(number, dtype)


def index_value(index: AxisIndex, dtype: dtypes.DType) -> Expr:
    """Return the value of an index as a number or a word."""
    if dtype is dtypes.uint4x32:
        return Unary(primitives.UnaryOp.WORD, IndexValue(index, dtypes.uint64), dtype)
    return IndexValue(index, dtype)


def select_constant(constants: list[Expr], offset: AxisIndex) -> Expr:
    """Return the constant whose position is the offset modulo their number."""
    position = Binary(
        primitives.BinaryOp.MOD,
        IndexValue(offset, dtypes.int64),
        Const(len(constants), dtypes.int64),
        dtypes.int64,
    )
    value = constants[-1]
    for place, each in reversed(list(enumerate(constants[:-1]))):
        here = Binary(primitives.BinaryOp.EQ, position, Const(place, dtypes.int64), dtypes.int64)
        value = Ternary(primitives.TernaryOp.WHERE, here, each, value, each.dtype)
    return value


def index_product(factors: Sequence[AxisIndex]) -> Expr:
    """Return the product of indices, as an integer that holds it for all values of extents."""
    extents = (var for index in factors for var in variables(index))
    most = prod(var.maximum for var in extents if isinstance(var, StaticExtent))
    most *= prod(coefficient for index in factors for coefficient, _ in as_affine(index)[0])
    dtype = dtypes.int32 if most < 2**31 else dtypes.int64
    values: list[Expr] = [IndexValue(index, dtype) for index in factors]
    return reduce(lambda left, right: Binary(primitives.BinaryOp.MUL, left, right, dtype), values)
