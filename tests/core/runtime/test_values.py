"""Host data as the cells of a node, and back."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.base.errors import ShapeError, TransferError
from ocannl_core.base.settings import overrides
from ocannl_core.ir.node import Margin, NodeInfo
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.runtime import values


def cells(value: object, *dims: int, dtype: DType = dtypes.float32) -> np.ndarray[Any, Any]:
    return values.cells_of(value, NodeInfo(dtype, dims), "placeholder x", str(dims))


def message(
    error: type[Exception], value: object, *dims: int, dtype: DType = dtypes.float32
) -> str:
    with pytest.raises(error) as caught:
        cells(value, *dims, dtype=dtype)
    return str(caught.value)


def test_one_number_fills_every_cell() -> None:
    filled = cells(2, 2, 3)
    assert filled.dtype == np.float32
    assert filled.tolist() == [[2.0] * 3] * 2
    assert filled.flags.c_contiguous


def test_nested_lists_are_arrays() -> None:
    assert cells([[1, 2], [3, 4]], 2, 2).tolist() == [[1, 2], [3, 4]]


def test_a_transposed_array_is_laid_out_in_row_major_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    result = cells(array, 3, 2)
    assert result.flags.c_contiguous
    assert np.array_equal(result, array)


@pytest.mark.parametrize("dims", [(), (1,)])
def test_no_axis_and_one_axis_of_size_1_are_interchangeable(dims: tuple[int, ...]) -> None:
    assert cells(np.float32([7]), *dims).shape == dims
    assert cells(np.float32(7), *dims).shape == dims


def test_infinities_are_values_like_others() -> None:
    assert cells(np.array([np.inf, -np.inf]), 2).tolist() == [np.inf, -np.inf]


def test_not_a_number_is_refused_unless_the_setting_lets_it_pass() -> None:
    data = np.array([1.0, np.nan, np.nan])
    assert message(TransferError, data, 3) == snapshot("""\
Host data has no NaN: one of them makes every result that depends on it NaN.
  found  2 of 3 cells, the first at [1]
  where  placeholder x
  try    clean the data, as with np.nan_to_num(array); where NaN is meant, OCANNL_ALLOW_NAN=1 or settings.overrides(allow_nan=True) lets it pass\
""")
    with overrides(allow_nan=True):
        assert np.isnan(cells(data, 3)).tolist() == [False, True, True]


def test_other_extents_are_an_error_that_names_both() -> None:
    assert message(ShapeError, np.zeros((4, 3)), 3, 5) == snapshot("""\
An array has the extents of its tensor: batch, then output, then input axes.
  found  an array of (4, 3) for (3, 5)
  where  placeholder x, of shape (3, 5)
  try    give one number for every cell, or a single number for all\
""")


def test_a_short_batch_suggests_an_extent_of_the_call() -> None:
    assert message(ShapeError, np.zeros((2, 5)), 3, 5).endswith(
        """ (2, 5) for (3, 5)
  where  placeholder x, of shape (3, 5)
  try    oc.static_extent("n", max=3) as the size of the first axis takes fewer entries; \
oc.data.Loader(..., last="pad") fills a last batch"""
    )


def test_other_extents_with_as_many_cells_suggest_reshaping() -> None:
    assert message(ShapeError, np.zeros((5, 3)), 3, 5) == snapshot("""\
An array has the extents of its tensor: batch, then output, then input axes.
  found  an array of (5, 3) for (3, 5)
  where  placeholder x, of shape (3, 5)
  try    order the axes with np.transpose: batch, then output, then input axes\
""")


def test_a_size_1_axis_does_not_broadcast() -> None:
    with pytest.raises(ShapeError):
        cells(np.zeros((1, 5)), 3, 5)


def test_rows_of_different_lengths_are_an_error() -> None:
    assert message(TransferError, [[1, 2], [3]], 2, 2).startswith(
        "The value of a tensor is an array of numbers."
    )


def test_fractions_are_not_cut_off_silently() -> None:
    assert message(TransferError, np.zeros(3), 3, dtype=dtypes.int32) == snapshot("""\
A tensor of int32 takes integers: fractions would be lost.
  found  an array of dtype float64
  where  placeholder x
  try    convert it: array.astype(np.int32), or np.rint(array).astype(np.int32)\
""")


def test_integers_out_of_range_are_an_error() -> None:
    assert message(TransferError, [1, 256], 2, dtype=dtypes.uint8) == snapshot("""\
Every number fits the tensor's format: uint8 holds 0 to 255.
  found  numbers from 1 to 256; 1 of 2 cells do not fit, the first at [1]
  where  placeholder x
  try    make the tensor with a wider dtype=\
""")
    assert cells([0, 255], 2, dtype=dtypes.uint8).tolist() == [0, 255]


def test_an_integer_beyond_64_bits_is_an_error() -> None:
    with pytest.raises(TransferError):
        cells(2**70, 1, dtype=dtypes.int64)


def test_a_negative_number_does_not_wrap_into_an_unsigned_one() -> None:
    with pytest.raises(TransferError):
        cells([-1], 1, dtype=dtypes.uint64)


def test_the_largest_unsigned_number_passes() -> None:
    assert int(cells(2**64 - 1, 1, dtype=dtypes.uint64)[0]) == 2**64 - 1


def test_a_finite_number_that_would_become_infinite_is_an_error() -> None:
    assert message(TransferError, [1.0, -1e300], 2) == snapshot("""\
Every finite number stays finite in the tensor's format, float32.
  found  numbers up to 1e+300 in magnitude; 1 of 2 cells do not fit, the first at [1]
  where  placeholder x
  try    make the tensor with a wider dtype=, or scale or clip the data\
""")


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (dtypes.float16, 70000),
        (dtypes.bfloat16, 3.4e38 * 1.5),
        (dtypes.float8_e5m2, 1e6),
        (dtypes.float8_e4m3fn, 500),
    ],
)
def test_narrow_floats_overflow_with_an_error(dtype: DType, number: float) -> None:
    with pytest.raises(TransferError):
        cells(number, 2, dtype=dtype)


@pytest.mark.parametrize("dtype", dtypes.NARROW)
def test_narrow_floats_round_wider_ones(dtype: DType) -> None:
    given = [1.5, np.inf if dtype.has_infinities else -448.0]
    found = cells(np.array(given), 2, dtype=dtype).astype(float)
    np.testing.assert_array_equal(found, given)


def test_an_infinity_in_a_format_without_infinities_is_an_error() -> None:
    assert message(TransferError, [1.0, -np.inf], 2, dtype=dtypes.float8_e4m3fn) == snapshot("""\
A tensor of float8_e4m3fn takes finite numbers: the format has no infinities, and NaN in their place.
  found  1 of 2 cells, the first at [1]
  where  placeholder x
  try    clip the data to 448 in magnitude, or make the tensor with another dtype=\
""")


def test_a_narrow_float_widens() -> None:
    array = np.array([1.5, -2.0]).astype(dtypes.bfloat16.numpy)
    assert cells(array, 2).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("dtype", [dtype for dtype in dtypes.ALL if dtype.is_foreign])
def test_the_bytes_that_files_keep_of_a_format_are_its_numbers(dtype: DType) -> None:
    array = np.array([1.5, -2.0]).astype(dtype.numpy)
    loaded = array.view(f"V{dtype.nbytes}")
    assert cells(loaded, 2, dtype=dtype).tobytes() == array.tobytes()
    assert cells(loaded[0], 2, dtype=dtype).tolist() == [1.5, 1.5]


def test_bytes_that_are_numbers_of_one_format_are_converted() -> None:
    loaded = np.array([1.5, -2.0]).astype(dtypes.bfloat16.numpy).view("V2")
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float8_e5m2):
        assert cells(loaded, 2, dtype=dtype).tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones(2).astype(dtypes.bfloat16.numpy), dtypes.int32),
        (np.ones(2).astype(dtypes.bfloat16.numpy).view("V2"), dtypes.int32),
        (np.ones(2).astype(dtypes.float8_e5m2.numpy).view("V1"), dtypes.int32),
        (np.ones(2).astype(dtypes.float8_e5m2.numpy).view("V1"), dtypes.bfloat16),
        (np.ones(2, complex), dtypes.bfloat16),
        (np.ones(2, [("a", "f4"), ("b", "f4")]), dtypes.bfloat16),
        (np.array(["1", "2"]), dtypes.bfloat16),
        (np.array(["1", "2"]), dtypes.int32),
        (np.array([1, 2.5], object), dtypes.float8_e4m3fn),
        (np.zeros(2, "M8[s]"), dtypes.bfloat16),
        (np.array([1.5, 2.0]), dtypes.uint8),
    ],
)
def test_the_fix_of_an_error_about_bytes_works(value: np.ndarray[Any, Any], dtype: DType) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    advice = message(TransferError, value, 2, dtype=dtype).split("  try    ")[1]
    written = re.findall(r"(?:np\.\w+\()?array[.\[].*?(?=,? or |$)", advice)
    assert written
    for each in written:
        found = eval(each, {"np": np, "ml_dtypes": ml_dtypes, "array": value})
        assert cells(found, 2, dtype=dtype).dtype == dtype.numpy


def test_masked_cells_are_refused() -> None:
    array = np.ma.array([1.0, 2.0], mask=[False, True])
    for value in (array, [1.0, np.ma.masked], (1.0, array[1]), array.astype(np.int32)):
        assert "1 of" in message(TransferError, value, 2)
    assert "cells masked" in message(TransferError, [array, [1, 2]], 2, 2)
    assert cells(array.filled(0), 2).tolist() == [1, 0]
    assert cells(np.ma.array([1.0, 2.0]), 2).tolist() == [1, 2]


def test_bytes_of_no_format_are_refused() -> None:
    assert "dtype |V3" in message(TransferError, np.zeros(2, "V3"), 2)


@pytest.mark.parametrize("dtype", dtypes.NARROW)
def test_nan_is_refused_in_every_format(dtype: DType) -> None:
    for position in (0, 1, 2):
        array = np.array([1.0, -2.0, 3.0]).astype(dtype.numpy)
        array[position] = np.nan
        found = message(TransferError, array, 3, dtype=dtype)
        assert f"the first at [{position}]" in found
        if dtype.is_foreign:
            assert "array[np.isnan(array)] = 0" in found
            array[np.isnan(array)] = 0
        else:
            assert "np.nan_to_num(array)" in found
            array = np.nan_to_num(array)
        assert cells(array, 3, dtype=dtype)[position] == 0


@pytest.mark.parametrize("value", [np.array([1j]), "text", None, np.array(["2024"], "M8[Y]")])
def test_a_value_that_is_no_real_number_is_an_error(value: object) -> None:
    with pytest.raises(TransferError):
        cells(value, 1)


def test_words_are_records_or_four_lanes() -> None:
    lanes = np.arange(8, dtype=np.uint32).reshape(2, 4)
    words = cells(lanes, 2, dtype=dtypes.uint4x32)
    assert words.dtype == dtypes.uint4x32.numpy
    assert words[1].tolist() == (4, 5, 6, 7)
    assert np.array_equal(cells(words, 2, dtype=dtypes.uint4x32), words)


def test_words_are_not_made_from_other_numbers() -> None:
    with pytest.raises(TransferError):
        cells([1, 2], 2, dtype=dtypes.uint4x32)


def test_writing_keeps_the_margins() -> None:
    backend, target = manager.select("interp")
    info = NodeInfo(dtypes.float32, (2, 2), (Margin(1, 0), Margin(0, 2)))
    buffer = backend.allocate(info, target)
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    backend.transfer(buffer, manager.HostBuffer(whole, info)).wait()

    values.write(backend, buffer, np.full((2, 2), -1, np.float32))

    after = manager.HostBuffer(np.empty((3, 4), np.float32), info)
    backend.transfer(after, buffer).wait()
    assert after.array.tolist() == [[0, 1, 2, 3], [-1, -1, 6, 7], [-1, -1, 10, 11]]
    assert values.read(backend, buffer).tolist() == [[-1, -1], [-1, -1]]


def test_reading_a_buffer_returns_a_copy() -> None:
    backend, target = manager.select("interp")
    buffer = backend.allocate(NodeInfo(dtypes.float32, (2,)), target)
    first = values.read(backend, buffer)
    first[:] = 5
    assert values.read(backend, buffer).tolist() == [0, 0]


_margins = st.builds(Margin, st.integers(0, 2), st.integers(0, 2))


@given(
    axes=st.lists(st.tuples(st.integers(0, 3), _margins), max_size=3),
    dtype=st.sampled_from(dtypes.ALL),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_a_buffer_read_after_a_write_has_the_same_bits(
    axes: list[tuple[int, Margin]], dtype: DType, data: st.DataObject
) -> None:
    backend, target = manager.select("interp")
    info = NodeInfo(dtype, tuple(n for n, _ in axes), tuple(margin for _, margin in axes))
    pattern = data.draw(st.binary(min_size=16, max_size=16))
    count = int(np.prod(info.dims, dtype=np.int64))
    raw = (pattern * (count + 1))[: count * dtype.nbytes]
    array = np.frombuffer(raw, dtype.numpy).reshape(info.dims)
    buffer = backend.allocate(info, target)
    values.write(backend, buffer, array)
    assert values.read(backend, buffer).tobytes() == raw


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_numbers_that_are_taken_as_they_stand_have_the_cells_of_checked_ones(dtype: DType) -> None:
    taken = []
    for value in (7, 0.1, 300, -1, True, 1e300, 2**70, np.float32(0.1), np.int32(5), np.float64(3)):
        found = values.unconverted(value, NodeInfo(dtype, (2, 3)))
        if found is not None:
            checked = cells(value, 2, 3, dtype=dtype)
            assert (found.dtype, found.tolist()) == (checked.dtype, checked.tolist())
            taken.append(value)
    assert 7 in taken or dtype not in (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.uint64)


@pytest.mark.parametrize("value", [np.nan, np.float32(np.nan)])
def test_nan_is_not_taken_as_it_stands(value: float) -> None:
    assert values.unconverted(value, NodeInfo(dtypes.float32, (2,))) is None
