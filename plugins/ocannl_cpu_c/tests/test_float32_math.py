"""Elementary functions of float32: how far they are from the rounded exact result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_cpu_c.compiler import find

from .float32_functions import FUNCTIONS, LARGEST_ERROR, LARGEST_ERROR_OF_ALL, computed, errors
from .processors import processors, settings_for

Array = np.ndarray[Any, Any]
_POSITIVE = [1.0, 0.5, 2.0, 3.0, 1e-40, 3e38, 16777216.0, 16777215.0, 1.5, 0.99999994, np.inf]
SPECIAL = np.array([0.0, -0.0, np.nan, *_POSITIVE, *(-x for x in _POSITIVE)], np.float32)


def everywhere() -> Array:
    """Return numbers of all sizes, evenly many of each, and special ones."""
    bits = np.arange(0, 2**32, 8209, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), SPECIAL])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_close_to_the_exact_result_all_over_the_format(name: str) -> None:
    ours, exact = FUNCTIONS[name]
    x = everywhere()
    has_fma = find().has_fma
    with np.errstate(all="ignore"):
        away = errors(computed(ours, x), exact(x.astype(np.float64)))
    assert away.max() <= (LARGEST_ERROR[name] if has_fma else LARGEST_ERROR_OF_ALL)


@pytest.mark.parametrize("sign", [1, -1])
def test_tanh_is_close_where_its_polynomials_meet(sign: int) -> None:
    # the 16 intervals of sizes that share a polynomial end where two bits of 1 + 1.625 x change
    ends = np.arange(0b0_01111111_00 << 21, 0b0_10000011_00 << 21, 1 << 21, dtype=np.int32)
    near = ((ends.view(np.float32) - 1) / np.float32(1.625)).view(np.int32)
    bits = near[1:, None] + np.arange(-400, 400, dtype=np.int32)
    x = sign * np.concatenate([bits.ravel().view(np.float32), np.linspace(8.9, 9.1, 5000)])
    x = x.astype(np.float32)
    assert errors(computed(oc.tanh, x), np.tanh(x.astype(np.float64))).max() <= LARGEST_ERROR_OF_ALL


def test_powers_are_close_to_the_exact_result() -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 2**31, 200_000).astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x) & (x > 0)]
    y = (rng.uniform(-150, 150, len(x)) / np.log2(x.astype(np.float64))).astype(np.float32)
    y[::7] = np.rint(y[::7])
    x[::14] *= -1
    bases, exponents = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL))
    x, y = np.concatenate([x, bases]), np.concatenate([y, exponents])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        assert errors(computed(lambda a, b: a**b, x, y), exact).max() <= 0.51


def test_angles_of_points_are_close_to_the_exact_result() -> None:
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, (2, 200_000), dtype=np.uint32).view(np.float32)
    near = (rng.normal(size=(2, 200_000)) * 2.0 ** rng.integers(-3, 4, 200_000)).astype(np.float32)
    special = np.array([grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL)])
    y, x = np.concatenate([bits, near, special], axis=1)
    with np.errstate(all="ignore"):
        exact = np.arctan2(y.astype(np.float64), x.astype(np.float64))
        assert errors(computed(oc.atan2, y, x), exact).max() <= 3.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_registers_give_the_bits_of_single_numbers(name: str) -> None:
    ours, _ = FUNCTIONS[name]
    x = everywhere()
    found = computed(ours, x)
    with oc.settings.overrides(schedule="none"):
        expected = computed(ours, x)
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()


@pytest.mark.parametrize("arch", processors("x86-64-v3", "x86-64-v4"))
def test_angles_and_powers_have_the_bits_of_other_processors(arch: str) -> None:
    if not find().has_fma:
        pytest.skip("products are rounded before additions")
    x = everywhere()[::31]

    def all_bits() -> list[bytes]:
        powers = computed(lambda a, b: a**b, x, x[::-1].copy())
        found = [powers, *(computed(FUNCTIONS[name][0], x) for name in ("sin", "cos", "tan"))]
        return [np.where(np.isnan(each), np.float32(np.nan), each).tobytes() for each in found]

    own = all_bits()
    with oc.settings.overrides(**settings_for(arch)):
        assert all_bits() == own
