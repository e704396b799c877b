"""Rounding of whole numbers: quotients, multiples and powers of two."""

from __future__ import annotations


def ceil_div(number: int, divisor: int) -> int:
    """Return the least whole number that is no less than a quotient."""
    return -(-number // divisor)


def round_up(number: int, unit: int) -> int:
    """Return the least multiple of a unit that is no less than a number."""
    return -(-number // unit) * unit


def power_below(number: int) -> int:
    """Return the greatest power of two that is no greater than a number; 1 at least."""
    return 1 << max(0, number.bit_length() - 1)


def power_above(number: int) -> int:
    """Return the least power of two that is no less than a number; 1 at least."""
    return 1 << max(0, number - 1).bit_length()
