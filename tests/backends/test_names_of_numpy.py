"""Names that NumPy has, too: the same meaning, or an entry in the page of differences."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "differences.md"
X = np.array([[0.5, -0.25, 0.125], [0.75, 0.0, -0.5]], np.float32)
Y = np.array([[0.25, 0.5, -0.75], [-0.5, 2.0, 0.5]], np.float32)
POSITIVE = np.array([[0.5, 1.5, 2.0], [4.0, 0.25, 1.0]], np.float32)
INTEGERS = np.array([[6, 3, 12], [1, 7, 5]], np.int32)
OTHERS = np.array([[3, 5, 10], [1, 2, 4]], np.int32)
SORTED = np.array([0.0, 0.5, 1.0], np.float32)
Call = Callable[..., Any]


def _calls() -> dict[str, tuple[Call, tuple[Any, ...]]]:
    """Return, by name, a call that reads the function from either library, with its arrays."""
    unary = "abs asin acos atan ceil cos cosh exp exp2 expm1 floor isfinite isinf isnan negative "
    unary += "round sign sin sinh square tan tanh trunc logical_not ones_like zeros_like"
    calls: dict[str, tuple[Call, tuple[Any, ...]]] = {}

    def add(names: str, *arrays: Any, make: Callable[[str], Call] | None = None) -> None:
        for name in names.split():
            calls[name] = (make or _plain)(name), arrays

    add(unary, X)
    add("log log1p log2 sqrt reciprocal", POSITIVE)
    add(
        "add subtract multiply maximum minimum less less_equal greater greater_equal equal "
        "not_equal logical_and logical_or logical_xor logaddexp atan2",
        *(X, Y),
    )
    add("divide pow", POSITIVE, POSITIVE + 1)
    add("remainder floor_divide bitwise_and bitwise_or bitwise_xor", INTEGERS, OTHERS)
    add("bitwise_not", INTEGERS)
    add("where", X > 0, X, Y)
    reduced: Callable[[str], Call] = lambda name: lambda lib, x: getattr(lib, name)(x, axis=1)  # noqa: E731
    add("sum mean var std max min prod any all argmax argmin cumsum cumprod", X, make=reduced)
    add("sort argsort median flip", X, make=reduced)
    add("tril triu", X)
    calls |= {
        "arange": (lambda lib: lib.arange(2, 11, 3), ()),
        "broadcast_to": (lambda lib, x: lib.broadcast_to(x, (2, 3)), (X[0],)),
        "clip": (lambda lib, x: lib.clip(x, min=-0.25, max=0.5), (X,)),
        "concat": (lambda lib, x, y: lib.concat([x, y], axis=1), (X, Y)),
        "expand_dims": (lambda lib, x: lib.expand_dims(x, 1), (X,)),
        "eye": (lambda lib: lib.eye(3, 4, k=1), ()),
        "full": (lambda lib: lib.full((2, 3), 7.0), ()),
        "full_like": (lambda lib, x: lib.full_like(x, 7.0), (X,)),
        "linspace": (lambda lib: lib.linspace(-1.0, 2.0, 7), ()),
        "moveaxis": (lambda lib, x: lib.moveaxis(x, 0, 2), (X[None],)),
        "ones": (lambda lib: lib.ones((2, 3)), ()),
        "repeat": (lambda lib, x: lib.repeat(x, 2, axis=1), (X,)),
        "reshape": (lambda lib, x: lib.reshape(x, (3, 2)), (X,)),
        "roll": (lambda lib, x: lib.roll(x, 1, axis=1), (X,)),
        "searchsorted": (lambda lib, x, y: lib.searchsorted(x, y), (SORTED, X[0])),
        "squeeze": (lambda lib, x: lib.squeeze(x, axis=0), (X[None],)),
        "swapaxes": (lambda lib, x: lib.swapaxes(x, 0, 1), (X,)),
        "tile": (lambda lib, x: lib.tile(x, (2, 2)), (X,)),
        "transpose": (lambda lib, x: lib.transpose(x, (1, 0)), (X,)),
        "zeros": (lambda lib: lib.zeros((2, 3)), ()),
    }
    return calls


def _plain(name: str) -> Call:
    return lambda lib, *arrays: getattr(lib, name)(*arrays)


CALLS = _calls()


def _documented(page: str) -> set[str]:
    """Return the names in the first column of the page's tables."""
    rows = re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`oc\.(\w+)", row)}


def test_a_name_that_numpy_has_means_the_same_or_is_listed_as_different() -> None:
    shared = {name for name in oc.__all__ if hasattr(np, name)}
    formats = {name for name in shared if isinstance(getattr(oc, name), oc.DType)}
    different = _documented(PAGE.read_text(encoding="utf-8"))
    assert sorted(shared - formats - set(CALLS) - different) == []
    assert sorted(set(CALLS) - shared) == []


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_shared_name_computes_the_cells_of_numpy(name: str) -> None:
    """On the interpreter: suites of conformance compare other devices with it."""
    call, arrays = CALLS[name]
    wanted = np.asarray(call(np, *arrays))
    with oc.Session():
        given = [oc.tensor(a, dtype="bool" if a.dtype == bool else None) for a in arrays]
        result = call(oc, *given)
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(result))()
        found = ctx[result]
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "not_equal"])
def test_a_comparison_takes_a_specification(name: str) -> None:
    left, right = np.array([1, 2, 4], np.float32), np.array([4, 2], np.float32)
    with oc.Session():
        compared = getattr(oc, name)(
            oc.tensor(left, batch_axes=1), oc.tensor(right), logic="i|; j => j,i", label="table"
        )
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(compared))()
        found = ctx[compared]
    assert compared.label == ("table",)
    np.testing.assert_array_equal(found, getattr(np, name)(left, right[:, None]))
