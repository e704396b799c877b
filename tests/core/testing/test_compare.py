"""Comparison in units in the last place."""

from __future__ import annotations

import numpy as np
import pytest
from inline_snapshot import snapshot

from ocannl_core.ir.numbers.dtypes import (
    bfloat16,
    extremes,
    float8_e4m3fn,
    float8_e5m2,
    float32,
    float64,
    int64,
    uint4x32,
)
from ocannl_core.testing.compare import Tolerance, assert_same, difference, ulp_distances


def test_neighboring_numbers_are_one_ulp_apart() -> None:
    one = np.array([1.0, 1.0, np.finfo(np.float32).max, -0.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), np.float32(2)), 1.0, np.inf, 0.0], np.float32)
    assert ulp_distances(one, other, float32) == [1, 0, 1, 1]
    assert ulp_distances(other, one, float32) == [1, 0, 1, 1]


@pytest.mark.parametrize("dtype", [bfloat16, float8_e4m3fn, float8_e5m2, float64], ids=str)
def test_all_numbers_of_a_format_are_in_order(dtype) -> None:  # type: ignore[no-untyped-def]
    low, high = extremes(dtype)
    values = np.array([low, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, high]).astype(dtype.numpy)
    lowest = np.full(len(values), low).astype(dtype.numpy)
    distances = ulp_distances(values, lowest, dtype)
    assert distances == sorted(set(distances))


def test_a_nan_equals_any_nan_and_no_number() -> None:
    nan, other = np.array([np.nan]), -np.array([np.nan])
    assert difference(nan, other, float64) == ""
    assert difference(nan, np.array([0.0]), float64, Tolerance(ulps=2**64 - 1)) != ""


def test_integers_and_words_are_compared_as_they_are() -> None:
    extremes = np.array([2**63 - 1]), np.array([-(2**63)])
    assert ulp_distances(*extremes, int64) == [2**64 - 1]
    words = np.zeros(2, uint4x32.numpy)
    other = words.copy()
    other["d"][1] = 1
    assert ulp_distances(words, other, uint4x32) == [0, 2**96]


def test_a_failure_names_the_cell_and_the_difference() -> None:
    expected = np.arange(12, dtype=np.float32).reshape(3, 4)
    actual = expected.copy()
    actual[1, 2], actual[2, 0] = 6.0000005, np.nan
    with pytest.raises(AssertionError) as error:
        assert_same(actual, expected, float32, what="the sum")
    assert str(error.value) == snapshot("""\
the sum: 2 of 12 cells differ by more than 0 ulp of float32
  at [2, 0]: nan instead of 8.0, 8589934592 ulp apart
  at [1, 2]: 6.0000005 instead of 6.0, 1 ulp apart\
""")
    assert difference(actual[:2], expected[:2], float32, Tolerance(ulps=1)) == ""
    assert difference(actual[:2], expected[:2], float32, Tolerance(absolute=1e-6)) == ""


def test_arrays_of_other_extents_or_formats_differ() -> None:
    two = np.zeros(2, np.float32)
    assert difference(two, two.reshape(1, 2), float32) == snapshot(
        "float32 (2,) instead of float32 (1, 2)"
    )
    assert difference(two, two.astype(np.float64), float32) != ""
