"""Concatenation, stacking and slicing of tensors, and contractions of three operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]


def check(
    target: str,
    build: Callable[..., oc.Tensor],
    reference: Callable[..., Array],
    *shapes: tuple[int, ...],
) -> None:
    """Compare an expression and its gradients with a function of arrays.

    Cells are whole numbers, so that differences are exact.
    """
    rng = np.random.default_rng(3)
    arrays = [rng.permutation(int(np.prod(shape))).reshape(shape) + 1.0 for shape in shapes]
    expected = reference(*arrays)
    weights = rng.permutation(expected.size).reshape(expected.shape) + 1.0
    with oc.Session():
        params = [oc.param(f"p{i}", init=a) for i, a in enumerate(arrays)]
        result = build(*params)
        loss = oc.einsum("...|...->... => 0", result * oc.tensor(weights))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[result, *(p.grad for p in params)])
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(ctx[result], expected)
        for position, param in enumerate(params):
            gradient = np.zeros_like(arrays[position])
            for cell in np.ndindex(gradient.shape):
                moved = [a.copy() for a in arrays]
                moved[position][cell] += 0.25
                gradient[cell] = np.sum((reference(*moved) - expected) * weights) * 4
            np.testing.assert_array_equal(ctx[param.grad], gradient)


def test_concatenation_of_two(target: str) -> None:
    check(
        target,
        lambda x, y: oc.concat("...,a; ...,b => ...,a^b", x, y),
        lambda x, y: np.concatenate([x, y], axis=-1),
        (2, 3),
        (2, 2),
    )


def test_concatenation_of_five(target: str) -> None:
    check(
        target,
        lambda *parts: oc.concat("a,k; b,k; c,k; d,k; e,k => a^b^c^d^e,k", *parts),
        lambda *parts: np.concatenate(parts, axis=0),
        (2, 2),
        (1, 2),
        (3, 2),
        (1, 2),
        (2, 2),
    )


def test_a_tensor_concatenated_with_itself(target: str) -> None:
    check(target, lambda x: oc.concat("a; b => a^b", x, x), lambda x: np.concatenate([x, x]), (3,))


def test_blocks_of_a_matrix_and_zeros_where_there_is_none(target: str) -> None:
    check(
        target,
        lambda x, y: oc.concat("i,k; j,l => i^j,k^l", x, y),
        lambda x, y: np.block([[x, np.zeros((2, 2))], [np.zeros((1, 3)), y]]),
        (2, 3),
        (1, 2),
    )
    check(
        target,
        lambda x, y, z: oc.concat("i,k; i,l; j,k^l => i^j,k^l", x, y, z),
        lambda x, y, z: np.block([[x, y], [z]]),
        (2, 3),
        (2, 1),
        (1, 4),
    )


def test_parts_change_places(target: str) -> None:
    check(target, swapped, lambda x, y: np.concatenate([x[2:], x[:2]]) * y, (5,), (5,))


def swapped(x: oc.Tensor, y: oc.Tensor) -> oc.Tensor:
    first, second = oc.einsum("2^b => b", x), oc.einsum("a^3 => a", x)
    return oc.concat("b; a => b^a", first, second) * y


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("a; b => a", "sums nothing.*where b is not in the result"),
        ("a; a => a^b", "operands 1 and 2 are both at a"),
        ("a; a => a", "operands 1 and 2 are both in every cell"),
    ],
)
def test_operands_of_a_concatenation_have_places_of_their_own(spec: str, rule: str) -> None:
    with oc.Session(), pytest.raises(oc.SpecError, match=f"(?s){rule}"):
        oc.concat(spec, oc.tensor([1.0, 2.0]), oc.tensor([1.0]))


@pytest.mark.parametrize(
    ("spec", "where"),
    [("a^3 => a", slice(0, 2)), ("2^b => b", slice(2, 5)), ("1^b^1 => b", slice(1, 4))],
)
def test_parts_are_taken_out(target: str, spec: str, where: slice) -> None:
    check(target, lambda x: oc.einsum(spec, x), lambda x: x[where], (5,))


@pytest.mark.parametrize(("axis", "text"), [("output", "2,3"), ("batch", "2|3"), ("input", "2->3")])
def test_stacking_adds_an_axis_of_the_given_kind(axis: str, text: str) -> None:
    with oc.Session():
        x, y = oc.tensor([1.0, 2.0, 3.0]), oc.tensor([4.0, 5.0, 6.0])
        stacked = oc.stack(x, y, axis=axis)
        assert stacked.info.dims in ((2, 3), (3, 2))
        assert str(stacked.shape) == text
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(stacked))()
        expected = np.array([[1, 2, 3], [4, 5, 6]])
        np.testing.assert_array_equal(ctx[stacked], expected.T if axis == "input" else expected)


def test_stacking_and_its_gradients(target: str) -> None:
    check(target, lambda *xs: oc.stack(*xs), lambda *xs: np.stack(xs), (2, 3), (2, 3), (2, 3))
    check(target, lambda x: oc.stack(x), lambda x: x[None], (2,))


def test_cells_around_concatenated_blocks_are_zeroed(target: str) -> None:
    with oc.Session():
        x = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
        before = oc.einsum("ij; jk => ik", x, x)
        scale = oc.einsum("... => 0", before * before) * 0.0 + 1.0
        blocks = oc.concat("i,k; j,l => i^j,k^l", x * scale, oc.tensor([[5.0]]))
        product = oc.einsum("ij; jk => ik", blocks, blocks)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(product), keep=[product])
        assert "concat[:] = 0.0" in str(step.assignments)
        step()
        expected = np.array([[1, 2, 0], [3, 4, 0], [0, 0, 5]]) @ [[1, 2, 0], [3, 4, 0], [0, 0, 5]]
        np.testing.assert_array_equal(ctx[product], expected)


@pytest.mark.parametrize(
    ("spec", "dims", "shape"),
    [
        ("b,d => a^b,d", (2, 1), (5, 1)),
        ("b,d => a^b,d", (0, 1), (5, 1)),
        ("b,d => a^b,d", (0, 1), (1, 1)),
        ("b,d => b^a,d", (0, 2), (3, 2)),
        ("i,k => i^j,k^l", (2, 3), (4, 5)),
        ("i,k => i^j,k^l", (0, 3), (2, 5)),
        ("b,d => a^b,d", (2, 0), (3, 0)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::ocannl_core.SpecWarning")
def test_parts_without_an_operand_are_zero(
    target: str, spec: str, dims: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    cells = np.arange(1.0, 1.0 + np.prod(dims)).reshape(dims)
    with oc.Session():
        x = oc.tensor(cells)
        result = oc.require_shape(oc.concat(spec, x), ",".join(map(str, shape)))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.forward(result))
        assert "concat[:] = 0.0" in str(step.assignments)
        step()
        expected = np.zeros(shape)
        rows, columns = dims
        first = shape[0] - rows if "a^b" in spec else 0
        expected[first : first + rows, :columns] = cells
        np.testing.assert_array_equal(ctx[result], expected)


def stacked_broadcast(*arrays: Array) -> Array:
    return np.stack(np.broadcast_arrays(*arrays))


@pytest.mark.parametrize(
    "dims", [((2,), (1,)), ((2, 3), (3,)), ((3,), (2, 1)), ((1,), (2, 3), (3,)), ((4, 2, 3), (1,))]
)
def test_stacked_operands_broadcast(target: str, dims: tuple[tuple[int, ...], ...]) -> None:
    check(target, lambda *xs: oc.stack(*xs), stacked_broadcast, *dims)
    if len(dims) == 2:
        check(
            target,
            oc.primitives.interleave,
            lambda x, y: interleaved(*np.broadcast_arrays(x, y)),
            *dims,
        )


def test_an_operation_whose_assignments_have_a_logic_each(target: str) -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[oc.neutral] += oc.primitives.identity(v1, logic="..., i => ..., 2*i")
        v += oc.primitives.identity(v2, logic="..., i => ..., 2*i + 1")

    def gradient(g: Any, g1: Any, g2: Any) -> None:
        g1 += oc.primitives.identity(g, logic="..., 2*i => ..., i")
        g2.accumulate(g, logic="..., 2*i + 1 => ..., i")

    interleave = oc.define_operation("interleave", forward=forward, gradient=gradient)
    check(target, interleave, interleaved, (3,), (3,))
    check(target, interleave, interleaved, (2, 4), (2, 4))
    check(target, lambda x, y: interleave(x * y, y), lambda x, y: interleaved(x * y, y), (3,), (3,))


def interleaved(x: Array, y: Array) -> Array:
    return np.stack([x, y], axis=-1).reshape(*x.shape[:-1], -1)


def test_interleaving_and_its_gradients(target: str) -> None:
    check(target, oc.primitives.interleave, interleaved, (3,), (3,))
    check(target, oc.primitives.interleave, interleaved, (2, 4), (2, 4))
    check(target, oc.primitives.interleave, interleaved, (1,), (1,))
    check(
        target,
        lambda x, y: oc.primitives.interleave(x[:, 3:], y[:, 3:]),
        lambda x, y: interleaved(x[:, 3:], y[:, 3:]),
        (2, 3),
        (2, 3),
    )


def test_every_second_cell_and_its_gradients(target: str) -> None:
    check(target, lambda x: oc.einsum("..., 2*i => ..., i", x), lambda x: x[:, ::2], (2, 6))
    check(target, lambda x: oc.einsum("..., 2*i+1 => ..., i", x), lambda x: x[:, 1::2], (2, 6))


def test_scattering_to_every_second_position(target: str) -> None:
    def even(x: Array) -> Array:
        return interleaved(x, np.zeros_like(x))

    check(target, lambda x: oc.einsum("…, i => …, 2*i", x), even, (2, 3))
    check(
        target,
        lambda x: oc.einsum("…, i => …, 2*i + 1", x),
        lambda x: interleaved(np.zeros_like(x), x),
        (2, 3),
    )


def test_products_of_three(target: str) -> None:
    check(
        target,
        lambda x, y, z: oc.einsum("ij;jk;kl=>il", x, y, z),
        lambda x, y, z: np.einsum("ij,jk,kl->il", x, y, z),
        (2, 3),
        (3, 2),
        (2, 2),
    )


def test_outer_sums(target: str) -> None:
    check(
        target,
        lambda x, y: oc.primitives.outer_sum("i;j=>ij", x, y),
        lambda x, y: x[:, None] + y,
        (2,),
        (3,),
    )


def test_tropical_products_of_matrices(target: str) -> None:
    check(
        target,
        lambda x, y: oc.primitives.tropical("ij;jk=>ik", x, 10.0 * y),
        lambda x, y: (x[:, :, None] + 10.0 * y).max(axis=1),
        (2, 3),
        (3, 2),
    )


def test_operations_on_three_tensors_are_assigned_in_recorded_code(target: str) -> None:
    with oc.Session():
        x, y = oc.tensor([1.0, 2.0]), oc.tensor([3.0])
        both = oc.placeholder("both", batch=(), input=(), output=[3])
        peak = oc.placeholder("peak", batch=(), input=(), output=[])

        @oc.cd
        def code() -> None:
            both[:] = oc.concat("a;b=>a^b", x, y)
            peak[:] = oc.primitives.tropical("i;i=>0", both, both)
            both[:] = oc.primitives.outer_sum("i;i=>i", both, both)

        ctx = oc.Context(target)
        ctx.compile(code())()
        assert ctx.item(peak) == 6.0
        np.testing.assert_array_equal(ctx[both], [2, 4, 6])


def test_the_gradient_of_a_part_lists_no_other_part() -> None:
    parts = [oc.placeholder(each, output=[2], requires_grad=True) for each in "abc"]
    joined = oc.concat(parts, axis=0)
    step = oc.Context("interp").compile(oc.train.grad_update(oc.sum(joined * joined)))
    text = str(step.assignments)
    assert "concat[p2 + 4] = c[p2]" in text
    assert "c_grad[p2] += concat_grad[p2 + 4]" in text
    assert "^" not in text
