"""Format of numbers in tables and trees."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.display.numerals import numeral, numerals, summary
from ocannl_core.ir.numbers.dtypes import uint4x32


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([1.0, 2.0], ["1.0", "2.0"]),
        ([1.0, 2.25], ["1.00", "2.25"]),
        ([0.1, 1 / 3], ["0.1000", "0.3333"]),
        ([0.0, -0.5, -1.26e-5], ["0.0", "-0.5", "-1.3e-5"]),
        ([1.5, 2.34567e9], ["1.5", "2.3457e9"]),
        ([math.inf, -math.inf, math.nan, 1.0], ["inf", "-inf", "nan", "1.0"]),
    ],
)
def test_floats_have_as_many_decimals_as_the_column_needs(
    cells: list[float], expected: list[str]
) -> None:
    assert numerals(np.array(cells), 4).tolist() == expected


def test_whole_numbers_and_words_are_exact() -> None:
    assert numerals(np.array([2**63, 1], np.uint64), 1).tolist() == ["9223372036854775808", "1"]
    word = np.array([(1, 2, 3, 0xDEADBEEF)], uint4x32.numpy)
    assert numeral(word, 4) == "00000001:00000002:00000003:deadbeef"


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
)
def test_narrow_floats_are_numbers_too(dtype: type) -> None:
    assert numerals(np.array([0.5, 2.0]).astype(dtype), 4).tolist() == ["0.5", "2.0"]


@given(st.lists(st.floats(width=32), min_size=1, max_size=6), st.integers(1, 6))
def test_a_numeral_is_the_number_rounded(cells: list[float], decimals: int) -> None:
    for cell, text in zip(cells, numerals(np.array(cells), decimals), strict=True):
        if math.isnan(cell):
            assert text == "nan"
        elif "e" in text or not math.isfinite(cell):
            places = decimals if abs(cell) >= 1 else 1
            assert math.isclose(float(text), cell, rel_tol=0.6 * 10**-places)
        else:
            assert abs(float(text) - cell) <= 0.5001 * 10**-decimals
            assert (float(text) == 0) <= (cell == 0)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (np.float32(0.5), "0.5"),
        (np.arange(3), "[0 1 2]"),
        (np.arange(8).reshape(2, 2, 2), "[0 1; 2 3; 4 5; 6 7]"),
        (np.arange(9) / 2, "0.0 to 4.0, mean 2.0"),
        (np.array([1.0] * 8 + [np.inf]), "9 cells, 1 of them not finite"),
        (np.zeros(0), "[]"),
        (np.zeros(9, uint4x32.numpy), "9 words"),
    ],
)
def test_a_summary_shows_few_cells_and_the_range_of_many(
    cells: np.ndarray,
    expected: str,  # type: ignore[type-arg]
) -> None:
    assert summary(np.asarray(cells), 4) == expected
