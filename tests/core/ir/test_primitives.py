"""The meanings of the primitives."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.numbers import meanings
from ocannl_core.ir.numbers.dtypes import (
    NARROW,
    DType,
    float32,
    float64,
    int32,
    int64,
    round_to,
    uint8,
    uint64,
)
from ocannl_core.ir.numbers.expansions import expand
from ocannl_core.ir.numbers.primitives import (
    COMPARISONS,
    PRIMITIVES,
    BinaryOp,
    Op,
    Signature,
    TernaryOp,
    UnaryOp,
    accumulates,
    arity,
    neutral,
)
from ocannl_core.testing.primitive_tables import special_values
from tests.support.primitive_operations import primitive_operations

NAN, INF = math.nan, math.inf
OF_BITS = (UnaryOp.NOT, UnaryOp.BIT_NOT, UnaryOp.WORD, UnaryOp.UNIFORM, UnaryOp.BITCAST)
floats = st.floats(width=32)
int64s = st.integers(-(2**63), 2**63 - 1)
ALL_OPS = PRIMITIVES


def same(left: float, right: float) -> bool:
    return float(left).hex() == float(right).hex() or (left != left and right != right)


def call(op: UnaryOp | BinaryOp | TernaryOp, *args: float) -> float:
    result: float = op.value.meaning(*args)
    return result


@pytest.mark.parametrize(
    ("op", "arg"),
    [(op, NAN) for op in UnaryOp if op not in OF_BITS]
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
        (UnaryOp.ABS, (-0.0,), 0.0),
        (UnaryOp.SIGN, (-0.0,), 0.0),
        (UnaryOp.SIGN, (-INF,), -1.0),
        (UnaryOp.FLOOR, (-0.5,), -1.0),
        (UnaryOp.FLOOR, (-0.0,), -0.0),
        (UnaryOp.CEIL, (-0.5,), -0.0),
        (UnaryOp.CEIL, (INF,), INF),
        (UnaryOp.ROUND, (2.5,), 2.0),
        (UnaryOp.ROUND, (3.5,), 4.0),
        (UnaryOp.ROUND, (-0.5,), -0.0),
        (UnaryOp.EXPM1, (1e4,), INF),
        (UnaryOp.EXPM1, (-INF,), -1.0),
        (UnaryOp.LOG1P, (-1.0,), -INF),
        (UnaryOp.LOG1P, (-2.0,), NAN),
        (UnaryOp.SINH, (-1e4,), -INF),
        (UnaryOp.COSH, (-1e4,), INF),
        (UnaryOp.ASIN, (1.5,), NAN),
        (UnaryOp.ERF, (-INF,), -1.0),
        (UnaryOp.BIT_NOT, (0.5,), 0.0),
        (UnaryOp.BIT_NOT, (5,), -6),
        (BinaryOp.ATAN2, (0.0, -1.0), math.pi),
        (BinaryOp.ATAN2, (-0.0, -1.0), -math.pi),
        (BinaryOp.FLOOR_DIV, (-7.0, 2.0), -4.0),
        (BinaryOp.FLOOR_DIV, (1.0, -0.0), -INF),
        (BinaryOp.FLOOR_DIV, (INF, 2.0), NAN),
        (BinaryOp.FLOOR_DIV, (-7, 2), -4),
        (BinaryOp.FLOOR_DIV, (7, 0), 0),
        (BinaryOp.BIT_AND, (6, 3), 2),
        (BinaryOp.BIT_OR, (6, 3), 7),
        (BinaryOp.BIT_XOR, (6, 3), 5),
        (BinaryOp.BIT_AND, (0.5, 3.0), 1.0),
        (BinaryOp.BIT_XOR, (0.5, 3.0), 0.0),
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


singles = st.floats(width=32)


@given(singles, singles, singles, st.integers(-60, 60))
def test_fma_of_singles_rounds_to_the_single_nearest_to_the_exact_result(
    a: float, b: float, c: float, exponent: int
) -> None:
    with np.errstate(over="ignore"):
        near = float(np.float32(a * b * 2.0**exponent))
    for addend in (c, near, -near):  # also one of about the size of the product
        exact = round_to(meanings.multiply_add(a, b, addend), float32)
        assert same(round_to(meanings.multiply_add_singles(a, b, addend), float32), exact)


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
def test_every_primitive_takes_the_arity_of_the_table(op: UnaryOp | BinaryOp | TernaryOp) -> None:
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


ON_NUMBERS = [op for op in PRIMITIVES if op.value.signature is Signature.NUMBERS]
ACCUMULATING = [op for op in BinaryOp if op.value.neutral is not None]


def operands(dtype: DType, count: int) -> list[tuple[float, ...]]:
    """Return special values of a format in all relevant combinations."""
    values = special_values(dtype)
    if count < 3:
        return list(product(values, repeat=count))
    return [
        (a, b, values[(3 * i) % len(values)]) for i, (a, b) in enumerate(product(values, values))
    ]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("op", ON_NUMBERS, ids=lambda op: op.value.name)
def test_a_result_that_needs_no_rounding_is_a_number_of_the_format(op: Op, dtype: DType) -> None:
    exact = [
        same(round_to(call(op, *args), dtype), call(op, *args))
        for args in operands(dtype, arity(op))
    ]
    if op.value.needs_no_rounding:
        assert all(exact)
    elif op is not UnaryOp.IDENTITY:  # which is a conversion when its formats differ
        assert not all(exact)


@pytest.mark.parametrize("op", ON_NUMBERS, ids=lambda op: op.value.name)
def test_only_primitives_marked_in_the_table_have_results_0_or_1(op: Op) -> None:
    formats = (float32, int32)
    results = {call(op, *args) for each in formats for args in operands(each, arity(op))}
    assert op.value.gives_truth == (results <= {0.0, 1.0})


@pytest.mark.parametrize("op", ON_NUMBERS, ids=lambda op: op.value.name)
def test_primitives_marked_as_never_negative_zero_are_not(op: Op) -> None:
    results = [call(op, *args) for args in operands(float32, arity(op))]
    if op.value.is_never_negative_zero:
        assert not any(same(float(result), -0.0) for result in results)


@pytest.mark.parametrize("op", ACCUMULATING, ids=lambda op: op.value.name)
def test_accumulations_that_keep_the_first_value_do(op: BinaryOp) -> None:
    # a sum that starts from +0 loses the sign of a zero
    values = [v for v in special_values(float32) if not (op is BinaryOp.ADD and v == 0)]
    kept = [same(call(op, neutral(op), value), value) for value in values]
    assert op.value.keeps_first == all(kept)


@pytest.mark.parametrize("op", BinaryOp, ids=lambda op: op.value.name)
def test_accumulations_that_drop_repeats_do(op: BinaryOp) -> None:
    if not accumulates(op):
        assert not op.value.drops_repeats
        return
    unchanged = []
    for start, value in operands(float32, 2):
        once = call(op, start, value)
        unchanged.append(same(call(op, once, value), once))
    # a gate opened by a repeated value stays open, but its first value may be another one
    assert op.value.drops_repeats == all(unchanged)


@pytest.mark.parametrize("op", ON_NUMBERS, ids=lambda op: op.value.name)
def test_results_of_integers_are_integers_unless_the_table_states_float(op: Op) -> None:
    results = [call(op, *args) for args in product((1, 2, 3), repeat=arity(op))]
    whole = all(float(result).is_integer() for result in results)
    assert whole or op.value.is_real


def test_the_operations_on_tensors_have_the_logic_of_the_table() -> None:
    lifted = primitive_operations()
    fixed = ("transpose", "fma")  # of the latter, oc.fma states the logic
    for operation in lifted:
        primitive = operation.primitive
        if primitive is not None and operation.name not in fixed:
            # without one, an operation has that of its assignments, which are pointwise
            assert primitive.value.logic in ("", operation.logic or ".")


@pytest.mark.parametrize("op", BinaryOp, ids=lambda op: op.value.name)
def test_commutative_primitives_are(op: BinaryOp) -> None:
    if op.value.is_commutative:
        assert all(same(call(op, a, b), call(op, b, a)) for a, b in operands(float32, 2))


@pytest.mark.parametrize(
    "op", [op for op in PRIMITIVES if op.value.expansion is not None], ids=lambda op: op.value.name
)
def test_an_expansion_has_the_meaning_of_its_primitive(op: Op) -> None:
    def apply(inner: Op, terms: list[float]) -> float:
        assert inner not in COMPARISONS
        return call(inner, *terms)

    def select(comparison: Op, terms: list[float]) -> float:
        assert comparison in COMPARISONS
        a, b, chosen, other = terms
        return call(TernaryOp.WHERE, call(comparison, a, b), chosen, other)

    for args in operands(float32, arity(op)):
        assert same(expand(op, args, float, apply, select), call(op, *args))
