"""Subscripts against NumPy: reads, gradients, writes in recorded code, and the code they compile to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
SHARED = settings(
    max_examples=example_count(13),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def keys(draw: st.DrawFn, shape: Sequence[int], *, new_axes: bool = True) -> tuple[Any, ...]:
    """Draw keys for an array: positions, slices, new axes, and `...` in one place at most."""

    def key(size: int) -> Any:
        bound = st.none() | st.integers(-size - 2, size + 2)
        step = st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3])
        positions = st.integers(-size, size - 1) if size else st.just(slice(None))
        return draw(st.builds(slice, bound, bound, step) | positions)

    cut = draw(st.none() | st.integers(0, len(shape)))
    if cut is None:
        taken = draw(st.integers(0, len(shape)))
        found = [key(size) for size in shape[:taken]]
    else:
        after = draw(st.integers(0, len(shape) - cut))
        found = [key(size) for size in shape[:cut]]
        found.append(...)
        found += [key(size) for size in shape[len(shape) - after :]]
    for _ in range(draw(st.integers(0, 2)) if new_axes else 0):
        found.insert(draw(st.integers(0, len(found))), None)
    return tuple(found)


@st.composite
def sliced_arrays(draw: st.DrawFn) -> tuple[Array, tuple[Any, ...], int, int]:
    """Draw an array, keys for it, and its numbers of batch and input axes."""
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    cells = np.random.default_rng(len(shape)).permutation(int(np.prod(shape)))
    array = cells.reshape(shape).astype(np.float32) - 3
    batch = draw(st.integers(0, len(shape)))
    return array, draw(keys(shape)), batch, draw(st.integers(0, len(shape) - batch))


@SHARED
@given(drawn=sliced_arrays(), is_closed=st.booleans())
def test_a_subscript_and_its_gradient_are_those_of_numpy(
    target: str, drawn: tuple[Array, tuple[Any, ...], int, int], is_closed: bool
) -> None:
    array, key, batch, inputs = drawn
    with oc.Session():
        x = oc.tensor(array, batch_axes=batch, input_axes=inputs, requires_grad=True)
        # the rows of a sum are open until shapes are closed
        part = (x if is_closed else x + 0.0)[key]
        loss = oc.einsum("...|...->... => 0", part * part)
        context = oc.Context(target)
        context.compile(oc.train.grad_update(loss), keep=[part, x.grad])()
        cells = context[x]
        expected = cells[key]
        assert context[part].shape == expected.shape
        np.testing.assert_array_equal(context[part], expected)
        gradient = np.zeros_like(cells)
        gradient[key] += 2 * expected
        np.testing.assert_array_equal(context[x.grad], gradient)


@SHARED
@given(data=st.data())
def test_assignments_to_slices_are_those_of_numpy(target: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    batch = data.draw(st.integers(0, len(shape)))
    kinds = st.sampled_from(["=", "+=", "-=", "*="])
    steps = data.draw(st.lists(st.tuples(kinds, keys(shape, new_axes=False)), max_size=4))
    rng = np.random.default_rng(3)
    values = [rng.integers(1, 5, np.zeros(shape)[key].shape) for _, key in steps]
    with oc.Session():
        c = oc.declare("c", batch=shape[:batch], output=shape[batch:], input=[])

        @oc.cd
        def code() -> None:
            c[:] = c + 1.0
            for (kind, key), value in zip(steps, values, strict=True):
                # a part of a tensor like c has the rows of the slice
                whole = np.zeros(shape, np.float32)
                whole[key] = value
                given = oc.tensor(whole, batch_axes=batch)[key]
                match kind:
                    case "=":
                        c[key] = given
                    case "+=":
                        c[key] += given
                    case "-=":
                        c[key] -= given
                    case _:
                        c[key] *= given

        context = oc.Context(target)
        routine = context.compile(code())
        expected = np.zeros(shape, np.float32)
        for _ in range(2):
            routine()
            expected += 1
            for (kind, key), value in zip(steps, values, strict=True):
                match kind:
                    case "=":
                        expected[key] = value
                    case "+=":
                        expected[key] += value
                    case "-=":
                        expected[key] -= value
                    case _:
                        expected[key] *= value
        np.testing.assert_array_equal(context[c], expected)


@st.composite
def moves(draw: st.DrawFn, size: int) -> tuple[str, slice, slice]:
    """Draw an assignment between two slices of equal length, which may overlap."""
    length = draw(st.integers(1, size))

    def part() -> slice:
        step = draw(st.sampled_from([-1, 1] if 2 * length > size else [-2, -1, 1, 2]))
        span = (length - 1) * abs(step) + 1
        first = draw(st.integers(0, size - span))
        low, high = first, first + span
        return (
            slice(low, high, step) if step > 0 else slice(high - 1, low - 1 if low else None, step)
        )

    return draw(st.sampled_from(["=", "+=", "+", "*"])), part(), part()


@SHARED
@given(data=st.data())
def test_a_slice_assigned_from_an_overlapping_slice_has_the_old_values(
    target: str, data: st.DataObject
) -> None:
    size = data.draw(st.integers(2, 9))
    steps = data.draw(st.lists(moves(size), min_size=1, max_size=3))
    with oc.Session():
        c = oc.declare("c", output=[size, 2])

        @oc.cd
        def code() -> None:
            for kind, to, source in steps:
                taken = c if source == slice(0, size, 1) else c[source]
                match kind:
                    case "=":
                        c[to] = taken
                    case "+=":
                        c[to] += taken
                    case "+":
                        c[to] = taken + c[to]
                    case _:
                        c[to] = oc.relu(taken) * 2.0

        context = oc.Context(target)
        routine = context.compile(code())
        expected = np.arange(2 * size, dtype=np.float32).reshape(size, 2) - 3
        context[c] = expected
        for _ in range(2):
            routine()
            for kind, to, source in steps:
                taken = expected[source].copy()
                match kind:
                    case "=":
                        expected[to] = taken
                    case "+=" | "+":
                        expected[to] += taken
                    case _:
                        expected[to] = np.maximum(taken, 0) * 2
        np.testing.assert_array_equal(context[c], expected)


def test_a_reversed_tensor_is_written_from_its_old_values(target: str) -> None:
    with oc.Session():
        c, d = oc.declare("c", output=[5]), oc.declare("d", output=[5])

        @oc.cd
        def code() -> None:
            c[::-1] = c
            d[::-1] *= d

        context = oc.Context(target)
        routine = context.compile(code())
        context[c] = context[d] = np.arange(5.0)
        routine()
        assert context[c].tolist() == [4, 3, 2, 1, 0]
        assert context[d].tolist() == [0, 3, 4, 3, 0]


def test_slices_move_with_static_indices(target: str) -> None:
    array = np.arange(40, dtype=np.float32).reshape(10, 4)
    i, j = oc.static_index("i", range=10), oc.static_index("j")
    x = oc.tensor(array, batch_axes=1, requires_grad=True)
    parts = [x[i : i + 3, 1:], x[2 * j + i, ::-1], x[i + 3 : i - 1 : -1], x[j : j + 5 : 2, j]]
    weights = [2.0, 3.0, 5.0, 7.0]
    loss = sum(
        (
            oc.einsum("...|... => 0", part * weight)
            for part, weight in zip(parts, weights, strict=True)
        ),
        oc.number(0.0),
    )
    context = oc.Context(target)
    code = oc.train.grad_update(loss)
    routine = context.compile(code, bindings=[i, j], keep=[*parts, x.grad])
    for at, offset in ((1, 0), (6, 1), (3, 3)):
        routine(i=at, j=offset)
        keys = [
            (slice(at, at + 3), slice(1, None)),
            (2 * offset + at, slice(None, None, -1)),
            (slice(at + 3, at - 1, -1),),
            (slice(offset, offset + 5, 2), offset),
        ]
        gradient = np.zeros_like(array)
        for part, key, weight in zip(parts, keys, weights, strict=True):
            np.testing.assert_array_equal(context[part], array[key])
            gradient[key] += weight
        np.testing.assert_array_equal(context[x.grad], gradient)


def test_nothing_is_written_when_a_slice_leaves_its_axis(target: str) -> None:
    i = oc.static_index("i", range=8)
    c, d = oc.declare("c", output=[8]), oc.declare("d", output=[8])

    @oc.cd
    def code() -> None:
        d[:] = d + 1.0
        c[i : i + 3] += 1.0
        c[i + 1] = c[i] * 10.0

    context = oc.Context(target)
    routine = context.compile(code(), bindings=[i])
    with pytest.raises(oc.UsageError) as caught:
        routine(i=6)
    assert "i in range(6)" in caught.value.rule
    assert caught.value.found == "i = 6"
    assert "axis 0 of c" in caught.value.where
    assert "c[i : i + 3] += 1.0" in caught.value.where
    assert not context[c].any()
    assert not context[d].any()
    routine(i=5)
    assert context[c].tolist() == [0, 0, 0, 0, 0, 1, 10, 1]


def test_two_static_indices_stay_inside_an_axis_together(target: str) -> None:
    i, j = oc.static_index("i"), oc.static_index("j")
    x = oc.tensor(np.arange(9.0))
    part = x[i + 2 * j - 1 : i + 2 * j + 1] + 0.0
    context = oc.Context(target)
    routine = context.compile(oc.train.forward(part), bindings=[i, j])
    routine(i=2, j=3)
    assert context[part].tolist() == [7, 8]
    for wrong in ({"i": 3, "j": 3}, {"i": 0, "j": 0}):
        with pytest.raises(oc.UsageError, match=r"axis 0 of .*\n?.*x\[i \+ 2 \* j"):
            routine(**wrong)


def test_a_number_holds_an_expression_of_static_indices(target: str) -> None:
    i, j = oc.static_index("i"), oc.static_index("j")
    total = oc.number(2 * i - j + 1) + 0.5
    context = oc.Context(target)
    routine = context.compile(oc.train.forward(total), bindings=[i, j])
    routine(i=4, j=3)
    assert context.item(total) == 6.5


def test_a_slice_is_read_at_its_use_without_a_copy() -> None:
    x = oc.placeholder("x", batch=[4], output=[16])
    for part in (x[:, 0:8], x[..., ::-2], x[None, 1], x[1:3].T):
        y = oc.relu(part) + 1.0
        routine = oc.Context("interp").compile(oc.train.forward(y))
        assert len(routine.plan.steps) == 1
        assert routine.memory_plan.nbytes == 0


def test_a_slice_of_a_padded_tensor_has_its_own_cells_only(target: str) -> None:
    array = np.arange(36, dtype=np.float32).reshape(6, 6)
    kernel = np.arange(9, dtype=np.float32).reshape(3, 3)
    x, k = oc.tensor(array, requires_grad=True), oc.tensor(kernel)
    blurred = oc.einsum("i=+a, j=+b; a, b => i, j", x, k)
    part = blurred[1:, -1] + x[:-1, 0] + x[::-1][1:, 2]
    loss = oc.einsum("... => 0", part * part)
    context = oc.Context(target)
    context.compile(oc.train.grad_update(loss), keep=[part, x.grad])()

    padded = np.pad(array, 1)
    window = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    expected = (window * kernel).sum((2, 3))[1:, -1] + array[:-1, 0] + array[::-1][1:, 2]
    np.testing.assert_allclose(context[part], expected, rtol=1e-6)
    gradient = np.zeros((8, 8), np.float32)
    for row in range(5):
        for a in range(3):
            for b in range(3):
                gradient[row + 1 + a, 5 + b] += 2 * expected[row] * kernel[a, b]
    gradient = gradient[1:-1, 1:-1]
    gradient[:-1, 0] += 2 * expected
    gradient[::-1][1:, 2] += 2 * expected
    np.testing.assert_allclose(context[x.grad], gradient, rtol=1e-6)


def test_a_parameter_takes_its_shape_from_a_slice(target: str) -> None:
    x = oc.tensor(np.ones((5, 6), np.float32), batch_axes=1)
    hidden = oc.relu(oc.param("w1", output=[8]) @ x + oc.param("b1"))
    scores = oc.param("w2", output=[2]) @ hidden[..., 0:3]
    loss = oc.einsum("...|... => 0", scores[1:4])
    context = oc.Context(target)
    context.init_params(loss)
    context.compile(oc.train.grad_update(loss))()
    shapes = {name: str(p.shape) for name, p in loss.params.items()}
    assert shapes == {"w1": "6->8", "b1": "8", "w2": "3->2"}


def test_a_part_of_a_placeholder_is_written_when_the_rest_has_values(target: str) -> None:
    p = oc.placeholder("p", output=[4])

    @oc.cd
    def code() -> None:
        p[1:3] = 5.0

    context = oc.Context(target)
    routine = context.compile(code())
    with pytest.raises(oc.LinkError, match=r"ctx\[p\] = array"):
        routine()
    context[p] = [1, 2, 3, 4]
    routine()
    assert context[p].tolist() == [1, 5, 5, 4]


def test_a_part_of_a_result_is_reset_and_reduced_into(target: str) -> None:
    x, c = oc.tensor(np.arange(12.0).reshape(3, 4), batch_axes=1), oc.declare("c", output=[3, 4])

    @oc.cd
    def code() -> None:
        c[:] = 1.0
        c[0, oc.neutral] += oc.primitives.identity(x, logic="b|o => o")
        c[1, ::-1, oc.neutral, oc.maximum] = oc.primitives.identity(x, logic="b|o => o")
        c[2, 1:] += 3.0

    context = oc.Context(target)
    routine = context.compile(code())
    for _ in range(2):
        routine()
    assert context[c].tolist() == [[12, 15, 18, 21], [11, 10, 9, 8], [1, 4, 4, 4]]


def test_a_key_value_cache_is_written_in_place(target: str) -> None:
    length, width = 256, 16
    at = oc.static_index("at", range=length)
    keys, values = (oc.declare(n, batch=[length], output=[width]) for n in ("keys", "values"))
    x = oc.placeholder("x", output=[width])
    ws = [oc.param(n, output=[width]) for n in ("wk", "wv", "wq")]
    out = oc.declare("out", output=[width])

    @oc.cd
    def decode() -> None:
        wk, wv, wq = ws
        keys[at] = wk @ x
        values[at] = wv @ x
        scores = oc.einsum("t|d; d => t", keys, wq @ x)
        past = oc.primitives.offsets(output=[length]) <= oc.number(at)
        weights = oc.where(past, oc.exp(scores), 0.0)
        total = oc.einsum("t => 0", weights)
        out[:] = oc.einsum("t; t|d => d", weights, values) / total

    context = oc.Context(target)
    routine = context.compile(decode(), bindings=[at])
    cache = length * width * 4
    assert routine.memory_plan.nbytes < cache
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((width, width)).astype(np.float32) / 8 for _ in ws]
    for w, array in zip(ws, arrays, strict=True):
        context[w] = array
    wk, wv, wq = arrays
    seen: list[Array] = []
    for step in range(5):
        seen.append(rng.standard_normal(width).astype(np.float32))
        context[x] = seen[-1]
        routine(at=step)
        inputs = np.stack(seen)
        weights = np.exp(inputs @ wk.T @ (wq @ seen[-1]))
        expected = weights @ (inputs @ wv.T) / weights.sum()
        np.testing.assert_allclose(context[out], expected, rtol=1e-4, atol=1e-5)
        assert not context[keys][step + 1 :].any()


def test_an_index_may_range_over_the_first_positions_of_an_axis(target: str) -> None:
    i = oc.static_index("i", range=3)
    cache = oc.declare("cache", batch=[8], output=[2])
    row = oc.placeholder("row", output=[2])
    x = oc.param("x", init=oc.tensor(np.arange(10.0).reshape(5, 2)))

    @oc.cd
    def write() -> None:
        cache[i] = row

    loss = oc.sum(x[i] * oc.tensor([1.0, 10.0]))
    ctx = oc.Context(target)
    store = ctx.compile(write(), bindings=[i])
    step = ctx.compile(oc.train.grad_update(loss), bindings=[i], keep=[loss, x.grad])
    ctx.init_params(loss)
    ctx[row] = np.ones(2)
    store(i=2)
    step(i=1)
    assert ctx[cache].sum(axis=1).tolist() == [0, 0, 2, 0, 0, 0, 0, 0]
    assert ctx.item(loss) == 32
    assert ctx[x.grad].tolist() == [[0, 0], [1, 10], [0, 0], [0, 0], [0, 0]]
    with pytest.raises(oc.UsageError, match=r"i in range\(3\)"):
        store(i=3)
