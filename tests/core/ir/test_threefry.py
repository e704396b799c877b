"""Words of 128 bits: the published hash, and conversions to and from numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, bits_of, from_bits, round_to
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp, VectorOp, meaning_in
from ocannl_core.ir.numbers.threefry import Words, number_of, numbers_of, threefry4x32, word_of

ONES = 0xFFFFFFFF
lanes = st.integers(0, ONES)
words = st.tuples(lanes, lanes, lanes, lanes)
RANDOM: Words = (0x76BB7178, 0xBB82AC4F, 0x8F90552B, 0x81B2DA10)
"""A word whose numbers were computed elsewhere."""


def hexadecimal(text: str) -> Words:
    a, b, c, d = (int(word, 16) for word in text.split())
    return a, b, c, d


PI = "243f6a88 85a308d3 13198a2e 03707344"
MORE_PI = "a4093822 299f31d0 082efa98 ec4e6c89"
ZEROS = "0 0 0 0"
ALL_ONES = "ffffffff ffffffff ffffffff ffffffff"


@pytest.mark.parametrize(
    ("rounds", "key", "counter", "expected"),
    [
        (20, ZEROS, ZEROS, "9c6ca96a e17eae66 fc10ecd4 5256a7d8"),
        (20, ALL_ONES, ALL_ONES, "2a881696 57012287 f6c7446e a16a6732"),
        (20, MORE_PI, PI, "59cd1dbb b8879579 86b5d00c ac8b6d84"),
        (13, ZEROS, ZEROS, "531c7e4f 39491ee5 2c855a92 3d6abf9a"),
        (13, ALL_ONES, ALL_ONES, "c4189358 1c9cc83a d5881c67 6a0a89e0"),
    ],
)
def test_threefry_gives_the_published_known_answers(
    rounds: int, key: str, counter: str, expected: str
) -> None:
    found = threefry4x32(hexadecimal(key), hexadecimal(counter), rounds)
    assert found == hexadecimal(expected)


@given(words, words)
def test_the_primitives_are_the_hash_with_20_and_12_rounds(key: Words, counter: Words) -> None:
    assert BinaryOp.THREEFRY4X32.value.meaning(key, counter) == threefry4x32(key, counter, 20)
    assert BinaryOp.THREEFRY4X32_12.value.meaning(key, counter) == threefry4x32(key, counter, 12)
    assert threefry4x32(key, counter, 20) != threefry4x32(key, counter, 12)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2**40 + 7, dtypes.int64, (7, 256, 0, 0)),
        (-1, dtypes.int64, (ONES, ONES, 0, 0)),
        (2**64 - 2, dtypes.uint64, (ONES - 1, ONES, 0, 0)),
        (7, dtypes.uint32, (7, 7 ^ 0x9E3779B9, 7 ^ 0x6C078965, 7 ^ 0x00070000)),
        (0x12345678, dtypes.uint32, (0x12345678, 0x8C032FC1, 0x7E33DF1D, 0x444C444C)),
        (-1, dtypes.int32, (ONES, ONES ^ 0x9E3779B9, ONES ^ 0x6C078965, 0)),
        (200, dtypes.uint8, (200, 0, 0, 0)),
        (60000, dtypes.uint16, (60000, 0, 0, 0)),
        (1.0, dtypes.float64, (0, 0x3FF00000, 0, 0)),
        (1.0, dtypes.float32, (0x3F800000, 0, 0, 0)),
        (-2.0, dtypes.bfloat16, (0xC000, 0, 0, 0)),
        (1.0, dtypes.float16, (0x3C00, 0, 0, 0)),
        (1.0, dtypes.float8_e5m2, (0x3C, 0, 0, 0)),
        (math.nan, dtypes.float32, (0x7FC00000, 0, 0, 0)),
        ((1, 2, 3, 4), dtypes.uint4x32, (1, 2, 3, 4)),
    ],
    ids=str,
)
def test_a_number_becomes_the_word_of_its_bits(value: float, dtype: DType, expected: Words) -> None:
    assert word_of(value, dtype) == expected
    assert meaning_in(UnaryOp.WORD, dtype, dtypes.uint4x32)(value) == expected


@given(lanes, lanes)
def test_different_counters_differ_in_every_lane_but_the_rotated_one(a: int, b: int) -> None:
    one, other = word_of(a, dtypes.uint32), word_of(b, dtypes.uint32)
    assert (a == b) == all(x == y for x, y in zip(one, other, strict=True))
    if a != b:
        assert all(x != y for x, y in zip(one[:3], other[:3], strict=True))


def test_a_word_holds_numbers_low_bits_first() -> None:
    single = numbers_of(RANDOM, dtypes.float32)
    assert single == pytest.approx((0.4638, 0.7325, 0.5608, 0.5066), abs=5e-5)
    half = numbers_of(RANDOM, dtypes.float16)
    expected = (0.443, 0.464, 0.673, 0.732, 0.333, 0.561, 0.852, 0.507)
    assert half == pytest.approx(expected, abs=1e-3)
    assert numbers_of(RANDOM, dtypes.uint16)[:2] == (0x7178, 0x76BB)
    assert numbers_of(RANDOM, dtypes.uint8)[:4] == (0x78, 0x71, 0xBB, 0x76)
    assert numbers_of(RANDOM, dtypes.int32)[1] == 0xBB82AC4F - 2**32
    assert numbers_of(RANDOM, dtypes.uint64)[1] == 0x81B2DA108F90552B
    assert numbers_of(RANDOM, dtypes.float64)[0] == 0xBB82AC4F76BB7178 * 2.0**-64
    assert numbers_of(RANDOM, dtypes.uint4x32) == (RANDOM,)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_a_word_holds_as_many_numbers_as_fit(dtype: DType) -> None:
    assert len(VectorOp.UNIFORM.value.meaning(RANDOM, dtype)) == 16 // dtype.nbytes


@given(words, st.sampled_from([d for d in dtypes.ALL if d is not dtypes.uint4x32]))
def test_one_number_of_a_word_is_made_of_its_low_lanes(word: Words, dtype: DType) -> None:
    found = number_of(word, dtype)
    assert repr(round_to(found, dtype)) == repr(found)
    if dtype is dtypes.bfloat16:
        assert found == round_to(number_of(word, dtypes.float32), dtype)
    elif found == found:
        assert found == numbers_of(word, dtype)[0]


@given(words)
def test_floats_of_words_are_uniform_numbers(word: Words) -> None:
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float64):
        assert all(
            0 <= number <= 1 for number in (*numbers_of(word, dtype), number_of(word, dtype))
        )
    assert all(0 <= number < 1 for number in numbers_of(word, dtypes.float32))


@pytest.mark.parametrize("dtype", dtypes.ALL[:-1], ids=str)
def test_bit_patterns_and_numbers_are_the_same_thing(dtype: DType) -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        bits = int.from_bytes(generator.bytes(dtype.nbytes), "little")
        bits &= (1 << dtype.bits) - 1
        number = from_bits(bits, dtype)
        if dtype.is_float and number != number:
            continue
        assert bits_of(number, dtype) == bits
