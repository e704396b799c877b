"""Elementary functions of float32 in C beside exact results.

As a program, it tries every number of the format, which takes a few minutes for each function:

    python -m plugins.ocannl_cpu_c.tests.float32_functions
    python -m plugins.ocannl_cpu_c.tests.float32_functions --only tanh --arch x86-64-v3
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import ocannl_core as oc

Array = np.ndarray[Any, Any]
Run = Callable[..., Array]

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (oc.exp, np.exp),
    "exp2": (oc.exp2, np.exp2),
    "log": (oc.log, np.log),
    "log2": (oc.log2, np.log2),
    "tanh": (oc.tanh, np.tanh),
    "sin": (oc.sin, np.sin),
    "cos": (oc.cos, np.cos),
    "tan": (oc.tan, np.tan),
    "expm1": (oc.expm1, np.expm1),
    "log1p": (oc.log1p, np.log1p),
    "erf": (oc.erf, np.vectorize(math.erf, otypes=[float])),
    "sinh": (oc.sinh, np.sinh),
    "cosh": (oc.cosh, np.cosh),
    "asin": (oc.asin, np.arcsin),
    "acos": (oc.acos, np.arccos),
    "atan": (oc.atan, np.arctan),
}
"""By name, a function of tensors and one of NumPy's in double precision."""

LARGEST_ERROR = {
    "exp": 0.9,
    "exp2": 0.9,
    "log": 0.9,
    "log2": 1.4,
    "tanh": 1.1,
    "sin": 0.502,
    "cos": 0.502,
    "tan": 0.502,
    "expm1": 1.5,
    "log1p": 1.0,
    "erf": 1.2,
    "sinh": 1.7,
    "cosh": 1.4,
    "asin": 1.3,
    "acos": 1.3,
    "atan": 1.7,
}
"""Units in the last place, on processors with fused multiply-adds."""
LARGEST_ERROR_OF_ALL = 2.0
"""The same on any processor."""

_COUNT = 2**18


@contextmanager
def compiled(function: Callable[..., Any], *counts: int) -> Iterator[Run]:
    """Yield a function of so many numbers each, run by generated C."""
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        inputs = [oc.placeholder(f"x{i}", output=[count]) for i, count in enumerate(counts)]
        result = function(*inputs)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(result))

        def run(*operands: Array) -> Array:
            for tensor, cells in zip(inputs, operands, strict=True):
                context[tensor] = cells
            routine()
            found: Array = context[result]
            return found

        yield run


def computed(function: Callable[..., Any], *operands: Array) -> Array:
    """Return a function of these numbers, run by generated C."""
    with compiled(function, *map(len, operands)) as run:
        return run(*operands)


def errors(found: Array, exact: Array) -> Array:
    """Return how far numbers are from exact results, in units in the last place of those.

    Raises:
        AssertionError: if they differ in cells that are NaN, infinite or zero, or in the sign of a zero.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    special = ~np.isfinite(rounded) | ~np.isfinite(found) | (rounded == 0)
    np.testing.assert_array_equal(found[special], rounded[special])
    is_zero = rounded == 0
    np.testing.assert_array_equal(np.signbit(found[is_zero]), np.signbit(rounded[is_zero]))
    away = np.zeros(found.shape)
    rest = ~special
    unit = np.spacing(np.abs(rounded[rest])).astype(np.float64)
    away[rest] = np.abs(found[rest] - exact[rest]) / unit
    return away


def largest_error(name: str) -> tuple[float, float, float]:
    """Return the largest error of all numbers, where it is, and how many are rounded right."""
    ours, exact = FUNCTIONS[name]
    largest, place, rounded_right = 0.0, 0.0, 0
    with compiled(ours, _COUNT) as run, np.errstate(all="ignore"):
        for start in range(0, 2**32, _COUNT):
            x = np.arange(start, start + _COUNT, dtype=np.uint32).view(np.float32)
            found, wanted = run(x), exact(x.astype(np.float64))
            rounded = wanted.astype(np.float32)
            others = np.flatnonzero(found.view(np.uint32) != rounded.view(np.uint32))
            rounded_right += _COUNT - len(others)
            if len(others):
                away = errors(found[others], wanted[others])
                worst = int(np.argmax(away))
                if away[worst] > largest:
                    largest, place = float(away[worst]), float(x[others[worst]])
    return largest, place, rounded_right / 2**32


def main() -> None:
    """Print the largest errors of functions, and fails if one is larger than it may be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=FUNCTIONS, default=[*FUNCTIONS])
    parser.add_argument("--arch", default="native", help="the processor to compile for")
    options = parser.parse_args()
    failed = False
    with oc.settings.overrides(cpu_c__arch=options.arch):
        for name in options.only:
            largest, place, right = largest_error(name)
            failed |= largest > LARGEST_ERROR_OF_ALL
            print(f"{name:5} {largest:.4f} at {place.hex()}, {right:.2%} rounded right", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
