"""Primitives, conversions and words as instructions.

A number is in a register of the type of its format; floats of less than 32 bits are in `SINGLE`,
and rounded to their format after each operation. A word is a tuple of four `I32`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ocannl_core.codegen.instructions.builder import InstructionBuilder, MachineType, Value
from ocannl_core.codegen.instructions.floats import FloatLayout
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.expansions import expand
from ocannl_core.ir.numbers.primitives import HASHES, BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.ir.numbers.threefry import ROTATIONS, word_of

_I8, _I32, _I64 = MachineType.I8, MachineType.I32, MachineType.I64
_SINGLE, _DOUBLE = MachineType.SINGLE, MachineType.DOUBLE
_INTEGERS = {kind.bits: kind for kind in (_I8, MachineType.I16, _I32, _I64)}
_PREDICATES: Mapping[Op, str] = {
    BinaryOp.LT: "lt",
    BinaryOp.LE: "le",
    BinaryOp.EQ: "eq",
    BinaryOp.NE: "ne",
}
_ARITHMETIC: Mapping[Op, str] = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul"}
_BITWISE: Mapping[Op, str] = {
    BinaryOp.OR: "or",
    BinaryOp.AND: "and",
    BinaryOp.BIT_OR: "or",
    BinaryOp.BIT_AND: "and",
    BinaryOp.BIT_XOR: "xor",
}


@cache
def stored_type(dtype: dtypes.DType) -> MachineType:
    """Return the type of a cell in memory; a word is four of them."""
    if dtype is dtypes.uint4x32:
        return _I32
    floats = {dtypes.float32: _SINGLE, dtypes.float64: _DOUBLE}
    return floats.get(dtype) or _INTEGERS[8 * dtype.nbytes]


@cache
def held_type(dtype: dtypes.DType) -> MachineType:
    """Return the type of a number in a register; a word is four of them."""
    return _SINGLE if dtype.is_narrow else stored_type(dtype)


def parts(value: Value, dtype: dtypes.DType) -> list[Value]:
    """Return the registers of a number."""
    return list(value) if dtype is dtypes.uint4x32 else [value]


def joined(values: Any, dtype: dtypes.DType) -> Value:
    """Return the number in registers."""
    return tuple(values) if dtype is dtypes.uint4x32 else values[0]


class Numbers:
    """Appends the operations on numbers to a kernel."""

    def __init__(self, builder: InstructionBuilder) -> None:
        self.b = builder

    def load(self, array: Value, index: Value, dtype: dtypes.DType) -> Value:
        """Return the number in a cell of an array."""
        b = self.b
        if dtype is dtypes.uint4x32:
            return tuple(b.load(array, each, _I32) for each in self._lanes_at(index))
        if dtype.is_packed:  # two cells in a byte, the first one in its low half
            both = b.load(array, b.binary("lshr", index, self.integer(1, _I64)), _I8)
            odd = b.binary("and", index, self.integer(1, _I64))
            shift = b.cast("trunc", b.binary("shl", odd, self.integer(2, _I64)), _I8)
            high = b.binary("shl", b.binary("lshr", both, shift), self.integer(4, _I8))
            down = "ashr" if dtype.kind is dtypes.Kind.SIGNED else "lshr"
            return b.binary(down, high, self.integer(4, _I8))
        if dtype is dtypes.float16 and b.has_half:
            return b.cast("fpext", b.load(array, index, MachineType.HALF), _SINGLE)
        return self.unpack(b.load(array, index, stored_type(dtype)), dtype)

    def store(self, array: Value, index: Value, number: Value, dtype: dtypes.DType) -> None:
        """Write a number into a cell of an array."""
        b = self.b
        if dtype is dtypes.uint4x32:
            for at, lane in zip(self._lanes_at(index), number, strict=True):
                b.store(array, at, _I32, lane)
        elif dtype is dtypes.float16 and b.has_half:
            half = b.cast("fptrunc", number, MachineType.HALF)
            b.store(array, index, MachineType.HALF, half)
        else:
            b.store(array, index, stored_type(dtype), self.pack(number, dtype))

    def _lanes_at(self, index: Value) -> list[Value]:
        first = self.b.binary("index_mul", index, self.integer(4, _I64))
        return [self.b.binary("index_add", first, self.integer(k, _I64)) for k in range(4)]

    def unpack(self, pattern: Value, dtype: dtypes.DType) -> Value:
        """Return the number of a cell's pattern."""
        if not dtype.is_narrow:
            return pattern
        return FloatLayout.of(dtype).decode(self.b, self.b.cast("zext", pattern, _I32))

    def pack(self, number: Value, dtype: dtypes.DType) -> Value:
        """Return the pattern of a number in a cell."""
        if not dtype.is_narrow:
            return number
        pattern = FloatLayout.of(dtype).encode(self.b, number)
        return self.b.cast("trunc", pattern, stored_type(dtype))

    def rounded(self, number: Value, dtype: dtypes.DType) -> Value:
        """Return a number in the register of a format as a number of the format."""
        if dtype is dtypes.float16 and self.b.has_half:
            half = self.b.cast("fptrunc", number, MachineType.HALF)
            return self.b.cast("fpext", half, _SINGLE)
        if dtype.is_narrow:
            layout = FloatLayout.of(dtype)
            return layout.decode(self.b, layout.encode(self.b, number))
        if dtype is dtypes.bool_:
            return self.truth(self.is_true(number, dtype), dtype)
        return number

    def convert(self, number: Value, source: dtypes.DType, dtype: dtypes.DType) -> Value:
        """Return a number of one format in another one."""
        b, held, before = self.b, held_type(dtype), held_type(source)
        if source is dtype:
            return number
        if dtype is dtypes.bool_:
            return self.truth(self.is_true(number, source), dtype)
        if dtype.is_float:
            if not source.is_float:
                signed = source.kind is dtypes.Kind.SIGNED
                number = b.cast("sitofp" if signed else "uitofp", number, held)
            elif held is not before:
                number = b.cast("fpext" if held is _DOUBLE else "fptrunc", number, held)
            return self.rounded(number, dtype)
        if source.is_float:
            number, source = self._whole(self.convert(number, source, dtypes.float64)), dtypes.int64
            before = _I64
        if held is before:
            return number
        if held.bits < before.bits:
            return b.cast("trunc", number, held)
        return b.cast("sext" if source.kind is dtypes.Kind.SIGNED else "zext", number, held)

    def _whole(self, number: Value) -> Value:
        """Return a double without its fraction, modulo 2**64; 0 if it is not finite."""
        b, zero = self.b, self.constant(0.0, dtypes.float64)
        size = b.function("fabs", _DOUBLE, [number])
        is_finite = b.compare("olt", size, self.constant(math.inf, dtypes.float64))
        size = b.binary(
            "frem", b.select(is_finite, size, zero), self.constant(2.0**64, dtypes.float64)
        )
        whole = b.cast("fptoui", size, _I64)
        return b.select(b.compare("olt", number, zero), self._negative(whole, _I64), whole)

    def _negative(self, number: Value, kind: MachineType) -> Value:
        return self.b.binary("sub", self.integer(0, kind), number)

    def is_true(self, number: Value, dtype: dtypes.DType) -> Value:
        """Return the bit that a number is not 0."""
        return self._compare("ne", number, self.constant(0, dtype), dtype)

    def truth(self, condition: Value, dtype: dtypes.DType) -> Value:
        """Return 1 or 0."""
        return self.b.select(condition, self.constant(1, dtype), self.constant(0, dtype))

    def integer(self, number: int, kind: MachineType) -> Value:
        """Return an integer modulo the range of a type."""
        half = 1 << (kind.bits - 1)
        return self.b.constant(kind, (number + half) % (2 * half) - half)

    def constant(self, number: Any, dtype: dtypes.DType) -> Value:
        """Return a number rounded to a format; an integer becomes a word for that one."""
        if dtype is dtypes.uint4x32:
            word = number if isinstance(number, tuple) else word_of(number)
            return tuple(self.integer(lane, _I32) for lane in word)
        number = dtypes.round_to(number, dtype)
        held = held_type(dtype)
        return self.b.constant(held, number) if dtype.is_float else self.integer(number, held)

    def _compare(self, predicate: str, a: Value, b: Value, dtype: dtypes.DType) -> Value:
        if dtype.is_float:
            prefix = "u" if predicate == "ne" else "o"
        elif predicate in ("eq", "ne"):
            prefix = ""
        else:
            prefix = "s" if dtype.kind is dtypes.Kind.SIGNED else "u"
        return self.b.compare(prefix + predicate, a, b)

    def apply(
        self, op: Op, operands: list[Value], operand: dtypes.DType, dtype: dtypes.DType
    ) -> Value:
        """Return the result of a primitive of numbers in a format."""
        if op in (BinaryOp.FIRST, BinaryOp.SECOND):
            return operands[op is BinaryOp.SECOND]
        if op in _PREDICATES:
            return self._comparison(op, operands, operand, dtype)
        if op in HASHES:
            key, counter = operands
            return self._threefry(key, counter, 12 if op is BinaryOp.THREEFRY4X32_12 else 20)
        return self.rounded(self._exact(op, operands, dtype), dtype)

    def _exact(self, op: Op, operands: list[Value], dtype: dtypes.DType) -> Value:
        """Return the result before it is rounded."""
        b, first, second = self.b, operands[0], operands[-1]
        match op:
            case TernaryOp.WHERE:
                return b.select(self.is_true(first, dtype), operands[1], second)
            case BinaryOp.MAX | BinaryOp.MIN:
                pair = (second, first) if op is BinaryOp.MAX else (first, second)
                chosen = self._compare("le", *pair, dtype)
                if dtype.is_float:
                    chosen = b.binary("or", chosen, b.compare("uno", first, first))
                return b.select(chosen, first, second)
            case UnaryOp.BIT_NOT if dtype.is_float or dtype is dtypes.bool_:
                return self._exact(UnaryOp.NOT, operands, dtype)
        if op in (BinaryOp.OR, BinaryOp.AND) or (op in _BITWISE and dtype.is_float):
            conditions = [self.is_true(each, dtype) for each in operands]
            return self.truth(b.binary(_BITWISE[op], *conditions), dtype)
        if op in _PREDICATES:
            return self._comparison(op, operands, dtype, dtype)
        if symbol := _ARITHMETIC.get(op) or _BITWISE.get(op):
            return b.binary("f" * dtype.is_float + symbol, first, second)
        found = (self._of_floats if dtype.is_float else self._of_integers)(op, operands, dtype)
        if found is not None:
            return found
        return expand(
            op,
            operands,
            lambda number: self.constant(number, dtype),
            lambda op, values: self._exact(op, values, dtype),
            lambda op, values: b.select(
                self._compare(_PREDICATES[op], values[0], values[1], dtype), values[2], values[3]
            ),
        )

    def _comparison(
        self, op: Op, operands: list[Value], operand: dtypes.DType, dtype: dtypes.DType
    ) -> Value:
        left, right = operands
        return self.truth(self._compare(_PREDICATES[op], left, right, operand), dtype)

    def _of_floats(self, op: Op, operands: list[Value], dtype: dtypes.DType) -> Value | None:
        b, held = self.b, held_type(dtype)
        zero, first, second = self.constant(0, dtype), operands[0], operands[-1]
        match op:
            case BinaryOp.DIV:
                return b.binary("fdiv", first, second)
            case BinaryOp.MOD:
                rest = b.binary("frem", first, second)
                turned = self._other_sign(rest, second, dtype)
                whole = b.select(turned, b.binary("fadd", rest, second), rest)
                nothing = b.function("copysign", held, [zero, second])
                return b.select(b.compare("oeq", rest, zero), nothing, whole)
            case BinaryOp.FLOOR_DIV:
                given = (self.convert(each, dtype, dtypes.float64) for each in operands)
                result = self._floor_div(*given)
                return result if held is _DOUBLE else b.cast("fptrunc", result, _SINGLE)
        name = op.value.function
        return b.function(name, held, operands) if name else None

    def _other_sign(self, rest: Value, divisor: Value, dtype: dtypes.DType) -> Value:
        """Return the bit that a remainder is not 0 and has another sign than the divisor."""
        zero = self.constant(0, dtype)
        signs = [self._compare("lt", each, zero, dtype) for each in (rest, divisor)]
        is_other = self.b.binary("xor", *signs)
        return self.b.binary("and", self._compare("ne", rest, zero, dtype), is_other)

    def _floor_div(self, a: Value, divisor: Value) -> Value:
        """Return the quotient of two doubles as Python does."""
        b = self.b
        zero, one, half = (self.constant(each, dtypes.float64) for each in (0.0, 1.0, 0.5))
        rest, quotient = b.binary("frem", a, divisor), b.binary("fdiv", a, divisor)
        turns = b.binary("fdiv", b.binary("fsub", a, rest), divisor)
        is_below = self._other_sign(rest, divisor, dtypes.float64)
        turns = b.binary("fsub", turns, b.select(is_below, one, zero))
        down = b.function("floor", _DOUBLE, [turns])
        is_far = b.compare("olt", half, b.binary("fsub", turns, down))
        down = b.select(is_far, b.binary("fadd", down, one), down)
        nothing = b.function("copysign", _DOUBLE, [zero, quotient])
        down = b.select(b.compare("oeq", turns, zero), nothing, down)
        return b.select(b.compare("oeq", divisor, zero), quotient, down)

    def _of_integers(self, op: Op, operands: list[Value], dtype: dtypes.DType) -> Value | None:
        b, held = self.b, held_type(dtype)
        zero, first, second = self.constant(0, dtype), operands[0], operands[-1]
        match op:
            case UnaryOp.BIT_NOT:
                return b.binary("xor", first, self.integer(-1, held))
            case UnaryOp.TRUNC | UnaryOp.FLOOR | UnaryOp.CEIL | UnaryOp.ROUND:
                return first
            case UnaryOp.ABS:
                is_less = self._compare("lt", first, zero, dtype)
                return b.select(is_less, self._negative(first, held), first)
            case BinaryOp.POW:
                return self._power(first, second, dtype)
            case BinaryOp.DIV | BinaryOp.MOD | BinaryOp.FLOOR_DIV:
                return self._quotient(op, first, second, dtype)
        return None

    def _quotient(self, op: BinaryOp, a: Value, divisor: Value, dtype: dtypes.DType) -> Value:
        """Return the quotient or the rest of two integers; 0, and the rest `a`, of a divisor 0."""
        b, held = self.b, held_type(dtype)
        zero, one = self.constant(0, dtype), self.constant(1, dtype)
        prefix = "s" if dtype.kind is dtypes.Kind.SIGNED else "u"
        is_none = b.compare("eq", divisor, zero)
        is_unsafe = is_none
        if prefix == "s":  # the quotient of the least integer and -1 traps
            is_minus = b.compare("eq", divisor, self.integer(-1, held))
            is_unsafe = b.binary("or", is_none, is_minus)
        safe = b.select(is_unsafe, one, divisor)
        rest = b.binary(f"{prefix}rem", a, safe)
        is_below = self._other_sign(rest, divisor, dtype)
        if op is BinaryOp.MOD:
            return b.select(is_below, b.binary("add", rest, divisor), rest)
        quotient = b.binary(f"{prefix}div", a, safe)
        if op is BinaryOp.FLOOR_DIV:
            quotient = b.binary("sub", quotient, b.select(is_below, one, zero))
        if prefix == "s":
            quotient = b.select(is_minus, self._negative(a, held), quotient)
        return b.select(is_none, zero, quotient)

    def _power(self, base: Value, exponent: Value, dtype: dtypes.DType) -> Value:
        b, held = self.b, held_type(dtype)
        zero, one, minus = (self.integer(each, held) for each in (0, 1, -1))
        power, factor = one, base
        for bit in range(dtype.bits):
            digit = b.binary("and", exponent, self.integer(1 << bit, held))
            is_set = b.compare("ne", digit, zero)
            power = b.select(is_set, b.binary("mul", power, factor), power)
            factor = b.binary("mul", factor, factor)
        if dtype.kind is not dtypes.Kind.SIGNED:
            return power
        is_odd = b.compare("ne", b.binary("and", exponent, one), zero)
        reciprocal = b.select(b.compare("eq", base, one), one, zero)
        reciprocal = b.select(
            b.compare("eq", base, minus), b.select(is_odd, minus, one), reciprocal
        )
        return b.select(self._compare("lt", exponent, zero, dtype), reciprocal, power)

    def _bits(self, number: Value, dtype: dtypes.DType) -> Value:
        """Return the bits of a number; all NaN have one pattern."""
        if not dtype.is_float:
            return number
        b, kind = self.b, _INTEGERS[8 * dtype.nbytes]
        pattern = self.pack(number, dtype)
        pattern = pattern if dtype.is_narrow else b.cast("bitcast", pattern, kind)
        nan = self.integer(dtypes.bits_of(math.nan, dtype), kind)
        return b.select(b.compare("uno", number, number), nan, pattern)

    def bitcast(self, number: Value, source: dtypes.DType, dtype: dtypes.DType) -> Value:
        """Reinterpret the bits of a number as a number of another format."""
        pattern = self._bits(number, source)
        if not dtype.is_float or dtype.is_narrow:
            return self.unpack(pattern, dtype)
        return self.b.cast("bitcast", pattern, stored_type(dtype))

    def word(self, number: Value, dtype: dtypes.DType) -> Value:
        """Return a number as a word."""
        b = self.b
        if dtype is dtypes.uint4x32:
            return number
        pattern, bits = self._bits(number, dtype), 8 * dtype.nbytes
        zero = self.integer(0, _I32)
        if dtype in (dtypes.int32, dtypes.uint32):
            spread = (self.integer(0x9E3779B9, _I32), self.integer(0x6C078965, _I32))
            turned = self._rotated(pattern, 16)
            return (pattern, *(b.binary("xor", pattern, each) for each in (*spread, turned)))
        if bits < 64:
            return (pattern if bits == 32 else b.cast("zext", pattern, _I32), zero, zero, zero)
        high = b.binary("lshr", pattern, self.integer(32, _I64))
        return (b.cast("trunc", pattern, _I32), b.cast("trunc", high, _I32), zero, zero)

    def uniform(self, word: Value, dtype: dtypes.DType, at: int = 0) -> Value:
        """Return the number of a format at a position in a word."""
        b, bits = self.b, 8 * dtype.nbytes
        if dtype is dtypes.uint4x32:
            return word
        if bits == 64:
            low, high = (b.cast("zext", each, _I64) for each in word[2 * at : 2 * at + 2])
            part = b.binary("or", low, b.binary("shl", high, self.integer(32, _I64)))
        else:
            lane, first = divmod(at * bits, 32)
            part = word[lane]
            if bits < 32:
                part = b.binary("lshr", part, self.integer(first, _I32)) if first else part
                part = b.cast("trunc", part, _INTEGERS[bits])
        if dtype is dtypes.bool_:
            return b.binary("and", part, self.integer(1, _I8))
        if not dtype.is_float or bits == 8:
            return self.unpack(part, dtype)
        kept = bits if dtype is dtypes.float64 else min(bits, 24)
        if kept < bits:
            part = b.binary("lshr", part, self.integer(bits - kept, _INTEGERS[bits]))
        held = held_type(dtype)
        scale = b.constant(held, 2.0**-kept)
        return self.rounded(b.binary("fmul", b.cast("uitofp", part, held), scale), dtype)

    def first_uniform(self, word: Value, dtype: dtypes.DType) -> Value:
        """Return the number of a format that a word is converted to."""
        source = dtypes.float32 if dtype is dtypes.bfloat16 else dtype
        return self.convert(self.uniform(word, source), source, dtype)

    def _rotated(self, value: Value, left: int) -> Value:
        b = self.b
        high = b.binary("shl", value, self.integer(left, _I32))
        return b.binary("or", high, b.binary("lshr", value, self.integer(32 - left, _I32)))

    def _threefry(self, key: Value, counter: Value, rounds: int) -> Value:
        """Return the hash of a word under a key."""
        b = self.b
        halves = b.binary("xor", key[0], key[1]), b.binary("xor", key[2], key[3])
        last = b.binary("xor", b.binary("xor", *halves), self.integer(0x1BD11BDA, _I32))
        keys = [*key, last]
        x = [b.binary("add", each, mine) for each, mine in zip(counter, key, strict=True)]
        for number in range(rounds):
            left, right = ROTATIONS[number % 8]
            first, third = b.binary("add", x[0], x[1]), b.binary("add", x[2], x[3])
            second = b.binary("xor", self._rotated(x[3], right), third)
            x = [first, second, third, b.binary("xor", self._rotated(x[1], left), first)]
            if number % 4 == 3:
                group = number // 4 + 1
                x = [b.binary("add", each, keys[(group + k) % 5]) for k, each in enumerate(x)]
                x[3] = b.binary("add", x[3], self.integer(group, _I32))
        return tuple(x)
