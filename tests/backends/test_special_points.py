"""Values and slopes at zeros, ties, infinities, and huge and tiny numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

INF = math.inf
ONE = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 6.0, 1e-5, 1e-20, -1e-20, 9.9, -9.9]
ONE += [20.0, -20.0, 90.0, -90.0, 1e4, -1e4, 1e10, -1e10, 1e20, -1e20, 3e38, -3e38, INF, -INF]
TWO = [0.0, -0.0, 1.0, -2.5, 1e-20, -1e-30, 1e10, -1e20, 3e38, INF, -INF]


def computed(
    target: str, function: Callable[..., Any], *points: Any, dtype: str = "float32"
) -> list[Any]:
    """Return the values of a function at points, and the slopes with respect to each operand."""
    with oc.Session(dtype=dtype):
        xs = [oc.tensor(np.array(each), dtype=dtype, requires_grad=True) for each in points]
        y = function(*xs)
        slopes = [x.grad for x in xs if x.grad is not None]
        ctx = oc.Context(target)
        ctx.compile(oc.train.grad_update(oc.sum(y)), keep=[y, *slopes])()
        return [ctx[each] for each in (y, *slopes)]


EDGES: list[tuple[str, Callable[..., Any], list[Any], list[Any]]] = [
    ("ties", oc.logaddexp, [[1.0], [1.0]], [[1.0 + math.log(2.0)], [0.5], [0.5]]),
    ("nothing", oc.logaddexp, [[-INF], [-INF]], [[-INF], [0.5], [0.5]]),
    ("infinities", oc.logaddexp, [[INF, INF], [INF, 1.0]], [[INF, INF], [0.5, 1.0], [0.5, 0.0]]),
    ("one of nothing", oc.logaddexp, [[-INF], [2.0]], [[2.0], [0.0], [1.0]]),
    ("equal cells", oc.std, [[2.0, 2.0, 2.0]], [0.0, [0.0, 0.0, 0.0]]),
    ("no vector", lambda x: oc.norm(x, ord=0.5), [[0.0, 0.0]], [0.0, [0.0, 0.0]]),
    ("no first cell", lambda x: oc.norm(x, ord=0.5), [[0.0, 4.0]], [4.0, [0.0, 1.0]]),
    ("no last cell", lambda x: oc.norm(x, ord=-1), [[4.0, 0.0]], [0.0, [0.0, 0.0]]),
    ("far", oc.softsign, [[1e10, -1e10, 1e4]], [[1, -1, 0.9999], [1e-20, 1e-20, 1 / 10001.0**2]]),
    ("far", oc.atan2, [[1e30], [1e30]], [[math.pi / 4], [5e-31], [-5e-31]]),
    ("near", oc.atan2, [[0.0], [1e-30]], [[0.0], [1e30], [0.0]]),
    ("origin", oc.atan2, [[0.0], [0.0]], [[0.0], [0.0], [0.0]]),
    ("infinity", oc.atan2, [[INF, 1.0], [1.0, INF]], [[math.pi / 2, 0.0], [0, 0], [0, 0]]),
    ("far", lambda x: oc.gelu(x, approximate="tanh"), [[1e20, -1e20]], [[1e20, 0.0], [1.0, 0.0]]),
    ("bounds", oc.relu6, [[0.0, 3.0, 6.0]], [[0.0, 3.0, 6.0], [0.0, 1.0, 0.0]]),
    ("bounds", oc.hardtanh, [[-1.0, 0.0, 1.0]], [[-1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]),
    ("infinite divisor", oc.remainder, [[-1.0], [INF]], [[INF], [1.0], [1.0]]),
]


@pytest.mark.parametrize("case", range(len(EDGES)))
def test_slopes_at_edges_are_their_limits(target: str, case: int) -> None:
    _, function, points, expected = EDGES[case]
    for found, wanted in zip(computed(target, function, *points), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("name", ["std", "norm"])
def test_slopes_of_slopes_at_edges_are_no_nan(target: str, name: str) -> None:
    with oc.Session(dtype="float64"):
        x = oc.tensor([1.0, 1.0], requires_grad=True)
        y = oc.std(x) if name == "std" else oc.norm(x - 1.0, ord=0.5)
        (g,) = oc.gradients(oc.sum(y), [x])
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(g))()
        assert ctx[g].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("function", "second", "third"),
    [
        (oc.softplus, 0.25, 0.0),
        (oc.log_sigmoid, -0.25, 0.0),
        (oc.silu, 0.5, 0.0),
        (oc.sigmoid, 0.0, -0.125),
        (oc.mish, 0.64, -0.096),
        (lambda x: oc.logaddexp(x, 0.0), 0.25, 0.0),
        (lambda x: oc.nn.binary_cross_entropy(x, 0.3 * oc.ones_like(x)), 0.25, 0.0),
    ],
)
def test_smooth_functions_have_higher_derivatives_at_zero(
    target: str, function: Callable[..., Any], second: float, third: float
) -> None:
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=[0.0])
        found = [oc.sum(function(x))]
        for _ in range(3):
            found.append(oc.sum(oc.gradients(found[-1], [x])[0]))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(oc.stack(found)), keep=found)
        ctx.init_params(found[-1])
        step()
        assert ctx.item(found[2]) == pytest.approx(second, abs=1e-12)
        assert ctx.item(found[3]) == pytest.approx(third, abs=1e-12)


def test_slopes_of_slopes_of_powers_of_zero_are_no_nan(target: str) -> None:
    with oc.Session(dtype="float64"):
        base = oc.tensor([0.0, 0.0, 1.0], requires_grad=True)
        exponent = oc.tensor([2.0, 1.5, 3.0], requires_grad=True)
        slopes = oc.gradients(oc.pow(base, exponent), [base, exponent])
        found = oc.gradients(slopes[0] + slopes[1], [base, exponent])
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(found[0]) + oc.train.forward(found[1]))()
        assert ctx[found[0]].tolist() == [2.0, INF, 7.0]
        assert ctx[found[1]].tolist() == [0.0, 0.0, 1.0]


NAMED = [
    "abs",
    "acos",
    "asin",
    "atan",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "rsqrt",
]
"""The functions with the same name there."""

ALIKE = [
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu",
    "relu6",
    "selu",
    "silu",
    "softsign",
]

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "3": lambda x: x**3.0,
    "5 / 2": lambda x: x**2.5,
    "-1": lambda x: x**-1.0,
    "2": lambda x: x**2.0,
    "0": lambda x: x**0.0,
    "exponent": lambda x: 2.0**x,
    "quotient": lambda x: 1.0 / x,
    "rest": lambda x: x % 1.5,
}


def _check(target: str, names: str, function: Any, judge: Any, *points: Any) -> None:
    """Compare values and slopes in float64; where PyTorch gives NaN, anything is as good."""
    torch = pytest.importorskip("torch")
    xs = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in points]
    y = judge(*xs)
    y.sum().backward()
    found = computed(target, function, *points, dtype="float64")
    slopes = [x.grad if x.grad is not None else torch.zeros_like(x) for x in xs]
    for ours, theirs in zip(found, [y.detach(), *slopes], strict=True):
        wanted = theirs.numpy()
        known = ~np.isnan(wanted)
        np.testing.assert_allclose(ours[known], wanted[known], 1e-6, 1e-20, err_msg=names)


def test_functions_of_one_number_are_those_of_torch_at_special_points(target: str) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    for name in NAMED:
        _check(target, name, getattr(oc, name), getattr(torch, name), ONE)
    for name in ALIKE:
        _check(target, name, getattr(oc, name), getattr(functional, name), ONE)
    for name, function in NUMBERS.items():
        _check(target, name, function, function, ONE)
    _check(target, "log_sigmoid", oc.log_sigmoid, functional.logsigmoid, ONE)
    # PyTorch passes the gradient on at a bound until 2.13, and none since 2.14
    between = [each for each in ONE if each not in (-1.0, 2.0)]
    _check(target, "clip", lambda x: oc.clip(x, -1, 2), lambda x: torch.clamp(x, -1, 2), between)
    inside = [each for each in ONE if each not in (0.0, 1.0)]  # no gradient flows at a bound
    _check(target, "sat01", oc.primitives.sat01, lambda x: torch.clamp(x, 0, 1), inside)


def test_functions_of_two_numbers_are_those_of_torch_at_special_points(target: str) -> None:
    torch = pytest.importorskip("torch")
    for ours, theirs in {"power": "pow", "mod": "remainder"}.items():
        pairs = [(a, b) for a in TWO for b in TWO]
        _check(target, ours, getattr(oc, ours), getattr(torch, theirs), *zip(*pairs, strict=True))
    for name in ("add", "sub", "mul", "div", "atan2", "logaddexp"):
        pairs = [(a, b) for a in TWO for b in TWO]
        _check(target, name, getattr(oc, name), getattr(torch, name), *zip(*pairs, strict=True))
    for name in ("maximum", "minimum"):  # of equal numbers, the first gets the gradient
        pairs = [(a, b) for a in TWO for b in TWO if a != b]
        _check(target, name, getattr(oc, name), getattr(torch, name), *zip(*pairs, strict=True))
