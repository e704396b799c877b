"""The meanings of the primitives."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.dtypes import float32, float64, int32, int64, round_to, uint8, uint64
from ocannl_core.ops import (
    COMPARISONS,
    BinaryOp,
    Signature,
    TernaryOp,
    UnaryOp,
    accumulates,
    arity,
    neutral,
)
from ocannl_core.words import threefry4x32

NAN, INF = math.nan, math.inf
floats = st.floats(width=32)
int64s = st.integers(-(2**63), 2**63 - 1)
ALL_OPS = (*UnaryOp, *BinaryOp, *TernaryOp)
ONES = 0xFFFFFFFF


def same(left: float, right: float) -> bool:
    return float(left).hex() == float(right).hex() or (left != left and right != right)


def call(op: UnaryOp | BinaryOp | TernaryOp, *args: float) -> float:
    result: float = op.value.meaning(*args)
    return result


def _words(text: str) -> tuple[int, int, int, int]:
    a, b, c, d = (int(word, 16) for word in text.split())
    return a, b, c, d


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
        ((ONES,) * 4, (ONES,) * 4, "2a881696 57012287 f6c7446e a16a6732"),
        (
            _words("a4093822 299f31d0 082efa98 ec4e6c89"),
            _words("243f6a88 85a308d3 13198a2e 03707344"),
            "59cd1dbb b8879579 86b5d00c ac8b6d84",
        ),
    ],
)
def test_threefry_gives_the_published_known_answers(
    key: tuple[int, int, int, int], counter: tuple[int, int, int, int], expected: str
) -> None:
    assert threefry4x32(key, counter) == _words(expected)
    assert BinaryOp.THREEFRY4X32.value.meaning(key, counter) == _words(expected)


def test_threefry_with_fewer_rounds_is_another_function() -> None:
    assert threefry4x32((0, 0, 0, 0), (0, 0, 0, 0), rounds=12) != threefry4x32(
        (0, 0, 0, 0), (0, 0, 0, 0)
    )


def test_numbers_from_words_are_exact_in_single_precision_and_below_one() -> None:
    uniform = UnaryOp.UNIFORM.value.meaning
    assert uniform((0, ONES, ONES, ONES)) == 0.0
    largest = uniform((ONES, 0, 0, 0))
    assert largest < 1.0
    assert round_to(largest, float32) == largest


def test_words_from_integers_have_the_low_lane_first() -> None:
    word = UnaryOp.WORD.value.meaning
    assert word(2**40 + 7) == (7, 256, 0, 0)
    assert word(-1) == (ONES, ONES, 0, 0)


@pytest.mark.parametrize(
    ("op", "arg"),
    [(op, NAN) for op in UnaryOp if op not in (UnaryOp.NOT, UnaryOp.WORD, UnaryOp.UNIFORM)]
    + [(UnaryOp.LOG, -1.0), (UnaryOp.SQRT, -1.0), (UnaryOp.SIN, INF), (UnaryOp.LOG2, -INF)],
)
def test_functions_of_nan_or_outside_their_domain_are_nan(op: UnaryOp, arg: float) -> None:
    assert math.isnan(call(op, arg))


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        (UnaryOp.EXP, (1e4,), INF),
        (UnaryOp.EXP2, (1e4,), INF),
        (UnaryOp.EXP, (-1e4,), 0.0),
        (UnaryOp.LOG, (0.0,), -INF),
        (UnaryOp.LOG2, (-0.0,), -INF),
        (UnaryOp.RECIP, (-0.0,), -INF),
        (UnaryOp.RECIP_SQRT, (0.0,), INF),
        (UnaryOp.SQRT, (-0.0,), -0.0),
        (UnaryOp.RELU, (-0.0,), -0.0),
        (UnaryOp.RELU, (-3.0,), 0.0),
        (UnaryOp.SAT01, (-0.0,), 0.0),
        (UnaryOp.SAT01, (7.0,), 1.0),
        (UnaryOp.TRUNC, (-0.5,), -0.0),
        (UnaryOp.TRUNC, (-INF,), -INF),
        (UnaryOp.NOT, (NAN,), 0.0),
        (BinaryOp.MAX, (1.0, NAN), NAN),
        (BinaryOp.MAX, (NAN, 1.0), NAN),
        (BinaryOp.MIN, (1.0, NAN), NAN),
        (BinaryOp.MIN, (NAN, 1.0), NAN),
        (BinaryOp.MOD, (-1.0, 3.0), 2.0),
        (BinaryOp.MOD, (1.0, -3.0), -2.0),
        (BinaryOp.MOD, (1.0, 0.0), NAN),
        (BinaryOp.DIV, (1.0, -0.0), -INF),
        (BinaryOp.DIV, (0.0, 0.0), NAN),
        (BinaryOp.DIV, (NAN, 0.0), NAN),
        (BinaryOp.POW, (0.0, -1.0), INF),
        (BinaryOp.POW, (-0.0, -3.0), -INF),
        (BinaryOp.POW, (-0.0, -2.0), INF),
        (BinaryOp.POW, (-2.0, 0.5), NAN),
        (BinaryOp.POW, (-1e200, 3.0), -INF),
        (BinaryOp.POW, (NAN, 0.0), 1.0),
        (BinaryOp.RELU_GATE, (0.0, 5.0), 0.0),
        (BinaryOp.RELU_GATE, (0.1, 5.0), 5.0),
        (BinaryOp.SAT01_GATE, (1.0, 5.0), 0.0),
        (BinaryOp.SAT01_GATE, (0.5, 5.0), 5.0),
        (BinaryOp.EQ, (NAN, NAN), 0.0),
        (BinaryOp.NE, (NAN, NAN), 1.0),
        (BinaryOp.OR, (0.0, NAN), 1.0),
        (TernaryOp.WHERE, (-0.0, 1.0, 2.0), 2.0),
        (TernaryOp.WHERE, (NAN, 1.0, 2.0), 1.0),
    ],
)
def test_special_values(
    op: UnaryOp | BinaryOp | TernaryOp, args: tuple[float, ...], expected: float
) -> None:
    assert same(call(op, *args), expected)


# ----- integers ---------------------------------------------------------------------------------


@given(int64s, int64s)
def test_integer_division_is_cut_off_and_consistent_with_multiplication(a: int, b: int) -> None:
    quotient = call(BinaryOp.DIV, a, b)
    assert isinstance(quotient, int)
    if b == 0:
        assert quotient == 0
    else:
        assert abs(quotient * b) <= abs(a) < (abs(quotient) + 1) * abs(b)


@given(int64s, int64s.filter(bool))
def test_integer_modulo_has_the_sign_of_the_divisor(a: int, b: int) -> None:
    rest = call(BinaryOp.MOD, a, b)
    assert (a - rest) % b == 0
    assert abs(rest) < abs(b)
    assert rest == 0 or (rest > 0) == (b > 0)


@given(int64s, st.integers(0, 200))
def test_integer_powers_are_products_modulo_the_width(a: int, exponent: int) -> None:
    product = 1
    for _ in range(exponent):
        product = round_to(product * a, int64)
    assert round_to(call(BinaryOp.POW, a, exponent), int64) == product


def test_negative_integer_powers_are_reciprocals_cut_off() -> None:
    assert [call(BinaryOp.POW, a, -1) for a in (-2, -1, 0, 1, 2)] == [0, -1, 0, 1, 0]
    assert call(BinaryOp.POW, -1, -2) == 1


@given(int64s)
def test_trunc_keeps_integers(value: int) -> None:
    assert call(UnaryOp.TRUNC, value) == value


# ----- fused multiplication and addition --------------------------------------------------------


@given(floats, floats, floats)
def test_fma_has_one_rounding(a: float, b: float, c: float) -> None:
    result = round_to(call(TernaryOp.FMA, a, b, c), float32)
    if not all(map(math.isfinite, (a, b, c))):
        with np.errstate(all="ignore"):
            assert same(result, float(np.float64(a) * np.float64(b) + np.float64(c)))
        return
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        assert same(result, round_to(exact, float32))
    else:
        assert same(result, a * b + c)


def test_fma_in_single_precision_is_not_double_precision_rounded_again() -> None:
    a = 1.0 + 2.0**-12
    # the exact sum is just above the middle of two single-precision numbers, the double is on it
    c = 2.0**-80
    product = a * a
    assert round_to(product + c, float32) == round_to(product, float32)
    assert round_to(call(TernaryOp.FMA, a, a, c), float32) == 1 + 2.0**-11 + 2.0**-23


def test_fma_of_a_product_beyond_double_precision_is_not_yet_infinite() -> None:
    huge = 2.0**1000
    assert round_to(call(TernaryOp.FMA, huge, huge, -INF), float64) == -INF
    assert round_to(call(TernaryOp.FMA, huge, 2.0**100, 1.0), float64) == INF


def test_fma_of_integers_is_exact() -> None:
    assert call(TernaryOp.FMA, 2**40, 2**40, 1) == 2**80 + 1
    assert round_to(call(TernaryOp.FMA, 200, 200, 100), uint8) == (40100 % 256)


# ----- the table --------------------------------------------------------------------------------


@given(floats)
def test_neutral_elements_change_nothing_from_the_side_an_accumulation_starts_on(
    value: float,
) -> None:
    for op in (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN):
        assert call(op, neutral(op), value) == value or value != value
    truth = 1.0 if value else 0.0
    assert call(BinaryOp.OR, neutral(BinaryOp.OR), value) == truth
    assert call(BinaryOp.AND, neutral(BinaryOp.AND), value) == truth


def test_subtraction_and_division_accumulate_from_where_sums_and_products_start() -> None:
    assert neutral(BinaryOp.SUB) == neutral(BinaryOp.ADD) == 0
    assert neutral(BinaryOp.DIV) == neutral(BinaryOp.MUL) == 1


def test_only_accumulating_primitives_have_a_neutral_element() -> None:
    assert accumulates(BinaryOp.SECOND)
    assert not accumulates(BinaryOp.FIRST)
    assert not any(accumulates(op) for op in COMPARISONS)
    with pytest.raises(ValueError, match="mod has no neutral element"):
        neutral(BinaryOp.MOD)


@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.value.name)
def test_every_primitive_takes_as_many_operands_as_the_table_says(
    op: UnaryOp | BinaryOp | TernaryOp,
) -> None:
    word = (1, 2, 3, 4)
    takes_words = op.value.signature in (Signature.FROM_WORD, Signature.WORDS)
    args = [word if takes_words else 1] * arity(op)
    assert op.value.meaning(*args) is not None


def test_names_and_symbols_are_unique() -> None:
    names = [op.value.name for op in ALL_OPS]
    symbols = [op.value.symbol for op in ALL_OPS if op.value.symbol]
    assert len(set(names)) == len(names)
    assert len(set(symbols)) == len(symbols)


@given(floats)
def test_square_and_reciprocal_powers_are_exactly_rounded(value: float) -> None:
    assert same(call(BinaryOp.POW, value, 2.0), value * value)
    assert same(call(BinaryOp.POW, value, -1.0), call(UnaryOp.RECIP, value))


def test_results_wrap_into_unsigned_formats() -> None:
    assert round_to(call(BinaryOp.SUB, 1, 2), uint64) == 2**64 - 1
    assert round_to(call(UnaryOp.NEG, 5), int32) == -5
