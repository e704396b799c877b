"""Numbers of other formats with the same bits, beside views of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.testing.primitive_tables import special_values

NUMBERS = [each for each in dtypes.ALL if each.is_float or each.is_integer]


def cells_of(target: str, x: oc.Tensor, cells: Any, *results: oc.Tensor) -> list[Any]:
    with settings.overrides(allow_nan=True):
        ctx = oc.Context(target)
        first, *others = map(oc.train.forward, results)
        routine = ctx.compile(sum(others, first), keep=results)
        ctx[x] = cells
        routine()
        return [ctx[each] for each in results]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_bits_are_those_of_a_view(target: str, dtype: DType) -> None:
    others = [each for each in NUMBERS if each.bits == dtype.bits]
    cells = np.array(special_values(dtype), dtype.numpy)
    with oc.Session():
        x = oc.placeholder("x", output=[len(cells)], dtype=dtype)
        results = [oc.bitcast(x, each) for each in others]
        found = cells_of(target, x, cells, *results)
    for each, result, numbers in zip(others, results, found, strict=True):
        assert result.dtype is each
        expected = cells.view(each.numpy)
        with np.errstate(invalid="ignore"):
            same = (numbers == expected) | ((numbers != numbers) & (expected != expected))
            assert same[cells == cells].all(), (each, numbers, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float8_e5m2"])
def test_all_nan_have_the_bits_of_one(target: str, dtype: str) -> None:
    number = dtypes.dtype_of(dtype)
    unsigned = f"uint{number.bits}"
    with oc.Session():
        x = oc.placeholder("x", output=[3], dtype=number)
        (found,) = cells_of(target, x, [np.nan, -np.nan, np.inf - np.inf], oc.bitcast(x, unsigned))
    assert set(found.tolist()) == {dtypes.bits_of(np.nan, number)}


def test_a_sign_is_a_bit_of_computed_numbers(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[4])
        is_negative = oc.bitcast(x * 0.0, "int32") < 0
        halved = oc.bitcast(oc.bitcast(x, "int32") - (1 << 23), "float32")
        cells = np.array([1.5, -2.0, 96.0, -1e-3], np.float32)
        signs, halves = cells_of(target, x, cells, is_negative, halved)
    assert signs.tolist() == [0, 1, 0, 1]
    assert halves.tolist() == (cells / 2).tolist()


def test_recorded_code_assigns_bits(target: str) -> None:
    with oc.Session():
        x, c = oc.placeholder("x", output=[2]), oc.declare("c", output=[2], dtype="int32")

        @oc.cd
        def code() -> None:
            c[:] = oc.bitcast(x, "int32")

        ctx = oc.Context(target)
        routine = ctx.compile(code())
        ctx[x] = np.array([1.0, -2.0], np.float32)
        routine()
        assert ctx[c].tolist() == [0x3F800000, -0x40000000]


def test_formats_of_other_widths_are_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        with pytest.raises(oc.UsageError, match="float32, of 32 bits, as int64, of 64"):
            oc.bitcast(x, "int64")
        with pytest.raises(oc.UsageError, match="of the same width"):
            oc.bitcast(oc.placeholder("flags", output=[2], dtype="bool"), "uint8")
        with pytest.raises(oc.UsageError, match="The operand of bitcast is a tensor"):
            oc.bitcast(1.0, "int32")


def test_bits_have_no_gradient() -> None:
    with oc.Session():
        w = oc.param("w", output=[2])
        assert not oc.bitcast(oc.bitcast(w, "int32"), "float32").requires_grad
