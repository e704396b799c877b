"""Functions of vectors against double precision, over all magnitudes and at the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import settings

Array = np.ndarray[Any, Any]

_ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.72, 88.73, -87.34, -103.97, -104.1]
_ENDS += [1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38, -1e-45, 0.625, -0.625, 0.70710677]


def arguments() -> Array:
    """Returns a few hundred thousand numbers: every 20011th pattern of bits, and dense ranges."""
    patterns = np.arange(0, 2**32, 20011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ends = np.array(_ENDS, np.float32)
    limits = ((-105, 90), (-2, 2), (0.4, 2.5))
    ranges = [np.linspace(low, high, 50_000, dtype=np.float32) for low, high in limits]
    chosen = np.concatenate([ends, patterns, *ranges])
    return chosen[: len(chosen) // 64 * 64].reshape(-1, 64)


FUNCTIONS: list[tuple[str, Callable[..., oc.Tensor], Callable[[Array], Array]]] = [
    ("exp", oc.exp, np.exp),
    ("tanh", oc.tanh, np.tanh),
    ("log", oc.log, np.log),
]


@pytest.mark.parametrize(("name", "function", "reference"), FUNCTIONS)
def test_a_function_is_within_two_units_in_the_last_place(
    name: str, function: Callable[..., oc.Tensor], reference: Callable[[Array], Array]
) -> None:
    numbers = arguments()
    with settings.overrides(allow_nan=True), oc.Session():
        result = function(oc.tensor(numbers, batch_axes=1))
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(result))
        routine()
        found = context[result]
    assert f"float32x16_{name}" in routine.source or context.target.vector_bytes != 64
    with np.errstate(all="ignore"):
        exact = reference(numbers.astype(np.float64))
        rounded = exact.astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(rounded))
    assert np.array_equal(np.isinf(found), np.isinf(rounded))
    zeros = rounded == 0
    assert np.array_equal(np.signbit(found[zeros]), np.signbit(rounded[zeros]))
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert (np.abs(found[finite] - exact[finite]) <= 2 * unit).all()
