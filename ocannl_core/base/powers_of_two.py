"""Powers of two beside a number."""

from __future__ import annotations


def power_below(number: int) -> int:
    """Return the greatest power of two that is no greater than a number; 1 at least."""
    return 1 << max(0, number.bit_length() - 1)


def power_above(number: int) -> int:
    """Return the least power of two that is no less than a number; 1 at least."""
    return 1 << max(0, number - 1).bit_length()
