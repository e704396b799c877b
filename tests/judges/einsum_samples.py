"""The tests of einsum in NumPy, opt_einsum and einops as judges: `python -m tests.judges.einsum_samples`.

Their tests run with a function in place of einsum that computes each product here, too. The table
lists how many agree, and the rest with reasons. A disagreement, a call that is refused there and
accepted here, and an error that is not an `oc.OcannlError` end with exit status 1.
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
from string import ascii_letters
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from tests.judges.torch_operations import NotOurs

JUDGES = {
    "numpy": (["numpy"], "einsum", "numpy._core.tests.test_einsum"),
    "opt_einsum": (["opt_einsum"], "contract", "opt_einsum.tests.test_contract"),
    "opt_einsum, edge cases": (["opt_einsum"], "contract", "opt_einsum.tests.test_edge_cases"),
    "opt_einsum, inputs": (["opt_einsum"], "contract", "opt_einsum.tests.test_input"),
    "einops": (["einops", "einops.einops"], "einsum", "einops.tests.test_einsum"),
}
"""The modules whose function is replaced, its name, and the tests that call it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(JUDGES), choices=list(JUDGES))
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--limit", type=int, default=250, help="different products of a judge")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["EINOPS_TEST_BACKENDS"] = "numpy"  # its tests fail without a choice
    failed = False
    for name in arguments.only:
        modules, function, tests = JUDGES[name]
        judge = Judge(arguments.backend, arguments.limit, is_in_words=name == "einops")
        if judge.run(modules, function, tests, arguments.verbose):
            failed |= judge.report(name)
        else:
            failed = True
    return int(failed)


class Judge:
    """A replacement of einsum that computes each product twice.

    Args:
        backend: The backend that computes products here.
        limit: The number of different products that are computed here.
        is_in_words: True if specifications name axes by words, after the operands.
    """

    def __init__(self, backend: str, limit: int, *, is_in_words: bool) -> None:
        self._backend = backend
        self._limit = limit
        self._is_in_words = is_in_words
        self._seen: set[Any] = set()
        self._is_inside = False
        self._total: Counter[str] = Counter()
        self._rest: Counter[tuple[str, str]] = Counter()

    def run(self, modules: list[str], function: str, tests: str, verbose: bool) -> bool:
        """Run the tests of a module; return False if it is not installed."""
        try:
            found = [importlib.import_module(each) for each in modules]
            path = importlib.import_module(tests).__file__
        except ImportError as error:
            print(f"{tests}: {error}")
            return False
        original = getattr(found[0], function)
        replaced = self._wrapper(original)
        for each in found:
            setattr(each, function, replaced)
        sys.modules.pop(tests)
        text = io.StringIO()
        try:
            with contextlib.redirect_stdout(sys.stdout if verbose else text):
                options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir=/"]
                pytest.main([str(path), *options, "-c", "/dev/null", "-W", "ignore"])
        finally:
            for each in found:
                setattr(each, function, original)
        return True

    def _wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def einsum(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return original(*args, **kwargs)
            self._is_inside = True
            try:
                try:
                    expected = original(*args, **kwargs)
                except Exception as error:
                    self._judge(args, kwargs, None, type(error).__name__)
                    raise
                self._judge(args, kwargs, expected, "")
                return expected
            finally:
                self._is_inside = False

        einsum.__wrapped__ = original  # type: ignore[attr-defined]
        return einsum

    def _judge(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any, error: str
    ) -> None:
        try:
            spec, arrays = self._arguments(args, kwargs)
        except NotOurs as reason:
            self._note("not ours", str(reason))
            return
        key = (str(spec), tuple((a.shape, a.dtype) for a in arrays), error)
        if key in self._seen or len(self._seen) >= self._limit:
            return
        self._seen.add(key)
        found: Any = None
        try:
            with oc.Session(dtype="float64"), settings.overrides(allow_nan=True):
                product = np.einsum(*self._call(spec, list(map(oc.tensor, arrays))))
                ctx = oc.Context(self._backend)
                ctx.compile(oc.train.forward(product), keep=[product])()
                found = ctx[product]
        except oc.OcannlError as refusal:
            reason = str(refusal).splitlines()[0]
            self._note(
                "refused by both" if error else "refused", "" if error else f"{spec}: {reason}"
            )
            return
        except Exception as failure:
            self._note("fails", f"{spec}: {type(failure).__name__}: {failure}")
            return
        if error:
            self._note("accepted here", f"{spec} of {[a.shape for a in arrays]}: {error} there")
            return
        wanted = np.asarray(expected)
        is_rough = wanted.dtype.kind == "f" and wanted.dtype.itemsize < 8
        close = np.allclose(
            found, wanted, rtol=1e-2 if is_rough else 1e-9, atol=1e-3 if is_rough else 1e-10
        )
        if found.shape == wanted.shape and (close or wanted.dtype.itemsize < 4):
            self._note("agrees", "")
        else:
            self._note("differs", f"{spec} of {[a.shape for a in arrays]}")

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        """Return the specification, or the lists of axes, and the arrays."""
        if kwargs.keys() - {"optimize", "memory_limit", "backend", "use_blas"}:
            raise NotOurs("other arguments, as out= and dtype=")
        if self._is_in_words:
            spec, operands = args[-1], list(args[:-1])
            if (
                not isinstance(spec, str)
                or "->" not in spec
                or set(spec.split()) & {"()", "1", "_"}
            ):
                raise NotOurs("a rule of words: a result is stated, and there are no parentheses")
            words = dict.fromkeys(
                w for w in spec.replace(",", " ").replace("->", " ").split() if w != "..."
            )
            letters = dict(zip(words, ascii_letters, strict=False))
            sides = [
                " ".join(letters.get(w, w) for w in part.split()).replace(" ", "")
                for part in spec.replace(",", " , ").replace("->", " -> ").split("\n")
            ]
            spec = "".join(sides)
        elif isinstance(args[0], str):
            spec, operands = args[0], list(args[1:])
        else:
            operands, spec = (
                list(args[: len(args) // 2 * 2 : 2]),
                tuple(args[1::2]) + (tuple(args[-1:]) if len(args) % 2 else ()),
            )
        arrays = []
        for each in operands:
            if not isinstance(each, np.ndarray | np.generic | int | float | list):
                raise NotOurs(f"an operand of type {type(each).__name__}")
            array = np.asarray(each)
            if array.dtype.kind not in "fiu":
                raise NotOurs(f"operands of the format {array.dtype}")
            arrays.append(
                np.ascontiguousarray(
                    array, np.float64 if array.dtype.kind == "f" else np.int64
                ).reshape(array.shape)
            )
        if not arrays:
            raise NotOurs("no operand")
        return spec, arrays

    def _call(self, spec: Any, tensors: list[Any]) -> list[Any]:
        if isinstance(spec, str):
            return [spec, *tensors]
        made: list[Any] = []
        for tensor, axes in zip(tensors, spec, strict=False):
            made += [tensor, axes]
        return [*made, *spec[len(tensors) :]]

    def _note(self, outcome: str, reason: str) -> None:
        self._total[outcome] += 1
        if reason:
            self._rest[outcome, reason] += 1

    def report(self, name: str) -> bool:
        """Print the table; return True for a failure."""
        total = self._total
        count = sum(total.values())
        ours = count - total["not ours"] - total["refused by both"]
        print(
            f"{name}: {count} products; {ours} are ours, {total['agrees']} agree "
            f"({total['agrees'] / max(ours, 1):.1%}); {total['refused by both']} refused by both"
        )
        for (outcome, reason), number in sorted(self._rest.items()):
            print(f"  {outcome:14} {number:4}  {reason[:160]}")
        return bool(total["differs"] or total["fails"] or total["accepted here"])


if __name__ == "__main__":
    sys.exit(main())
