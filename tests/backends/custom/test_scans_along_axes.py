"""Running sums, products and extremes along every axis, in every format of C code."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # names of formats
import numpy as np
import pytest

import ocannl_core as oc

SCANS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


@pytest.mark.parametrize("shape", [(5, 7, 3), (4, 1, 6), (1, 9, 2), (3, 33, 40), (2, 3, 300)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "bfloat16"])
@pytest.mark.parametrize("name", SCANS)
def test_a_scan_along_each_axis_is_numpys(
    target: str, name: str, dtype: str, shape: tuple[int, ...]
) -> None:
    most = 1 if name == "cumprod" else 2  # products stay in range
    cells = np.random.default_rng(0).integers(-most, most + 1, shape)
    ctx = oc.Context(target)
    x = oc.tensor(cells.astype(dtype), batch_axes=1)
    found = [getattr(oc, name)(x, axis=axis) for axis in range(3)]
    code = oc.train.forward(found[0]) + oc.train.forward(found[1]) + oc.train.forward(found[2])
    ctx.compile(code, keep=found)()
    for axis, ours in enumerate(found):
        wide = cells.astype("float32" if dtype == "bfloat16" else dtype)
        expected = SCANS[name].accumulate(wide, axis=axis, dtype=wide.dtype).astype(dtype)
        np.testing.assert_array_equal(np.array(ctx[ours]), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_a_running_sum_runs_from_the_other_end(target: str, axis: int) -> None:
    rng = np.random.default_rng(1)
    cells, weights = rng.integers(-5, 6, (2, 6, 20)).astype(np.float32)
    ctx = oc.Context(target)
    x = oc.tensor(cells, batch_axes=1, requires_grad=True)
    loss = oc.sum(oc.cumsum(x, axis=axis) * oc.tensor(weights, batch_axes=1))
    ctx.compile(oc.train.grad_update(loss), keep=[x.grad])()
    expected = np.flip(np.cumsum(np.flip(weights, axis), axis), axis)
    np.testing.assert_array_equal(np.array(ctx[x.grad]), expected)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin"])
def test_gradients_of_neighboring_lines_are_those_of_each_line(
    target: str, name: str, axis: int
) -> None:
    rng = np.random.default_rng(2)
    cells, weights = rng.integers(-2, 3, (2, 6, 300)).astype(np.float32)
    x = oc.tensor(cells, batch_axes=1, requires_grad=True)
    loss = oc.sum(getattr(oc, name)(x, axis=axis) * oc.tensor(weights, batch_axes=1))
    ctx = oc.Context(target)
    ctx.compile(oc.train.grad_update(loss), keep=[x.grad])()
    lines = zip(np.moveaxis(cells, axis, -1), np.moveaxis(weights, axis, -1), strict=True)
    expected = np.zeros_like(np.moveaxis(cells, axis, -1))
    for line, (values, factors) in enumerate(lines):
        for end, factor in enumerate(factors):
            before = values[: end + 1]
            if name == "cumprod":
                for at in range(end + 1):
                    expected[line, at] += factor * np.prod(np.delete(before, at))
            else:
                at = np.argmax(before) if name == "cummax" else np.argmin(before)
                expected[line, at] += factor
    found = np.moveaxis(np.array(ctx[x.grad]), axis, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_scan_of_no_cells_is_empty(target: str) -> None:
    ctx = oc.Context(target)
    found = oc.cumsum(oc.tensor(np.zeros((0, 4), np.float32), batch_axes=1), axis=0)
    ctx.compile(oc.train.forward(found), keep=[found])()
    assert np.array(ctx[found]).shape == (0, 4)


@pytest.mark.parametrize("shape", [(9001,), (2, 4099), (8192, 3)])
def test_running_sums_from_either_end_take_more_terms_than_one_accumulator(
    target: str, shape: tuple[int, ...]
) -> None:
    axis, terms = int(np.argmax(shape)), max(shape)
    places = np.expand_dims(np.arange(terms), [n for n in range(len(shape)) if n != axis])
    huge = 2.0**24  # no 1 changes it, but the sum of a block does
    cells = np.broadcast_to(np.where(places == 0, huge, 1.0), shape).astype(np.float32)
    expected = np.where(places < 4096, huge, huge + places - 4095).astype(np.float32)
    x = oc.tensor(cells, requires_grad=True)
    sums = oc.cumsum(x, axis=axis)
    assert x.grad is not None
    loss = oc.sum(sums * oc.tensor(np.flip(cells, axis)))
    context = oc.Context(target)
    context.compile(oc.train.grad_update(loss), keep=[sums, x.grad])()
    np.testing.assert_array_equal(context[sums], np.broadcast_to(expected, shape))
    flipped = np.flip(np.broadcast_to(expected, shape), axis)
    np.testing.assert_array_equal(context[x.grad], flipped)
