"""Contexts and routines on every device: data in, calls, data out, state between calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.numbers import dtypes


@pytest.fixture
def context(target: str) -> oc.Context:
    return oc.Context(target)


def linear(rows: int, columns: int) -> tuple[oc.Tensor, oc.Tensor, oc.Tensor]:
    """Return a placeholder for a batch, a parameter, and their product."""
    x = oc.placeholder("x", batch=[rows], output=[columns])
    w = oc.param("w", output=[2], init=0.5)
    return x, w, w @ x


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_data_of_every_format_goes_in_and_comes_out(
    context: oc.Context, dtype: dtypes.DType
) -> None:
    x = oc.placeholder("x", output=[2, 3], dtype=dtype)
    raw = bytes(range(1, 97))[: 6 * dtype.nbytes]
    cells = np.frombuffer(raw, dtype.numpy).reshape(2, 3)
    context[x] = cells
    assert context[x].dtype == dtype.numpy
    assert context[x].tobytes() == raw


@pytest.mark.parametrize("extent", [0, 1, 17])
def test_extents_of_any_size_go_in_and_come_out(context: oc.Context, extent: int) -> None:
    x = oc.placeholder("x", output=[extent, 2])
    cells = np.arange(2 * extent, dtype=np.float32).reshape(extent, 2)
    context[x] = cells
    assert np.array_equal(context[x], cells)


def test_a_routine_reads_the_last_written_cells(context: oc.Context) -> None:
    x, _, y = linear(4, 3)
    forward = context.compile(oc.train.forward(y))
    context.init_params(y)
    random = np.random.default_rng(0)
    for _ in range(3):
        cells = random.normal(size=(4, 3)).astype(np.float32)
        context[x] = cells
        forward()
        assert np.allclose(context[y], cells @ np.full((3, 2), 0.5), rtol=1e-5)


def test_a_routine_runs_after_another_has_computed_its_inputs(context: oc.Context) -> None:
    x, _, y = linear(2, 3)
    forward = context.compile(oc.train.forward(y))
    z = oc.exp(y)

    @oc.cd
    def follow() -> None:
        total = oc.declare("total")
        total += y

    follow_up = context.compile(follow())
    with pytest.raises(oc.LinkError):
        follow_up()
    context.init_params(z)
    context[x] = np.ones((2, 3))
    forward()
    follow_up()
    follow_up()
    assert np.allclose(context[y], 1.5)


def test_steps_of_gradient_descent_agree_with_numpy(context: oc.Context) -> None:
    x, w, y = linear(4, 3)
    goal = oc.placeholder("goal", batch=[4], output=[2])
    error = y - goal
    loss = oc.einsum("...|... => 0", error * error)
    step = context.compile(
        oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.05, momentum=0.5)
    )
    context.init_params(loss)
    random = np.random.default_rng(1)
    xs, goals = random.normal(size=(4, 3)), random.normal(size=(4, 2))
    context[x], context[goal] = xs, goals
    weights, velocity = np.full((2, 3), 0.5), np.zeros((2, 3))
    for _ in range(4):
        residual = xs @ weights.T - goals
        step()
        assert np.isclose(context.item(loss), (residual**2).sum(), rtol=1e-4)
        velocity = 0.5 * velocity + 2 * residual.T @ xs
        assert np.allclose(context[w.grad], 2 * residual.T @ xs, rtol=1e-3, atol=1e-5)
        weights = weights - 0.05 * velocity
        assert np.allclose(context[w], weights, rtol=1e-4, atol=1e-6)


def test_a_static_index_selects_a_batch_at_each_call(context: oc.Context) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    i = oc.static_index("i", range=4)
    total = oc.einsum("...|... => 0", oc.tensor(data, batch_axes=2)[i])
    routine = context.compile(oc.train.forward(total), bindings=[i])
    for at in (3, 0, 2):
        routine(i=at)
        assert context.item(total) == data[at].sum()
    for wrong in (4, -1):
        with pytest.raises(oc.UsageError):
            routine(i=wrong)
    assert context.item(total) == data[2].sum()


def test_contexts_of_one_program_do_not_share_memory(target: str) -> None:
    x = oc.placeholder("x", output=[2])
    first, second = oc.Context(target), oc.Context(target)
    first[x], second[x] = 1, 2
    assert first[x].tolist() == [1, 1]
    assert second[x].tolist() == [2, 2]


def test_results_of_children_are_not_shared(context: oc.Context) -> None:
    x, w, y = linear(2, 3)
    context[w] = np.ones((2, 3))
    children = [context.child(), context.child()]
    for scale, child in enumerate(children, 1):
        child[x] = np.full((2, 3), scale)
        child.compile(oc.train.forward(y))()
    assert [child[y][0, 0] for child in children] == [3, 6]
    assert y not in context


def test_a_copy_on_the_host_does_not_change_with_the_device(context: oc.Context) -> None:
    x, _, y = linear(2, 3)
    forward = context.compile(oc.train.forward(y))
    context.init_params(y)
    source = np.ones((2, 3), np.float32)
    context[x] = source
    source[:] = 7
    forward()
    before = context[y]
    context[x] = 2 * np.ones((2, 3))
    forward()
    assert before.tolist() == [[1.5, 1.5]] * 2
    assert context[y].tolist() == [[3, 3]] * 2


def test_a_seed_gives_the_same_parameters_in_every_context(target: str) -> None:
    w = oc.param("w", output=[4], input=[3])
    first, second = oc.Context(target), oc.Context(target)
    first.init_params(w)
    second.init_params(w)
    assert np.array_equal(first[w], second[w])
    assert len(np.unique(first[w])) > 6


def test_the_fix_of_reading_a_tensor_without_memory_works(context: oc.Context) -> None:
    x, _, y = linear(2, 3)
    z = oc.relu(y)
    context.compile(oc.train.forward(z))
    context.init_params(z)
    context[x] = 1
    with pytest.raises(oc.LinkError, match=r"keep=\["):
        context[y]
    context.compile(oc.train.forward(z), keep=[y, z])()
    assert np.allclose(context[y], 1.5)


class OnlyDLPack:
    """An array of a library that shares its memory by DLPack only."""

    def __init__(self, cells: Any) -> None:
        self.cells = cells

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: object) -> object:
        if self.cells is None:
            raise BufferError("a tensor with a gradient")
        return self.cells.__dlpack__()


def test_an_array_of_another_library_is_a_value_without_a_way_through_numbers(target: str) -> None:
    x = oc.placeholder("x", output=[3])
    y = x * 2.0
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = OnlyDLPack(np.array([1.0, 2.0, 3.0], np.float32))
    step()
    assert ctx[y].tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(oc.OcannlError, match="OnlyDLPack: a tensor with a gradient") as caught:
        ctx[x] = OnlyDLPack(None)
    assert isinstance(caught.value, oc.TransferError)
