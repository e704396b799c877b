"""Activation functions and other composed functions beside their formulas in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
CELLS = np.array([-100.0, -20.0, -3.0, -1.0, -1e-3, -0.0, 0.0, 0.25, 1.0, 2.9, 3.0, 20.0, 100.0])
_normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[float])


def logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FORMULAS: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "sigmoid": (oc.sigmoid, logistic),
    "softplus": (oc.softplus, lambda x: np.logaddexp(x, 0)),
    "log_sigmoid": (oc.log_sigmoid, lambda x: -np.logaddexp(-x, 0)),
    "silu": (oc.silu, lambda x: x * logistic(x)),
    "gelu": (oc.gelu, lambda x: x * _normal(x)),
    "gelu by tanh": (
        lambda x: oc.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "mish": (oc.mish, lambda x: x * np.tanh(np.logaddexp(x, 0))),
    "leaky_relu": (lambda x: oc.leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
    "elu": (
        lambda x: oc.elu(x, 0.5),
        lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))),
    ),
    "selu": (
        oc.selu,
        lambda x: 1.0507010 * np.where(x > 0, x, 1.6732632 * np.expm1(np.minimum(x, 0))),
    ),
    "hardtanh": (oc.hardtanh, lambda x: np.clip(x, -1, 1)),
    "hardsigmoid": (oc.hardsigmoid, lambda x: np.clip((x + 3) / 6, 0, 1)),
    "hardswish": (oc.hardswish, lambda x: x * np.clip((x + 3) / 6, 0, 1)),
    "relu6": (oc.relu6, lambda x: np.clip(x, 0, 6)),
    "softsign": (oc.softsign, lambda x: x / (1 + np.abs(x))),
    "square": (oc.square, lambda x: x * x),
    "clip": (lambda x: oc.clip(x, 0.5), lambda x: np.clip(x, 0.5, None)),
    "logaddexp": (lambda x: oc.logaddexp(x, 2.0), lambda x: np.logaddexp(x, 2)),
}


def computed(target: str, function: Callable[..., Any], *operands: Array) -> Array:
    """Return a function of arrays, run on a device."""
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        given = [oc.placeholder(f"x{i}", output=[len(each)]) for i, each in enumerate(operands)]
        result = function(*given)
        context = oc.Context(target)
        routine = context.compile(oc.train.forward(result))
        for tensor, cells in zip(given, operands, strict=True):
            context[tensor] = cells
        routine()
        found: Array = context[result]
        return found


@pytest.mark.parametrize("name", FORMULAS)
def test_an_activation_is_close_to_its_formula(target: str, name: str) -> None:
    ours, exact = FORMULAS[name]
    found = computed(target, ours, CELLS.astype(np.float32))
    np.testing.assert_allclose(found, exact(CELLS), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "log_sigmoid"])
def test_logistic_functions_are_within_six_units_everywhere(name: str) -> None:
    ours, exact = FORMULAS[name]
    x = np.linspace(-80, 80, 20001).astype(np.float32)
    wanted = exact(x.astype(np.float64))
    units = np.spacing(np.abs(wanted).astype(np.float32))
    assert (np.abs(computed("cpu_c", ours, x) - wanted) / units).max() <= 6


@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_are_finite_where_results_are(target: str, name: str) -> None:
    ours, _ = FORMULAS[name]
    with oc.Session():
        p = oc.param("p", init=CELLS.astype(np.float32))
        loss = oc.einsum("... => 0", ours(p))
        context = oc.Context(target)
        step = context.compile(oc.train.grad_update(loss), keep=[p.grad])
        context.init_params(loss)
        step()
        assert np.isfinite(context[p.grad]).all()


def test_infinities_and_nan_are_distinguished(target: str) -> None:
    cells = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
    assert computed(target, oc.isnan, cells).tolist() == [0, 0, 0, 1]
    assert computed(target, oc.isinf, cells).tolist() == [0, 1, 1, 0]
    assert computed(target, oc.isfinite, cells).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64", "bool"])
def test_activations_of_integers_are_those_of_the_same_floats(target: str, dtype: str) -> None:
    cells = np.array([0, 1, 3, 100, 126]).astype(dtype)
    bounded = ("hardtanh", "relu6", "square", "clip")
    functions = [function for name, (function, _) in FORMULAS.items() if name not in bounded]
    functions += [lambda x: oc.logaddexp(x, oc.flip(x)), lambda x: oc.logaddexp(0.5, x)]
    with oc.Session():
        x = oc.tensor(cells)
        pairs = [(each(x), each(oc.cast(x, "float32"))) for each in functions]
        flat = [each for pair in pairs for each in pair]
        context = oc.Context(target)
        code = sum((oc.train.forward(each) for each in flat[1:]), oc.train.forward(flat[0]))
        context.compile(code, keep=flat)()
        for found, wanted in pairs:
            assert found.dtype is oc.float32
            np.testing.assert_array_equal(context[found], context[wanted])


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bool"])
def test_integers_and_truths_are_finite(dtype: str) -> None:
    x = oc.tensor(np.array([0, 1]).astype(dtype))
    context = oc.Context("interp")
    for test, wanted in ((oc.isfinite, 1), (oc.isinf, 0), (oc.isnan, 0)):
        found = test(x)
        context.compile(oc.train.forward(found))()
        assert found.dtype.name == dtype
        assert context[found].tolist() == [wanted, wanted]


def test_exclusive_or_is_of_truth_values(target: str) -> None:
    a, b = np.array([0.0, 0.0, 2.0, 3.0], np.float32), np.array([0.0, 5.0, 0.0, 1.0], np.float32)
    assert computed(target, oc.logical_xor, a, b).tolist() == [0, 1, 1, 0]


def test_the_gradient_at_a_bound_flows_to_the_clipped_tensor() -> None:
    with oc.Session():
        p = oc.param("p", init=[-1.0, 0.0, 0.5, 1.0, 2.0])
        loss = oc.einsum("... => 0", oc.clip(p, 0.0, 1.0))
        context = oc.Context("interp")
        step = context.compile(oc.train.grad_update(loss), keep=[p.grad])
        context.init_params(loss)
        step()
        assert context[p.grad].tolist() == [0, 1, 1, 1, 0]


def test_a_composed_activation_is_code_of_other_operations() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = oc.gelu(v1, approximate="tanh")

    with oc.Session():
        x = oc.tensor([-1.0, 2.0])
        y = oc.define_operation("own_gelu", forward=forward)(x)
        expected = oc.gelu(x, approximate="tanh")
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(y) + oc.train.forward(expected))()
        assert ctx[y].tolist() == ctx[expected].tolist()


def test_clip_without_bounds_and_gelu_of_another_kind_are_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        with pytest.raises(oc.UsageError, match="a bound or two"):
            oc.clip(x)
        with pytest.raises(oc.UsageError, match="approximate='erf'"):
            oc.gelu(x, approximate="erf")


GATES: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "sigmoid": (oc.sigmoid, logistic),
    "silu": (oc.silu, lambda x: x * logistic(x)),
    "gradient of softplus": (lambda x: gradient_of(oc.softplus, x), logistic),
    "gradient of log_sigmoid": (lambda x: gradient_of(oc.log_sigmoid, x), lambda x: logistic(-x)),
    "gradient of silu": (
        lambda x: gradient_of(oc.silu, x),
        lambda x: logistic(x) * (1 + x * logistic(-x)),
    ),
    "gradient of logaddexp": (lambda x: gradient_of(lambda y: oc.logaddexp(0.0, y), x), logistic),
}


def gradient_of(function: Callable[..., Any], x: oc.Tensor) -> Any:
    return oc.gradients(function(x), [x])[0]


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16"])
def test_gates_of_all_numbers_of_a_short_range_are_numbers(
    target: str, name: str, dtype: str
) -> None:
    """The exponential of 7 is beyond the range of `float8_e4m3fn`, which has no infinity."""
    function, formula = GATES[name]
    kind = oc.tensor([0.0], dtype=dtype).dtype.numpy
    words = np.arange(256, dtype=np.uint8) if kind.itemsize == 1 else np.arange(0, 2**16, 37)
    x = words.astype(f"u{kind.itemsize}").view(kind)
    x = x[np.isfinite(x.astype(float))]
    with oc.Session():
        given = oc.placeholder("x", output=[len(x)], dtype=dtype, requires_grad=True)
        result = function(given)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(result))
        ctx[given] = x
        step()
        found = ctx[result].astype(float)
    with np.errstate(over="ignore"):
        exact = formula(x.astype(float))
    eps, least = {
        "float8_e4m3fn": (2.0**-3, 2.0**-9),
        "float8_e5m2": (2.0**-2, 2.0**-16),
        "float16": (2.0**-10, 2.0**-24),
    }[dtype]
    # a rounded gate has the factor x, and the gradient of silu is a difference of such terms
    slack = {"silu": 20 * least, "gradient of silu": 8 * eps}.get(name, least)
    np.testing.assert_allclose(found, exact, rtol=3 * eps, atol=slack)


ROUNDED_ONCE: dict[str, Callable[[oc.Tensor], Any]] = {
    "silu": oc.silu,
    "mish": oc.mish,
    "hardsigmoid": oc.hardsigmoid,
    "hardswish": oc.hardswish,
    "elu": lambda x: oc.elu(x, 0.3),
    "selu": oc.selu,
    "gelu by tanh": lambda x: oc.gelu(x, approximate="tanh"),
    "rms_norm": lambda x: oc.nn.rms_norm(x),
    "layer_norm": lambda x: oc.nn.layer_norm(x),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ROUNDED_ONCE)
def test_functions_of_several_steps_are_rounded_once_in_short_formats(
    target: str, name: str, dtype: str
) -> None:
    """Neither the steps nor the terms of a gradient have roundings of their own."""
    kind = oc.tensor([0.0], dtype=dtype).dtype.numpy
    random = np.random.default_rng(1)
    cells, weights = (random.standard_normal(48).astype(kind).astype(float) for _ in range(2))

    def results(form: str) -> list[Array]:
        with oc.Session(dtype=form):
            x = oc.param("x", init=cells, dtype=form)
            y = ROUNDED_ONCE[name](x)
            loss = oc.einsum("i; i => 0", y, oc.tensor(weights, dtype=form))
            ctx = oc.Context(target)
            step = ctx.compile(oc.train.grad_update(loss), keep=[y, x.grad])
            ctx.init_params(loss)
            step()
            return [np.asarray(ctx[each], np.float64) for each in (y, x.grad)]

    for found, exact in zip(results(dtype), results("float64"), strict=True):
        eps = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
        np.testing.assert_allclose(found, exact, rtol=1.01 * eps, atol=2.0**-24)


def test_a_format_without_infinities_has_their_tests_and_sums_of_exponentials(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[4], dtype="float8_e4m3fn")
        infinite, total = oc.isinf(x), oc.logsumexp(x)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(infinite) + oc.train.forward(total))
        for cells, wanted in (
            ([448, 32, 2, 0], 448),
            ([448, -448, 2, 0], 448),
            ([-2, 0.5, 1, 1], 2),
            ([-448] * 4, -448),
        ):
            ctx[x] = np.array(cells, float).astype(x.dtype.numpy)
            step()
            assert not ctx[infinite].astype(float).any()
            assert ctx.item(total) == wanted
        with oc.settings.overrides(allow_nan=True):
            ctx[x] = np.array([np.nan, 1, 2, 3]).astype(x.dtype.numpy)
            step()
        assert not ctx[infinite].astype(float).any()
