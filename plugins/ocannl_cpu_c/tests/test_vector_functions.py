"""Functions of whole vectors, called one by one: they give the bits of single numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocannl_core.base import settings
from ocannl_core.codegen.prelude.prelude import prelude
from ocannl_cpu_c.compiler import find

from .processors import processors, settings_for

Array = np.ndarray[Any, Any]
Run = Callable[[Array, float], Array]
LANES = (4, 8, 16)
_POSITIVE = [1.0, 3.0, 1e-45, 1e-39, 2.0**-60, 2.0**60, 2.0**-61, 2.0**61, 3e38, 0.99999994, np.inf]
SPECIAL = np.array([0.0, -0.0, np.nan, *_POSITIVE, *(-x for x in _POSITIVE)], np.float32)


@pytest.fixture(params=processors("x86-64-v4", "native"), autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have code for wide vectors, and for the processor of this machine."""
    with settings.overrides(**settings_for(request.param)):
        yield


def function(folder: Path, name: str, body: str) -> Run:
    """Return C code that is run for some vectors `x`, one after the other, and a number `s`."""
    vector = name.partition("_")[0]
    lanes = int(vector.partition("x")[2])
    source, target = folder / "code.c", folder / "code.so"
    headers = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
    source.write_text(
        f"{headers}{prelude([vector, name])}\n"
        f"void run(const float *from, float s, float *to, int count) {{\n"
        f"  for (int i = 0; i < count; ++i) {{\n"
        f"    const {vector} x = *(const {vector}_cells *)&from[{lanes} * i];\n"
        f"    {body}\n  }}\n}}\n"
    )
    find().start(source, target).finish()
    run = ctypes.CDLL(str(target)).run

    def call(x: Array, s: float) -> Array:
        cells = np.ascontiguousarray(x, np.float32)
        found = np.zeros_like(cells)
        pointer = ctypes.POINTER(ctypes.c_float)
        addresses = (each.ctypes.data_as(pointer) for each in (cells, found))
        start, end = addresses
        run(start, ctypes.c_float(s), end, ctypes.c_int(cells.size // lanes))
        return found

    return call


@pytest.mark.parametrize("lanes", LANES)
def test_quotients_by_one_number_have_the_bits_of_divisions(lanes: int, tmp_path: Path) -> None:
    vector = f"float32x{lanes}"
    body = f"*({vector}_cells *)&to[{lanes} * i] = {vector}_over(x, s, {vector}_factor(s));"
    run = function(tmp_path, f"{vector}_over", body)
    rng = np.random.default_rng(3)
    everywhere = rng.integers(0, 2**32, 4096).astype(np.uint32).view(np.float32)
    near = rng.uniform(-100.0, 100.0, 4096).astype(np.float32)
    mixed = np.concatenate([near, np.repeat(SPECIAL, 16), np.resize(SPECIAL, 400), everywhere])
    with np.errstate(all="ignore"):
        for s in (*SPECIAL, *near[:50], *everywhere[:50]):
            expected = mixed / np.float32(s)
            found = run(mixed, float(s))
            numbers = ~np.isnan(expected)
            assert found[numbers].tobytes() == expected[numbers].tobytes()
            assert np.isnan(found[~numbers]).all()


@pytest.mark.parametrize("lanes", LANES)
def test_every_second_cell_is_taken_from_two_vectors_that_share_one(
    lanes: int, tmp_path: Path
) -> None:
    name = f"float32x{lanes}_every_second"
    whole = f"*(const float32x{lanes}_cells *)&from[0]"
    rest = f"*(const float32x{lanes}_cells *)&from[{lanes - 1}]"
    body = f"*(float32x{lanes}_cells *)&to[0] = {name}({whole}, {rest}) + 0 * s * x;"
    run = function(tmp_path, name, body)
    cells = np.arange(2 * lanes, dtype=np.float32)
    assert run(cells, 0.0)[:lanes].tolist() == cells[::2].tolist()


INSTRUCTIONS: dict[str, Callable[[Array], Array]] = {
    "fabs": np.abs,
    "sqrt": np.sqrt,
    "rint": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
@pytest.mark.parametrize("lanes", [2, *LANES])
def test_functions_with_instructions_have_the_bits_of_numpy(
    name: str, lanes: int, tmp_path: Path
) -> None:
    vector = f"float32x{lanes}"
    store = f"*({vector}_cells *)&to[{lanes} * i]"
    run = function(tmp_path, f"{vector}_{name}", f"{store} = {vector}_{name}(x);")
    rng = np.random.default_rng(5)
    halves = np.arange(-40, 40, dtype=np.float32) / 2
    everywhere = rng.integers(0, 2**32, 4096).astype(np.uint32).view(np.float32)
    x = np.concatenate([np.resize(SPECIAL, 32), -np.resize(SPECIAL, 32), halves, everywhere])
    with np.errstate(all="ignore"):
        expected = INSTRUCTIONS[name](x)
    found = run(x, 0.0)
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_are_reversed(lanes: int, tmp_path: Path) -> None:
    vector = f"float32x{lanes}"
    body = f"*({vector}_cells *)&to[{lanes} * i] = {vector}_reversed(x) + 0 * s;"
    x = np.arange(4 * lanes, dtype=np.float32).reshape(4, lanes)
    found = function(tmp_path, f"{vector}_reversed", body)(x, 0.0)
    np.testing.assert_array_equal(found, x[:, ::-1])


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_outside_of_a_mask_gather_no_cell(lanes: int, tmp_path: Path) -> None:
    vector, at = f"float32x{lanes}", f"int32x{lanes}"
    positions = [5, -1, 0, 2**31 - 1] * (lanes // 4)
    body = f"const {at} at = {{{', '.join(map(str, positions))}}}; "
    gathered = f"{vector}_gather(from, at, (at >= 0) & (at < 8), x * 0 + s)"
    run = function(tmp_path, f"{vector}_gather", f"{body}*({vector}_cells *)&to[0] = {gathered};")
    x = np.arange(1, 17, dtype=np.float32)
    assert run(x, -3.0)[:lanes].tolist() == [6.0, -3.0, 1.0, -3.0] * (lanes // 4)


COMBINED: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x[..., 0::2] + x[..., 1::2],
    "product": lambda x: x[..., 0::2] * x[..., 1::2],
    "largest": lambda x: np.maximum(x[..., 0::2], x[..., 1::2]),
    "smallest": lambda x: np.minimum(x[..., 0::2], x[..., 1::2]),
}


@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("lanes", LANES)
def test_lanes_are_combined_with_their_neighbors_first(
    name: str, lanes: int, tmp_path: Path
) -> None:
    whole = f"float32x{lanes}_{name}"
    run = function(tmp_path, whole, f"to[i] = {whole}(x) + 0 * s;")
    rng = np.random.default_rng(4)
    x = rng.standard_normal((64, lanes)).astype(np.float32)
    x[5, lanes - 1] = x[6, 0] = np.nan
    expected = x
    while expected.shape[-1] > 1:
        expected = COMBINED[name](expected)
    np.testing.assert_array_equal(run(x, 0.0).ravel()[:64], expected[:, 0])
