"""Floats of less than 32 bits as patterns of bits, by integers and `float32`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ocannl_core.codegen.instructions.builder import InstructionBuilder, MachineType, Value
from ocannl_core.ir.numbers.dtypes import DType, bits_of

_I32, _SINGLE = MachineType.I32, MachineType.SINGLE
_INFINITY = 0x7F800000


@dataclass(frozen=True)
class FloatLayout:
    """The bits of a float: a sign, an exponent, a mantissa.

    Attributes:
        shift: The bits of a mantissa of `float32` beyond this one.
        bias: The pattern of the exponent of 1.
        top: The least pattern of infinity, or of NaN where there is none.
    """

    bits: int
    mantissa: int
    bias: int
    top: int
    nan: int

    @classmethod
    def of(cls, dtype: DType) -> FloatLayout:
        bits, mantissa = 8 * dtype.nbytes, dtype.significand - 1
        exponent = bits - 1 - mantissa
        nan = bits_of(math.nan, dtype) & ((1 << (bits - 1)) - 1)
        top = ((1 << exponent) - 1) << mantissa if dtype.has_infinities else nan
        return cls(bits, mantissa, (1 << (exponent - 1)) - 1, top, nan)

    @property
    def shift(self) -> int:
        return 23 - self.mantissa

    def decode(self, b: InstructionBuilder, pattern: Value) -> Value:
        """Return the `float32` of a pattern in 32 bits."""
        sign = b.binary("lshr", pattern, _int(b, self.bits - 1))
        sign = b.binary("shl", sign, _int(b, 31))
        size = b.binary("and", pattern, _int(b, (1 << (self.bits - 1)) - 1))
        wide = b.binary("shl", size, _int(b, self.shift))
        if self.bias != 127:
            # exact for subnormal numbers, too
            scale = b.constant(_SINGLE, 2.0 ** (127 - self.bias))
            number = b.binary("fmul", b.cast("bitcast", wide, _SINGLE), scale)
            beyond = b.binary("or", wide, _int(b, _INFINITY))
            is_beyond = b.compare("ule", _int(b, self.top), size)
            wide = b.select(is_beyond, beyond, b.cast("bitcast", number, _I32))
        return b.cast("bitcast", b.binary("or", wide, sign), _SINGLE)

    def encode(self, b: InstructionBuilder, number: Value) -> Value:
        """Return the 32-bit pattern of the nearest `float32`, of two the even one."""
        wide = b.cast("bitcast", number, _I32)
        size = b.binary("and", wide, _int(b, 0x7FFFFFFF))
        sign = b.binary("lshr", b.binary("xor", wide, size), _int(b, 32 - self.bits))
        odd = b.binary("and", b.binary("lshr", size, _int(b, self.shift)), _int(b, 1))
        half = b.binary("add", odd, _int(b, (1 << (self.shift - 1)) - 1))
        pattern = b.binary("lshr", b.binary("add", size, half), _int(b, self.shift))
        if self.bias != 127:
            pattern = b.binary("sub", pattern, _int(b, (127 - self.bias) << self.mantissa))
            # the unit in the last place of this power of 2 is the least subnormal number
            magic = b.constant(_SINGLE, 2.0 ** (24 - self.bias - self.mantissa))
            total = b.binary("fadd", b.cast("bitcast", size, _SINGLE), magic)
            units = b.cast("bitcast", total, _I32)
            units = b.binary("sub", units, b.cast("bitcast", magic, _I32))
            is_subnormal = b.compare("ult", size, _int(b, (128 - self.bias) << 23))
            top = _int(b, self.top)
            pattern = b.select(b.compare("ult", top, pattern), top, pattern)
            pattern = b.select(is_subnormal, units, pattern)
        is_nan = b.compare("ult", _int(b, _INFINITY), size)
        return b.binary("or", b.select(is_nan, _int(b, self.nan), pattern), sign)


def _int(b: InstructionBuilder, number: int) -> Value:
    return b.constant(_I32, number)
