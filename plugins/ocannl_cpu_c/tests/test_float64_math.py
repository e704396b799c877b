"""Elementary functions of float64 with code of their own, beside results of higher precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

from .processors import processors, settings_for

Array = np.ndarray[Any, Any]
WIDE = np.longdouble
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array], float]] = {
    "exp": (oc.exp, np.exp, 1.2),
    "exp2": (oc.exp2, np.exp2, 1.2),
    "expm1": (oc.expm1, np.expm1, 1.8),
    "log": (oc.log, np.log, 0.9),
    "log2": (oc.log2, np.log2, 1.3),
    "log1p": (oc.log1p, np.log1p, 0.9),
    "tanh": (oc.tanh, np.tanh, 2.8),
    "sin": (oc.sin, np.sin, 2.1),
    "cos": (oc.cos, np.cos, 2.1),
    "erf": (oc.erf, np.vectorize(math.erf, otypes=[np.float64]), 1.0),
    "atan": (oc.atan, np.arctan, 1.7),
}
"""By name, a function of tensors, one of NumPy's, and the most units in the last place between."""

_POSITIVE = (1.0, 0.5, 3.0, 5e-324, 1e-310, 2.0**-1022, 1.7e308, 709.8, 745.2, 1023.5, 1074.5, 1e9)
SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, *_POSITIVE, *(-x for x in _POSITIVE)])


@pytest.fixture(params=processors("x86-64-v2", "x86-64-v3", "native"), autouse=True)
def arch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have code for processors with and without fused multiply-adds and wide vectors."""
    with oc.settings.overrides(**settings_for(request.param)):
        yield


def numbers() -> Array:
    """Return numbers of all sizes, many of them near those where functions change, and special ones."""
    rng = np.random.default_rng(8)
    sizes = rng.standard_normal(20_000) * 2.0 ** rng.integers(-60, 11, 20_000)
    near = np.concatenate([rng.uniform(-end, end, 10_000) for end in (1e-3, 1.0, 8.0, 750.0)])
    turns = np.arange(-2000, 2000) * (np.pi / 2)
    return np.concatenate([sizes, near, turns, 1 + rng.uniform(-0.5, 0.5, 5000), SPECIAL])


def computed(function: Callable[..., Any], *operands: Array) -> Array:
    with oc.Session(dtype="float64"), oc.settings.overrides(allow_nan=True):
        inputs = [oc.placeholder(f"x{i}", output=[len(x)]) for i, x in enumerate(operands)]
        result = function(*inputs)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(result))
        for tensor, cells in zip(inputs, operands, strict=True):
            context[tensor] = cells
        routine()
        return np.array(context[result])


def largest_error(found: Array, exact: Array) -> float:
    """Return the largest distance, in units in the last place of the exact result.

    Raises:
        AssertionError: if NaN, infinities or zeros differ, or the sign of a zero.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(np.float64)
    special = ~np.isfinite(rounded) | ~np.isfinite(found) | (rounded == 0)
    np.testing.assert_array_equal(found[special], rounded[special])
    zeros = rounded == 0
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(rounded[zeros]))
    unit = np.spacing(np.abs(rounded[~special]))
    return float((np.abs(found[~special] - exact[~special]) / unit).max())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_close_to_the_exact_result(name: str) -> None:
    ours, exact, most = FUNCTIONS[name]
    x = numbers()
    is_wide = np.finfo(WIDE).nmant > 52 and name != "erf"
    with np.errstate(all="ignore"):
        expected = exact(x.astype(WIDE) if is_wide else x)
    # a library's rounding adds a unit where no wider format is to compare with
    assert largest_error(computed(ours, x), expected) <= most + (0.0 if is_wide else 1.0)


def test_angles_of_points_are_close_to_the_exact_result() -> None:
    rng = np.random.default_rng(9)
    pairs = rng.standard_normal((2, 20_000)) * 2.0 ** rng.integers(-60, 60, (2, 20_000))
    special = np.array([grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL)])
    y, x = np.concatenate([pairs, special], axis=1)
    with np.errstate(all="ignore"):
        expected = np.arctan2(y.astype(WIDE), x.astype(WIDE))
    assert largest_error(computed(oc.atan2, y, x), expected) <= 3.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lanes_give_the_bits_of_single_numbers(name: str) -> None:
    ours, _, _ = FUNCTIONS[name]
    x = numbers()
    found = computed(ours, x)
    with oc.settings.overrides(schedule="none"):
        expected = computed(ours, x)
    is_number = ~np.isnan(expected)
    assert found[is_number].tobytes() == expected[is_number].tobytes()
    assert np.isnan(found[~is_number]).all()
