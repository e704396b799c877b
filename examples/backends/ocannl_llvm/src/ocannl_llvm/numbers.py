"""Primitives, conversions and words of 128 bits as LLVM IR.

A number is held in the type of its format; floats of 16 bits are held in float32, to which they
are rounded after each operation.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from ocannl_core.backend_api import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint4x32,
    uint32,
)
from ocannl_core.backend_api.arithmetic import BinaryOp, Kind, TernaryOp, UnaryOp

WORD = ir.VectorType(ir.IntType(32), 4)
SINGLE, DOUBLE = ir.FloatType(), ir.DoubleType()
_OPS = {op.value.name: op for op in (*UnaryOp, *BinaryOp, *TernaryOp)}
_INTRINSICS = {"sqrt", "floor", "ceil", "trunc", "rint", "fabs", "fma"}
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
_COMPARISONS = {BinaryOp.LT: "<", BinaryOp.LE: "<=", BinaryOp.EQ: "==", BinaryOp.NE: "!="}
_SUMS = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul"}
_TRUTHS = {
    BinaryOp.OR: "or_",
    BinaryOp.AND: "and_",
    BinaryOp.BIT_OR: "or_",
    BinaryOp.BIT_AND: "and_",
    BinaryOp.BIT_XOR: "xor",
}


def stored_type(dtype: DType) -> ir.Type:
    """Return the type of a cell in memory."""
    if dtype is uint4x32:
        return WORD
    known = {float16: ir.HalfType(), float32: SINGLE, float64: DOUBLE}
    return known.get(dtype) or ir.IntType(max(8 * dtype.nbytes, 8))


def held_type(dtype: DType) -> ir.Type:
    """Return the type of a number in a register."""
    return SINGLE if dtype.is_narrow else stored_type(dtype)


class Numbers:
    """Emits expressions of numbers at the position of a builder."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    def unpack(self, cell: Any, dtype: DType) -> Any:
        """Return the number of a cell."""
        if dtype is float16:
            return self.b.fpext(cell, SINGLE)
        if dtype is bfloat16:
            bits = self.b.shl(self.b.zext(cell, ir.IntType(32)), ir.IntType(32)(16))
            return self.b.bitcast(bits, SINGLE)
        return cell

    def pack(self, number: Any, dtype: DType) -> Any:
        """Return the cell of a number of the format."""
        if dtype is float16:
            return self.b.fptrunc(number, ir.HalfType())
        if dtype is bfloat16:
            bits = self.b.bitcast(number, ir.IntType(32))
            odd = self.b.and_(self.b.lshr(bits, bits.type(16)), bits.type(1))
            up = self.b.add(self.b.add(bits, bits.type(0x7FFF)), odd)
            nan = self.b.or_(bits, bits.type(0x400000))
            chosen = self.b.select(self.b.fcmp_unordered("uno", number, number), nan, up)
            return self.b.trunc(self.b.lshr(chosen, bits.type(16)), ir.IntType(16))
        return number

    def rounded(self, number: Any, dtype: DType) -> Any:
        """Return a number of the held type as one of the format."""
        if dtype.is_narrow:
            return self.unpack(self.pack(number, dtype), dtype)
        if dtype.kind is Kind.BOOL:
            return self.truth(self.is_true(number, dtype), dtype)
        return number

    def convert(self, number: Any, source: DType, dtype: DType) -> Any:
        """Return a number of one format in another one."""
        if source is dtype:
            return number
        if dtype.kind is Kind.BOOL:
            return self.truth(self.is_true(number, source), dtype)
        held = held_type(dtype)
        if dtype.is_float:
            if source.is_float:
                widens = held is DOUBLE and number.type is SINGLE
                same = held is number.type
                cast = self.b.fpext if widens else self.b.fptrunc
                return self.rounded(number if same else cast(number, held), dtype)
            cast = self.b.sitofp if source.kind is Kind.SIGNED else self.b.uitofp
            return self.rounded(cast(number, held), dtype)
        if source.is_float:
            number, source = self._whole(self.convert(number, source, float64)), int64
        if held.width < number.type.width:
            return self.b.trunc(number, held)
        return (self.b.sext if source.kind is Kind.SIGNED else self.b.zext)(number, held)

    def _whole(self, number: Any) -> Any:
        """Return a double without its fraction, modulo 2**64; 0 if it is not finite."""
        size = self.call("fabs", number)
        finite = self.b.select(self.b.fcmp_ordered("<", size, DOUBLE(math.inf)), size, DOUBLE(0.0))
        bits = self.b.fptoui(self.b.frem(finite, DOUBLE(2.0**64)), ir.IntType(64))
        return self.b.select(self._less(number, DOUBLE(0.0), float64), self.b.neg(bits), bits)

    def is_true(self, number: Any, dtype: DType) -> Any:
        return self._compare("!=", number, self.constant(0, dtype), dtype)

    def truth(self, condition: Any, dtype: DType) -> Any:
        """Return 1 or 0."""
        return self.b.select(condition, self.constant(1, dtype), self.constant(0, dtype))

    def constant(self, value: float, dtype: DType) -> Any:
        return held_type(dtype)(float(value) if dtype.is_float else int(value))

    def _compare(self, symbol: str, a: Any, b: Any, dtype: DType) -> Any:
        if dtype.is_float:
            compare = self.b.fcmp_unordered if symbol == "!=" else self.b.fcmp_ordered
            return compare(symbol, a, b)
        is_signed = dtype.kind is Kind.SIGNED
        return (self.b.icmp_signed if is_signed else self.b.icmp_unsigned)(symbol, a, b)

    def _less(self, a: Any, b: Any, dtype: DType) -> Any:
        return self._compare("<", a, b, dtype)

    def apply(self, op: Any, operands: list[Any], operand: DType, dtype: DType) -> Any:
        """Return the result of a primitive of numbers in a format."""
        if op in (BinaryOp.FIRST, BinaryOp.SECOND):
            return operands[op is BinaryOp.SECOND]
        if op in _COMPARISONS:
            return self.truth(self._compare(_COMPARISONS[op], *operands, operand), dtype)
        if dtype is uint4x32:
            return self.threefry(*operands, 12 if "12" in op.value.name else 20)
        return self.rounded(self._raw(op, operands, dtype), dtype)

    def _raw(self, op: Any, operands: list[Any], dtype: DType) -> Any:
        """Return the result before rounding."""
        b, row = self.b, op.value
        zero, first, second = self.constant(0, dtype), operands[0], operands[-1]
        match op:
            case TernaryOp.WHERE:
                return b.select(self.is_true(first, dtype), operands[1], second)
            case UnaryOp.RELU:
                return b.select(self._less(first, zero, dtype), zero, first)
            case UnaryOp.NOT:
                return self.truth(b.not_(self.is_true(first, dtype)), dtype)
            case UnaryOp.NEG:
                return b.fneg(first) if dtype.is_float else b.neg(first)
            case BinaryOp.MAX | BinaryOp.MIN:
                sign = ">=" if op is BinaryOp.MAX else "<="
                chosen = self._compare(sign, first, second, dtype)
                if dtype.is_float:
                    chosen = b.or_(chosen, b.fcmp_unordered("uno", first, first))
                return b.select(chosen, first, second)
            case BinaryOp.OR | BinaryOp.AND:
                return self._truths(op, operands, dtype)
        if op in _COMPARISONS:
            return self.truth(self._compare(_COMPARISONS[op], first, second, dtype), dtype)
        if op in _SUMS:
            return getattr(b, "f" * dtype.is_float + _SUMS[op])(first, second)
        if not dtype.is_float:
            return self._integers(op, operands, dtype)
        match op:
            case UnaryOp.BIT_NOT:
                return self._raw(UnaryOp.NOT, operands, dtype)
            case BinaryOp.BIT_OR | BinaryOp.BIT_AND | BinaryOp.BIT_XOR:
                return self._truths(op, operands, dtype)
            case BinaryOp.DIV:
                return b.fdiv(first, second)
            case BinaryOp.MOD:
                rest = b.frem(first, second)
                whole = b.select(self._other_sign(rest, second, dtype), b.fadd(rest, second), rest)
                nothing = self.call("copysign", zero, second)
                return b.select(b.fcmp_ordered("==", rest, zero), nothing, whole)
            case BinaryOp.FLOOR_DIV:
                given = [self.convert(each, dtype, float64) for each in operands]
                result = self._floor_div(*given)
                return result if held_type(dtype) is DOUBLE else b.fptrunc(result, SINGLE)
        if row.function:
            return self.call(row.function, *operands)
        return self._expanded(row.expansion, dict(zip("abc", operands, strict=False)), dtype)

    def _expanded(self, term: Any, operands: dict[str, Any], dtype: DType) -> Any:
        match term:
            case str():
                return operands[term]
            case tuple():
                name, *parts = term
                given = [self._expanded(each, operands, dtype) for each in parts]
                return self._raw(_OPS[name], given, dtype)
            case _:
                return self.constant(term, dtype)

    def _truths(self, op: Any, operands: list[Any], dtype: DType) -> Any:
        conditions = [self.is_true(each, dtype) for each in operands]
        return self.truth(getattr(self.b, _TRUTHS[op])(*conditions), dtype)

    def _other_sign(self, rest: Any, divisor: Any, dtype: DType) -> Any:
        """Return True if a remainder is not 0 and has another sign than the divisor."""
        zero = self.constant(0, dtype)
        signs = (self._less(each, zero, dtype) for each in (rest, divisor))
        return self.b.and_(self._compare("!=", rest, zero, dtype), self.b.xor(*signs))

    def _floor_div(self, a: Any, divisor: Any) -> Any:
        """Return the quotient of two doubles as Python does."""
        b, zero, one = self.b, DOUBLE(0.0), DOUBLE(1.0)
        rest, quotient = b.frem(a, divisor), b.fdiv(a, divisor)
        turns = b.fdiv(b.fsub(a, rest), divisor)
        below = self._other_sign(rest, divisor, float64)
        turns = b.fsub(turns, b.select(below, one, zero))
        down = self.call("floor", turns)
        far = b.fcmp_ordered(">", b.fsub(turns, down), DOUBLE(0.5))
        down = b.select(far, b.fadd(down, one), down)
        none = self.call("copysign", zero, quotient)
        down = b.select(b.fcmp_ordered("==", turns, zero), none, down)
        return b.select(b.fcmp_ordered("==", divisor, zero), quotient, down)

    def _integers(self, op: Any, operands: list[Any], dtype: DType) -> Any:
        b, is_signed = self.b, dtype.kind is Kind.SIGNED
        zero, one = self.constant(0, dtype), self.constant(1, dtype)
        first, second = operands[0], operands[-1]
        match op:
            case UnaryOp.BIT_NOT if dtype.kind is Kind.BOOL:
                return self._raw(UnaryOp.NOT, operands, dtype)
            case UnaryOp.BIT_NOT:
                return b.not_(first)
            case BinaryOp.BIT_OR | BinaryOp.BIT_AND | BinaryOp.BIT_XOR:
                return getattr(b, _TRUTHS[op])(first, second)
            case UnaryOp.TRUNC | UnaryOp.FLOOR | UnaryOp.CEIL | UnaryOp.ROUND:
                return first
            case UnaryOp.ABS:
                return b.select(self._less(first, zero, dtype), b.neg(first), first)
            case TernaryOp.FMA:
                return b.add(b.mul(first, operands[1]), second)
            case BinaryOp.POW:
                return self._power(first, second, dtype)
            case BinaryOp.DIV | BinaryOp.MOD | BinaryOp.FLOOR_DIV:
                minus = b.and_(
                    b.icmp_signed("==", second, second.type(-1)), ir.IntType(1)(int(is_signed))
                )
                none = b.icmp_signed("==", second, zero)
                safe = b.select(b.or_(minus, none), one, second)
                rest = (b.srem if is_signed else b.urem)(first, safe)
                quotient = (b.sdiv if is_signed else b.udiv)(first, safe)
                below = self._other_sign(rest, second, dtype)
                if op is BinaryOp.MOD:
                    return b.select(below, b.add(rest, second), rest)
                if op is BinaryOp.FLOOR_DIV:
                    quotient = b.sub(quotient, b.select(below, one, zero))
                return b.select(none, zero, b.select(minus, b.neg(first), quotient))
        return self._expanded(op.value.expansion, dict(zip("abc", operands, strict=False)), dtype)

    def _power(self, base: Any, exponent: Any, dtype: DType) -> Any:
        b, zero, one = self.b, self.constant(0, dtype), self.constant(1, dtype)
        power, factor = one, base
        for bit in range(1 if dtype.kind is Kind.BOOL else base.type.width):
            is_set = b.trunc(b.lshr(exponent, base.type(bit)), ir.IntType(1))
            power = b.select(is_set, b.mul(power, factor), power)
            factor = b.mul(factor, factor)
        if dtype.kind is not Kind.SIGNED:
            return power
        is_odd = b.trunc(exponent, ir.IntType(1))
        minus = base.type(-1)
        reciprocal = b.select(b.icmp_signed("==", base, one), one, zero)
        reciprocal = b.select(
            b.icmp_signed("==", base, minus), b.select(is_odd, minus, one), reciprocal
        )
        return b.select(self._less(exponent, zero, dtype), reciprocal, power)

    def call(self, name: str, *operands: Any) -> Any:
        """Return the result of an intrinsic or a function of the C library."""
        kind = operands[0].type
        if name in _INTRINSICS or name == "copysign":
            function = self.b.module.declare_intrinsic(
                f"llvm.{name}", [kind], ir.FunctionType(kind, [kind] * len(operands))
            )
        else:
            symbol = name if kind is DOUBLE else f"{name}f"
            function = self.b.module.globals.get(symbol) or ir.Function(
                self.b.module, ir.FunctionType(kind, [kind] * len(operands)), symbol
            )
        return self.b.call(function, operands)

    def word(self, number: Any, dtype: DType) -> Any:
        """Return a number as a word."""
        b, wide, lane = self.b, ir.IntType(64), ir.IntType(32)
        if dtype is uint4x32:
            return number
        if dtype.is_float:  # all NaN have one pattern
            nan = b.fcmp_unordered("uno", number, number)
            number = b.select(nan, number.type(math.nan), number)
            cell = self.pack(number, dtype)
            number = b.bitcast(cell, ir.IntType(8 * dtype.nbytes))
        if dtype in (int32, uint32):
            turned = b.or_(b.shl(number, lane(16)), b.lshr(number, lane(16)))
            others = (lane(0x9E3779B9), lane(0x6C078965), turned)
            return self._lanes([number, *(b.xor(number, each) for each in others)])
        bits = number if number.type == wide else b.zext(number, wide)
        high = b.trunc(b.lshr(bits, wide(32)), lane)
        return self._lanes([b.trunc(bits, lane), high, lane(0), lane(0)])

    def uniform(self, word: Any, dtype: DType, at: int) -> Any:
        """Return the number of a format at a position in a word."""
        b, bits = self.b, 8 * dtype.nbytes
        if dtype is uint4x32:
            return word
        kind = ir.IntType(bits)
        part = b.extract_element(
            b.bitcast(word, ir.VectorType(kind, 128 // bits)), ir.IntType(32)(at)
        )
        if dtype.kind is Kind.BOOL:
            return b.and_(part, kind(1))
        if not dtype.is_float:
            return part
        kept = bits if dtype is float64 else min(bits, 24)
        part = b.lshr(part, kind(bits - kept))
        held = held_type(dtype)
        return self.rounded(b.fmul(b.uitofp(part, held), held(2.0**-kept)), dtype)

    def threefry(self, key: Any, counter: Any, rounds: int) -> Any:
        """Return the hash of a word under a key."""
        b, lane = self.b, ir.IntType(32)
        keys = [b.extract_element(key, lane(k)) for k in range(4)]
        keys.append(
            b.xor(b.xor(b.xor(keys[0], keys[1]), b.xor(keys[2], keys[3])), lane(0x1BD11BDA))
        )
        x = [b.add(b.extract_element(counter, lane(k)), keys[k]) for k in range(4)]

        def turned(value: Any, left: int) -> Any:
            return b.or_(b.shl(value, lane(left)), b.lshr(value, lane(32 - left)))

        for number in range(rounds):
            left, right = _ROTATIONS[number % 8]
            a, c = b.add(x[0], x[1]), b.add(x[2], x[3])
            x = [a, b.xor(turned(x[3], right), c), c, b.xor(turned(x[1], left), a)]
            if number % 4 == 3:
                group = number // 4 + 1
                x = [b.add(each, keys[(group + k) % 5]) for k, each in enumerate(x)]
                x[3] = b.add(x[3], lane(group))
        return self._lanes(x)

    def _lanes(self, lanes: list[Any]) -> Any:
        word = WORD(ir.Undefined)
        for at, each in enumerate(lanes):
            word = self.b.insert_element(word, each, ir.IntType(32)(at))
        return word
