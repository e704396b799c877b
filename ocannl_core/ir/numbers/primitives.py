"""Table of the scalar primitives and their properties.

Lowering, the passes, the interpreter, the code generators, the reference page and the tests read
this table; no other module lists primitives by their properties. A row is all that a new primitive
needs: renderers expand it where they have no code for it. The `meaning` of a primitive is a
function of Python numbers (exact for integers, double precision for floats, an exact fraction for
operations with a single rounding); the caller rounds its result to a number format with
`ir.numbers.dtypes.round_to`. `tensor.primitives.pointwise_operations` lifts primitives to tensors,
with their gradients.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers import dtypes, meanings
from ocannl_core.ir.numbers.threefry import number_of, numbers_of, threefry4x32, word_of


class Signature(Enum):
    """The kinds of operands and result of a primitive."""

    NUMBERS = "numbers"
    """Numbers to numbers; comparisons and `where` may have numbers of several formats."""
    TO_WORD = "number to word"
    FROM_WORD = "word to number"
    WORDS = "words"
    REINTERPRETED = "number to number of other format with the same bits"


class Result(Enum):
    """A property of every result of a primitive."""

    ANY = "any number"
    REAL = "float"
    """A float, even for integer operands."""
    CHOICE = "choice"
    """An operand, its negation, a whole number beside it, or a number of every format; no rounding
    is needed.
    """
    TRUTH = "0 or 1"
    BITS = "bits"
    """0 or 1 for floats; a number with other bits for integers."""


class Cost(Enum):
    """The costs of primitives, which `schedule.machine_model` states in additions."""

    OPERATION = "addition"
    DIVISION = "division"
    FUNCTION = "function"
    HASH = "hash"


Expansion = tuple[Any, ...]
"""The name of a primitive and its terms: `("div", 1.0, ("sqrt", "a"))`. A term is an expansion, a
number, or an operand: `"a"`, `"b"`, `"c"`. Comparisons are the conditions of "where", and these
are comparisons.
"""


@dataclass(frozen=True, slots=True, eq=False)
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
        is_commutative: True if exchanging the operands changes no bit of the result.
        cost: The time that it takes.
        function: The function of the C library that computes it in floats, if any.
        has_vector_code: True if the C family has code of its own for float32, which is the same
            for numbers and for vectors.
        expansion: An equal expression of other primitives, without rounding in between. A renderer
            expands a primitive for which it has neither an operator nor a function.
        since: The version of the interface for backends that has it first. A plugin written for an
            earlier version gets its expansion.
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
    is_commutative: bool = False
    cost: Cost = Cost.OPERATION
    function: str = ""
    has_vector_code: bool = False
    expansion: Expansion | None = None
    since: tuple[int, int] = (1, 0)

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
        return self.result in (Result.CHOICE, Result.TRUTH, Result.BITS)


_real = partial(Primitive, result=Result.REAL)
_commutative = partial(Primitive, is_commutative=True)
_quotient = partial(Primitive, cost=Cost.DIVISION)
_choice = partial(Primitive, result=Result.CHOICE)
_truth = partial(Primitive, result=Result.TRUTH, is_never_negative_zero=True)
_commutative_truth = partial(_truth, is_commutative=True)
_bits = partial(Primitive, result=Result.BITS, is_never_negative_zero=True)


def _function(
    name: str,
    function: Callable[[float], float],
    text: str,
    pole: float | None = None,
    *,
    is_never_negative_zero: bool = False,
    has_vector_code: bool = True,
) -> Primitive:
    """Return the row of an elementary function of floats."""
    return _real(
        name,
        meanings.total(function, pole),
        text,
        ulps=4,
        is_never_negative_zero=is_never_negative_zero,
        cost=Cost.FUNCTION,
        function=name,
        has_vector_code=has_vector_code,
    )


def _whole(name: str, function: Callable[[float], int], text: str, c_function: str) -> Primitive:
    """Return the row of a rounding to whole numbers."""
    return _choice(name, meanings.whole(function), text, function=c_function)


class UnaryOp(Enum):
    """Functions of one number. `IDENTITY` at another number format is the conversion."""

    IDENTITY = Primitive("id", lambda v: v, "`a`; at another format, converted")
    RELU = _choice("relu", lambda v: 0.0 if v < 0 else v, "0 where `a < 0`, else `a`")
    SAT01 = _choice(
        "sat01",
        lambda v: 0.0 if v <= 0 else 1.0 if v >= 1 else v,
        "0 where `a <= 0`, 1 where `a >= 1`, else `a`",
        expansion=("where", ("le", "a", 0.0), 0.0, ("where", ("le", 1.0, "a"), 1.0, "a")),
        is_never_negative_zero=True,
    )
    EXP = _function("exp", math.exp, "e to the power `a`", is_never_negative_zero=True)
    LOG = _function("log", math.log, "natural logarithm; -inf at 0, NaN below", pole=0)
    EXP2 = _function("exp2", lambda v: 2.0**v, "2 to the power `a`", is_never_negative_zero=True)
    LOG2 = _function("log2", math.log2, "logarithm to base 2; -inf at 0, NaN below", pole=0)
    SIN = _function("sin", math.sin, "sine")
    COS = _function("cos", math.cos, "cosine")
    SQRT = _quotient(
        "sqrt",
        meanings.total(math.sqrt),
        "square root; NaN below 0",
        result=Result.REAL,
        function="sqrt",
    )
    RECIP = _quotient(
        "recip",
        lambda v: meanings.divide(1.0, float(v)),
        "`1 / a`",
        result=Result.REAL,
        expansion=("div", 1.0, "a"),
    )
    RECIP_SQRT = _real(
        "recip_sqrt",
        lambda v: meanings.divide(1.0, meanings.total(math.sqrt)(v)),
        "`1 / sqrt(a)`",
        ulps=4,
        cost=Cost.FUNCTION,
        expansion=("div", 1.0, ("sqrt", "a")),
    )
    NEG = _choice("neg", lambda v: -v, "`-a`")
    TANH = _function("tanh", math.tanh, "hyperbolic tangent")
    NOT = _truth("not", lambda v: 1.0 if v == 0 else 0.0, "1 where `a` is 0, else 0")
    TRUNC = _whole("trunc", math.trunc, "`a` without its fraction", "trunc")
    ABS = _choice("abs", abs, "`a` without its sign", function="fabs", is_never_negative_zero=True)
    SIGN = _choice(
        "sign",
        meanings.sign,
        "-1 where `a < 0`, 1 where `a > 0`, 0 where `a` is 0",
        # the sum with 0 is NaN for NaN, and 0.0 for -0.0
        expansion=(
            "where",
            ("lt", 0.0, "a"),
            1.0,
            ("where", ("lt", "a", 0.0), ("neg", 1.0), ("add", "a", 0.0)),
        ),
        is_never_negative_zero=True,
    )
    FLOOR = _whole("floor", math.floor, "the greatest whole number that is at most `a`", "floor")
    CEIL = _whole("ceil", math.ceil, "the least whole number that is at least `a`", "ceil")
    ROUND = _whole("round", round, "the nearest whole number, of two the even one", "rint")
    EXPM1 = _function("expm1", math.expm1, "`exp(a) - 1`, also near 0")
    LOG1P = _function("log1p", math.log1p, "`log(1 + a)`, also near 0", pole=-1)
    ERF = _function("erf", math.erf, "the error function")
    TAN = _function("tan", math.tan, "tangent")
    ASIN = _function("asin", math.asin, "inverse sine; NaN outside -1 to 1")
    ACOS = _function("acos", math.acos, "inverse cosine; NaN outside -1 to 1")
    ATAN = _function("atan", math.atan, "inverse tangent")
    SINH = _function("sinh", meanings.hyperbolic_sine, "hyperbolic sine")
    COSH = _function("cosh", math.cosh, "hyperbolic cosine")
    BIT_NOT = _bits(
        "bit_not",
        lambda v: ~v if isinstance(v, int) else float(v == 0),
        "`a` with every bit inverted; of floats 1 where `a` is 0, else 0",
    )
    WORD = Primitive(
        "word", word_of, "the bits of `a` as a word of 128 bits", signature=Signature.TO_WORD
    )
    UNIFORM = Primitive(
        "uniform",
        number_of,
        "one number of a word: a float is in [0, 1], an integer is the low bits",
        signature=Signature.FROM_WORD,
    )
    BITCAST = Primitive(
        "bitcast",
        partial(dtypes.reinterpret, source=dtypes.float32, dtype=dtypes.int32),
        "the number whose bits are those of `a`, in a format of the same width; all NaN have the "
        "bits of one",
        signature=Signature.REINTERPRETED,
        result=Result.BITS,
        since=(1, 1),
    )


class BinaryOp(Enum):
    """Functions of two numbers."""

    FIRST = _choice("first", lambda a, b: a, "`a`")
    SECOND = _choice(
        "second", lambda a, b: b, "`b`; as an accumulation, plain assignment", drops_repeats=True
    )
    ADD = _commutative("add", operator.add, "`a + b`", symbol="+", neutral=0.0, keeps_first=True)
    SUB = Primitive("sub", operator.sub, "`a - b`", symbol="-", neutral=0.0)
    MUL = _commutative(
        "mul", operator.mul, "`a * b`", symbol="*", logic="", neutral=1.0, keeps_first=True
    )
    DIV = _quotient(
        "div",
        meanings.divide,
        "`a / b`; of integers cut off, and 0 where `b` is 0",
        symbol="/",
        logic="",
        result=Result.REAL,
        neutral=1.0,
    )
    POW = Primitive(
        "pow",
        meanings.power,
        "`a` to the power `b`; of integers exact",
        symbol="**",
        ulps=8,
        neutral=1.0,
        cost=Cost.FUNCTION,
        function="pow",
        has_vector_code=True,
    )
    RELU_GATE = _choice(
        "relu_gate",
        lambda a, b: b if a > 0 else 0.0,
        "`b` where `a > 0`, else 0",
        expansion=("where", ("lt", 0.0, "a"), "b", 0.0),
        neutral=1.0,
        keeps_first=True,
    )
    SAT01_GATE = _choice(
        "sat01_gate",
        lambda a, b: b if 0 < a < 1 else 0.0,
        "`b` where `0 < a < 1`, else 0",
        expansion=("where", ("lt", 0.0, "a"), ("where", ("lt", "a", 1.0), "b", 0.0), 0.0),
        neutral=0.5,
        keeps_first=True,
    )
    LT = _truth("lt", lambda a, b: 1.0 if a < b else 0.0, "1 where `a < b`, else 0", "<")
    LE = _truth("le", lambda a, b: 1.0 if a <= b else 0.0, "1 where `a <= b`, else 0", "<=")
    EQ = _commutative_truth(
        "eq", lambda a, b: 1.0 if a == b else 0.0, "1 where `a == b`, else 0", "=="
    )
    NE = _commutative_truth(
        "ne", lambda a, b: 1.0 if a != b else 0.0, "1 where `a != b`, else 0", "!="
    )
    OR = _commutative_truth(
        "or",
        lambda a, b: 1.0 if a != 0 or b != 0 else 0.0,
        "1 where `a` or `b` is not 0, else 0",
        symbol="||",
        neutral=0.0,
        drops_repeats=True,
    )
    AND = _commutative_truth(
        "and",
        lambda a, b: 1.0 if a != 0 and b != 0 else 0.0,
        "1 where neither `a` nor `b` is 0, else 0",
        symbol="&&",
        neutral=1.0,
        drops_repeats=True,
    )
    MOD = _quotient(
        "mod",
        meanings.modulo,
        "`a` modulo `b`, with the sign of `b`; NaN where `b` is 0, of integers 0",
        symbol="%",
        has_vector_code=True,
    )
    MAX = _choice(
        "max",
        meanings.maximum,
        "the greater of `a` and `b`, `a` where they are equal; NaN if either is",
        neutral=-math.inf,
        keeps_first=True,
        drops_repeats=True,
    )
    MIN = _choice(
        "min",
        meanings.minimum,
        "the lesser of `a` and `b`, `a` where they are equal; NaN if either is",
        neutral=math.inf,
        keeps_first=True,
        drops_repeats=True,
    )
    ATAN2 = _real(
        "atan2",
        math.atan2,
        "the angle of the point at height `a` and distance `b`, from -pi to pi",
        ulps=4,
        cost=Cost.FUNCTION,
        function="atan2",
        has_vector_code=True,
    )
    FLOOR_DIV = _quotient(
        "floor_div",
        meanings.floor_divide,
        "`a // b` of Python, so NaN where `a` is infinite and -1 at `-2 // inf`; where `b` is 0, "
        "`a / b`, of integers 0",
        has_vector_code=True,
    )
    BIT_AND = _bits(
        "bit_and",
        meanings.bitwise(operator.and_),
        "the common bits of `a` and `b`; of floats 1 where neither is 0, else 0",
    )
    BIT_OR = _bits(
        "bit_or",
        meanings.bitwise(operator.or_),
        "the bits of `a` and of `b`; of floats 1 where one is not 0, else 0",
    )
    BIT_XOR = _bits(
        "bit_xor",
        meanings.bitwise(operator.xor),
        "the bits of either `a` or `b`; of floats 1 where one of them is 0, else 0",
    )
    THREEFRY4X32 = Primitive(
        "threefry4x32",
        threefry4x32,
        "the hash of word `b` under the key `a`, in 20 rounds",
        signature=Signature.WORDS,
        cost=Cost.HASH,
    )
    THREEFRY4X32_12 = Primitive(
        "threefry4x32_12",
        partial(threefry4x32, rounds=12),
        "the same in 12 rounds",
        signature=Signature.WORDS,
    )


class TernaryOp(Enum):
    """Functions of three numbers."""

    WHERE = _choice("where", lambda c, a, b: a if c != 0 else b, "`b` where `a` is not 0, else `c`")
    FMA = Primitive(
        "fma", meanings.multiply_add, "`a * b + c`, rounded once", logic="@", function="fma"
    )


class VectorOp(Enum):
    """Functions that fill consecutive cells from one word; the target format gives their number."""

    UNIFORM = Primitive(
        "uniform_vector",
        numbers_of,
        "as many numbers as fit the word `a`: 16, 8, 4, 2, 1 of 1, 2, 4, 8, 16 bytes",
        logic="numbers of words",
        signature=Signature.FROM_WORD,
    )


Op = UnaryOp | BinaryOp | TernaryOp

PRIMITIVES: tuple[Op, ...] = (*UnaryOp, *BinaryOp, *TernaryOp)
"""All primitives of expressions."""

Primitives = tuple[Op | VectorOp, ...]
"""Primitives that a device has, among them those that fill vectors."""

EVERY_PRIMITIVE: Primitives = (*PRIMITIVES, *VectorOp)


def primitives_of(version: tuple[int, int]) -> Primitives:
    """Return the primitives that a version of the interface for backends has."""
    return tuple(op for op in EVERY_PRIMITIVE if op.value.since <= version)


COMPARISONS = frozenset({BinaryOp.LT, BinaryOp.LE, BinaryOp.EQ, BinaryOp.NE})
"""Comparisons work in the format of their operands, for every format of the result."""

LOGICAL = frozenset(op for op in BinaryOp if op.value.gives_truth)
"""The binary primitives whose result is 1 or 0; their operands keep their format."""

REORDERED = frozenset({BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN})
"""Accumulating primitives that are associative and commutative, up to rounding."""

OF_OTHER_FORMATS = frozenset({UnaryOp.WORD, UnaryOp.BITCAST})
"""The primitives whose operand keeps a format that is not the result's."""

HASHES = frozenset(op for op in BinaryOp if op.value.signature is Signature.WORDS)


def arity(op: Op) -> int:
    """Return the number of operands of a primitive."""
    return {UnaryOp: 1, BinaryOp: 2, TernaryOp: 3}[type(op)]


def neutral(op: BinaryOp) -> float:
    """Return the neutral element of an accumulating primitive."""
    if op.value.neutral is None:
        raise ValueError(f"{op.value.name} has no neutral element")
    return op.value.neutral


def accumulates(op: BinaryOp) -> bool:
    """Return True if assignments can accumulate with it (plain assignment is `SECOND`)."""
    return op is BinaryOp.SECOND or op.value.neutral is not None


def meaning_in(op: Op, operand: dtypes.DType, result: dtypes.DType) -> Callable[..., Any]:
    """Return the meaning of a primitive between two formats. Conversions between numbers and words
    depend on the format of the number, bitcasts on both, and the only bit of a bool is its truth.
    """
    if op is UnaryOp.BIT_NOT and result is dtypes.bool_:
        op = UnaryOp.NOT
    row: Primitive = op.value
    match row.signature:
        case Signature.TO_WORD:
            return partial(row.meaning, dtype=operand)
        case Signature.FROM_WORD:
            return partial(row.meaning, dtype=result)
        case Signature.REINTERPRETED:
            return partial(row.meaning, source=operand, dtype=result)
        case _:
            return row.meaning


def working_format(
    op: Op, found: Sequence[dtypes.DType], numbers: Sequence[float], target: dtypes.DType
) -> dtypes.DType:
    """Return the working format of a primitive, from which its result is converted.

    It is the target's format if that holds all numbers of the operands' formats, so that a product
    of bfloat16 in float32, or of int8 in int32, is exact; otherwise it is the promotion of the
    operands' formats. For integers, primitives with real results, constants with fractions, and
    constants that are floats where the target is one, need a float format, and integers of less
    than 32 bits become floats before an operation.
    """
    if not found:
        return target
    working = dtypes.promote(*found)
    if op in LOGICAL or (op.value.result is Result.BITS and not target.is_integer):
        return working
    if working.holds_integers and op.value.is_real:
        return target if target.is_float else dtypes.float64
    is_short = working.is_short_integer and target.is_float
    if is_short or dtypes.holds(target, *found):
        working = target
    if not working.holds_integers:
        return working
    if target.is_float and any(isinstance(n, float) for n in numbers):
        return target
    if any(dtypes.round_to(n, working) != n for n in numbers):
        return target if target.is_float else dtypes.float64
    return working
