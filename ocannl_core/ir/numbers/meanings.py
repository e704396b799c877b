"""The exact functions of Python numbers behind the scalar primitives.

Integers are computed exactly, floats in double precision with IEEE results in place of Python's
exceptions, and operations with a single rounding as exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction


def total(
    function: Callable[[float], float], pole: float | None = None
) -> Callable[[float], float]:
    """Return the function with IEEE results in place of Python's exceptions.

    The result is NaN outside the domain, infinity on overflow, and minus infinity at a pole.
    """

    def call(value: float) -> float:
        try:
            return function(value)
        except ValueError:
            return -math.inf if value == pole else math.nan
        except OverflowError:
            return math.inf

    return call


def divide(a: float, b: float) -> float:
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


def power(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return integer_power(a, b)
    if b == 2:  # the platform's function may miss the nearest number by an ulp
        return a * a
    if b == -1:
        return divide(1.0, float(a))
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        if a == 0:  # zero to a negative power
            return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
        return math.nan


def integer_power(a: int, b: int) -> int:
    """Return the power modulo 2**64; for a negative exponent, `1 / a**-b` truncated."""
    if b < 0:
        return a if abs(a) == 1 and b % 2 else abs(a) if abs(a) == 1 else 0
    return int(a**b) if b <= 64 else pow(a, b, 1 << 64)


def modulo(a: float, b: float) -> float:
    """Return the floor-modulo, which has the sign of the divisor."""
    try:
        return a % b
    except ZeroDivisionError:
        return 0 if isinstance(b, int) else math.nan


def maximum(a: float, b: float) -> float:
    if a != a:
        return a
    return a if a >= b else b


def minimum(a: float, b: float) -> float:
    if a != a:
        return a
    return a if a <= b else b


def multiply_add(a: float, b: float, c: float) -> float | Fraction:
    """Return `a * b + c` unrounded: an integer, a fraction, or a zero or non-finite number."""
    if isinstance(a, int) and isinstance(b, int) and isinstance(c, int):
        return a * b + c
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return exact if exact != 0 else a * b + c  # a fraction has no negative zero


def multiply_add_singles(a: float, b: float, c: float) -> float:
    """Return `a * b + c` of numbers of at most 24 bits as a double, rounded to odd when it does not
    fit: rounding it to single precision gives the number that is nearest to the exact result.

    The product is exact. The error of the sum is computed as by Knuth's TwoSum. Doubles between
    which an exact result lies have mantissas of different parity.
    """
    product = a * b
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    if error == 0 or error != error:  # the error at an infinity is NaN
        return total
    fraction, _ = math.frexp(total)
    if int(fraction * 2.0**53) & 1:
        return total
    return math.nextafter(total, math.inf if error > 0 else -math.inf)


def floor_divide(a: float, b: float) -> float:
    """Return the quotient rounded down, as NumPy does."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    return a // b if b else divide(a, b)


def sign(value: float) -> float:
    """Return -1, 0 or 1; NaN of NaN."""
    if value != value:
        return value
    return (value > 0) - (value < 0)


def whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """Return a rounding to whole numbers; zeros keep their sign, infinities and NaN stay."""

    def call(value: float) -> float:
        if isinstance(value, int) or not math.isfinite(value):
            return value
        return math.copysign(float(function(value)), value)

    return call


def hyperbolic_sine(value: float) -> float:
    """Return the hyperbolic sine; an infinity on overflow."""
    try:
        return math.sinh(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def bitwise(operation: Callable[[int, int], int]) -> Callable[[float, float], float]:
    """Return an operation on the bits of integers, or on the truths of floats."""

    def call(a: float, b: float) -> float:
        if isinstance(a, int) and isinstance(b, int):
            return operation(a, b)
        return float(operation(a != 0, b != 0))

    return call
