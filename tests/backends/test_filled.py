"""Tensors of one number, identity matrices and evenly spaced numbers, beside NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core as oc

FORMATS = ("float32", "float64", "bfloat16", "float16", "int32", "int8", "uint8", "bool")


def cells_of(target: str, x: oc.Tensor) -> Any:
    ctx = oc.Context(target)
    ctx.compile(oc.train.forward(x))()
    return ctx[x]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), [2, 1, 4], 5])
def test_filled_tensors_have_the_cells_of_numpy(target: str, dtype: str, shape: Any) -> None:
    with oc.Session():
        for name in ("zeros", "ones"):
            x = getattr(oc, name)(shape, dtype=dtype)
            found = cells_of(target, x)
            assert str(x.dtype) == dtype
            np.testing.assert_array_equal(found, getattr(np, name)(shape, np.float32))
        found = cells_of(target, oc.full(shape, 1, dtype=dtype))
        np.testing.assert_array_equal(found, np.full(shape, 1, np.float32))


def test_rows_state_the_kinds_of_axes(target: str) -> None:
    with oc.Session():
        x = oc.zeros(batch=2, input=[3], output=[4, 5])
        assert str(x.shape) == "2|3->4,5"
        assert cells_of(target, x).shape == (2, 4, 5, 3)


def test_without_sizes_the_shape_follows_from_the_use(target: str) -> None:
    with oc.Session():
        zeros, x = oc.zeros(), oc.tensor([[1.0, 2.0], [3.0, 4.0]])
        found = cells_of(target, zeros + x)
        assert str(zeros.shape) == "2,2"
        np.testing.assert_array_equal(found, [[1, 2], [3, 4]])
        row = oc.full(None, 2.0, output=[..., 2])
        np.testing.assert_array_equal(cells_of(target, row * x), [[2, 4], [6, 8]])


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_tensor_like_another_has_its_shape_and_its_format(target: str, dtype: str) -> None:
    with oc.Session():
        x = oc.tensor([(1, 0, 1), (0, 1, 0)], dtype=dtype)
        for name in ("zeros_like", "ones_like"):
            like = getattr(oc, name)(x)
            assert like.dtype == x.dtype
            np.testing.assert_array_equal(
                cells_of(target, like), getattr(np, name)(np.zeros((2, 3)))
            )
            assert str(like.shape) == "3->2"
        other = oc.full_like(x, 1, dtype="float64")
        assert str(other.dtype) == "float64"


def test_a_tensor_like_one_of_inferred_shape_follows_it(target: str) -> None:
    with oc.Session(seed=1):
        hidden = oc.nn.dense(oc.tensor([1.0, 2.0]), output=[3])
        like = oc.ones_like(hidden)
        ctx = oc.Context(target)
        ctx.init_params(hidden)
        ctx.compile(oc.train.forward(like))()
        np.testing.assert_array_equal(ctx[like], np.ones(3))


def test_axes_of_a_tensor_like_an_expression_are_counted(target: str) -> None:
    with oc.Session():
        x = oc.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], input_axes=0)
        counted = oc.cumsum(oc.ones_like(x * 2.0), axis=-1)
        np.testing.assert_array_equal(cells_of(target, counted), [[1, 2, 3], [1, 2, 3]])


def test_no_gradient_flows_into_the_tensor_whose_shape_is_read(target: str) -> None:
    with oc.Session():
        w = oc.param("w", init=[2.0, 3.0])
        loss = oc.sum(w * (oc.ones_like(w) + oc.zeros_like(w)) * oc.full((2,), 4.0))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[w.grad])
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(ctx[w.grad], [4.0, 4.0])
        (g,) = oc.gradients(oc.sum(oc.ones_like(w)), [w], allow_unused=True)
        np.testing.assert_array_equal(cells_of(target, oc.zeros_like(w) + g), [0.0, 0.0])


@pytest.mark.parametrize("size", [(3,), (3, 4), (4, 2), (1,)])
@pytest.mark.parametrize("k", [-2, -1, 0, 1, 3])
def test_a_diagonal_is_as_in_numpy(target: str, size: tuple[int, ...], k: int) -> None:
    with oc.Session():
        x = oc.eye(*size, k=k, dtype="int32")
        np.testing.assert_array_equal(cells_of(target, x), np.eye(*size, k=k))


def test_an_identity_matrix_maps_a_vector_to_itself(target: str) -> None:
    with oc.Session():
        x = oc.tensor([1.0, 2.0, 3.0])
        matrix = oc.eye(input=3, output=3)
        assert str(matrix.shape) == "3->3"
        np.testing.assert_array_equal(cells_of(target, matrix @ x), [1, 2, 3])
        stated = oc.eye(input=[3], output=[4], k=1)
        assert str(stated.shape) == "3->4"
        np.testing.assert_array_equal(cells_of(target, stated), np.eye(4, 3, k=1))
        inferred = oc.eye() + oc.tensor([[1.0, 2.0], [3.0, 4.0]])
        np.testing.assert_array_equal(cells_of(target, inferred), [[2, 2], [3, 5]])


def test_an_identity_map_of_a_row_has_all_its_axes(target: str) -> None:
    with oc.Session():
        matrix = oc.eye(input=[2, 3])
        for same in (matrix, oc.eye(output=[2, 3]), oc.eye(input=[2, 3], output=[2, 3])):
            assert str(same.shape) == "2,3->2,3"
        assert str(oc.eye(n_cols=2).shape) == "2,2"
        x = oc.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        np.testing.assert_array_equal(cells_of(target, matrix @ x), [[1, 2, 3], [4, 5, 6]])


@given(
    start=st.floats(-1e3, 1e3),
    stop=st.floats(-1e3, 1e3),
    num=st.integers(1, 40),
    endpoint=st.booleans(),
)
def test_evenly_spaced_numbers_are_the_numbers_of_numpy_rounded(
    start: float, stop: float, num: int, endpoint: bool
) -> None:
    with oc.Session():
        x = oc.linspace(start, stop, num, endpoint=endpoint)
        wanted = np.linspace(start, stop, num, endpoint=endpoint).astype(np.float32)
        np.testing.assert_array_equal(cells_of("interp", x), wanted)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: oc.zeros((2,), output=[3]), "The sizes of output axes are stated once"),
        (lambda: oc.full((2,), [1.0]), "oc.full fills a tensor with a number"),
        (lambda: oc.full((2,), 300, dtype="uint8"), "300"),
        (lambda: oc.eye(2, input=3), "two output axes, or an output and an input axis"),
        (lambda: oc.eye(2, k=0.5), "The diagonal is an integer"),
        (lambda: oc.eye([2, 3]), "for eye"),
        (lambda: oc.one_hot(oc.arange(2, dtype="int32"), 2.5), "classes of oc.one_hot"),
        (lambda: oc.repeat(oc.zeros(2), 1.5, 0), "repeats of oc.repeat"),
        (lambda: oc.linspace(0, 1, -1), "an integer, 0 or more"),
        (lambda: oc.linspace(0, [1], 3), "between two numbers"),
        (lambda: oc.zeros(-1), "size"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call: Any, text: str) -> None:
    with oc.Session(), pytest.raises(oc.OcannlError, match=text):
        call()
