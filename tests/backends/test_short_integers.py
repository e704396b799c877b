"""Integers of less than 32 bits and bool: arithmetic, conversions and promotion as in NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType

Array = np.ndarray[Any, Any]
SHORT = ["int8", "int16", "uint8", "uint16"]
ALL_SHORT = ["bool", *SHORT]
FORMATS = tuple(dtype for dtype in dtypes.ALL if dtype is not dtypes.uint4x32)
ROWS, COLUMNS = 3, 37


def cells(dtype: str, seed: int = 0, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Array:
    """Return random numbers of a format, the extremes among them."""
    random = np.random.default_rng([seed, *dtype.encode()])
    if dtype == "bool":
        return random.random(shape) < 0.5
    limits = np.iinfo(dtype)
    found = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    found.flat[: 5 - seed] = [limits.min, limits.max, 0, 1, limits.min][: 5 - seed]
    return found


def computed(target: str, make: Callable[..., Any], *operands: Array) -> Array:
    """Return an expression of literals, computed by a backend."""
    (found,) = all_computed(target, [make], *operands)
    return found


def all_computed(target: str, makes: Iterable[Callable[..., Any]], *operands: Array) -> list[Array]:
    """Return expressions of the same literals, computed by one routine."""
    with oc.Session():
        given = list(map(oc.tensor, operands))
        tensors = [make(*given) for make in makes]
        code = oc.train.forward(tensors[0])
        for each in tensors[1:]:
            code = code + oc.train.forward(each)
        ctx = oc.Context(target)
        ctx.compile(code)()
        return [ctx[each] for each in tensors]


def assert_same(found: Array, expected: Array, name: str = "") -> None:
    assert found.dtype == expected.dtype, name
    np.testing.assert_array_equal(found, expected, name)


BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (operator.add, np.add),
    "sub": (operator.sub, np.subtract),
    "mul": (operator.mul, np.multiply),
    "chain": (lambda a, b: a * b - a + b, lambda a, b: a * b - a + b),
    "floor_divide": (operator.floordiv, lambda a, b: np.where(b == 0, 0, a // np.where(b, b, 1))),
    "mod": (operator.mod, lambda a, b: np.where(b == 0, 0, a % np.where(b, b, 1))),
    "maximum": (oc.maximum, np.maximum),
    "minimum": (oc.minimum, np.minimum),
    "and": (operator.and_, np.bitwise_and),
    "or": (operator.or_, np.bitwise_or),
    "xor": (operator.xor, np.bitwise_xor),
}


@pytest.mark.parametrize("dtype", SHORT)
def test_arithmetic_wraps_around_as_numpys_does(target: str, dtype: str) -> None:
    a, b = cells(dtype), cells(dtype, 1)
    found = all_computed(target, [ours for ours, _ in BINARY.values()], a, b)
    for got, (name, (_, numpys)) in zip(found, BINARY.items(), strict=True):
        with np.errstate(all="ignore"):
            assert_same(got, numpys(a, b).astype(dtype), name)


def truncated(x: Array, dtype: str) -> Array:
    """Return floats as integers modulo the width of a format; numbers that are not finite are 0."""
    whole = [int(each) if np.isfinite(each) else 0 for each in x.reshape(-1)]
    bits = np.array([each % 2**64 for each in whole], np.uint64).reshape(x.shape)
    return bits.astype(dtype)


@pytest.mark.parametrize("dtype", [*SHORT, "int32", "uint32"])
def test_floats_of_any_size_become_integers_modulo_their_width(target: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    x = random.integers(0, 2**32, (64, 48), np.uint32).view(np.float32)
    x = np.where(np.isnan(x), 0.5, x).astype(np.float32)
    x[0, :12] = [0.0, -0.0, 0.99, -1.5, 255.9, 2**31, -(2.0**31), 2**31 - 128, -(2.0**31) - 256,
                 2**32, np.inf, -np.inf]  # fmt: skip
    wanted = truncated(x, dtype)
    assert_same(computed(target, lambda a: oc.cast(a, dtype), x), wanted)
    narrow = np.clip(x, -65504, 65504).astype(np.float16)
    wanted = truncated(narrow.astype(np.float32), dtype)
    assert_same(computed(target, lambda a: oc.cast(a, dtype), narrow), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_products_of_floats_that_are_rounded_to_integers_are_exact(target: str, dtype: str) -> None:
    random = np.random.default_rng(5)
    a, b = (random.integers(-9, 9, shape).astype(np.float32) for shape in ((37, 24), (24, 50)))
    found = computed(target, lambda a, b: oc.cast(oc.einsum("i,k; k,j => i,j", a, b), dtype), a, b)
    assert_same(found, truncated(a @ b, dtype))


@pytest.mark.parametrize("dtype", SHORT)
def test_functions_of_one_number_wrap_around_as_numpys_do(target: str, dtype: str) -> None:
    a = cells(dtype)
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (operator.neg, np.negative),
        (operator.invert, np.invert),
        (operator.abs, np.abs),
        (oc.sign, np.sign),
        (oc.relu, lambda x: np.maximum(x, 0)),
        (lambda x: oc.clip(x, 1, 100), lambda x: np.clip(x, 1, 100)),
    ]
    found = all_computed(target, [ours for ours, _ in pairs], a)
    for got, (_, numpys) in zip(found, pairs, strict=True):
        assert_same(got, numpys(a).astype(dtype))


@pytest.mark.parametrize("dtype", SHORT)
def test_comparisons_have_the_format_of_their_operands_or_a_stated_one(
    target: str, dtype: str
) -> None:
    a, b = cells(dtype), cells(dtype, 1)
    own, stated, converted = all_computed(
        target,
        [
            operator.lt,
            lambda x, y: oc.less(x, y, dtype="bool"),
            lambda x, _: oc.cast(x == 0, "bool"),
        ],
        a,
        b,
    )
    assert_same(own, (a < b).astype(dtype))
    assert_same(stated, a < b)
    assert_same(converted, a == 0)


TRUTHS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "not": (lambda m, n: ~m, lambda m, n: ~m),
    "and": (operator.and_, operator.and_),
    "or": (operator.or_, operator.or_),
    "xor": (operator.xor, operator.xor),
    "add": (operator.add, operator.add),
    "mul": (operator.mul, operator.mul),
    "equal": (operator.eq, operator.eq),
    "less": (operator.lt, operator.lt),
    "maximum": (oc.maximum, np.maximum),
    "logical_not": (lambda m, n: oc.logical_not(n), lambda m, n: np.logical_not(n)),
    "where": (lambda m, n: oc.where(m, n, ~n), lambda m, n: np.where(m, n, ~n)),
    "with True": (lambda m, n: m ^ True, lambda m, n: m ^ True),
    "mod": (lambda m, n: m % oc.maximum(n, True), lambda m, n: m % np.maximum(n, True)),
    "nested": (lambda m, n: ~(m & n) | (m ^ ~n), lambda m, n: ~(m & n) | (m ^ ~n)),
}


def test_operations_on_truths_are_numpys(target: str) -> None:
    m, n = cells("bool"), cells("bool", 1)
    found = all_computed(target, [ours for ours, _ in TRUTHS.values()], m, n)
    for got, (name, (_, numpys)) in zip(found, TRUTHS.items(), strict=True):
        assert_same(got, numpys(m, n), name)


def test_a_number_beside_truths_makes_a_number(target: str) -> None:
    m = cells("bool")
    total, scaled, rest, half = all_computed(
        target, [lambda x: x + 1, lambda x: x * 0.5, lambda x: 1 - x, lambda x: x / 2], m
    )
    assert_same(total, m + np.int32(1))
    assert_same(scaled, (m * 0.5).astype(np.float32))
    assert_same(rest, 1 - m.astype(np.int32))
    assert_same(half, (m / 2).astype(np.float32))


@pytest.mark.parametrize("source", FORMATS, ids=str)
def test_conversions_between_all_formats_agree(source: DType, target: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(0, 60, (2, COLUMNS)).astype(np.float32)
    x[0, :4] = 0.0, 1.0, -1.0, 127.0
    x = (np.abs(x) if source.kind is dtypes.Kind.UNSIGNED else x).astype(source.numpy)
    found = all_computed(target, [lambda v, to=each: oc.cast(v, to) for each in FORMATS], x)
    for result, values in zip(FORMATS, found, strict=True):
        assert values.dtype == result.numpy
        exact = x.astype(np.float64)
        if result.is_integer:
            wrapped = np.trunc(exact).astype(np.int64)
            np.testing.assert_array_equal(values, wrapped.astype(result.numpy), str(result))
        elif result is dtypes.bool_:
            np.testing.assert_array_equal(values, exact != 0)
        else:
            np.testing.assert_array_equal(
                values.astype(np.float64),
                exact.astype(np.float32).astype(result.numpy).astype(np.float64)
                if result.is_narrow
                else exact.astype(result.numpy),
                str(result),
            )


def test_nan_is_true_in_bool_and_0_in_integers(target: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30], np.float32)
    with settings.overrides(allow_nan=True):
        assert computed(target, lambda v: oc.cast(v, "bool"), x).tolist() == [1, 1, 1, 0, 0, 1]
        assert computed(target, lambda v: oc.cast(v, "int8"), x).tolist() == [0] * 6


def test_short_integers_promote_as_in_numpy() -> None:
    for left, right in product(ALL_SHORT, repeat=2):
        expected = np.result_type(np.dtype(left), np.dtype(right)).name
        with oc.Session():
            both = oc.maximum(oc.tensor(cells(left)), oc.tensor(cells(right)))
            assert both.dtype.name == expected


def test_a_product_in_a_wider_format_is_exact(target: str) -> None:
    a, b = cells("int8"), cells("int8", 1)
    exact = a.astype(np.int32) * b
    assert_same(computed(target, lambda x, y: oc.multiply(x, y, dtype="int32"), a, b), exact)
    assert_same(
        computed(target, lambda x, y: oc.multiply(x, y, dtype="float32"), a, b),
        exact.astype(np.float32),
    )


def test_sums_of_short_integers_are_int32_and_exact(target: str) -> None:
    a, b = cells("int8"), cells("int8", 1)
    wide = a.astype(np.int32)
    assert_same(computed(target, lambda x: x.sum(axis=1), a), wide.sum(axis=1, dtype=np.int32))
    assert_same(computed(target, oc.sum, cells("bool")), cells("bool").sum(dtype=np.int32))
    assert_same(computed(target, oc.sum, cells("uint8")), cells("uint8").sum(dtype=np.uint32))
    assert_same(
        computed(target, lambda x, y: oc.einsum("ij;kj=>ik", x, y), a, b), wide @ b.T.astype("i4")
    )
    assert_same(
        computed(target, lambda x, y: oc.einsum("ij;ij;ij=>i", x, y, x), a, b),
        (wide * b * wide).sum(axis=1, dtype=np.int32),
    )
    assert_same(computed(target, lambda x: oc.einsum("ij=>ji", x), a), a.T)
    assert_same(
        computed(target, lambda x: oc.sum(x, axis=1, dtype="int8"), a), a.sum(axis=1, dtype="i1")
    )
    for dtype in ("int8", "int64", "float32"):
        for scan, reference in ((oc.cumsum, np.cumsum), (oc.cumprod, np.cumprod)):
            assert_same(
                computed(target, lambda x, s=scan, d=dtype: s(x, axis=1, dtype=d), a[:, :3]),
                reference(a[:, :3], axis=1, dtype=dtype),
            )


@pytest.mark.parametrize("dtype", ALL_SHORT)
def test_operations_along_axes_take_short_formats(target: str, dtype: str) -> None:
    x = cells(dtype)
    wide = np.dtype("uint32" if dtype.startswith("u") else "int32")
    pairs: list[tuple[Callable[..., Any], Array]] = [
        (lambda v: v.max(axis=1), x.max(axis=1)),
        (lambda v: v.min(axis=0), x.min(axis=0)),
        (lambda v: v.any(axis=1), x.any(axis=1).astype(dtype)),
        (lambda v: v.all(axis=0), x.all(axis=0).astype(dtype)),
        (lambda v: v.argmax(axis=1), x.argmax(axis=1).astype(np.int32)),
        (lambda v: v.argmin(axis=1), x.argmin(axis=1).astype(np.int32)),
        (lambda v: oc.cumsum(v, axis=1), x.cumsum(axis=1, dtype=wide)),
        (lambda v: oc.cumprod(v, axis=1), x.cumprod(axis=1, dtype=wide)),
        (lambda v: oc.prod(v, axis=0), x.prod(axis=0, dtype=wide)),
        (lambda v: oc.sort(v, axis=1), np.sort(x, axis=1)),
        (lambda v: oc.argsort(v, axis=1), np.argsort(x, axis=1, kind="stable").astype(np.int32)),
        (lambda v: oc.topk(v, 3, axis=1)[0], -np.sort(-x.astype(np.int32), axis=1)[:, :3]),
        (lambda v: v.mean(axis=1), x.astype(np.float64).mean(axis=1)),
        (lambda v: oc.median(v, axis=1), np.median(x, axis=1)),
        (lambda v: v[1:, ::2], x[1:, ::2]),
        (lambda v: v[:, -1], x[:, -1]),
        (lambda v: oc.take(v, oc.tensor(np.array([2, 0, 2])), axis=0), x[[2, 0, 2]]),
        (lambda v: oc.concat([v, v], axis=1), np.concatenate([x, x], axis=1)),
        (lambda v: oc.flip(v, 1), np.flip(x, 1)),
        (lambda v: oc.roll(v, 2, axis=1), np.roll(x, 2, axis=1)),
        (lambda v: oc.repeat(v, 2, axis=1), np.repeat(x, 2, axis=1)),
        (lambda v: oc.tile(v, (1, 2)), np.tile(x, (1, 2))),
        (lambda v: oc.pad(v, [(0, 0), (1, 2)]), np.pad(x, [(0, 0), (1, 2)])),
    ]
    with oc.Session():
        given = oc.tensor(x, batch_axes=1)
        results = [make(given) for make, _ in pairs]
        code = oc.train.forward(results[0])
        for each in results[1:]:
            code = code + oc.train.forward(each)
        ctx = oc.Context(target)
        ctx.compile(code)()
        for position, (result, (_, expected)) in enumerate(zip(results, pairs, strict=True)):
            is_float = result.dtype.is_float
            assert is_float or result.dtype.numpy == expected.dtype or position == 11
            np.testing.assert_allclose(
                ctx[result], expected, rtol=1e-5 if is_float else 0, err_msg=str(position)
            )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_a_mask_chooses_cells_of_every_width(target: str, dtype: str) -> None:
    mask = cells("bool")
    x = np.random.default_rng(1).integers(-9, 9, mask.shape).astype(dtypes.dtype_of(dtype).numpy)
    found = computed(target, lambda m, v: oc.where(m, v, -9), mask, x)
    np.testing.assert_array_equal(found.astype(float), np.where(mask, x.astype(float), -9))


def test_attention_takes_a_mask_of_truths(target: str) -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(5, 5)).astype(np.float32)
    mask = np.tril(np.ones((5, 5), bool))
    found = computed(target, lambda s, m: oc.softmax(oc.where(m, s, -1e9), axis=-1), scores, mask)
    weights = np.where(mask, np.exp(scores), 0)
    np.testing.assert_allclose(found, weights / weights.sum(axis=1, keepdims=True), rtol=1e-5)


def test_the_gradient_passes_a_mask_and_stops_at_integers(target: str) -> None:
    mask, scale = cells("bool", shape=(7,)), cells("int8", shape=(7,))
    with oc.Session():
        w = oc.param("w", output=[7], init=2.0)
        loss = oc.where(oc.tensor(mask), w * oc.tensor(scale), 0.0).sum()
        ctx = oc.Context(target)
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss))()
        np.testing.assert_array_equal(ctx[w.grad], np.where(mask, scale, 0).astype(np.float32))


@pytest.mark.parametrize("dtype", ALL_SHORT)
def test_declared_tensors_hold_short_formats(target: str, dtype: str) -> None:
    x = cells(dtype, shape=(5,))
    with oc.Session():
        c = oc.declare("c", output=[5], dtype=dtype)
        given = oc.placeholder("given", output=[5], dtype=dtype)

        @oc.cd
        def step() -> None:
            c.assign(oc.maximum(c, given))

        ctx = oc.Context(target)
        routine = ctx.compile(step())
        ctx[given] = x
        routine()
        np.testing.assert_array_equal(ctx[c], np.maximum(x, 0))
        assert ctx[c].dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ALL_SHORT)
def test_files_keep_short_formats(target: str, dtype: str, tmp_path: Path) -> None:
    x = cells(dtype, shape=(5,))
    with oc.Session():
        c = oc.declare("c", output=[5], dtype=dtype)
        ctx = oc.Context(target)
        ctx[c] = x
        oc.save(tmp_path / "c.safetensors", ctx, {"c": c})
        ctx[c] = np.zeros(5, dtype)
        oc.load(tmp_path / "c.safetensors", ctx, {"c": c})
        assert_same(ctx[c], x)


def test_a_number_beyond_a_short_format_is_an_error() -> None:
    with oc.Session():
        x = oc.tensor(cells("int8"))
        for apply in (lambda: x + 300, lambda: x * -129, lambda: oc.maximum(x, 128)):
            with pytest.raises(oc.TransferError, match=r"int8 holds -128 to 127(.|\n)*test_short"):
                apply()
        with pytest.raises(oc.TransferError, match="int16 holds -32768 to 32767"):
            oc.tensor([40000], dtype="int16")
        with pytest.raises(oc.TransferError, match="bool holds 0 to 1"):
            oc.tensor([2], dtype="bool")
        with pytest.raises(oc.TransferError, match="fractions would be lost"):
            oc.tensor([0.5], dtype="bool")
        assert (x < 300).dtype is dtypes.int8


def test_a_difference_of_truths_is_an_error_that_names_the_operators() -> None:
    with oc.Session():
        m = oc.tensor([True, False])
        with pytest.raises(oc.UsageError, match=r"sub of bool(.|\n)*test_short(.|\n)*x \^ y"):
            m - m
        with pytest.raises(oc.UsageError, match=r"neg of bool(.|\n)*~x"):
            -m  # noqa: B018
        assert (m - 1).dtype is dtypes.int32
        assert oc.subtract(m, m, dtype="int32").dtype is dtypes.int32


@pytest.mark.parametrize("dtype", ALL_SHORT)
def test_short_integers_have_no_gradient(dtype: str) -> None:
    with (
        oc.Session(),
        pytest.raises(oc.UsageError, match=f"requires_grad=True for cells of {dtype}"),
    ):
        oc.tensor(cells(dtype), requires_grad=True)


@pytest.mark.parametrize("dtype", ALL_SHORT)
def test_loops_over_short_integers_are_vector_code(dtype: str) -> None:
    with oc.Session():
        x = oc.tensor(cells(dtype, shape=(4096,)))
        y = oc.where(x, oc.cast(x, "float32"), 2.0) + oc.cast(x & x, "float32")
        routine = oc.Context("cpu_c").compile(oc.train.forward(y))
        assert f"_load_{dtype}" in routine.source


def test_a_product_with_quantized_weights_reads_them_as_bytes() -> None:
    with oc.Session():
        w = oc.tensor(cells("int8", shape=(64, 256)), input_axes=1)
        x, scale = oc.placeholder("x", output=[256]), oc.placeholder("scale", output=[64])
        y = (oc.cast(w, "float32") @ x) * scale
        routine = oc.Context("cpu_c").compile(oc.train.forward(y))
        assert "_load_int8" in routine.source
        assert "16384" not in str(routine.memory_plan) if hasattr(routine, "memory_plan") else True


@pytest.mark.parametrize("dtype", ALL_SHORT)
@pytest.mark.parametrize("size", [2, 40])
def test_windows_add_short_integers_to_results(target: str, dtype: str, size: int) -> None:
    """As transposed convolutions do; the sums have the format of the operands."""
    image, kernel = cells(dtype, shape=(ROWS, size)), cells(dtype, 1)[0, :5]

    def spread(backend: str) -> Array:
        return computed(
            backend, lambda x, w: oc.einsum("...|a; |b => ...|a=+b", x, w), image, kernel
        )

    found = spread(target)
    assert found.dtype == image.dtype
    assert found.tolist() == spread("interp").tolist()
