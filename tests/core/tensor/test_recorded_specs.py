"""Specifications in recorded code, where the assignment states the accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc


@pytest.fixture(autouse=True)
def _session() -> Iterator[None]:
    with oc.Session(seed=1, dtype="float64"):
        yield


def run(computation: oc.Computation, *tensors: oc.Tensor) -> list[Any]:
    ctx = oc.Context("interp")
    ctx.compile(computation)()
    return [ctx[tensor] for tensor in tensors]


def test_an_expansion_by_a_product_leaves_ones_elsewhere() -> None:
    cells = np.arange(1.0, 25.0).reshape(3, 4, 2)
    x = oc.tensor(cells, batch_axes=1, input_axes=1)
    result = oc.declare("result")

    @oc.cd
    def expand(x: oc.Tensor) -> None:
        result[oc.neutral] *= oc.relu(x, logic="...|... => ...|...2")

    (found,) = run(expand(x), result)
    expected = np.ones((3, 4, 3))
    expected[..., 2] = cells.prod(axis=2)
    np.testing.assert_array_equal(found, expected)


def test_a_maximum_leaves_minus_infinity_elsewhere() -> None:
    x, result = oc.tensor([1.0, 2.0]), oc.declare("result")

    @oc.cd
    def scatter(x: oc.Tensor) -> None:
        result[oc.neutral, oc.maximum] = oc.negative(x, logic="i => 2*i+1")

    (found,) = run(scatter(x), result)
    np.testing.assert_array_equal(found, [-np.inf, -1.0, -np.inf, -2.0])


def test_two_assignments_interleave() -> None:
    even, odd = oc.tensor([[1.0, 2.0], [3.0, 4.0]]), oc.tensor([[5.0, 6.0], [7.0, 8.0]])
    result = oc.declare("result")

    @oc.cd
    def interleave(even: oc.Tensor, odd: oc.Tensor) -> None:
        result[oc.neutral] += oc.relu(even, logic="…, i => …, 2*i")
        result.accumulate(oc.relu(odd, logic="…, i => …, 2*i + 1"))

    (found,) = run(interleave(even, odd), result)
    np.testing.assert_array_equal(found, [[1.0, 5.0, 2.0, 6.0], [3.0, 7.0, 4.0, 8.0]])


def test_a_loss_is_the_sum_over_everything_divided_by_the_size_of_the_batch() -> None:
    margins = np.arange(6.0).reshape(3, 2)
    batch = oc.dim("batch")
    margin = oc.tensor(margins, batch_axes=1)
    loss = oc.einsum("...|... => 0", margin, capture=[batch]) / batch
    (found,) = run(oc.train.forward(loss), loss)
    assert found == margins.sum() / 3


@pytest.mark.parametrize("padded", [False, True])
def test_the_convolution_with_named_strides_and_channels_of_any_shape(padded: bool) -> None:
    image = np.random.default_rng(0).integers(-3, 4, (2, 4, 6, 3)).astype(np.float64)
    kernel = np.random.default_rng(1).integers(-3, 4, (2, 2, 3, 2, 2)).astype(np.float64)
    result = oc.einsum(
        "... | stride*oh+kh, stride*ow+kw, ..ic..; kh, kw, ..ic.. -> ..oc.. => ... | oh, ow, ..oc..",
        oc.tensor(image, batch_axes=1),
        oc.tensor(kernel.transpose(3, 4, 0, 1, 2), input_axes=3),
        padded=padded,
        values={"stride": 2},
    )
    (found,) = run(oc.train.forward(result), result)
    before = 1 if padded else 0
    wide = np.pad(image, ((0, 0), (before, 2), (before, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (2, 2), axis=(1, 2))[:, ::2, ::2]
    windows = windows[:, :2, :3]
    np.testing.assert_array_equal(found, np.einsum("nhwcpq,pqcde->nhwde", windows, kernel))
