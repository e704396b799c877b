"""The tests of einops as a judge: `python -m tests.judges.einops_samples [--verbose]`.

einops computes its operations through those of a framework. Here the tensors of this package are
one: each call of `rearrange`, `reduce` and `repeat` in the tests of einops with a NumPy array is
made again with a tensor, by einops itself. A difference ends with exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import einops.einops
import numpy as np
import pytest
from einops._backends import NumpyBackend

import ocannl_core as oc
from ocannl_core.base import settings

FUNCTIONS = ("rearrange", "reduce", "repeat")
TESTS = ("einops.tests.test_ops", "einops.tests.test_other", "einops.tests.test_examples")


class TensorBackend(NumpyBackend):
    """The operations that einops takes from a framework: NumPy's, which dispatch to tensors."""

    framework_name = "ocannl_core"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, oc.Tensor)

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)

    def transpose(self, x: Any, axes: Any) -> Any:
        return oc.permute(x, *axes)

    def reduce(self, x: Any, operation: str, axes: Any) -> Any:
        return getattr(oc, operation)(x, axis=tuple(axes))

    def is_float_type(self, x: Any) -> bool:
        return bool(x.dtype.is_float)


class Judge:
    """Replacements of functions that compute each call twice."""

    def __init__(self, backend: str, verbose: bool) -> None:
        self._backend = backend
        self._verbose = verbose
        self._seen: set[Any] = set()
        self._is_inside = False
        self.total: Counter[str] = Counter()

    def replaced(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(x: Any, *arguments: Any, **sizes: Any) -> Any:
            if self._is_inside:
                return original(x, *arguments, **sizes)
            self._is_inside = True
            try:
                expected = original(x, *arguments, **sizes)
                if isinstance(x, np.ndarray):
                    self._judge(name, original, x, arguments, sizes, expected)
                return expected
            finally:
                self._is_inside = False

        return apply

    def _judge(
        self,
        name: str,
        original: Callable[..., Any],
        x: Any,
        arguments: tuple[Any, ...],
        sizes: dict[str, Any],
        expected: Any,
    ) -> None:
        key = name, str(arguments), str(sizes), x.shape, x.dtype
        if key in self._seen:
            return
        self._seen.add(key)
        if any(map(callable, arguments)):
            self._note("not ours: a function of arrays of NumPy", key)
            return
        if x.size == 0:
            self._note("not ours: an array without cells", key)
            return
        cells = x.astype(np.float64 if x.dtype.kind == "f" else x.dtype)
        try:
            with oc.Session(dtype="float64"), settings.overrides(allow_nan=True):
                found = original(oc.tensor(cells), *arguments, **sizes)
                ctx = oc.Context(self._backend)
                result = found + 0 if cells.dtype.kind == "f" else found
                ctx.compile(oc.train.forward(result), keep=[result])()
                ours = np.asarray(ctx[result])
        except Exception as error:
            self._note(f"fails: {type(error).__name__}: {str(error).splitlines()[0]}", key)
            return
        is_equal = ours.shape == expected.shape and np.allclose(ours, expected, 1e-5, 1e-6)
        self._note("agrees" if is_equal else "differs", key)

    def _note(self, outcome: str, key: Any) -> None:
        self.total[outcome] += 1
        if self._verbose and outcome != "agrees":
            print(f"  {outcome}: {key}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["EINOPS_TEST_BACKENDS"] = "numpy"  # its tests fail without a choice
    judge = Judge(arguments.backend, arguments.verbose)
    paths = [importlib.import_module(each).__file__ for each in TESTS]
    for each in TESTS:
        del sys.modules[each]
    originals = {name: getattr(einops.einops, name) for name in FUNCTIONS}
    for module in (einops, einops.einops):
        for name, original in originals.items():
            setattr(module, name, judge.replaced(name, original))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir=/", "-c", "/dev/null"]
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*map(str, paths), *options, "-W", "ignore"])
    total = judge.total
    ours = sum(n for outcome, n in total.items() if not outcome.startswith("not ours"))
    print(f"einops: {sum(total.values())} calls; {ours} are ours, {total['agrees']} agree")
    for outcome, number in sorted(total.items()):
        if outcome != "agrees":
            print(f"  {number:4}  {outcome}")
    return int(total["agrees"] < ours or not ours)


if __name__ == "__main__":
    sys.exit(main())
