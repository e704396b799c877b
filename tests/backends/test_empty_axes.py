"""Axes of size 0: size 1 is repeated along them as in NumPy, and reductions over them are the
neutral element.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from tests.support.sample_ops import storing

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]

SHAPES: list[Dims] = [(1, 3), (0, 3), (3,), (1,), (0,), (0, 1), (2, 0), (2, 1), (0, 0), (1, 0)]
REDUCED = ["ij=>i", "ij=>j", "ij=>", "...=>0", "i...=>i", "ij=>i0", "ij=>ji", "...=>...", "ij=>i2"]


def _cells(dims: Dims, start: float = 1.0) -> Array:
    return np.arange(start, start + np.prod(dims)).reshape(dims)


def _found(target: str, result: oc.Tensor, *parameters: oc.Tensor) -> tuple[Array, list[Array]]:
    """Return the cells of a result, and the gradients of their sum."""
    ctx = oc.Context(target)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    step = ctx.compile(oc.train.grad_update(result), keep=[result, *gradients])
    ctx.init_params(result)
    step()
    return ctx[result], [ctx[gradient] for gradient in gradients]


def _parameters(*arrays: Array) -> list[oc.Tensor]:
    return [
        oc.param(f"p{position}", init=oc.tensor(array), input=[])
        for position, array in enumerate(arrays)
    ]


def _summed_to(gradient: Array, dims: Dims) -> Array:
    """Return the sums over the axes along which an operand is repeated."""
    while gradient.ndim > len(dims):
        gradient = gradient.sum(0)
    stretched = tuple(axis for axis, n in enumerate(dims) if n != gradient.shape[axis])
    return gradient.sum(stretched, keepdims=True)


@pytest.mark.parametrize(("left", "right"), list(product(SHAPES, repeat=2)), ids=str)
def test_products_broadcast_as_in_numpy_and_so_do_their_gradients(
    target: str, left: Dims, right: Dims
) -> None:
    a, b = _cells(left), _cells(right, 2.0)
    with oc.Session(dtype="float64"):
        x, y = _parameters(a, b)
        try:
            wanted = a * b
        except ValueError:
            with pytest.raises(oc.ShapeError):
                x * y
            return
        cells, (dx, dy) = _found(target, x * y, x, y)
    np.testing.assert_array_equal(cells, wanted, strict=True)
    ones = np.ones(wanted.shape)
    np.testing.assert_array_equal(dx, _summed_to(ones * b, left), strict=True)
    np.testing.assert_array_equal(dy, _summed_to(ones * a, right), strict=True)


@pytest.mark.parametrize("spec", REDUCED)
@pytest.mark.parametrize("dims", [(0, 3), (3, 0), (0, 0), (1, 0), (0, 1)], ids=str)
def test_a_reduction_over_an_empty_axis_is_the_neutral_element(
    target: str, spec: str, dims: Dims
) -> None:
    array = _cells(dims)
    for operation, neutral, reduced in ((oc.einsum, 0.0, np.sum), (oc.einmax, -np.inf, np.max)):
        with oc.Session(dtype="float64"):
            (x,) = _parameters(array)
            cells, (gradient,) = _found(target, operation(spec, x), x)
        if spec in ("ij=>ji", "...=>..."):
            assert cells.shape == (dims[::-1] if spec == "ij=>ji" else dims)
        else:
            axis = {"ij=>i": 1, "i...=>i": 1, "ij=>i0": 1, "ij=>i2": 1, "ij=>j": 0}.get(spec)
            wanted: Array = np.asarray(reduced(array, axis=axis, initial=neutral))
            if spec.endswith(("0", "2")):
                wanted = wanted[..., None]
            if spec.endswith("2"):
                wanted = np.concatenate([np.full((dims[0], 2), neutral), wanted], axis=1)
            np.testing.assert_array_equal(cells, wanted, strict=True)
        np.testing.assert_array_equal(gradient, np.zeros(dims), strict=True)


@pytest.mark.parametrize(("rows", "inner", "columns"), list(product((0, 1, 2), repeat=3)), ids=str)
def test_matrix_products_with_empty_axes_are_those_of_numpy(
    target: str, rows: int, inner: int, columns: int
) -> None:
    a, b = _cells((rows, inner)), _cells((inner, columns))
    with oc.Session(dtype="float64"):
        x, y = _parameters(a, b)
        cells, (dx, dy) = _found(target, oc.einsum("ij;jk=>ik", x, y), x, y)
    np.testing.assert_array_equal(cells, a @ b, strict=True)
    np.testing.assert_array_equal(dx, np.ones((rows, columns)) @ b.T, strict=True)
    np.testing.assert_array_equal(dy, a.T @ np.ones((rows, columns)), strict=True)


def test_a_sum_over_a_label_of_size_0_that_every_operand_repeats_is_0(target: str) -> None:
    with oc.Session(dtype="float64"):
        (x,) = _parameters(_cells((1, 3)))
        cells, (gradient,) = _found(target, oc.einsum("ij=>j", x, values={"i": 0}), x)
    np.testing.assert_array_equal(cells, np.zeros(3))
    np.testing.assert_array_equal(gradient, np.zeros((1, 3)))


def test_a_chain_over_an_empty_axis_is_computed_where_it_is_read(target: str) -> None:
    with oc.Session(dtype="float64"):
        (x, y) = _parameters(_cells((2, 0)), _cells((2, 1)))
        z = oc.einsum("ij=>i", oc.exp(x * y + 1.0)) + oc.einsum("ij=>i", y)
        cells, (dx, dy) = _found(target, z, x, y)
    np.testing.assert_array_equal(cells, [1.0, 2.0])
    np.testing.assert_array_equal(dx, np.zeros((2, 0)))
    np.testing.assert_array_equal(dy, np.ones((2, 1)))


@pytest.mark.parametrize("dims", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize(
    "maps",
    [{}, {"view_map": {0: [0]}}, {"destroy_map": {0: [0]}}, {"destroy_map": {None: [0]}}],
    ids=["neither", "view", "destroyer", "scratch"],
)
def test_an_op_of_python_may_have_inputs_and_outputs_without_cells(
    target: str, maps: dict[str, Any], dims: Dims
) -> None:
    op = storing(lambda cells: cells, **maps)
    x = oc.placeholder("x", output=list(dims))
    first = op(x * 2.0)
    second = op(first * 1.0) + 1.0
    ctx = oc.Context(target)
    ctx.compile(oc.train.forward(second), keep=[second])()
    np.testing.assert_array_equal(ctx[second], np.zeros(dims, "float32"), strict=True)


def test_a_kept_tensor_without_cells_that_other_code_reads_has_its_value(target: str) -> None:
    with oc.Session():
        y = oc.logical_or(oc.tensor(np.zeros((0,))), oc.tensor(1.0))
        pooled = oc.nn.max_pool2d(y, window=(1, 2), stride=(1, 1), padded=True)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(pooled), keep=[y, pooled])()
        assert ctx[y].size == ctx[pooled].size == 0
