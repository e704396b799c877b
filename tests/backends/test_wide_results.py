"""An operation with a stated format that holds the numbers of its operands computes in that format:
its results are those of converted operands, and so are its gradients, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import LOGICAL, Signature
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.testing.compare import ulp_distances
from tests.support.primitive_operations import primitive_operations

Array = np.ndarray[Any, Any]
Make = Callable[..., oc.Tensor]

POINTWISE = {
    operation.name: operation
    for operation in primitive_operations()
    if (operation.logic or ".") == "."
    and operation.name != "slice"
    and operation.primitive is not None
    and operation.primitive not in LOGICAL
    and operation.primitive.value.signature is Signature.NUMBERS
}

PAIRS = [
    *[(narrow, dtypes.float32) for narrow in dtypes.NARROW],
    (dtypes.bfloat16, dtypes.float64),
    (dtypes.float32, dtypes.float64),
    (dtypes.float8_e4m3fn, dtypes.bfloat16),
    (dtypes.float8_e5m2, dtypes.float16),
    (dtypes.int16, dtypes.int32),
    (dtypes.int32, dtypes.int64),
    (dtypes.uint8, dtypes.int16),
]

CONTRACTIONS: dict[str, Make] = {
    "matmul": lambda a, b, **given: oc.matmul(a, b, **given),
    "einsum": lambda a, b, **given: oc.einsum("k->i; i->j => k->j", b, a, **given),
    "three factors": lambda a, b, **given: oc.einsum("k->i; i->j; i->m => k->j", b, a, a, **given),
    "inner sum": lambda a, b, **given: oc.einsum("k->i; i->j => k->i", b, a, **given),
    "square": lambda a, b, **given: oc.einsum("i->j; i->k => i->k", a, a, **given),
    "outer_sum": lambda a, b, **given: oc.primitives.outer_sum("k->i; i->j => k->j", b, a, **given),
    "tropical": lambda a, b, **given: oc.primitives.tropical("k->i; i->j => k->j", b, a, **given),
    "slots": lambda a, b, **given: _defined()(a, b, **given),
}


def _defined() -> Operation:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[oc.neutral] += v1 * v2

    return oc.define_operation("defined", forward=forward, logic="@")


def numbers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Return numbers whose products have more digits than the format."""
    generator = np.random.default_rng(seed)
    if dtype.holds_integers:
        low, high = np.iinfo(dtype.numpy).max // 3, np.iinfo(dtype.numpy).max
        return generator.integers(low, high, shape).astype(dtype.numpy)
    return generator.uniform(0.1, 0.9, shape).astype(dtype.numpy)


def computed(target: str, make: Make, *operands: Array, schedule: str = "none") -> Array:
    """Return an expression of literals; without a schedule, sums are in the order of the loops."""
    with (
        oc.Session(),
        settings.overrides(schedule=schedule, missing_axes="allow", warn_summed_once=False),
    ):
        result = make(*[oc.tensor(each, input_axes=each.ndim - 1) for each in operands])
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(result))()
        return ctx[result]


def both(
    target: str, make: Make, wide: DType, *operands: Array, schedule: str = "none"
) -> tuple[Array, Array]:
    """Return results in a wide format, of operands as they are and of converted ones."""

    def stated(*given: oc.Tensor) -> oc.Tensor:
        return make(*given, dtype=wide)

    def converted(*given: oc.Tensor) -> oc.Tensor:
        return make(*[oc.cast(each, wide) for each in given], dtype=wide)

    found = computed(target, stated, *operands, schedule=schedule)
    expected = computed(target, converted, *operands, schedule=schedule)
    assert found.dtype == expected.dtype == wide.numpy
    return found, expected


@pytest.mark.parametrize(("narrow", "wide"), PAIRS, ids=str)
def test_a_pointwise_operation_computes_in_a_format_that_holds_its_operands(
    target: str, narrow: DType, wide: DType
) -> None:
    a, b, c = (numbers(narrow, 7, seed=seed) for seed in range(3))

    def every(*given: oc.Tensor, dtype: DType) -> oc.Tensor:
        results = [
            operation(*given[: operation.operands], dtype=dtype) for operation in POINTWISE.values()
        ]
        return oc.stack(*results)

    found, expected = both(target, every, wide, a, b, c)
    for name, one, other in zip(POINTWISE, found, expected, strict=True):
        np.testing.assert_array_equal(one, other, name)


@pytest.mark.parametrize(("narrow", "wide"), PAIRS, ids=str)
@pytest.mark.parametrize("schedule", ["none", "default"])
def test_a_contraction_multiplies_in_a_format_that_holds_its_operands(
    target: str, narrow: DType, wide: DType, schedule: str
) -> None:
    a, b = numbers(narrow, 9, 9), numbers(narrow, 9, 9, seed=1)
    found, expected = both(target, _every_contraction, wide, a, b, schedule=schedule)
    if wide.holds_integers or schedule == "none":
        np.testing.assert_array_equal(found, expected)
    else:  # two orders of the terms
        assert max(ulp_distances(found, expected, wide)) <= 27


def _every_contraction(a: oc.Tensor, b: oc.Tensor, dtype: DType) -> oc.Tensor:
    return oc.stack(*[make(a, b, dtype=dtype) for make in CONTRACTIONS.values()])


@pytest.mark.parametrize("narrow", dtypes.NARROW, ids=str)
def test_a_wide_gradient_of_narrow_factors_is_a_sum_of_exact_products(
    target: str, narrow: DType
) -> None:
    x, d = numbers(narrow, 40, 5), numbers(narrow, 40, 3, seed=1)
    with oc.Session(dtype=narrow, param_dtype="float32"):
        w = oc.param("w", output=[3])
        y = w @ oc.tensor(x, batch_axes=1)
        loss = oc.sum(y * oc.tensor(d, batch_axes=1))
        found = _gradient(target, loss, w)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, _product(d, x), rtol=1e-5)


@pytest.mark.parametrize("narrow", dtypes.NARROW, ids=str)
def test_a_narrow_gradient_of_a_wide_result_is_rounded_once(target: str, narrow: DType) -> None:
    if target.startswith("interp"):
        pytest.skip("it rounds after every term")
    x, d = numbers(narrow, 40, 5), numbers(dtypes.float32, 40, 3, seed=1)
    with oc.Session():
        w = oc.param("w", output=[3], dtype=narrow)
        y = oc.matmul(w, oc.tensor(x, batch_axes=1), dtype="float32")
        loss = oc.sum(y * oc.tensor(d, batch_axes=1))
        found = _gradient(target, loss, w)
    assert found.dtype == narrow.numpy
    expected = _product(d, x).astype(np.float32).astype(narrow.numpy)
    assert max(ulp_distances(found, expected, narrow)) <= 1
    assert np.mean(found == expected) > 0.9


def _gradient(target: str, loss: oc.Tensor, param: oc.Tensor) -> Array:
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.grad_update(loss), keep=[param.grad])
    ctx.init_params(loss)
    step()
    return ctx[param.grad]


def _product(d: Array, x: Array) -> Array:
    return d.astype(np.float64).T @ x.astype(np.float64)
