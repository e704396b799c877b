"""Expressions that stand for functions of NumPy and PyTorch, beside those functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.tensor.messages.foreign_expressions import EXPRESSIONS

RNG = np.random.default_rng(3)
SIGNED = RNG.standard_normal((2, 3)).astype("f")
OTHER = RNG.standard_normal((2, 3)).astype("f")
POSITIVE = RNG.random((2, 3), "f") + 1.25
ZEROS = np.array([[0.0, 0.5, 0.75], [0.25, 0.0, 0.125]], "f")
GAPS = np.array([[0.5, np.nan, -2.0], [3.0, 1.5, np.nan]], "f")
INTEGERS = np.array([[3, 64, -7], [0, 17, 5]], "i")
LINE = np.array([0.3, 1.2, -0.7, 2.4, 0.1, 1.9], "f")
LINE_2 = RNG.standard_normal(6).astype("f")
IMAGES = np.arange(2 * 3 * 8, dtype="f").reshape(2, 3, 8)

Reference = Callable[..., Any]
Values = dict[str, Any]
XY: Values = {"x": SIGNED, "y": OTHER}
LINES: Values = {"x": LINE, "y": LINE_2}
SQUARE: Values = {"w": RNG.standard_normal((6, 6)).astype("f"), "x": LINE}


def of_numpy(values: Values, names: str) -> dict[str, tuple[Values, Reference]]:
    return {name: (values, getattr(np, name)) for name in names.split()}


def _shuffled(x: np.ndarray, r: int) -> np.ndarray:
    height, width, channels = *x.shape[:2], x.shape[2] // r**2
    result = np.empty((height * r, width * r, channels), "f")
    for c, i, j in np.ndindex(channels, r, r):
        result[i::r, j::r, c] = x[..., c * r**2 + i * r + j]
    return result


def _cdf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x.flat]).reshape(x.shape)


def window(name: str) -> Reference:
    return lambda x: x * getattr(np, {"hann": "hanning"}.get(name, name))(6)


# fmt: off
CASES: dict[str, tuple[Values, Reference]] = {
    **of_numpy(XY, "hypot copysign heaviside arctan2 divmod logaddexp2"),
    **of_numpy({"x": SIGNED}, "signbit rad2deg degrees deg2rad radians positive real conj conjugate "
        "modf fix rint around cbrt sinc asinh arcsinh count_nonzero fliplr flipud cov corrcoef "
        "isposinf isneginf rot90"),
    **of_numpy({"x": POSITIVE}, "log10 acosh arccosh"),
    **of_numpy({"x": SIGNED / 4}, "atanh arctanh"),
    **of_numpy({"x": GAPS}, "nansum nanprod nanmax nanmin nanmean nanargmax nanargmin"),
    **of_numpy({"x": GAPS, "y": GAPS[:, ::-1].copy()}, "fmax fmin"),
    **of_numpy({"n": INTEGERS}, "invert bitwise_invert"),
    **of_numpy({"x": LINE}, "ediff1d diagflat"),
    **of_numpy(LINES, "inner vdot"),
    "column_stack": (XY, lambda x, y: np.column_stack([x, y])),
    "unravel_index": ({"n": np.array([5, 2, 4], "i")}, lambda n: np.unravel_index(n, (2, 3))),
    "float_power": ({"x": POSITIVE, "y": OTHER}, np.float_power),
    "frexp": ({"x": SIGNED}, lambda x: np.frexp(x)[1]),
    "msort": ({"x": SIGNED}, lambda x: np.sort(x, axis=0)),
    **{name: ({"x": LINE}, window(name.removesuffix("_window"))) for name in (
        "hamming", "hanning", "blackman", "bartlett", "hann_window", "hanning_window",
        "hamming_window", "blackman_window", "bartlett_window")},
    "ger": (LINES, np.outer), "addr": (LINES, np.outer),
    "ldexp": ({"x": SIGNED, "n": INTEGERS % 5}, np.ldexp),
    "rsub": (XY, lambda x, y: y - x),
    "frac": ({"x": SIGNED}, lambda x: np.modf(x)[0]),
    "erfc": ({"x": SIGNED}, lambda x: np.vectorize(math.erfc)(x)),
    "ndtr": ({"x": SIGNED}, _cdf),
    "expit": ({"x": SIGNED}, lambda x: 1 / (1 + np.exp(-x))),
    "logsigmoid": ({"x": SIGNED}, lambda x: -np.log1p(np.exp(-x))),
    "xlogy": ({"x": ZEROS, "y": ZEROS}, lambda x, y: x * np.log(np.where(x == 0, 1, y))),
    "xlog1py": ({"x": ZEROS, "y": ZEROS}, lambda x, y: x * np.log1p(y)),
    "entr": ({"x": ZEROS}, lambda x: -x * np.log(np.where(x == 0, 1, x))),
    "isin": ({"x": np.array([1.0, 2.0, 3.0], "f")}, lambda x: np.isin(x, [1, 2])),
    **{name: ({"n": INTEGERS}, lambda n: n << 3) for name in ("left_shift", "bitwise_left_shift")},
    **{name: ({"n": INTEGERS}, lambda n: n >> 3) for name in ("right_shift", "bitwise_right_shift")},
    "celu": ({"x": SIGNED, "alpha": 0.5}, lambda x, alpha: np.where(
        x > 0, x, alpha * np.expm1(x / alpha))),
    "hardshrink": ({"x": SIGNED}, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "softshrink": ({"x": SIGNED}, lambda x: x - np.clip(x, -0.5, 0.5)),
    "tanhshrink": ({"x": SIGNED}, lambda x: x - np.tanh(x)),
    "threshold": ({"x": SIGNED}, lambda x: np.where(x > 0.1, x, 20)),
    "prelu": ({"x": SIGNED, "weight": 0.3}, lambda x, weight: np.where(x > 0, x, weight * x)),
    "addcmul": ({**XY, "z": POSITIVE, "weight": 0.3}, lambda x, y, z, weight: x + weight * y * z),
    "addcdiv": ({**XY, "z": POSITIVE, "weight": 0.3}, lambda x, y, z, weight: x + weight * y / z),
    "softmin": ({"x": SIGNED}, lambda x: np.exp(-x) / np.exp(-x).sum(-1, keepdims=True)),
    **{name: ({"x": SIGNED, "k": 1}, lambda x, k: np.sort(x)[:, k])
        for name in ("quantile", "percentile", "nanquantile", "kthvalue", "partition")},
    "aminmax": ({"x": SIGNED}, lambda x: (x.min(), x.max())),
    "average": ({"x": SIGNED, "w": POSITIVE}, lambda x, w: np.average(x, weights=w)),
    "nancumsum": ({"x": GAPS}, lambda x: np.nancumsum(x, axis=-1)),
    "nancumprod": ({"x": GAPS}, lambda x: np.nancumprod(x, axis=-1)),
    **{name: ({"x": GAPS, "y": OTHER}, lambda x, y: np.where(np.isnan(x), y, x))
        for name in ("nanmedian", "nanstd", "nanvar", "nanpercentile")},
    "std_mean": ({"x": SIGNED}, lambda x: (x.std(ddof=1), x.mean())),
    "var_mean": ({"x": SIGNED}, lambda x: (x.var(ddof=1), x.mean())),
    "vecdot": (LINES, np.dot),
    **{name: ({"x": LINE}, lambda x: x.sum() - (x[0] + x[-1]) / 2)
        for name in ("trapezoid", "trapz")},
    "gradient": ({"x": LINE}, lambda x: np.gradient(x)[1:-1]),
    "logcumsumexp": ({"x": LINE}, lambda x: np.log(np.cumsum(np.exp(x)))),
    **{name: ({"x": LINE, "low": -1.0, "width": 1.0, "n": 4},
        lambda x, low, width, n: np.histogram(x, n, (low, low + n * width))[0])
        for name in ("histogram", "histc")},
    "digitize": ({"x": LINE, "edges": np.array([0.0, 0.5, 2.0], "f")}, np.digitize),
    "bucketize": ({"x": LINE, "edges": np.array([0.0, 0.5, 2.0], "f")}, np.digitize),
    "mv": (SQUARE, np.dot), "matvec": (SQUARE, np.dot),
    "vecmat": (SQUARE, lambda w, x: x @ w),
    "bilinear": ({**LINES, "w": np.ones((2, 6, 6), "f") * LINE},
        lambda x, y, w: np.einsum("i,j,oij->o", x, y, w)),
    "kron": ({"x": SIGNED[:, :2].copy(), "y": POSITIVE.repeat(2, 0)[:3]}, np.kron),
    "cross": (XY, np.cross),
    "dist": (XY, lambda x, y: np.linalg.norm(x - y)),
    "pdist": ({"x": SIGNED}, lambda x: np.linalg.norm(x[:, None] - x, axis=-1)),
    "correlate": ({"x": LINE, "w": LINE[:3]}, np.correlate),
    "convolve": ({"x": LINE, "w": LINE[2::-1].copy()},
        lambda x, w: np.convolve(x, w[::-1], "valid")),
    "repeat_interleave": ({"x": SIGNED}, lambda x: np.repeat(x, 2, axis=0)),
    "movedim": ({"x": IMAGES}, lambda x: np.moveaxis(x, 0, -1)),
    "rollaxis": ({"x": IMAGES}, lambda x: np.moveaxis(x, 0, -1)),
    "swapdims": ({"x": IMAGES}, lambda x: np.swapaxes(x, 0, 1)),
    "narrow": ({"x": SIGNED}, lambda x: x[:, 1:3]),
    "select": ({"x": SIGNED}, lambda x: x[:, 2]),
    **{name: ({"x": IMAGES.reshape(3, 16)[:, :4].copy()}, lambda x: np.split(x, 2, axis=-1))
        for name in ("tensor_split", "split_with_sizes", "array_split", "unsafe_split",
            "hsplit", "vsplit", "dsplit")},
    "row_stack": (XY, lambda x, y: np.vstack([x, y])),
    "dstack": ({"x": IMAGES, "y": IMAGES}, lambda x, y: np.dstack([x, y])),
    **{name: ({"x": LINE}, lambda x: x.reshape(1, 6))
        for name in ("unflatten", "atleast_1d", "atleast_2d", "atleast_3d")},
    "tri": ({}, lambda: np.tri(3)),
    "diag_embed": ({"x": LINE}, np.diag),
    "vander": ({"x": LINE}, lambda x: np.vander(x, 4, increasing=True)),
    "logspace": ({}, lambda: np.logspace(0, 3, 4)), "geomspace": ({}, lambda: np.geomspace(1, 1e3, 4)),
    "ravel_multi_index": ({"n": np.array([1, 0]), "m": np.array([2, 1])}, lambda n, m: n * 3 + m),
    "pixel_shuffle": ({"x": IMAGES, "c": 2, "r": 2, "h": 2, "w": 3},
        lambda x, c, r, h, w: _shuffled(x, r)),
    "pixel_unshuffle": ({"x": _shuffled(IMAGES, 2), "c": 2, "r": 2, "h": 2, "w": 3},
        lambda x, c, r, h, w: IMAGES),
    "channel_shuffle": ({"x": IMAGES, "groups": 2, "c": 4, "h": 2, "w": 3},
        lambda x, groups, c, h, w: x[..., [0, 4, 1, 5, 2, 6, 3, 7]]),
    "margin_ranking_loss": ({"a": SIGNED, "b": OTHER, "y": np.sign(OTHER), "margin": 0.5},
        lambda a, b, y, margin: np.maximum(0, -y * (a - b) + margin).mean()),
    "triplet_margin_loss": ({"a": SIGNED, "p": OTHER, "n": POSITIVE, "margin": 1.0},
        lambda a, p, n, margin: np.maximum(
            np.linalg.norm(a - p, axis=1) - np.linalg.norm(a - n, axis=1) + margin, 0).mean()),
    "hinge_embedding_loss": ({"x": SIGNED, "y": np.sign(OTHER), "margin": 1.0},
        lambda x, y, margin: np.where(y == 1, x, np.maximum(0, margin - x)).mean()),
    "cosine_embedding_loss": ({"c": SIGNED, "y": np.sign(OTHER)},
        lambda c, y: np.where(y == 1, 1 - c, np.maximum(0, c)).mean()),
    "soft_margin_loss": ({"x": SIGNED, "y": np.sign(OTHER)},
        lambda x, y: np.log1p(np.exp(-y * x)).mean()),
    "poisson_nll_loss": (XY, lambda x, y: (np.exp(x) - y * x).mean()),
    "gaussian_nll_loss": ({**XY, "v": POSITIVE},
        lambda x, y, v: (0.5 * (np.log(v) + (x - y) ** 2 / v)).mean()),
}
# fmt: on
"""For each name the operands, and the function that takes them."""

IN_WORDS = {
    *["tril_indices", "triu_indices", "mask_indices", "tril_indices_from", "triu_indices_from"],
    *["diag_indices", "broadcast_arrays", "broadcast_tensors"],
    *["exponential", "gumbel", "randint_like", "choice", "glu", "interp"],
    *["multi_dot", "chain_matmul", "matrix_power", "addmv", "multilabel_soft_margin_loss"],
}
"""Advice without a value to compare: random draws, words, products of mappings."""


def code_of(advice: str) -> tuple[str | None, str]:
    """Return the definition that an advice begins with, and its expression."""
    match = re.fullmatch(r"with (\w+ = .*): (.*)", advice)
    if match is not None:
        return match[1], match[2].split(", where ")[0]
    code = re.split(r" (?:is|has|for|correlates|where)\b|, (?:or|and|where)\b", advice)[0]
    return None, code


def cells_of(x: oc.Tensor) -> np.ndarray:
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(x))()
    return ctx[x]


def value_of(name: str, values: Values) -> Any:
    definition, code = code_of(EXPRESSIONS[name])
    with oc.Session():
        known = {
            each: oc.tensor(v) if isinstance(v, np.ndarray) else v for each, v in values.items()
        }
        known |= {"oc": oc, "math": math, "np": np}
        if "count" in code:
            known |= {"count": values["x"].shape[1], "s": oc.std(known["x"], axis=1)}
        if definition is not None:
            exec(definition, known)
        result = eval(code, known)
        parts = [*result] if isinstance(result, tuple | list) else [result]
        found = [cells_of(part) for part in parts]
    return found if isinstance(result, tuple | list) else found[0]


@pytest.mark.parametrize("name", CASES)
def test_an_expression_is_the_function_that_it_replaces(name: str) -> None:
    values, reference = CASES[name]
    with oc.settings.overrides(allow_nan=True):
        found = value_of(name, values)
    expected = reference(*values.values())
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=3e-6)


def test_every_expression_is_compared_or_in_words() -> None:
    assert {*CASES} | IN_WORDS == {*EXPRESSIONS}
