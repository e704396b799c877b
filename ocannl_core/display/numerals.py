"""Cells of arrays as texts: as short as their precision allows, alike within one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.numbers.dtypes import uint4x32

_GREATEST_FIXED = 1e7
"""The least magnitude that is written with an exponent."""


def numerals(cells: Array, decimals: int) -> Array:
    """Return an array of texts, one per cell.

    Floats have the same number of decimals, no more than are needed and at least one. Large
    numbers, and nonzero numbers that would be printed as zero, have an exponent.

    Args:
        cells: Integers, floats of any width, or 128-bit words.
    """
    return np.array(_texts(cells, decimals), dtype=object).reshape(cells.shape)


def _texts(cells: Array, decimals: int) -> list[str]:
    if cells.dtype == uint4x32.numpy:
        return [":".join(f"{int(lane):08x}" for lane in word) for word in cells.flat]
    if cells.dtype.kind in "iub":
        return [str(int(cell)) for cell in cells.flat]
    numbers = [float(cell) for cell in cells.flat]
    digits = _digits(numbers, decimals)
    return [_float_text(number, digits, decimals) for number in numbers]


def numeral(cell: Any, decimals: int) -> str:
    """Return one cell as a text."""
    text: str = numerals(np.asarray(cell).reshape(1), decimals)[0]
    return text


def _digits(numbers: Sequence[float], decimals: int) -> int:
    """Return the number of decimals that the numbers need, from one to the given number."""
    fixed = [n for n in numbers if _is_fixed(n, decimals)]
    for digits in range(1, decimals):
        if all(f"{n:.{digits}f}{'0' * (decimals - digits)}" == f"{n:.{decimals}f}" for n in fixed):
            return digits
    return decimals


def _is_fixed(number: float, decimals: int) -> bool:
    magnitude = abs(number)
    return number == 0 or (10.0**-decimals / 2 < magnitude < _GREATEST_FIXED)


def _float_text(number: float, digits: int, decimals: int) -> str:
    if not math.isfinite(number):
        return str(number)
    if _is_fixed(number, decimals):
        return f"{number:.{digits}f}"
    places = decimals if abs(number) >= 1 else 1  # below 1, the magnitude is enough
    mantissa, exponent = f"{number:.{places}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def summary(cells: Array, decimals: int, most: int = 8) -> str:
    """Return a few cells in brackets, rows separated by `;`, or the range and mean of many."""
    if cells.ndim == 0:
        return numeral(cells, decimals)
    if cells.size == 0:
        return "[]"
    if cells.size <= most:
        rows = numerals(cells, decimals).reshape(-1, cells.shape[-1])
        return f"[{'; '.join(' '.join(row) for row in rows)}]"
    if cells.dtype == uint4x32.numpy:
        return f"{cells.size} words"
    wide = cells.astype(np.float64)
    if not np.isfinite(wide).all():
        left = int(cells.size - np.isfinite(wide).sum())
        return f"{cells.size} cells, {left} of them not finite"
    low, high = numeral(cells.min(), decimals), numeral(cells.max(), decimals)
    return f"{low} to {high}, mean {numeral(wide.mean(), decimals)}"
