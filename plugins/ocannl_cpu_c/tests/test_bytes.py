"""Products of bytes in C: exact in int32, by dot products of four terms where a row of them pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings as core_settings
from ocannl_core.ir.matrix_units import DotProduct
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.testing.subject import subject_named

from .processors import processors, settings_for

Array = np.ndarray[Any, Any]
HAS_DOT_PRODUCTS = any(
    unit.sum_dtype is int32 for unit in subject_named("cpu_c").target.units(DotProduct)
)


def drawn(dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    random = np.random.default_rng(sum(shape))
    cells = random.integers(limits.min, limits.max + 1, shape)
    cells.flat[:2] = limits.min, limits.max
    return cells.astype(dtype)


def routine_of(spec: str, a: Array, b: Array, dtype: str = "int32") -> tuple[oc.Routine, Array]:
    with core_settings.overrides(tune="off"), oc.Session():
        x = oc.placeholder("x", output=list(a.shape), dtype=str(a.dtype))
        y = oc.placeholder("y", output=list(b.shape), dtype=str(b.dtype))
        product = oc.einsum(spec, x, y, dtype=dtype)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(product), keep=[product])
        context[x], context[y] = a, b
        routine()
        return routine, context[product]


FORMATS = {
    ("uint8", "int8"): "mixed_uint8",
    ("int8", "uint8"): "mixed_uint8",
    ("int8", "int8"): "dot_int8",
    ("uint8", "uint8"): "dot_uint8",
}
"""The helper for each pair of formats."""


@pytest.mark.parametrize("formats", FORMATS, ids=",".join)
@pytest.mark.parametrize("spec", ["ik; kj => ij", "ki; kj => ij", "ik; jk => ij", "ki; jk => ij"])
@pytest.mark.parametrize("terms", [64, 101, 8])
def test_bytes_are_multiplied_in_groups_of_four(
    terms: int, spec: str, formats: tuple[str, str]
) -> None:
    """In every order of the axes, with a remainder of the terms and of the lanes."""
    sizes = {"i": 45, "j": 66, "k": terms}
    left, right = spec.split(" => ")[0].split("; ")
    a = drawn(formats[0], *(sizes[axis] for axis in left))
    b = drawn(formats[1], *(sizes[axis] for axis in right))
    routine, found = routine_of(spec, a, b)
    assert (f"{FORMATS[formats]}(" in routine.source) == HAS_DOT_PRODUCTS
    exact = np.einsum(f"{left},{right}->ij", a.astype(np.int64), b.astype(np.int64))
    np.testing.assert_array_equal(found, exact)


def test_sums_wrap_around() -> None:
    a, b = np.full((32, 70_000), 255, np.uint8), np.full((70_000, 32), -128, np.int8)
    _, found = routine_of("ik; kj => ij", a, b)
    exact = 70_000 * 255 * -128
    np.testing.assert_array_equal(found, (exact + 2**31) % 2**32 - 2**31)


def test_short_rows_of_an_image_have_vectors_along_them() -> None:
    """Channels are the terms, so that the other axis of vectors has no groups of them."""
    a, b = drawn("uint8", 256, 8, 8), drawn("int8", 64, 256)
    routine, found = routine_of("c, o, p; m, c => m, o, p", a, b)
    assert ("_mixed_uint8(" in routine.source) == HAS_DOT_PRODUCTS
    exact = np.einsum("cop,mc->mop", a.astype(np.int64), b.astype(np.int64))
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("formats", FORMATS, ids=",".join)
@pytest.mark.parametrize(
    "arch", processors("x86-64", "x86-64-v3", "x86-64-v4", "cooperlake", "native")
)
def test_processors_with_and_without_the_instruction_have_the_same_sums(
    arch: str, formats: tuple[str, str]
) -> None:
    a, b = drawn(formats[0], 40, 90), drawn(formats[1], 90, 50)
    with core_settings.overrides(**settings_for(arch)):
        _, found = routine_of("ik; kj => ij", a, b)
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("format", ["int8", "uint8", "int16", "uint16"])
def test_short_integers_are_transposed_in_registers(format: str, dtype: str) -> None:
    a, b = drawn(format, 40, 64), drawn(format, 48, 64)
    if dtype == "float32":
        a, b = (each >> 8 * (each.itemsize - 1) for each in (a, b))  # sums below 2**24
    routine, found = routine_of("ik; jk => ij", a, b, dtype)
    assert "_transpose_" in routine.source
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    wrapped = exact.astype(np.int32) if dtype == "int32" else exact
    np.testing.assert_array_equal(found, wrapped)
