"""Arithmetic in narrow floats is that of ml_dtypes, number by number, and models train in them.

The reference widens to float32, operates there, and lets NumPy and ml_dtypes round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.testing.compare import ulp_distances
from ocannl_core.testing.subject import subject_named

Array = np.ndarray[Any, Any]
NARROW = dtypes.NARROW
WIDE = (dtypes.float32, dtypes.float64)


@cache
def every_number(dtype: DType) -> Array:
    """Return every bit pattern of a format."""
    bits = 8 * dtype.nbytes
    return np.arange(2**bits, dtype=f"u{dtype.nbytes}").view(dtype.numpy)


def numbers(dtype: DType, target: str) -> Array:
    """Return every number of a format, or for a slow backend every one in some, all exponents and
    special values included.
    """
    found = every_number(dtype)
    if target.startswith("interp") and dtype.nbytes == 2:
        return np.concatenate([found[::61], found[:9], found[-9:], found[0x7BFD:0x7C03]])
    return found


def evaluated(target: str, make: Callable[..., oc.Tensor], *operands: Array) -> Array:
    """Return an expression of literals, computed by a backend; sums round after every term."""
    with oc.Session(), settings.overrides(allow_nan=True, contract=False, accumulation="exact"):
        tensor = make(*(oc.tensor(each, dtype=each.dtype) for each in operands))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(tensor))()
        return ctx[tensor]


def widened(array: Array) -> Array:
    return array.astype(np.float32)


def rounded(array: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.numpy)


def assert_same(found: Array, expected: Array, dtype: DType, ulps: int = 0) -> None:
    """Check bits, but for NaN, of which there is one."""
    assert found.dtype == expected.dtype == dtype.numpy
    if found.tobytes() == expected.tobytes():
        return
    off = [d for d in ulp_distances(found, expected, dtype) if d > ulps]
    assert not off, f"{len(off)} of {found.size}, by up to {max(off)}"


def _mod(a: Array, b: Array) -> Array:
    rest = np.fmod(a, b)
    signed = np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    return np.where(signed == 0, np.copysign(np.float32(0), b), signed)


UNARY: dict[str, tuple[Operation, Callable[[Array], Array]]] = {
    "neg": (oc.negative, np.negative),
    "relu": (oc.relu, lambda a: np.where(a < 0, np.float32(0), a)),
    "sat01": (
        oc.primitives.sat01,
        lambda a: np.where(a <= 0, np.float32(0), np.where(a >= 1, 1, a)),
    ),
    "sqrt": (oc.sqrt, np.sqrt),
    "recip": (oc.reciprocal, lambda a: np.float32(1) / a),
    "trunc": (oc.trunc, np.trunc),
    "not": (oc.logical_not, lambda a: (a == 0).astype(np.float32)),
}
LIBRARY: dict[str, tuple[Operation, Callable[[Array], Array]]] = {
    "exp": (oc.exp, np.exp),
    "log": (oc.log, np.log),
    "exp2": (oc.exp2, np.exp2),
    "log2": (oc.log2, np.log2),
    "sin": (oc.sin, np.sin),
    "cos": (oc.cos, np.cos),
    "tanh": (oc.tanh, np.tanh),
    "recip_sqrt": (oc.rsqrt, lambda a: 1 / np.sqrt(a)),
}
BINARY: dict[str, tuple[Operation, Callable[[Array, Array], Array]]] = {
    "add": (oc.add, np.add),
    "sub": (oc.subtract, np.subtract),
    "mul": (oc.multiply, np.multiply),
    "div": (oc.divide, np.divide),
    "mod": (oc.remainder, _mod),
    "maximum": (oc.maximum, np.maximum),
    "minimum": (oc.minimum, np.minimum),
    "less": (oc.less, lambda a, b: (a < b).astype(np.float32)),
    "equal": (oc.equal, lambda a, b: (a == b).astype(np.float32)),
    "relu_gate": (oc.primitives.relu_gate, lambda a, b: np.where(a > 0, b, np.float32(0))),
    "sat01_gate": (
        oc.primitives.sat01_gate,
        lambda a, b: np.where((a > 0) & (a < 1), b, np.float32(0)),
    ),
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_functions_of_every_number_are_rounded_once(target: str, dtype: DType) -> None:
    x = numbers(dtype, target)
    for operation, reference in UNARY.values():
        with np.errstate(all="ignore"):
            expected = rounded(reference(widened(x)), dtype)
        assert_same(evaluated(target, operation, x), expected, dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_elementary_functions_of_every_number_are_within_one_unit(
    target: str, dtype: DType
) -> None:
    x = numbers(dtype, target)
    for operation, reference in LIBRARY.values():
        with np.errstate(all="ignore"):
            expected = rounded(reference(x.astype(np.float64)), dtype)
        assert_same(evaluated(target, operation, x), expected, dtype, ulps=1)


def pairs(target: str, one: DType, other: DType) -> tuple[Array, Array]:
    """Return pairs of numbers: all of two short formats, else a fixed sample with every special
    value.
    """
    both = [every_number(dtype) for dtype in (one, other)]
    count = 1_000 if target.startswith("interp") else 20_000
    generator = np.random.default_rng(11)
    telling = [
        np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 3.0]).astype(dtype.numpy)
        for dtype in (one, other)
    ]
    grid = np.meshgrid(*[np.arange(9)] * 2)
    special = [values[index.ravel()] for values, index in zip(telling, grid, strict=True)]
    drawn = [values[generator.integers(0, values.size, count)] for values in both]
    first, second = (np.concatenate(each) for each in zip(special, drawn, strict=True))
    return first, second


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_operations_on_two_numbers_are_rounded_once(target: str, dtype: DType) -> None:
    a, b = pairs(target, dtype, dtype)
    for operation, reference in BINARY.values():
        with np.errstate(all="ignore"):
            expected = rounded(reference(widened(a), widened(b)), dtype)
        if operation in (oc.maximum, oc.minimum, oc.remainder):  # of two zeros, either sign
            found = evaluated(target, operation, a, b)
            is_zero = (widened(found) == 0) & (widened(expected) == 0)
            expected = np.where(is_zero, found, expected)
            assert_same(found, expected, dtype)
        else:
            assert_same(evaluated(target, operation, a, b), expected, dtype)


MIXED = [
    (dtypes.bfloat16, dtypes.float16),
    (dtypes.float8_e4m3fn, dtypes.float16),
    (dtypes.float8_e4m3fn, dtypes.float8_e5m2),
    (dtypes.float8_e5m2, dtypes.float16),
    (dtypes.float8_e5m2, dtypes.bfloat16),
]


@pytest.mark.parametrize(("one", "other"), MIXED, ids=str)
def test_mixed_operands_are_converted_to_the_wider_format_first(
    target: str, one: DType, other: DType
) -> None:
    wide = dtypes.promote(one, other)
    a, b = pairs(target, one, other)
    wide_a, wide_b = (widened(rounded(widened(each), wide)) for each in (a, b))
    for name in ("add", "mul", "div"):
        operation, reference = BINARY[name]
        with np.errstate(all="ignore"):
            expected = rounded(reference(wide_a, wide_b), wide)
        assert_same(evaluated(target, operation, a, b), expected, wide)
        assert_same(evaluated(target, lambda x, y, f=operation: f(x, y), a, b), expected, wide)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_narrow_number_meets_a_float32_in_float32(target: str, dtype: DType) -> None:
    a, _ = pairs(target, dtype, dtype)
    b = np.random.default_rng(5).normal(size=a.size).astype(np.float32)
    with np.errstate(all="ignore"):
        assert_same(evaluated(target, oc.multiply, a, b), widened(a) * b, dtypes.float32)


@pytest.mark.parametrize("source", [*NARROW, *WIDE], ids=str)
@pytest.mark.parametrize("result", [*NARROW, *WIDE], ids=str)
def test_casts_round_once(target: str, source: DType, result: DType) -> None:
    if source in NARROW:
        x = numbers(source, target)
    else:
        generator = np.random.default_rng(3)
        exponents = generator.uniform(-45, 40, 3000)
        x = (generator.normal(size=3000) * 2.0**exponents).astype(source.numpy)
    through = x.astype(np.float32) if result in NARROW else x  # as hardware does
    expected = rounded(through, result)
    assert_same(evaluated(target, lambda t: oc.cast(t, result), x), expected, result)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("schedule", ["default", "none"])
def test_a_number_that_was_float32_on_the_way_is_rounded(
    target: str, schedule: str, size: int
) -> None:
    numbers = np.linspace(-0.9, 0.7, size)
    with settings.overrides(schedule=schedule), oc.Session():
        x = oc.placeholder("x", output=[size], dtype="float64")
        y = oc.cast(oc.cast(x, "float32"), "float64") + x
        ctx = oc.Context(target)
        run = ctx.compile(oc.train.forward(y))
        ctx[x] = numbers
        run()
        np.testing.assert_array_equal(ctx[y], numbers.astype(np.float32).astype(float) + numbers)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_step_of_an_expression_is_rounded(target: str, dtype: DType) -> None:
    a, b = pairs(target, dtype, dtype)
    with np.errstate(all="ignore"):
        product = rounded(widened(a) * widened(b), dtype)
        total = rounded(widened(product) + widened(a), dtype)
        expected = rounded(widened(total) / widened(b), dtype)
    assert_same(evaluated(target, lambda x, y: (x * y + x) / y, a, b), expected, dtype)


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _logsumexp(x: Array) -> Array:
    return np.asarray(np.logaddexp.reduce(x, axis=-1))


def _gelu(x: Array) -> Array:
    return np.asarray([each * math.erfc(-each / math.sqrt(2)) / 2 for each in x.ravel()])


_FORMULAS: dict[str, tuple[Callable[..., oc.Tensor], Callable[..., Array]]] = {
    "softmax": (oc.softmax, _softmax),
    "log_softmax": (oc.log_softmax, lambda x: x - _logsumexp(x)[:, None]),
    "logsumexp": (lambda x: oc.logsumexp(x, axis=-1), _logsumexp),
    "mean": (lambda x: oc.mean(x, axis=-1), lambda x: x.mean(axis=-1)),
    "var": (lambda x: oc.var(x, axis=-1), lambda x: x.var(axis=-1)),
    "std": (lambda x: oc.std(x, axis=-1), lambda x: x.std(axis=-1)),
    "norm": (lambda x: oc.norm(x, axis=-1), lambda x: np.sqrt((x * x).sum(axis=-1))),
    "norm 3": (lambda x: oc.norm(x, 3, axis=-1), lambda x: (abs(x) ** 3).sum(axis=-1) ** (1 / 3)),
    # further below float32 cancels
    "gelu": (lambda x: oc.gelu(oc.maximum(x, -2.0)), lambda x: _gelu(np.maximum(x, -2.0))),
    "sigmoid": (oc.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (oc.silu, lambda x: x / (1 + np.exp(-x))),
    "softplus": (oc.softplus, lambda x: np.logaddexp(0, x)),
    "mish": (oc.mish, lambda x: x * np.tanh(np.logaddexp(0, x))),
    "softsign": (oc.softsign, lambda x: x / (1 + abs(x))),
    "logaddexp": (lambda x: oc.logaddexp(x, -0.5 * x), lambda x: np.logaddexp(x, -0.5 * x)),
}
"""Functions of several steps, with their values in float64."""


@pytest.mark.parametrize("name", _FORMULAS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_functions_of_several_steps_are_rounded_once(target: str, dtype: DType, name: str) -> None:
    make, exact = _FORMULAS[name]
    x = rounded(3 * np.random.default_rng(7).normal(size=(8, 40)) + 1, dtype)
    with np.errstate(under="ignore"):
        expected = rounded(exact(x.astype(float)), dtype).ravel()
    found = evaluated(target, make, x).ravel()
    away = np.array(ulp_distances(found, expected, dtype))
    # steps in float32 may fall on the other side of a tie
    assert away.max() <= 1
    assert (away > 0).mean() <= 0.02


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_are_rounded_after_every_term(target: str, dtype: DType) -> None:
    x = np.random.default_rng(9).normal(size=(4, 40)).astype(dtype.numpy)
    total = np.zeros(4, np.float32)
    for column in widened(x).T:
        total = widened(rounded(total + column, dtype))
    found = evaluated(target, lambda t: oc.einsum("ij => i", t), x)
    assert_same(found, rounded(total, dtype), dtype)
    wide = evaluated(target, lambda t: oc.einsum("ij => i", oc.cast(t, "float32")), x)
    np.testing.assert_allclose(wide, widened(x).sum(axis=1), rtol=1e-5)


def _total(x: oc.Tensor) -> oc.Tensor:
    return oc.einsum("i => 0", x)


_READERS: dict[str, tuple[Callable[[oc.Tensor], oc.Tensor], Callable[[float], Any]]] = {
    "alone": (_total, lambda total: total),
    "a product": (lambda x: _total(x) * 0.5, lambda total: total / 2),
    "a stack": (lambda x: oc.stack(_total(x), _total(x * 2.0)), lambda t: [t, 2 * t]),
    "two sums": (lambda x: _total(x) * 0.5 + _total(x * 0.25), lambda total: 0.75 * total),
    "a concatenation": (
        lambda x: oc.concat("i; j => i^j", _total(x) * 0.5, x),
        lambda total: [total / 2, *([1] * int(total))],
    ),
    "a choice by positions": (
        lambda x: oc.where(
            oc.remainder(oc.arange(8), 2),
            oc.einsum("i; j => j", x, oc.tensor([1.0] * 8)),
            oc.number(-1.0),
        ),
        lambda total: [-1.0, total] * 4,
    ),
}


@pytest.mark.parametrize("name", _READERS)
@pytest.mark.parametrize(
    ("dtype", "count"),
    [("bfloat16", 400), ("float16", 4096), ("float8_e5m2", 64), ("float8_e4m3fn", 64)],
)
@pytest.mark.filterwarnings("ignore::ocannl_core.SpecWarning")
def test_sums_are_rounded_once_wherever_they_are_computed(
    target: str, dtype: str, count: int, name: str
) -> None:
    if target.startswith("interp"):
        pytest.skip("it rounds after every term")
    make, expected = _READERS[name]
    with oc.Session(dtype=dtype):
        result = make(oc.tensor(np.ones(count), dtype=dtype))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(result), keep=[result])()
        found = np.asarray(ctx[result], np.float64).ravel()
        np.testing.assert_array_equal(found, np.ravel(expected(count)))


def losses(
    target: str, dtype: str, param_dtype: str | None, steps: int, accumulation: str = "exact"
) -> list[float]:
    """Return the losses of a small network on a smooth function."""
    generator = np.random.default_rng(0)
    points = generator.uniform(-1, 1, (16, 3))
    values = points @ np.array([[1.0], [-2.0], [0.5]]) + 0.3
    with (
        oc.Session(seed=3, dtype=dtype, param_dtype=param_dtype),
        settings.overrides(accumulation=accumulation),
    ):
        x, y = oc.tensor(points, batch_axes=1), oc.tensor(values, batch_axes=1)
        error = oc.nn.mlp(x, hidden=[8], output=[1]) - y
        loss = oc.einsum("...|... => 0", error * error) / 16
        ctx = oc.Context(target)
        update = oc.train.sgd_update(loss, learning_rate=0.05)
        step = ctx.compile(oc.train.grad_update(loss) + update)
        ctx.init_params(loss)
        found = []
        for _ in range(steps):
            step()
            found.append(ctx.item(loss))
        formats = {p.dtype.name for p in loss.params} | {p.grad.dtype.name for p in loss.params}
        assert formats == {param_dtype or dtype}
        assert loss.dtype.name == dtype
        return found


TRAINED = [
    ("bfloat16", None),
    ("bfloat16", "float32"),
    ("float16", None),
    ("float16", "float32"),
    ("float8_e4m3fn", "float32"),
    ("float8_e5m2", "float32"),
    ("float64", None),
    ("float32", "float64"),
]


@pytest.mark.parametrize(("dtype", "param_dtype"), TRAINED, ids=str)
def test_networks_train_in_every_float_format(
    target: str, dtype: str, param_dtype: str | None
) -> None:
    steps = 4 if target.startswith("interp") else 60
    found = losses(target, dtype, param_dtype, steps)
    assert all(np.isfinite(found))
    assert found[-1] < (0.95 if steps < 10 else 0.15) * found[0]
    if dtype == "float64" and subject_named(target).target.thread_blocks is not None:
        pytest.skip("the threads of a block add up in an order of their own")
    # the exactly rounded operations of a network with relu leave no freedom
    assert found[:4] == losses("interp", dtype, param_dtype, 4)
    if not target.startswith("interp"):  # which adds up in one way only
        for accumulation in ("float32", "fast"):
            found = losses(target, dtype, param_dtype, steps, accumulation)
            assert found[-1] < 0.15 * found[0]


def test_extremes_start_from_the_least_number_where_there_are_no_infinities(target: str) -> None:
    cells = np.array([[-3, -120, -7], [1, 2, 3]]).astype(dtypes.float8_e4m3fn.numpy)

    def greatest(x: oc.Tensor) -> oc.Tensor:
        return oc.einmax("ij => i", x)

    def pooled(x: oc.Tensor) -> oc.Tensor:
        return oc.einmax("..., i=+k => ..., i", x, values={"k": 3})

    assert widened(evaluated(target, greatest, cells)).tolist() == [-3, 3]
    assert widened(evaluated(target, lambda x: -greatest(-x), cells)).tolist() == [-120, 1]
    assert widened(evaluated(target, pooled, cells)).tolist() == [[-3, -3, -7], [2, 3, 3]]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_integers_beside_floats_are_computed_with_as_floats(target: str, dtype: str) -> None:
    greatest = np.iinfo(dtype).max // 2
    cells = np.array([greatest, 3, 1], dtype)
    floats = cells.astype(np.float32)
    calls: list[tuple[Callable[[Any], Any], Any]] = [
        (lambda x: x * 4.0, floats * 4),
        (lambda x: x * oc.number(4.0, dtype="float32"), floats * 4),
        (lambda x: (x - 128.0) / 64.0, (floats - 128) / 64),
        (lambda x: -2.0 - x, -2 - floats),
        (lambda x: x**2.0, floats**2),
        (lambda x: oc.pow(x, -2.0), floats**-2),
        (lambda x: (-2.0) ** -oc.cast(x > 2, "int32"), np.array([-0.5, -0.5, 1])),
        (lambda x: oc.custom.Composite(lambda y: y * 4.0)(x), floats * 4),
    ]
    for call, expected in calls:
        found = evaluated(target, call, cells)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with oc.Session():
        x, result = oc.tensor(cells), oc.declare("result", output=[3], dtype="float32")

        @oc.cd
        def code() -> None:
            result[:] = x * 4.0

        ctx = oc.Context(target)
        ctx.compile(code())()
        np.testing.assert_array_equal(ctx[result], floats * 4)
