"""Comparison of arrays cell by cell, in units in the last place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ocannl_core.ir.numbers.dtypes import DType, Kind

Array = np.ndarray[Any, Any]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest accepted difference of two numbers."""

    ulps: int = 0
    """Units in the last place; 0 requires the same bits, except that any NaN equals any NaN."""
    absolute: float = 0.0
    """Numbers no further apart than this are equal however small they are."""


EXACT = Tolerance()


def ulp_distances(actual: Array, expected: Array, dtype: DType) -> list[int]:
    """Return how many numbers of the format lie between two cells, for each cell in order.

    Infinity follows the largest number, and -0.0 precedes 0.0; two NaNs are 0 apart, and a NaN is
    further from a number than any two numbers are.
    """
    left, right = _ordinals(actual, dtype), _ordinals(expected, dtype)
    if not dtype.is_float:
        return [abs(a - b) for a, b in zip(left, right, strict=True)]
    nan = 1 << (8 * dtype.nbytes + 1)
    distances = []
    for a, b, x, y in zip(left, right, actual.ravel(), expected.ravel(), strict=True):
        if x != x or y != y:
            distances.append(0 if x != x and y != y else nan)
        else:
            distances.append(abs(a - b))
    return distances


def _ordinals(array: Array, dtype: DType) -> list[int]:
    """Return the position of each number among all numbers of its format."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.kind is Kind.WORD:
        lanes = flat.view(np.uint32).reshape(-1, 4)
        return [sum(int(lane) << (32 * k) for k, lane in enumerate(word)) for word in lanes]
    if not dtype.is_float:
        return [int(number) for number in flat]
    sign = 1 << (8 * dtype.nbytes - 1)
    patterns = flat.view(f"u{dtype.nbytes}").tolist()
    return [sign - 1 - (bits - sign) if bits & sign else bits + sign for bits in patterns]


def wrong_cells(
    actual: Array, expected: Array, dtype: DType, tolerance: Tolerance = EXACT
) -> list[tuple[int, int]]:
    """Return the distance in ulp and the position of each cell that differs too much, those that
    differ most first.
    """
    wrong = [
        (distance, position)
        for position, distance in enumerate(ulp_distances(actual, expected, dtype))
        if distance > tolerance.ulps and not _is_near(actual, expected, position, tolerance)
    ]
    return sorted(wrong, key=lambda each: (-each[0], each[1]))


def difference(actual: Array, expected: Array, dtype: DType, tolerance: Tolerance = EXACT) -> str:
    """Return a text with the cells of an array that differ most; an empty one if none do."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype} {actual.shape} instead of {expected.dtype} {expected.shape}"
    wrong = wrong_cells(actual, expected, dtype, tolerance)
    if not wrong:
        return ""
    lines = [
        f"{len(wrong)} of {actual.size} cells differ by more than {tolerance.ulps} ulp of {dtype}"
    ]
    for distance, position in wrong[:_SHOWN]:
        where = [int(axis) for axis in np.unravel_index(position, actual.shape)]
        found, wanted = actual.reshape(-1)[position], expected.reshape(-1)[position]
        lines.append(f"  at {where}: {found!s} instead of {wanted!s}, {distance} ulp apart")
    if len(wrong) > _SHOWN:
        lines.append(f"  and {len(wrong) - _SHOWN} more")
    return "\n".join(lines)


def _is_near(actual: Array, expected: Array, position: int, tolerance: Tolerance) -> bool:
    if not tolerance.absolute:
        return False
    found, wanted = actual.reshape(-1)[position], expected.reshape(-1)[position]
    return abs(float(found) - float(wanted)) <= tolerance.absolute


def assert_same(
    actual: Array,
    expected: Array,
    dtype: DType,
    tolerance: Tolerance = EXACT,
    what: str = "the result",
) -> None:
    """Raise AssertionError naming the cells of `actual` that differ too much from `expected`."""
    text = difference(actual, expected, dtype, tolerance)
    if text:
        raise AssertionError(f"{what}: {text}")
