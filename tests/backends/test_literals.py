"""Literals, initial values and host data on every device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

A, B = [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]


@pytest.fixture
def ctx(target: str) -> oc.Context:
    oc.reset()
    return oc.Context(target)


def computed(ctx: oc.Context, tensor: oc.Tensor) -> np.ndarray:  # type: ignore[type-arg]
    routine = ctx.compile(oc.train.forward(tensor))
    ctx.init_params(tensor)
    routine()
    return ctx[tensor]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b: [a, b], np.stack([A, B])),
        (lambda a, b: [[a, b], [b, a]], np.array([[A, B], [B, A]])),
        (lambda a, b: (a, b), np.stack([A, B], axis=2)),
        (lambda a, b: oc.batch(a, b), np.stack([A, B])),
        (
            lambda a, b: oc.batch([a, 9.0], [0.5, b]),
            np.array([[A, np.full((2, 2), 9)], [np.full((2, 2), 0.5), B]]),
        ),
        (lambda a, b: [a], np.array([A])),
        (lambda a, b: [a, oc.number(9.0)], np.stack([A, np.full((2, 2), 9)])),
        (lambda a, b: (oc.number(9.0), a), np.stack([np.full((2, 2), 9), A], axis=2)),
        (
            lambda a, b: [[1.0, a], [oc.tensor([7, 8]), b]],
            np.array([[np.ones((2, 2)), A], [np.array([[7, 8], [7, 8]]), B]]),
        ),
    ],
)
def test_a_literal_of_tensors_is_a_block_of_them(
    ctx: oc.Context,
    build: Callable[[oc.Tensor, oc.Tensor], object],
    expected: np.ndarray,  # type: ignore[type-arg]
) -> None:
    block = oc.tensor(build(oc.tensor(A) * 1.0, oc.tensor(B)), label="block")
    np.testing.assert_array_equal(computed(ctx, block), expected)


def test_gradients_flow_into_the_tensors_of_a_literal(ctx: oc.Context) -> None:
    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 4.0])
    weights = oc.tensor([[1, 2], [3, 4], [5, 6]])
    loss = oc.einsum("... => 0", oc.tensor([x, y, x * x]) * weights)
    step = ctx.compile(oc.train.grad_update(loss))
    ctx.init_params(loss)
    step()
    np.testing.assert_array_equal(ctx[x.grad], [1 + 2 * 5, 2 + 4 * 6])
    np.testing.assert_array_equal(ctx[y.grad], [3, 4])


@pytest.mark.parametrize("limit", [0, 16])
def test_cells_of_no_fixed_shape_are_in_row_major_order(ctx: oc.Context, limit: int) -> None:
    with oc.settings.overrides(fill_limit=limit):
        filling = oc.reshape(range(12))
    y = filling + oc.tensor(np.zeros((2, 2, 3)), batch_axes=1, input_axes=1)
    np.testing.assert_array_equal(computed(ctx, y), np.arange(12).reshape(2, 2, 3))


def test_ranges_and_offsets_count(ctx: oc.Context) -> None:
    for made, expected in (
        (oc.arange(4), [0, 1, 2, 3]),
        (oc.arange(2, 10, 3), [2, 5, 8]),
        (oc.arange(3, -1, -2), [3, 1]),
        (oc.primitives.offsets(output=[2], input=[2]), [[0, 1], [2, 3]]),
    ):
        np.testing.assert_array_equal(computed(ctx, made * 1.0), expected)


def test_a_file_is_data_like_any_other(ctx: oc.Context, tmp_path: Path) -> None:
    cells = np.random.default_rng(0).normal(size=(5, 3))
    np.save(tmp_path / "x.npy", cells)
    x = oc.data.memmap(tmp_path / "x.npy")
    np.testing.assert_array_equal(computed(ctx, x * 2.0), cells.astype(np.float32) * 2)


def test_a_literal_can_be_read_in_every_context(ctx: oc.Context) -> None:
    literal = oc.tensor([(1, 2, 3)])
    cells = ctx[literal]
    cells[0, 0] = 7
    np.testing.assert_array_equal(ctx[literal], [[1, 2, 3]])


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        (lambda: -4, [[-4, -4], [-4, -4]]),
        (lambda: A, A),
        (lambda: np.array(A), A),
        (lambda: oc.reshape([4, 3, 2, 1]), [[4, 3], [2, 1]]),
        (lambda: oc.primitives.offsets(), [[0, 1], [2, 3]]),
        (lambda: oc.primitives.offsets() * 2.0 + 1.0, [[1, 3], [5, 7]]),
        (lambda: oc.param("inner", init=[10.0, 20.0]) + 1.0, [[11, 21], [11, 21]]),
        (lambda: lambda: oc.tensor(A), A),
    ],
)
def test_a_parameter_has_the_initial_value_of_its_initializer(
    ctx: oc.Context, init: Callable[[], object], expected: object
) -> None:
    with oc.settings.overrides(missing_axes="allow"):
        w = oc.param("w", init=init())
        y = w + oc.tensor(np.zeros((2, 2)))
        np.testing.assert_array_equal(computed(ctx, y), expected)
    np.testing.assert_array_equal(ctx[w], expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_initial_arrays_need_no_compilation(
    ctx: oc.Context, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = oc.param("w", init=np.array(A, "int8" if dtype == "int8" else None), dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(oc.Context, "compile", None)
        ctx.init_params(w)
    np.testing.assert_array_equal(ctx[w], A)
    ctx[w] = 0
    ctx.init_params(w, reinitialize=True)
    np.testing.assert_array_equal(ctx[w], A)


def test_an_initial_value_that_code_has_assigned_is_the_assigned_one(ctx: oc.Context) -> None:
    start = oc.tensor(np.array(A, np.float32))
    ctx[start] = np.ones((2, 2))
    w = oc.param("w", init=start)
    ctx.init_params(w)
    np.testing.assert_array_equal(ctx[w], np.ones((2, 2)))


def test_initialization_keeps_values_without_reinitialize(ctx: oc.Context) -> None:
    inner = oc.param("inner", init=1.0, output=[2])
    w = oc.param("w", init=inner * 3.0)
    loss = w * 1.0
    ctx.init_params(loss)
    np.testing.assert_array_equal(ctx[w], [3, 3])
    ctx[inner], ctx[w] = [5.0, 6.0], [0.0, 0.0]
    ctx.init_params(loss)
    np.testing.assert_array_equal(ctx[w], [0, 0])
    ctx.init_params(loss, reinitialize=True)
    np.testing.assert_array_equal(ctx[inner], [1, 1])
    np.testing.assert_array_equal(ctx[w], [3, 3])


def test_applications_of_a_block_share_trained_values(ctx: oc.Context) -> None:
    @oc.op
    def scaled(x: oc.Tensor) -> oc.Tensor:
        result: oc.Tensor = oc.param("s", init=1.0, output=[1]) * x
        return result

    block, other = scaled(), scaled()
    x = oc.tensor([2.0])
    loss = block(x) + block(3.0 * x) + other(x)
    assert list(loss.params.keys()) == ["scaled.s", "scaled2.s"]
    step = ctx.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1))
    ctx.init_params(loss)
    step()
    shared, own = loss.params
    np.testing.assert_allclose(ctx[shared], [1 - 0.1 * 8], rtol=1e-6)
    np.testing.assert_allclose(ctx[own], [1 - 0.1 * 2], rtol=1e-6)


def test_parameters_are_saved_and_restored_by_name(ctx: oc.Context, tmp_path: Path) -> None:
    def model() -> oc.Tensor:
        x = oc.placeholder("x", batch=[1], output=[3])
        result: oc.Tensor = oc.nn.mlp(hidden=[4], output=[2])(x)
        return result

    first = model()
    ctx.init_params(first)
    np.savez(tmp_path / "model.npz", **{name: ctx[p] for name, p in first.params.items()})
    second = model()
    saved = np.load(tmp_path / "model.npz")
    for name, p in second.params.items():
        ctx[p] = saved[name]
    for one, other in zip(first.params, second.params, strict=True):
        assert one is not other
        np.testing.assert_array_equal(ctx[one], ctx[other])


def test_a_placeholder_with_open_axes_takes_those_of_its_uses(ctx: oc.Context) -> None:
    x = oc.placeholder("x", output=[...])
    with pytest.raises(oc.ShapeError, match="has its shape before the host fills it") as caught:
        ctx[x] = [1.0, 2.0]
    assert 'oc.placeholder("x", output=[8])' in caught.value.fix
    total = x + oc.tensor([10.0, 20.0])
    step = ctx.compile(oc.train.forward(total))
    ctx[x] = [1.0, 2.0]
    step()
    assert ctx[total].tolist() == [11.0, 22.0]


def test_one_number_does_not_determine_the_shape_of_a_declared_tensor(ctx: oc.Context) -> None:
    c = oc.declare("c")
    with pytest.raises(oc.ShapeError, match="has its shape before the host fills it") as caught:
        ctx[c] = 0.0
    assert 'oc.declare("c", output=[8])' in caught.value.fix
    assert not c.shape.is_closed
    total = oc.declare("total", output=[2])
    ctx[total] = 0.5
    np.testing.assert_array_equal(ctx[total], [0.5, 0.5])


def test_parameters_are_those_of_a_tensor(ctx: oc.Context) -> None:
    w = oc.param("w", init=1.0)
    with pytest.raises(oc.UsageError, match="a list"):
        ctx.init_params([w])  # type: ignore[arg-type]


def test_a_number_keeps_all_its_digits(ctx: oc.Context) -> None:
    large = oc.number(2**53 + 1, dtype="int64")
    assert computed(ctx, large + 1) == 2**53 + 2
    beside = oc.tensor([1], dtype="int64") * np.int64(2**53 + 1)
    assert computed(ctx, beside).tolist() == [2**53 + 1]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_are_no_floats_keep_all_their_digits(ctx: oc.Context, dtype: str) -> None:
    number, cells = 2**53 + 1, np.array([3, 2**53 + 1], dtype)
    x = oc.placeholder("x", output=[2], dtype=dtype)
    c, d = oc.declare("c", output=[2], dtype=dtype), oc.declare("d", output=[2], dtype=dtype)

    @oc.cd
    def code() -> None:
        c[:] = number
        c[1:] = x * 0 + number
        d[oc.neutral, oc.maximum] = number
        d[:] = d - (x + number)

    padded, power = oc.pad(x, 1, value=number), x**number
    routine = ctx.compile(code() + oc.train.forward(padded) + oc.train.forward(power))
    ctx[x] = cells
    routine()
    one = np.array([number], dtype)
    np.testing.assert_array_equal(ctx[c], [number, number])
    np.testing.assert_array_equal(ctx[d], one - (cells + one))
    np.testing.assert_array_equal(ctx[padded], [number, *cells, number])
    wrapped = [pow(int(each), number, 2**64) for each in cells]
    np.testing.assert_array_equal(ctx[power].view(np.uint64), np.array(wrapped, np.uint64))
    assert "9007199254740992" not in str(routine.assignments)


def test_integers_in_the_code_of_an_operation_are_floats() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1 + (2**53 + 1)

    x = oc.placeholder("x", output=[2], dtype="int64")
    with pytest.raises(oc.UsageError, match="numbers of float64") as error:
        oc.Context("interp").compile(
            oc.train.forward(oc.define_operation("wrong", forward=forward)(x))
        )
    assert error.value.found == "9007199254740993"


def test_tensors_without_cells_are_empty_arrays(ctx: oc.Context) -> None:
    empty = oc.tensor(np.zeros((0, 3))) * 2.0
    assert computed(ctx, empty).shape == (0, 3)
    assert computed(ctx, oc.arange(0)).shape == (0,)
    assert computed(ctx, oc.einsum("... => 0", empty)).tolist() == [0]
