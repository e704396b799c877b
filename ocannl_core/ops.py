"""The scalar primitives: arity, exact meaning, neutral element.

This is the one table that the interpreter, the code generators, differentiation and the
documentation read. A meaning is a function of Python numbers (exact for integers, double precision
for floats, an exact fraction where one rounding is the meaning); the caller rounds its result to
the number format at hand with `dtypes.round_to`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from ocannl_core.dtypes import DType, float64, promote, round_to

Words = tuple[int, int, int, int]
"""A 128-bit word as four 32-bit lanes."""


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One row of the table; compared by identity, so that equal rows stay different enum members.

    Attributes:
        name: The name in printed code.
        meaning: The exact function on Python numbers.
        symbol: The infix spelling in printed code, if any.
        neutral: The value that an accumulation starts from; None if the primitive does not
            accumulate.
        is_real: True if the result is a float whatever the operands are.
    """

    name: str
    meaning: Callable[..., Any]
    symbol: str = ""
    neutral: float | None = None
    is_real: bool = False


def _total(
    function: Callable[[float], float], overflow: float = math.inf
) -> Callable[[float], float]:
    """Returns the function with IEEE results where Python's raises.

    These are NaN outside the domain and infinity past the range.
    """

    def total(value: float) -> float:
        try:
            return function(value)
        except ValueError:
            return math.nan
        except OverflowError:
            return overflow

    return total


def _log(value: float) -> float:
    if value == 0:
        return -math.inf
    return math.log(value)


def _log2(value: float) -> float:
    if value == 0:
        return -math.inf
    return math.log2(value)


def _divide(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return 0
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) == (b < 0) else -quotient
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _power(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return _integer_power(a, b)
    if b == 2:  # the platform's function may miss the nearest number by an ulp
        return a * a
    if b == -1:
        return _divide(1.0, float(a))
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        if a == 0:  # zero to a negative power
            return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
        return math.nan


def _integer_power(a: int, b: int) -> int:
    """The power modulo 2**64; a negative exponent gives `1 / a**-b` cut off."""
    if b < 0:
        return a if abs(a) == 1 and b % 2 else abs(a) if abs(a) == 1 else 0
    return int(a**b) if b <= 64 else pow(a, b, 1 << 64)


def _modulo(a: float, b: float) -> float:
    """Floor-modulo: the result has the sign of the divisor."""
    try:
        return a % b
    except ZeroDivisionError:
        return 0 if isinstance(b, int) else math.nan


def _maximum(a: float, b: float) -> float:
    if a != a:
        return a
    return a if a >= b else b


def _minimum(a: float, b: float) -> float:
    if a != a:
        return a
    return a if a <= b else b


def _trunc(value: float) -> float:
    if isinstance(value, int) or not math.isfinite(value):
        return value
    return math.copysign(float(math.trunc(value)), value)


def _fma(a: float, b: float, c: float) -> float | Fraction:
    """`a * b + c` without rounding: an integer, a fraction, or a zero or non-finite number."""
    if isinstance(a, int) and isinstance(b, int) and isinstance(c, int):
        return a * b + c
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact if exact != 0 else a * b + c  # a fraction has no negative zero


_MASK = 0xFFFFFFFF
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
"""Rotation constants of Threefry-4x32.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", table 2.
"""


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def threefry4x32(key: Words, counter: Words, rounds: int = 20) -> Words:
    """Returns the Threefry-4x32 hash of a counter under a key.

    With 20 rounds it is the published function of Random123.
    """
    k0, k1, k2, k3 = key
    schedule = (k0, k1, k2, k3, k0 ^ k1 ^ k2 ^ k3 ^ 0x1BD11BDA)
    x = [(counter[i] + schedule[i]) & _MASK for i in range(4)]
    for r in range(rounds):
        first, second = _ROTATIONS[r % 8]
        x[0] = (x[0] + x[1]) & _MASK
        x[1] = _rotate_left(x[1], first) ^ x[0]
        x[2] = (x[2] + x[3]) & _MASK
        x[3] = _rotate_left(x[3], second) ^ x[2]
        x[1], x[3] = x[3], x[1]
        if r % 4 == 3:
            group = r // 4 + 1
            for i in range(4):
                x[i] = (x[i] + schedule[(group + i) % 5]) & _MASK
            x[3] = (x[3] + group) & _MASK
    return (x[0], x[1], x[2], x[3])


def _uniform(word: Words) -> float:
    """A number in [0, 1) from the first lane: its upper 24 bits, exact in single precision."""
    return (word[0] >> 8) * 2.0**-24


class UnaryOp(Enum):
    """Functions of one number. `IDENTITY` at another number format is the conversion."""

    IDENTITY = Primitive("id", lambda v: v)
    RELU = Primitive("relu", lambda v: 0.0 if v < 0 else v)
    SAT01 = Primitive("sat01", lambda v: 0.0 if v <= 0 else 1.0 if v >= 1 else v)
    EXP = Primitive("exp", _total(math.exp), is_real=True)
    LOG = Primitive("log", _total(_log), is_real=True)
    EXP2 = Primitive("exp2", _total(lambda v: 2.0**v), is_real=True)
    LOG2 = Primitive("log2", _total(_log2), is_real=True)
    SIN = Primitive("sin", _total(math.sin), is_real=True)
    COS = Primitive("cos", _total(math.cos), is_real=True)
    SQRT = Primitive("sqrt", _total(math.sqrt), is_real=True)
    RECIP = Primitive("recip", lambda v: _divide(1.0, float(v)), is_real=True)
    RECIP_SQRT = Primitive("recip_sqrt", lambda v: _divide(1.0, _total(math.sqrt)(v)), is_real=True)
    NEG = Primitive("neg", lambda v: -v)
    TANH = Primitive("tanh", math.tanh, is_real=True)
    NOT = Primitive("not", lambda v: 1.0 if v == 0 else 0.0)
    TRUNC = Primitive("trunc", _trunc)
    WORD = Primitive("word", lambda v: (int(v) & _MASK, (int(v) >> 32) & _MASK, 0, 0))
    """An integer as a 128-bit word: low lane first."""
    UNIFORM = Primitive("uniform", _uniform, is_real=True)
    """A number in [0, 1) from a 128-bit word."""


class BinaryOp(Enum):
    """Functions of two numbers."""

    FIRST = Primitive("first", lambda a, b: a)
    SECOND = Primitive("second", lambda a, b: b)
    ADD = Primitive("add", lambda a, b: a + b, "+", 0.0)
    SUB = Primitive("sub", lambda a, b: a - b, "-", 0.0)
    MUL = Primitive("mul", lambda a, b: a * b, "*", 1.0)
    DIV = Primitive("div", _divide, "/", 1.0, is_real=True)
    POW = Primitive("pow", _power, "**", 1.0)
    RELU_GATE = Primitive("relu_gate", lambda a, b: b if a > 0 else 0.0, "", 1.0)
    SAT01_GATE = Primitive("sat01_gate", lambda a, b: b if 0 < a < 1 else 0.0, "", 0.5)
    LT = Primitive("lt", lambda a, b: 1.0 if a < b else 0.0, "<")
    LE = Primitive("le", lambda a, b: 1.0 if a <= b else 0.0, "<=")
    EQ = Primitive("eq", lambda a, b: 1.0 if a == b else 0.0, "==")
    NE = Primitive("ne", lambda a, b: 1.0 if a != b else 0.0, "!=")
    OR = Primitive("or", lambda a, b: 1.0 if a != 0 or b != 0 else 0.0, "||", 0.0)
    AND = Primitive("and", lambda a, b: 1.0 if a != 0 and b != 0 else 0.0, "&&", 1.0)
    MOD = Primitive("mod", _modulo, "%")
    MAX = Primitive("max", _maximum, "", -math.inf)
    MIN = Primitive("min", _minimum, "", math.inf)
    THREEFRY4X32 = Primitive("threefry4x32", threefry4x32)


class TernaryOp(Enum):
    """Functions of three numbers."""

    WHERE = Primitive("where", lambda c, a, b: a if c != 0 else b)
    FMA = Primitive("fma", _fma)


Op = UnaryOp | BinaryOp | TernaryOp

COMPARISONS = frozenset({BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE})

LOGICAL = COMPARISONS | {BinaryOp.OR, BinaryOp.AND}
"""Primitives that give 1 or 0; they compare in the format of their operands."""


def arity(op: Op) -> int:
    """Returns the number of operands of a primitive."""
    match op:
        case UnaryOp():
            return 1
        case BinaryOp():
            return 2
        case TernaryOp():
            return 3


def neutral(op: BinaryOp) -> float:
    """Returns the neutral element of an accumulating primitive.

    Raises:
        ValueError: if the primitive does not accumulate.
    """
    if op.value.neutral is None:
        raise ValueError(f"{op.value.name} has no neutral element")
    return op.value.neutral


def accumulates(op: BinaryOp) -> bool:
    """True if an assignment can accumulate with the primitive (plain assignment is `SECOND`)."""
    return op is BinaryOp.SECOND or op.value.neutral is not None


def working_format(
    op: Op, found: Sequence[DType], numbers: Sequence[float], target: DType
) -> DType:
    """Returns the format in which a primitive is computed before its result is converted.

    That is the promotion of its operands' formats. Where these are integers, a float is needed for
    primitives with real results and for numbers with fractions.
    """
    if not found:
        return target
    working = promote(*found)
    if op in LOGICAL or not working.is_integer:
        return working
    if op.value.is_real or any(round_to(number, working) != number for number in numbers):
        return target if target.is_float else float64
    return working
