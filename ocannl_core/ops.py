"""Table of the scalar primitives and their properties.

Lowering, the passes, the interpreter, the code generators, the reference page and the tests read
this table; no other module lists primitives by their properties. The `meaning` of a primitive is a
function of Python numbers (exact for integers, double precision for floats, an exact fraction for
operations with a single rounding); the caller rounds its result to a number format with
`dtypes.round_to`. `tensor.pointwise_operations` defines their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

from ocannl_core.dtypes import DType, float64, promote, round_to
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.threefry import number_of, numbers_of, threefry4x32, word_of


class Signature(Enum):
    """The kinds of operands and result of a primitive."""

    NUMBERS = "numbers"
    """Numbers to numbers; those of comparisons and `where` may have several formats."""
    TO_WORD = "number to word"
    FROM_WORD = "word to number"
    WORDS = "words"


class Result(Enum):
    """A property of every result of a primitive."""

    ANY = "any number"
    REAL = "float"
    """A float, even for integer operands."""
    CHOICE = "choice"
    """An operand, its negation, or a number of every format; no rounding is needed."""
    TRUTH = "0 or 1"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Primitive:
    """One row of the table; compared by identity, so that equal rows stay different enum members.

    Attributes:
        name: The name in printed code.
        meaning: The exact function on Python numbers; see `meaning_in` for words.
        text: The result, in terms of operands `a`, `b`, `c`.
        symbol: The infix spelling in printed code, if any.
        logic: The default alignment of the axes of its operands; empty if there is none, because
            two alignments are usual.
        signature: The kinds of its operands and result.
        result: A property of its result.
        ulps: The largest error of a backend in units in the last place, in float32 and float64; 0
            if every backend computes the same bits. Narrower formats compute in float32 and round,
            which may add 1.
        neutral: The neutral element of an accumulation; None if the primitive does not accumulate.
        keeps_first: True if combining the neutral element with a value results in the value (a sum
            starts from +0, and may then be +0 where the only term is -0).
        drops_repeats: True if the accumulation is idempotent.
        is_never_negative_zero: True if the result is never -0.0.
    """

    name: str
    meaning: Callable[..., Any]
    text: str
    symbol: str = ""
    logic: str = "."
    signature: Signature = Signature.NUMBERS
    result: Result = Result.ANY
    ulps: int = 0
    neutral: float | None = None
    keeps_first: bool = False
    drops_repeats: bool = False
    is_never_negative_zero: bool = False

    @property
    def is_real(self) -> bool:
        """Return True if the result is a float for all operands."""
        return self.result is Result.REAL

    @property
    def gives_truth(self) -> bool:
        """Return True if the result is 1 or 0."""
        return self.result is Result.TRUTH

    @property
    def needs_no_rounding(self) -> bool:
        """Return True if the result is a number of the operands' format before any rounding."""
        return self.result in (Result.CHOICE, Result.TRUTH)


# ----- meanings -----------------------------------------------------------------------------------


def _total(
    function: Callable[[float], float], overflow: float = math.inf
) -> Callable[[float], float]:
    """Return the function with IEEE results in place of Python's exceptions.

    The result is NaN outside the domain, and infinity on overflow.
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
    """Return the power modulo 2**64; for a negative exponent, `1 / a**-b` truncated."""
    if b < 0:
        return a if abs(a) == 1 and b % 2 else abs(a) if abs(a) == 1 else 0
    return int(a**b) if b <= 64 else pow(a, b, 1 << 64)


def _modulo(a: float, b: float) -> float:
    """Return the floor-modulo, which has the sign of the divisor."""
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
    """Return `a * b + c` unrounded: an integer, a fraction, or a zero or non-finite number."""
    if isinstance(a, int) and isinstance(b, int) and isinstance(c, int):
        return a * b + c
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact if exact != 0 else a * b + c  # a fraction has no negative zero


# ----- the table ----------------------------------------------------------------------------------


class UnaryOp(Enum):
    """Functions of one number. `IDENTITY` at another number format is the conversion."""

    IDENTITY = Primitive(name="id", meaning=lambda v: v, text="`a`; at another format, converted")
    RELU = Primitive(
        name="relu",
        meaning=lambda v: 0.0 if v < 0 else v,
        text="0 where `a < 0`, else `a`",
        result=Result.CHOICE,
    )
    SAT01 = Primitive(
        name="sat01",
        meaning=lambda v: 0.0 if v <= 0 else 1.0 if v >= 1 else v,
        text="0 where `a <= 0`, 1 where `a >= 1`, else `a`",
        result=Result.CHOICE,
        is_never_negative_zero=True,
    )
    EXP = Primitive(
        name="exp",
        meaning=_total(math.exp),
        text="e to the power `a`",
        result=Result.REAL,
        ulps=4,
        is_never_negative_zero=True,
    )
    LOG = Primitive(
        name="log",
        meaning=_total(_log),
        text="natural logarithm; -inf at 0, NaN below",
        result=Result.REAL,
        ulps=4,
    )
    EXP2 = Primitive(
        name="exp2",
        meaning=_total(lambda v: 2.0**v),
        text="2 to the power `a`",
        result=Result.REAL,
        ulps=4,
        is_never_negative_zero=True,
    )
    LOG2 = Primitive(
        name="log2",
        meaning=_total(_log2),
        text="logarithm to base 2; -inf at 0, NaN below",
        result=Result.REAL,
        ulps=4,
    )
    SIN = Primitive(name="sin", meaning=_total(math.sin), text="sine", result=Result.REAL, ulps=4)
    COS = Primitive(name="cos", meaning=_total(math.cos), text="cosine", result=Result.REAL, ulps=4)
    SQRT = Primitive(
        name="sqrt",
        meaning=_total(math.sqrt),
        text="square root; NaN below 0",
        result=Result.REAL,
    )
    RECIP = Primitive(
        name="recip",
        meaning=lambda v: _divide(1.0, float(v)),
        text="`1 / a`",
        result=Result.REAL,
    )
    RECIP_SQRT = Primitive(
        name="recip_sqrt",
        meaning=lambda v: _divide(1.0, _total(math.sqrt)(v)),
        text="`1 / sqrt(a)`",
        result=Result.REAL,
        ulps=4,
    )
    NEG = Primitive(name="neg", meaning=lambda v: -v, text="`-a`", result=Result.CHOICE)
    TANH = Primitive(
        name="tanh", meaning=math.tanh, text="hyperbolic tangent", result=Result.REAL, ulps=4
    )
    NOT = Primitive(
        name="not",
        meaning=lambda v: 1.0 if v == 0 else 0.0,
        text="1 where `a` is 0, else 0",
        result=Result.TRUTH,
        is_never_negative_zero=True,
    )
    TRUNC = Primitive(
        name="trunc",
        meaning=_trunc,
        text="`a` without its fraction",
        result=Result.CHOICE,
    )
    WORD = Primitive(
        name="word",
        meaning=word_of,
        text="the bits of `a` as a word of 128 bits",
        signature=Signature.TO_WORD,
    )
    UNIFORM = Primitive(
        name="uniform",
        meaning=number_of,
        text="one number of a word: a float is in [0, 1], an integer is the low bits",
        signature=Signature.FROM_WORD,
    )


class BinaryOp(Enum):
    """Functions of two numbers."""

    FIRST = Primitive(name="first", meaning=lambda a, b: a, text="`a`", result=Result.CHOICE)
    SECOND = Primitive(
        name="second",
        meaning=lambda a, b: b,
        text="`b`; as an accumulation, plain assignment",
        result=Result.CHOICE,
        drops_repeats=True,
    )
    ADD = Primitive(
        name="add",
        meaning=lambda a, b: a + b,
        text="`a + b`",
        symbol="+",
        neutral=0.0,
        keeps_first=True,
    )
    SUB = Primitive(name="sub", meaning=lambda a, b: a - b, text="`a - b`", symbol="-", neutral=0.0)
    MUL = Primitive(
        name="mul",
        meaning=lambda a, b: a * b,
        text="`a * b`",
        symbol="*",
        logic="",
        neutral=1.0,
        keeps_first=True,
    )
    DIV = Primitive(
        name="div",
        meaning=_divide,
        text="`a / b`; of integers cut off, and 0 where `b` is 0",
        symbol="/",
        logic="",
        result=Result.REAL,
        neutral=1.0,
    )
    POW = Primitive(
        name="pow",
        meaning=_power,
        text="`a` to the power `b`; of integers exact",
        symbol="**",
        ulps=8,
        neutral=1.0,
    )
    RELU_GATE = Primitive(
        name="relu_gate",
        meaning=lambda a, b: b if a > 0 else 0.0,
        text="`b` where `a > 0`, else 0",
        result=Result.CHOICE,
        neutral=1.0,
        keeps_first=True,
    )
    SAT01_GATE = Primitive(
        name="sat01_gate",
        meaning=lambda a, b: b if 0 < a < 1 else 0.0,
        text="`b` where `0 < a < 1`, else 0",
        result=Result.CHOICE,
        neutral=0.5,
        keeps_first=True,
    )
    LT = Primitive(
        name="lt",
        meaning=lambda a, b: 1.0 if a < b else 0.0,
        text="1 where `a < b`, else 0",
        symbol="<",
        result=Result.TRUTH,
        is_never_negative_zero=True,
    )
    LE = Primitive(
        name="le",
        meaning=lambda a, b: 1.0 if a <= b else 0.0,
        text="1 where `a <= b`, else 0",
        symbol="<=",
        result=Result.TRUTH,
        is_never_negative_zero=True,
    )
    EQ = Primitive(
        name="eq",
        meaning=lambda a, b: 1.0 if a == b else 0.0,
        text="1 where `a == b`, else 0",
        symbol="==",
        result=Result.TRUTH,
        is_never_negative_zero=True,
    )
    NE = Primitive(
        name="ne",
        meaning=lambda a, b: 1.0 if a != b else 0.0,
        text="1 where `a != b`, else 0",
        symbol="!=",
        result=Result.TRUTH,
        is_never_negative_zero=True,
    )
    OR = Primitive(
        name="or",
        meaning=lambda a, b: 1.0 if a != 0 or b != 0 else 0.0,
        text="1 where `a` or `b` is not 0, else 0",
        symbol="||",
        result=Result.TRUTH,
        neutral=0.0,
        drops_repeats=True,
        is_never_negative_zero=True,
    )
    AND = Primitive(
        name="and",
        meaning=lambda a, b: 1.0 if a != 0 and b != 0 else 0.0,
        text="1 where neither `a` nor `b` is 0, else 0",
        symbol="&&",
        result=Result.TRUTH,
        neutral=1.0,
        drops_repeats=True,
        is_never_negative_zero=True,
    )
    MOD = Primitive(
        name="mod",
        meaning=_modulo,
        text="`a` modulo `b`, with the sign of `b`; NaN where `b` is 0, of integers 0",
        symbol="%",
    )
    MAX = Primitive(
        name="max",
        meaning=_maximum,
        text="the greater of `a` and `b`; NaN if either is",
        result=Result.CHOICE,
        neutral=-math.inf,
        keeps_first=True,
        drops_repeats=True,
    )
    MIN = Primitive(
        name="min",
        meaning=_minimum,
        text="the lesser of `a` and `b`; NaN if either is",
        result=Result.CHOICE,
        neutral=math.inf,
        keeps_first=True,
        drops_repeats=True,
    )
    THREEFRY4X32 = Primitive(
        name="threefry4x32",
        meaning=threefry4x32,
        text="the hash of word `b` under the key `a`, in 20 rounds",
        signature=Signature.WORDS,
    )
    THREEFRY4X32_12 = Primitive(
        name="threefry4x32_12",
        meaning=partial(threefry4x32, rounds=12),
        text="the same in 12 rounds",
        signature=Signature.WORDS,
    )


class TernaryOp(Enum):
    """Functions of three numbers."""

    WHERE = Primitive(
        name="where",
        meaning=lambda c, a, b: a if c != 0 else b,
        text="`b` where `a` is not 0, else `c`",
        result=Result.CHOICE,
    )
    FMA = Primitive(name="fma", meaning=_fma, text="`a * b + c`, rounded once", logic="@")


class VectorOp(Enum):
    """Functions that fill consecutive cells from one word; the target format gives their number."""

    UNIFORM = Primitive(
        name="uniform_vector",
        meaning=numbers_of,
        text="as many numbers as fit the word `a`: 16, 8, 4, 2, 1 of 1, 2, 4, 8, 16 bytes",
        logic="numbers of words",
        signature=Signature.FROM_WORD,
    )


Op = UnaryOp | BinaryOp | TernaryOp

PRIMITIVES: tuple[Op, ...] = (*UnaryOp, *BinaryOp, *TernaryOp)
"""All primitives of expressions."""

COMPARISONS = frozenset({BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE})
"""Comparisons work in the format of their operands, for every format of the result."""

LOGICAL = frozenset(op for op in BinaryOp if op.value.gives_truth)
"""The binary primitives whose result is 1 or 0; their operands keep their format."""

HASHES = frozenset(op for op in BinaryOp if op.value.signature is Signature.WORDS)


def arity(op: Op) -> int:
    """Return the number of operands of a primitive."""
    match op:
        case UnaryOp():
            return 1
        case BinaryOp():
            return 2
        case TernaryOp():
            return 3


def neutral(op: BinaryOp) -> float:
    """Return the neutral element of an accumulating primitive.

    Raises:
        ValueError: if the primitive does not accumulate.
    """
    if op.value.neutral is None:
        raise ValueError(f"{op.value.name} has no neutral element")
    return op.value.neutral


def accumulates(op: BinaryOp) -> bool:
    """Return True if an assignment can accumulate with the primitive (plain assignment is
    `SECOND`).
    """
    return op is BinaryOp.SECOND or op.value.neutral is not None


def meaning_in(op: Op, operand: DType, result: DType) -> Callable[..., Any]:
    """Return the meaning of a primitive between two formats. The conversion between numbers and
    words depends on the format of the number.
    """
    row: Primitive = op.value
    match row.signature:
        case Signature.TO_WORD:
            return partial(row.meaning, dtype=operand)
        case Signature.FROM_WORD:
            return partial(row.meaning, dtype=result)
        case _:
            return row.meaning


def working_format(
    op: Op, found: Sequence[DType], numbers: Sequence[float], target: DType
) -> DType:
    """Return the working format of a primitive, from which its result is converted.

    It is the promotion of the operands' formats. For integers, primitives with real results and
    constants with fractions need a float format.
    """
    if not found:
        return target
    working = promote(*found)
    if op in LOGICAL or not working.is_integer:
        return working
    if op.value.is_real or any(round_to(number, working) != number for number in numbers):
        return target if target.is_float else float64
    return working
