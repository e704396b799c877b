"""Elementary functions of float32: how far they are from the rounded exact result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (oc.exp, np.exp),
    "exp2": (oc.exp2, np.exp2),
    "log": (oc.log, np.log),
    "log2": (oc.log2, np.log2),
    "tanh": (oc.tanh, np.tanh),
    "sin": (oc.sin, np.sin),
    "cos": (oc.cos, np.cos),
}
_POSITIVE = [1.0, 0.5, 2.0, 3.0, 1e-40, 3e38, 16777216.0, 16777215.0, 1.5, 0.99999994, np.inf]
SPECIAL = np.array([0.0, -0.0, np.nan, *_POSITIVE, *(-x for x in _POSITIVE)], np.float32)


def computed(function: Callable[..., Any], *operands: Array) -> Array:
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        inputs = [oc.placeholder(f"x{i}", output=[len(x)]) for i, x in enumerate(operands)]
        result = function(*inputs)
        ctx = oc.Context("cpu_c")
        run = ctx.compile(oc.train.forward(result))
        for tensor, cells in zip(inputs, operands, strict=True):
            ctx[tensor] = cells
        run()
        found: Array = ctx[result]
        return found


def check(found: Array, exact: Array, ulps: float) -> None:
    """Compares with the exact result: NaN, infinities, zeros and signs, and the distance."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    special = ~np.isfinite(rounded) | ~np.isfinite(found) | (rounded == 0)
    np.testing.assert_array_equal(found[special], rounded[special])
    np.testing.assert_array_equal(
        np.signbit(found[rounded == 0]), np.signbit(rounded[rounded == 0])
    )
    rest = ~special
    unit = np.spacing(np.abs(rounded[rest])).astype(np.float64)
    assert np.max(np.abs(found[rest] - exact[rest]) / unit, initial=0) <= ulps


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_close_to_the_exact_result_all_over_the_format(name: str) -> None:
    ours, exact = FUNCTIONS[name]
    bits = np.arange(0, 2**32, 8209, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), SPECIAL])
    with np.errstate(all="ignore"):
        check(computed(ours, x), exact(x.astype(np.float64)), ulps=1.5)


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
        check(computed(lambda a, b: a**b, x, y), exact, ulps=1.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_registers_give_the_bits_of_single_numbers(name: str) -> None:
    ours, _ = FUNCTIONS[name]
    bits = np.arange(0, 2**32, 8209, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), SPECIAL])
    found = computed(ours, x)
    with oc.settings.overrides(schedule="none"):
        expected = computed(ours, x)
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()
