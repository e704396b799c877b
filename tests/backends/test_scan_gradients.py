"""Gradients of loops over time, and of equal layers, beside unrolled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.testing.central_differences import check_gradients
from tests.support.example_count import example_count
from tests.support.loops import (
    KEEP,
    assert_same_gradients,
    computed,
    differentiated,
    normal,
    total,
    unrolled,
)
from tests.support.sample_ops import Product


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_a_gated_recurrence_are_those_of_the_unrolled_one(
    target: str, keep: str, reverse: bool
) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[5, 2], output=[3])
        gate, new = oc.param("gate", output=[4], input=[3]), oc.param("new", output=[4], input=[3])
        u, v = oc.param("u", output=[4], input=[4]), oc.param("v", output=[4], input=[4])

        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            z = oc.reciprocal(1 + oc.exp(-(gate @ x + u @ h)))
            h = (1 - z) * oc.tanh(new @ x + v @ (z * h)) + z * h
            return h, h * 2

        start = oc.param("start", output=[4], init=0.3)
        ys, last = oc.scan(step, start, xs, keep=keep, reverse=reverse)
        values, carry = unrolled(step, start, xs, 5, reverse=reverse)
        loss = total(ys * ys) + total(last)
        expected = total(carry)
        for each in values:
            expected = expected + total(each * each)
        assert_same_gradients(target, {xs: normal(5, 2, 3)}, loss, expected)


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
@pytest.mark.parametrize("reverse", [False, True])
def test_sums_behind_a_loop_are_those_of_the_unrolled_one(
    target: str, batch: tuple[int, ...], reverse: bool
) -> None:
    """Wide states: the gradients of the weights are larger than what their products read."""
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[4, *batch], output=[3])
        w, u = oc.param("w", output=[128], input=[3]), oc.param("u", output=[128], input=[128])
        bias = oc.param("bias", output=[128])

        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            _, h = oc.scan(lambda c, _: (oc.tanh(u @ c + bias), None), h + w @ x, length=2)
            return u @ h, h

        def plain(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            h = h + w @ x
            for _ in range(2):
                h = oc.tanh(u @ h + bias)
            return u @ h, h

        start = oc.param("start", output=[128], init=0.3)
        ys, last = oc.scan(step, start, xs, reverse=reverse)
        values, carry = unrolled(plain, start, xs, 4, reverse=reverse)
        loss, expected = total(ys * ys) + total(last), total(carry)
        for each in values:
            expected = expected + total(each * each)
        assert_same_gradients(target, {xs: normal(4, *batch, 3)}, loss, expected)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_are_those_of_central_differences(target: str, keep: str) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor, start: oc.Tensor) -> oc.Tensor:
        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            h = oc.tanh(w @ h + x)
            return h, h * x

        stacked = oc.einsum("ti => t|i", xs)
        ys, last = oc.scan(step, start, stacked, keep=keep)
        result: oc.Tensor = oc.einsum("t|i => i", ys) + last * last
        return result

    points = normal(3, 2), (normal(2, 2, seed=1) / 2, 1), normal(2, seed=2)
    check_gradients(function, *points, backend=target)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_flow_through_nested_loops(target: str, keep: str) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[2, 3, 2], output=[2])
        w = oc.param("w", init=[(0.5, 0.1), (-0.2, 0.3)])

        def innermost(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            c = oc.tanh(w @ c + x)
            return c, c * c

        def inner(c: oc.Tensor, row: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            ys, c = oc.scan(innermost, c, row, keep=keep)
            return c * 0.5, ys

        def outer(c: oc.Tensor, rows: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            ys, c = oc.scan(inner, c, rows, keep=keep, reverse=True)
            return c + w @ c, ys

        start = oc.param("start", output=[2], init=0.1)
        ys, last = oc.scan(outer, start, xs, keep=keep)
        expected: Any = 0.0
        c = start
        for i in range(2):
            for j in reversed(range(3)):
                for k in range(2):
                    c, y = innermost(c, xs[i, j, k])
                    expected = total(y) + expected
                c = c * 0.5
            c = c + w @ c
        loss, expected = total(ys) + total(last), expected + total(c)
        assert_same_gradients(target, {xs: normal(2, 3, 2, 2)}, loss, expected)


def test_gradients_flow_from_one_loop_to_another(target: str) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        stacked = oc.einsum("ti => t|i", xs)
        ys, _ = oc.scan(lambda c, x: (c * w + x, c), 0.0, stacked)
        zs, last = oc.scan(lambda c, x: (c * w + x, c * x), w, ys, reverse=True)
        result: oc.Tensor = oc.einsum("t|i => i", zs) + last
        return result

    check_gradients(function, normal(4, 2), normal(2, seed=3), backend=target)


@pytest.mark.parametrize("keep", KEEP)
def test_gradients_flow_through_maxima_windows_and_calls_inside_a_step(
    target: str, keep: str
) -> None:
    with oc.Session(seed=1):
        xs = oc.placeholder("xs", batch=[4], output=[6])
        kernel = oc.param("kernel", init=[0.2, 0.5, -0.1])
        product = Product()

        def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            c = oc.tanh(oc.einsum("i=+k; k => i", c, kernel)) + x
            most = oc.einmax("i => 0", c)
            return product(c, x) * 0.25 + most * 0.1, most

        start = oc.tensor(normal(6, seed=4))
        ys, last = oc.scan(step, start, xs, keep=keep)
        values, carry = unrolled(step, start, xs, 4)
        expected = total(carry)
        for each in values:
            expected = expected + total(each * each)
        feeds = {xs: normal(4, 6)}
        assert_same_gradients(target, feeds, total(last) + total(ys * ys), expected)


def test_loops_without_steps_pass_gradients_from_the_last_carry_to_the_first(target: str) -> None:
    w, none = oc.param("w", init=[2.0, 3.0]), oc.tensor(np.zeros((0, 2)), batch_axes=1)

    def outer(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        ys, last = oc.scan(lambda c, y: (c * w + y, oc.sin(c)), c + x, none)
        return last, total(ys)

    ys, last = oc.scan(outer, w, none)
    loss = total(last * 5) + total(ys)
    _, gradients, _ = differentiated(target, {}, loss)
    assert gradients["w"].tolist() == [5.0, 5.0]
    (gradient,) = oc.gradients(loss, [w])
    (found,), _ = computed(target, {}, gradient)
    assert found.tolist() == [5.0, 5.0]


def test_training_steps_are_those_of_the_unrolled_program(target: str) -> None:
    def losses(scans: bool) -> list[float]:
        with oc.Session(seed=2):
            xs = oc.placeholder("xs", batch=[4], output=[3])
            w = oc.param("w", output=[3], input=[3])

            def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
                return oc.tanh(w @ c + x), c

            zeros = oc.tensor(np.zeros(3, np.float32))
            if scans:
                _, last = oc.scan(step, zeros, xs)
            else:
                _, last = unrolled(step, zeros, xs, 4)
            loss = total(last * last)
            ctx = oc.Context(target)
            ctx[xs] = normal(4, 3)
            code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
            routine = ctx.compile(code)
            ctx.init_params(loss)
            found = []
            for _ in range(4):
                routine()
                found.append(ctx.item(loss))
            return found

    found = losses(True)
    np.testing.assert_allclose(found, losses(False), rtol=1e-5)
    assert found[-1] < found[0]


def test_gradients_are_equal_whether_forward_code_is_compiled_with_them_or_before(
    target: str,
) -> None:
    xs = oc.placeholder("xs", batch=[4], output=[3])
    w = oc.param("w", output=[3], input=[3])
    ys, last = oc.scan(lambda c, x: (oc.tanh(w @ c + x), c), 0.0, xs)
    loss = total(ys * ys) + total(last)
    _, expected, _ = differentiated(target, {xs: normal(4, 3)}, loss)

    @oc.cd
    def backpropagate() -> None:
        loss.zero_grads()
        loss.grad[:] = 1.0
        loss.backprop()

    ctx = oc.Context(target)
    ctx[xs] = normal(4, 3)
    ctx.init_params(loss)
    ctx.compile(oc.train.forward(loss), keep=[loss, ys, last])()
    ctx.compile(loss.forward() + backpropagate())()
    assert np.array_equal(ctx[w.grad], expected["w"])


OPERATIONS: tuple[Callable[..., oc.Tensor], ...] = (
    lambda a, b, w: a + b,
    lambda a, b, w: a * b * 0.5,
    lambda a, b, w: oc.tanh(a - b),
    lambda a, b, w: w @ a,
    lambda a, b, w: oc.maximum(a, b),
    lambda a, b, w: oc.einsum("...|i => ...|0", a) * 0.3 + b,
    lambda a, b, w: oc.where(a < b, a, b * 0.5),
    lambda a, b, w: oc.relu(a) + 0.25 * oc.stop_gradient(b),
)

PLANS = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=7,
)


@hypothesis_settings(
    max_examples=example_count(3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(PLANS, st.sampled_from(KEEP), st.booleans(), st.integers(1, 3))
def test_random_steps_give_the_results_of_the_unrolled_program(
    target: str, plan: list[tuple[int, int, int]], keep: str, reverse: bool, length: int
) -> None:
    with oc.Session(seed=3):
        xs = oc.placeholder("xs", batch=[length, 2], output=[3])
        w = oc.param("w", output=[3], input=[3])
        zeros = oc.tensor(np.zeros((2, 3), np.float32), batch_axes=1)
        init = zeros + oc.param("start", output=[3]), zeros + oc.param("second", output=[3])

        def step(carry: Any, x: oc.Tensor) -> tuple[Any, Any]:
            made = [*carry, x, w @ x]
            for operation, first, other in plan:
                one, two = made[-1 - first % len(made)], made[-1 - other % len(made)]
                made.append(OPERATIONS[operation](one, two, w))
            return (made[-1] * 0.5 + x, carry[0] * 0.5 + made[-2]), made[-1]

        ys, last = oc.scan(step, init, xs, keep=keep, reverse=reverse)
        values, carry = unrolled(step, init, xs, length, reverse=reverse)
        loss = total(ys * ys) + total(last[0]) + total(last[1])
        expected = total(carry[0]) + total(carry[1])
        for each in values:
            expected = expected + total(each * each)
        assert_same_gradients(target, {xs: normal(length, 2, 3)}, loss, expected)


def test_equal_layers_have_parameters_of_their_own_with_a_layer_axis(target: str) -> None:
    with oc.Session(seed=2):
        x = oc.placeholder("x", batch=[3], output=[4])
        layer = oc.nn.repeat_layers(lambda h: oc.relu(oc.nn.dense(h)) + h, x, layers=5)
        loss = total(layer * layer)
        ctx = oc.Context(target)
        ctx[x] = cells = normal(3, 4)
        ctx.init_params(loss)
        routine = ctx.compile(oc.train.grad_update(loss))
        routine()
        parameters = {p.label[0]: p for p in loss.params}
        weight, bias = ctx[parameters["weight"]], ctx[parameters["bias"]]
        assert weight.shape == (5, 4, 4)
        assert len(np.unique(weight)) == weight.size
        h = cells
        for w, b in zip(weight, bias, strict=True):
            h = np.maximum(h @ w.T + b, 0) + h
        np.testing.assert_allclose(ctx.item(loss), (h * h).sum(), rtol=1e-5)
        assert ctx[parameters["weight"].grad].shape == (5, 4, 4)


def test_layers_over_stacked_weights_have_the_gradients_of_layers_one_by_one(target: str) -> None:
    def function(x: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        stacked = oc.einsum("i->lo => l|i->o", w)
        _, y = oc.scan(lambda h, w: (oc.tanh(w @ h), None), x, stacked)
        result: oc.Tensor = y
        return result

    check_gradients(function, normal(2), (normal(3, 2, 2, seed=1), 1), backend=target)


def test_a_block_of_layers_applied_twice_shares_its_parameters(target: str) -> None:
    @oc.op
    def stack(x: oc.Tensor) -> oc.Tensor:
        found: oc.Tensor = oc.nn.repeat_layers(lambda h: oc.tanh(oc.nn.dense(h)), x, layers=3)
        return found

    x = oc.placeholder("x", batch=[2], output=[3])
    block = stack()
    once, twice = block(x), block(block(x))
    assert len((once + twice).params) == 2
    (first, second), ctx = computed(target, {x: normal(2, 3)}, once, twice)
    parameters = {p.label[0]: ctx[p] for p in once.params}
    h = normal(2, 3)
    for repetition in range(2):
        for w, b in zip(parameters["weight"], parameters["bias"], strict=True):
            h = np.tanh(h @ w.T + b)
        np.testing.assert_allclose((first, second)[repetition], h, rtol=1e-5, atol=1e-6)


def test_loops_of_steps_that_call_python_run_every_step(target: str) -> None:
    product = Product()
    xs = oc.placeholder("xs", batch=[3], output=[2])

    def inner(c: oc.Tensor, x: None) -> tuple[oc.Tensor, None]:
        return product(c, c), None

    def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        _, c = oc.scan(inner, c + x, length=2)
        return c, c

    ys, _ = oc.scan(step, oc.tensor(np.zeros(2, np.float32)), xs)
    cells = normal(3, 2)
    (values,), _ = computed(target, {xs: cells}, ys)
    carry = np.zeros(2, np.float32)
    expected = []
    for entry in cells:
        carry = (carry + entry) ** 4
        expected.append(carry)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
