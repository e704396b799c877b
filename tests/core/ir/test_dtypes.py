"""Number formats: names, promotion, and rounding compared with NumPy and exact arithmetic."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import NARROW, DType, Kind, dtype_of, promote, round_to

FLOATS = tuple(dtype for dtype in dtypes.ALL if dtype.is_float)
INTEGERS = tuple(dtype for dtype in dtypes.ALL if dtype.is_integer)
doubles = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [65504.0, 65519.9, 65520.0, 2.0**-24, 2.0**-25, 3.3895e38, 3.4e38, 57344.0, 61440.0, -0.0]
)


def same(left: float, right: float) -> bool:
    return left.hex() == right.hex() or (left != left and right != right)


@given(doubles)
def test_rounding_to_single_precision_is_numpys(value: float) -> None:
    with np.errstate(over="ignore"):
        assert same(round_to(value, dtypes.float32), float(np.float32(value)))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(value=doubles)
def test_rounding_to_narrow_floats_is_single_precision_rounded_once_more(
    dtype: DType, value: float
) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        expected = float(np.float32(value).astype(dtype.numpy))
    assert same(round_to(value, dtype), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(value=doubles)
def test_rounding_twice_changes_nothing(dtype: DType, value: float) -> None:
    once = round_to(value, dtype)
    assert same(round_to(once, dtype), once)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(value=st.integers(-(2**70), 2**70))
def test_integers_wrap_modulo_their_width(dtype: DType, value: int) -> None:
    bits = 8 * dtype.nbytes
    wrapped = round_to(value, dtype)
    assert (wrapped - value) % (1 << bits) == 0
    info = np.iinfo(dtype.numpy)
    assert info.min <= wrapped <= info.max


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_floats_are_cut_off_on_the_way_to_integers(dtype: DType) -> None:
    assert round_to(3.9, dtype) == 3
    assert round_to(-0.9, dtype) == 0
    assert [round_to(x, dtype) for x in (math.nan, math.inf, -math.inf)] == [0, 0, 0]


def _nearest(exact: Fraction, dtype: np.dtype[np.floating]) -> float:
    """The nearest number by comparing distances, ties to the even mantissa."""
    guess = dtype.type(float(exact))
    candidates = [
        guess,
        np.nextafter(guess, dtype.type(-np.inf)),
        np.nextafter(guess, dtype.type(np.inf)),
    ]
    word = f"u{dtype.itemsize}"

    def distance(each: np.floating) -> tuple[Fraction, int]:
        odd = int(np.array(each, dtype).view(word)) & 1
        return abs(Fraction(float(each)) - exact), odd

    return float(min((c for c in candidates if np.isfinite(c)), key=distance))


@given(st.integers(-(2**64), 2**64))
def test_integers_become_floats_with_a_single_rounding(value: int) -> None:
    for dtype in (dtypes.float32, dtypes.float64):
        assert round_to(value, dtype) == _nearest(Fraction(value), dtype.numpy)


def test_an_integer_near_a_tie_is_not_rounded_twice() -> None:
    value = 2**60 + 2**36 + 1  # just above the middle of two single-precision numbers
    assert float(np.float32(float(value))) == 2.0**60
    assert round_to(value, dtypes.float32) == 2.0**60 + 2.0**37


@given(
    st.fractions(Fraction(-1000), Fraction(1000)) | st.fractions(Fraction(-1), Fraction(1)),
    st.integers(-30, 30),
)
def test_fractions_are_rounded_once(value: Fraction, exponent: int) -> None:
    exact = value * Fraction(2) ** exponent
    assert round_to(exact, dtypes.float32) == _nearest(exact, np.dtype(np.float32))
    assert round_to(exact, dtypes.float64) == float(exact)


def test_fractions_out_of_range_become_infinite_or_zero_with_their_sign() -> None:
    huge, tiny = Fraction(10) ** 400, Fraction(1, 10**400)
    for dtype in FLOATS:
        if dtype.has_infinities:
            assert round_to(huge, dtype) == math.inf
            assert round_to(-huge, dtype) == -math.inf
        else:
            assert math.isnan(round_to(huge, dtype))
        assert same(round_to(tiny, dtype), 0.0)
        assert same(round_to(-tiny, dtype), -0.0)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_facts_of_a_narrow_float_are_those_of_its_numbers(dtype: DType) -> None:
    patterns = np.arange(1 << 8 * dtype.nbytes, dtype=f"u{dtype.nbytes}")
    with np.errstate(invalid="ignore"):
        every = patterns.view(dtype.numpy).astype(np.float64)
    assert np.isinf(every).any() == dtype.has_infinities
    assert every[np.isfinite(every)].max() == dtype.greatest
    assert every[every > 0].min() == dtype.least
    ulp = round_to(1 + 2.0 ** (1 - dtype.significand), dtype) - 1
    assert ulp == 2.0 ** (1 - dtype.significand)
    assert round_to(1 + ulp / 2, dtype) == 1


def test_overflow_of_a_format_without_infinities_is_nan() -> None:
    narrow = dtypes.float8_e4m3fn
    assert round_to(464.0, narrow) == 448.0
    for value in (464.001, 480.0, math.inf, -math.inf, -1e30):
        assert math.isnan(round_to(value, narrow))
    assert math.copysign(1.0, round_to(-0.0, narrow)) == -1.0
    assert dtypes.extremes(narrow) == (-448.0, 448.0)


def test_single_precision_arithmetic_rounded_from_doubles_is_numpys() -> None:
    generator = random.Random(3)
    for _ in range(500):
        a, b = (
            np.float32(generator.uniform(-1, 1) * 2.0 ** generator.randint(-20, 20)) for _ in "ab"
        )
        x, y = float(a), float(b)
        assert round_to(x + y, dtypes.float32) == float(a + b)
        assert round_to(x * y, dtypes.float32) == float(a * b)
        assert round_to(x / y, dtypes.float32) == float(a / b)
        assert round_to(math.sqrt(abs(x)), dtypes.float32) == float(np.sqrt(np.abs(a)))


def test_a_word_is_not_changed() -> None:
    assert round_to((1, 2, 3, 4), dtypes.uint4x32) == (1, 2, 3, 4)


@given(st.permutations(dtypes.ALL))
def test_promotion_does_not_depend_on_the_order(order: list[DType]) -> None:
    assert promote(*order[:5]) is promote(*reversed(order[:5]))
    assert promote(*order) is dtypes.uint4x32


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_spelling_of_a_format_is_understood(dtype: DType) -> None:
    assert dtype_of(dtype) is dtype
    assert dtype_of(dtype.name) is dtype
    assert dtype_of(dtype.numpy) is dtype
    assert dtype.numpy.itemsize == dtype.nbytes
    if dtype.kind is not Kind.WORD:
        assert dtype_of(dtype.numpy.type) is dtype


@pytest.mark.parametrize("value", ["float128", np.dtype(np.complex64), object, 5])
def test_an_unknown_format_is_an_error_that_lists_the_known_ones(value: object) -> None:
    with pytest.raises(UsageError, match="use one of bool, uint8"):
        dtype_of(value)  # type: ignore[arg-type]


EVERY = (*dtypes.ALL, *dtypes.PACKED)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_promotion_depends_neither_on_order_nor_on_grouping(dtype: DType) -> None:
    for second in EVERY:
        both = promote(dtype, second)
        assert promote(second, dtype) is both
        assert promote(both, dtype) is promote(both, second) is both
        for third in EVERY:
            assert promote(both, third) is promote(dtype, promote(second, third))
            assert promote(dtype, second, third) is promote(both, third)


def test_packed_formats_promote_as_those_that_they_are_read_in() -> None:
    assert promote(dtypes.int4) is dtypes.int8
    assert promote(dtypes.uint4) is dtypes.uint8
    assert promote(dtypes.int4, dtypes.uint4) is dtypes.int16
    assert promote(dtypes.int4, dtypes.bool_) is dtypes.int8
    assert round_to(9, dtypes.int4) == -7
    assert round_to(-1, dtypes.uint4) == 15


def test_everything_but_zero_is_true() -> None:
    truths = [round_to(v, dtypes.bool_) for v in (0, -0.0, 2, -1, 1e-300, math.nan, math.inf)]
    assert truths == [0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [*dtypes.ALL[:-1], *dtypes.PACKED], ids=str)
@given(value=doubles | st.integers(-(2**70), 2**70) | st.fractions())
def test_the_function_that_rounds_to_one_format_rounds_as_the_one_for_all(
    dtype: DType, value: float | Fraction
) -> None:
    rounded = dtypes.rounder(dtype)(value)
    assert type(rounded) is (float if dtype.is_float else int)
    assert same(float(rounded), float(round_to(value, dtype)))
