"""Number formats: names, sizes, promotion, NumPy equivalents, and exact rounding.

`DType` values are the only description of a number format; every other module compares them by
identity.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
from numbers import Integral, Rational
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass


class Kind(Enum):
    """The family of a number format."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"
    """True and False, the numbers 1 and 0."""
    WORD = "word"
    """128 random bits, handled as four 32-bit lanes."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DType:
    """A number format; there is one object for each, compared by identity.

    Attributes:
        name: The NumPy (or ml_dtypes) spelling.
        nbytes: Bytes per element.
        rank: The place in the order of promotion; see `promote`.
        significand: Significant bits of a float.
        greatest: The greatest finite number of a float format.
        least: Its least positive number.
        has_infinities: False for integers, and for floats whose overflow is NaN.
        packed_bits: Bits per element in memory if they are less than a byte, else 0.
    """

    name: str
    kind: Kind
    nbytes: int
    rank: int
    significand: int = 0
    greatest: float = 0.0
    least: float = 0.0
    has_infinities: bool = False
    packed_bits: int = 0

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return dtype_of, (self.name,)

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_narrow(self) -> bool:
        """True for floats that are computed with in float32 and rounded once per operation."""
        return self.kind is Kind.FLOAT and self.nbytes < 4

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def holds_integers(self) -> bool:
        """True for integers and for bool, whose numbers are 0 and 1."""
        return self.is_integer or self.kind is Kind.BOOL

    @property
    def bits(self) -> int:
        """The bits of a number."""
        return 1 if self.kind is Kind.BOOL else self.packed_bits or 8 * self.nbytes

    @property
    def is_packed(self) -> bool:
        """True for formats of memory, of which a byte holds several numbers."""
        return self.packed_bits > 0

    @property
    def unpacked(self) -> DType:
        """The format in which operations take numbers of this format."""
        if not self.is_packed:
            return self
        return int8 if self.kind is Kind.SIGNED else uint8

    @property
    def is_short_integer(self) -> bool:
        """True for integers of less than 32 bits, and bool."""
        return self.holds_integers and self.bits < 32

    @property
    def in_lanes(self) -> DType:
        """The format in which the lanes of vectors hold numbers of this format."""
        if self.is_narrow:
            return float32
        return int32 if self.is_short_integer else self

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of this format; a `uint4x32` is a record of four `uint32`."""
        return _numpy_dtype(self)

    @property
    def is_foreign(self) -> bool:
        """True for formats of `ml_dtypes`."""
        return self.is_narrow and self.name != "float16"

    @property
    def source(self) -> str:
        """The source code of `numpy`: NumPy alone lacks names of some formats."""
        if self.kind is Kind.WORD:
            return f"oc.{self.name}.numpy"
        return f"{'ml_dtypes' if self.is_foreign else 'np'}.{self.name}"


uint4 = DType("uint4", Kind.UNSIGNED, 1, 1, packed_bits=4)
int4 = DType("int4", Kind.SIGNED, 1, 2, packed_bits=4)
bool_ = DType("bool", Kind.BOOL, 1, 0)
uint8 = DType("uint8", Kind.UNSIGNED, 1, 1)
int8 = DType("int8", Kind.SIGNED, 1, 2)
uint16 = DType("uint16", Kind.UNSIGNED, 2, 3)
int16 = DType("int16", Kind.SIGNED, 2, 4)
int32 = DType("int32", Kind.SIGNED, 4, 5)
uint32 = DType("uint32", Kind.UNSIGNED, 4, 6)
int64 = DType("int64", Kind.SIGNED, 8, 7)
uint64 = DType("uint64", Kind.UNSIGNED, 8, 8)
float8_e4m3fn = DType("float8_e4m3fn", Kind.FLOAT, 1, 9, 4, 448.0, 2.0**-9)
float8_e5m2 = DType("float8_e5m2", Kind.FLOAT, 1, 10, 3, 57344.0, 2.0**-16, True)
float16 = DType("float16", Kind.FLOAT, 2, 11, 11, 65504.0, 2.0**-24, True)
bfloat16 = DType("bfloat16", Kind.FLOAT, 2, 12, 8, (2 - 2.0**-7) * 2.0**127, 2.0**-133, True)
float32 = DType("float32", Kind.FLOAT, 4, 13, 24, (2 - 2.0**-23) * 2.0**127, 2.0**-149, True)
float64 = DType("float64", Kind.FLOAT, 8, 14, 53, math.nextafter(math.inf, 0.0), 5e-324, True)
uint4x32 = DType("uint4x32", Kind.WORD, 16, 15)

_INTEGERS = (uint8, int8, uint16, int16, int32, uint32, int64, uint64)
_FLOATS = (float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64)
ALL: tuple[DType, ...] = (bool_, *_INTEGERS, *_FLOATS, uint4x32)
PACKED = (int4, uint4)
"""Formats of memory: their numbers are read as numbers of a wider format."""

_BY_NAME = {dtype.name: dtype for dtype in (*ALL, *PACKED)}


NARROW = tuple(dtype for dtype in ALL if dtype.is_narrow)
"""Floats that are computed with in float32 and rounded once per operation."""

SHORT_RANGE = frozenset(dtype for dtype in ALL if dtype.is_float and dtype.greatest < 2**17)
"""Floats whose range constants of programs easily exceed."""


@cache
def _numpy_dtype(dtype: DType) -> np.dtype[Any]:
    if dtype is uint4x32:
        return np.dtype([(lane, "<u4") for lane in "abcd"])
    if dtype.is_packed:
        return np.dtype(dtype.unpacked.name)
    if dtype.is_foreign:
        import ml_dtypes  # costs 0.1 s; most programs never need it

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.name))
        return narrow
    return np.dtype(dtype.name)


def dtype_of(value: DType | str | np.dtype[Any] | type) -> DType:
    """Return the number format of a name, a NumPy dtype or a scalar type.

    Raises:
        UsageError: if there is none.
    """
    if isinstance(value, DType):
        return value
    found = _BY_NAME.get(value) if isinstance(value, str) else _of_numpy(value)
    if found is None:
        raise UsageError(
            "A dtype must be one of the supported number formats.",
            found=repr(value),
            fix="use one of " + ", ".join(_BY_NAME),
        )
    return found


def is_format(value: np.dtype[Any]) -> bool:
    """Return True if a NumPy dtype is one of the number formats."""
    return _of_numpy(value) is not None


def _of_numpy(value: np.dtype[Any] | type) -> DType | None:
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        return None
    return uint4x32 if dtype == uint4x32.numpy else _BY_NAME.get(dtype.name)


def promote(*dtypes: DType) -> DType:
    """Return the format of the result of an operation over operands of these formats: the one of
    highest rank, or for integers of less than 32 bits the least that holds the numbers of all.
    A packed format counts as the wider format that it is read in.
    """
    first = dtypes[0]
    if dtypes.count(first) == len(dtypes) and not first.packed_bits:
        return first
    if any(dtype.packed_bits for dtype in dtypes):
        dtypes = tuple([dtype.unpacked for dtype in dtypes])
    highest = max(dtypes, key=lambda dtype: dtype.rank)
    if not highest.is_short_integer or highest is bool_ or len(set(dtypes)) == 1:
        return highest
    return _least_holding(frozenset(dtypes))


@cache
def _least_holding(dtypes: frozenset[DType]) -> DType:
    """Return the least format of integers that holds the numbers of all."""
    by_rank = sorted(ALL, key=lambda each: each.rank)
    return next(dtype for dtype in by_rank if dtype.is_integer and holds(dtype, *dtypes))


@cache
def holds(dtype: DType, *others: DType) -> bool:
    """Return True if every number of the other formats is a number of a format."""
    return all(_includes(dtype, other) for other in others)


def _includes(dtype: DType, other: DType) -> bool:
    if dtype is other or Kind.WORD in (dtype.kind, other.kind):
        return dtype is other
    if other.is_float:
        return (
            dtype.significand >= other.significand
            and dtype.greatest >= other.greatest
            and dtype.least <= other.least
            and dtype.has_infinities >= other.has_infinities
        )
    if dtype.is_float and other.bits > dtype.significand:
        return False
    least, greatest = extremes(dtype)
    low, high = extremes(other)
    return bool(least <= low and high <= greatest)


Number = Any
"""A cell's value in Python: a float, an int, or four ints for a `uint4x32`.

Before rounding it may also be a `Fraction`.
"""


def round_to(value: Number, dtype: DType) -> Number:
    """Return `value` as the nearest number of the format (ties to even).

    Integers wrap modulo their width; fractional parts are cut off on the way to an integer format,
    and NaN and infinities become 0 there. In bool everything but 0 is 1, NaN included. Floats
    narrower than single precision are rounded to single precision first, as hardware does that
    computes in it; this equals one rounding for `+ - * / sqrt` of their own numbers, because 24 >=
    2p + 2 bits. By the same argument the double-precision result of these operations may be rounded
    to single precision. Ints and Fractions of any size are rounded from their exact value.
    """
    return rounder(dtype)(value)


@cache
def rounder(dtype: DType) -> Callable[[Number], Number]:
    """Return the function of `round_to` for one format, which does not choose among formats."""
    match dtype.kind:
        case Kind.FLOAT:
            if dtype is float32:
                return _round_single
            return _nearest_double if dtype is float64 else partial(_round_float, dtype=dtype)
        case Kind.SIGNED | Kind.UNSIGNED:
            numbers = range(extremes(dtype)[0], extremes(dtype)[1] + 1)

            def wrap(value: Number) -> int:
                if type(value) is int and value in numbers:
                    return value
                return _wrap_integer(value, dtype)

            return wrap
        case Kind.BOOL:
            return lambda value: int(value != 0)
        case Kind.WORD:
            return lambda value: value


_EXACT = range(-(1 << 53), (1 << 53) + 1)
"""Integers that are doubles."""


def _round_single(value: Number) -> float:
    if type(value) is float or (type(value) is int and value in _EXACT):
        return ctypes.c_float(value).value
    return _round_float(value, float32)


def saturate(value: float, dtype: DType) -> float:
    """Return the value in the format; an infinity becomes the extreme of a format without any."""
    if value in (math.inf, -math.inf):
        low, high = extremes(dtype)
        extreme: float = high if value > 0 else low
        return extreme
    number: float = round_to(value, dtype)
    return number


def _round_float(value: Number, dtype: DType) -> float:
    if dtype is float64:
        return _nearest_double(value)
    if type(value) is not float:
        exact = int(value) if isinstance(value, Integral) else value
        value = _odd_double(exact) if isinstance(exact, Rational) else float(value)
    single = ctypes.c_float(value).value
    if dtype is float32:
        return single
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.float32(single).astype(dtype.numpy))


def _nearest_double(value: Number) -> float:
    if isinstance(value, float):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _odd_double(value: Rational) -> float:
    """Return an exact number as a double, rounded to odd when it does not fit.

    A later rounding to a format of at most 51 bits then resolves every tie as for the exact number.
    """
    nearest = _nearest_double(value)
    if math.isinf(nearest) or nearest == value:
        return nearest
    if nearest == 0:
        return math.copysign(5e-324, value)
    lower = math.nextafter(nearest, -math.inf) if nearest > value else nearest
    mantissa = int.from_bytes(struct.pack("<d", lower)[:1], "little")
    return lower if mantissa % 2 else math.nextafter(lower, math.inf)


def extremes(dtype: DType) -> tuple[Number, Number]:
    """Return the least and the greatest number of a format, infinities included."""
    if dtype.is_float:
        greatest = math.inf if dtype.has_infinities else dtype.greatest
        return -greatest, greatest
    if dtype.kind is Kind.SIGNED:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def constant_limit(dtype: DType, cutoff: float) -> float:
    """Return the least magnitude that is refused for constants of a format with a short range: the
    cutoff if its overflow is infinite.
    """
    return cutoff if dtype.has_infinities else min(cutoff, dtype.greatest)


def _wrap_integer(value: Number, dtype: DType) -> int:
    bits = dtype.bits
    try:
        wrapped = int(value) & ((1 << bits) - 1)
    except (ValueError, OverflowError):  # NaN and infinities
        return 0
    if dtype.kind is Kind.SIGNED and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return wrapped


def from_bits(bits: int, dtype: DType) -> Number:
    """Return the number whose little-endian pattern is the low bytes of a 128-bit integer."""
    if dtype.holds_integers:
        return _wrap_integer(bits, dtype)
    pattern = np.frombuffer(bits.to_bytes(16, "little")[: dtype.nbytes], dtype.numpy)
    # the scalars of ml_dtypes are no Python numbers
    return float(pattern[0]) if dtype.is_float else pattern.item()


def reinterpret(value: Number, source: DType, dtype: DType) -> Number:
    """Reinterpret the bits of a number of one format as a number of another."""
    return from_bits(bits_of(value, source), dtype)


def bits_of(value: Number, dtype: DType) -> int:
    """Return the bit pattern of a number of a format; every NaN becomes the positive quiet NaN."""
    if dtype.is_float and value != value:
        value = math.nan
    return int.from_bytes(np.array(value, dtype.numpy).tobytes(), "little")
