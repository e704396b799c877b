"""Gradients of loops over time as expressions, beside backpropagation, unrolled programs and
central differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from tests.backends.test_gradients_as_expressions import check_second_gradients
from tests.support.loops import computed, normal, total, unrolled
from tests.support.sample_ops import Product


@pytest.mark.parametrize(
    ("keep", "reverse"), [("carry", False), ("reductions", True), ("all", False)]
)
def test_the_second_gradient_of_a_gated_recurrence_is_the_slope_of_its_gradient(
    keep: str, reverse: bool
) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor, start: oc.Tensor) -> oc.Tensor:
        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            gate = oc.sigmoid(w @ x - h)
            h = (1 - gate) * oc.tanh(w @ h + x) + gate * h
            return h, h * x

        stacked = oc.einsum("ti => t|i", xs)
        ys, last = oc.scan(step, start, stacked, keep=keep, reverse=reverse)
        result: oc.Tensor = oc.einsum("t|i => i", ys) + last * last
        return result

    points = normal(3, 2), (normal(2, 2, seed=1) / 2, 1), normal(2, seed=2)
    check_second_gradients(function, list(points))


@pytest.mark.parametrize("keep", ["carry", "reductions"])
def test_compiled_second_gradients_of_nested_loops_are_slopes(keep: str) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        def inner(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            c = oc.sin(w * c + x)
            return c, c * x

        def outer(c: Any, row: oc.Tensor) -> tuple[Any, oc.Tensor]:
            ys, state = oc.scan(inner, c["state"] * row[1], row, keep=keep, reverse=True)
            return {"state": state + w}, ys * c["state"]

        start = {"state": oc.einsum("ijk => k", xs)}
        ys, last = oc.scan(outer, start, oc.einsum("ijk => ij|k", xs), keep=keep)
        result: oc.Tensor = oc.einsum("ij|k => k", ys) + last["state"]
        return result

    check_second_gradients(function, [normal(2, 2, 2), normal(2, seed=3)], "cpu_c")


def test_second_gradients_flow_from_one_loop_to_another(target: str) -> None:
    def function(xs: oc.Tensor, w: oc.Tensor) -> oc.Tensor:
        stacked = oc.einsum("ti => t|i", xs)
        ys, _ = oc.scan(lambda c, x: (c * w + x, c), 0.0, stacked)
        zs, last = oc.scan(lambda c, x: (c * w + x, c * x), w, ys, reverse=True)
        result: oc.Tensor = oc.einsum("t|i => i", zs) + last
        return result

    check_second_gradients(function, [normal(4, 2), normal(2, seed=3)], target)


def test_a_step_reads_a_tensor_and_a_function_of_it_from_outside(target: str) -> None:
    def function(x: oc.Tensor, start: oc.Tensor) -> oc.Tensor:
        outside = oc.sin(x)

        def step(c: oc.Tensor, _: None) -> tuple[oc.Tensor, oc.Tensor]:
            invariant = x * x  # computed once, in front of the loop
            return oc.tanh(c * invariant) + x * outside, invariant * 0.5

        ys, last = oc.scan(step, start, length=3)
        _, passed = oc.scan(lambda c, _: (x, x * 0.5), start, length=2)
        result: oc.Tensor = oc.einsum("t|i => i", ys) * last + passed
        return result

    check_second_gradients(function, [normal(2), normal(2, seed=1)], target)


def test_second_gradients_flow_through_a_loop_in_front_of_the_loop_that_contains_it(
    target: str,
) -> None:
    def function(x: oc.Tensor, start: oc.Tensor) -> oc.Tensor:
        def inner(c: oc.Tensor, _: None) -> tuple[oc.Tensor, oc.Tensor]:
            return oc.tanh(c * x), c * x

        def outer(c: oc.Tensor, _: None) -> tuple[oc.Tensor, oc.Tensor]:
            ys, last = oc.scan(inner, x, length=2)  # computed once
            zs, _ = oc.scan(inner, oc.sin(x), length=2)  # only its values are read
            return oc.tanh(c) * last, oc.einsum("t|i => i", ys * zs)

        ys, last = oc.scan(outer, start, length=2)
        result: oc.Tensor = oc.einsum("t|i => i", ys) + last
        return result

    check_second_gradients(function, [normal(2), normal(2, seed=1)], target)


def test_second_gradients_flow_through_maxima_positions_and_calls_inside_a_step() -> None:
    def function(xs: oc.Tensor, table: oc.Tensor) -> oc.Tensor:
        ids = oc.tensor(np.array([[0, 1], [1, 1], [2, 0]], np.int32), batch_axes=1)

        def step(c: oc.Tensor, entry: Any) -> tuple[Any, Any]:
            x, chosen = entry
            rows = oc.take(table, chosen)
            c = oc.maximum(c, x) * 0.5 + Product()(oc.sin(x), c) + rows.max(axis=0)
            return c, oc.cumsum(rows * c, axis=1)

        xs = oc.einsum("ti => t|i", xs)
        ys, last = oc.scan(step, oc.einsum("ij => j", table), (xs, ids))
        result: oc.Tensor = oc.einsum("...|ij => j", ys) + last
        return result

    check_second_gradients(function, [normal(3, 2), normal(3, 2, seed=5)])


def test_a_step_draws_the_same_numbers_in_its_gradient(target: str) -> None:
    with oc.Session(seed=3):
        w = oc.param("w", init=[2.0, 3.0])

        def step(c: oc.Tensor, _: None) -> tuple[oc.Tensor, oc.Tensor]:
            noise = oc.uniform() * (c * 0.0 + 1.0)
            return c + noise * w, noise

        noises, last = oc.scan(step, oc.number(0.0), length=4)
        (found,) = oc.gradients(last, [w])
        (gradient, drawn), _ = computed(target, {}, found, noises)
    np.testing.assert_allclose(gradient, drawn.sum(axis=0), rtol=1e-6)
    assert len(np.unique(drawn)) > 4


def test_the_gradient_of_equal_layers_has_a_layer_axis(target: str) -> None:
    with oc.Session(seed=3):
        x = oc.tensor(normal(2, 3), batch_axes=1)
        deep = oc.nn.repeat_layers(lambda h: h + oc.tanh(oc.nn.dense(h)), x, layers=3)
        loss = total(deep * deep)
        parameters = list(loss.params.values())
        found = oc.gradients(loss, parameters)
        penalty = loss * 0.0
        for each in found:
            penalty = penalty + total(each * each)
        again = oc.gradients(penalty, parameters)
        ctx = oc.Context(target)
        first = ctx.compile(
            oc.train.grad_update(loss) + oc.train.forward(penalty),
            keep=[*found, *(each.grad for each in parameters)],
        )
        ctx.init_params(loss)
        first()
        for parameter, gradient in zip(parameters, found, strict=True):
            assert gradient.shape == parameter.shape
            np.testing.assert_allclose(ctx[gradient], ctx[parameter.grad], rtol=1e-4, atol=1e-5)
        second = ctx.compile(
            oc.train.grad_update(penalty) + oc.train.forward(again[0]),
            keep=[again[0], parameters[0].grad],
        )
        second()
        np.testing.assert_allclose(ctx[again[0]], ctx[parameters[0].grad], rtol=1e-3, atol=1e-4)


def test_a_gradient_penalty_through_a_loop_trains_like_the_unrolled_one(target: str) -> None:
    def trained(is_unrolled: bool) -> Any:
        with oc.Session(seed=1):
            xs = oc.tensor(normal(4, 2, seed=1), batch_axes=1)
            w = oc.param("w", init=[(0.5, 0.1), (-0.2, 0.3)])

            def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
                h = oc.tanh(w @ h + x)
                return h, h

            start = oc.tensor([0.3, -0.1])
            scan = unrolled(step, start, xs, 4) if is_unrolled else oc.scan(step, start, xs)
            (slope,) = oc.gradients(scan[1], [xs])
            loss = total((slope - 0.1) ** 2)
            ctx = oc.Context(target)
            train = ctx.compile(
                oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
            )
            ctx.init_params(loss)
            for _ in range(3):
                train()
            return ctx[w]

    np.testing.assert_allclose(trained(False), trained(True), rtol=1e-4, atol=1e-6)


def test_gradients_inside_a_step_of_a_loop_are_those_outside(target: str) -> None:
    with oc.Session(seed=1):
        xs = oc.tensor(normal(3, 2), batch_axes=1)
        ws = oc.tensor(normal(4, 2, seed=1), batch_axes=1)

        def energy(x: oc.Tensor) -> oc.Tensor:
            _, last = oc.scan(lambda c, w: (oc.sin(c * w + x), None), x, ws)
            return total(last)

        def descend(x: oc.Tensor, target: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            (slope,) = oc.gradients(energy(x), [x])
            return x - 0.1 * slope + target, slope

        slopes, last = oc.scan(descend, oc.tensor([0.2, 0.4]), xs)
        values, expected = unrolled(descend, oc.tensor([0.2, 0.4]), xs, 3)
        (found, one, *others), _ = computed(target, {}, slopes, last, expected, *values)
    np.testing.assert_allclose(one, others[0], rtol=1e-5)
    np.testing.assert_allclose(found, np.stack(others[1:]), rtol=1e-5)


def test_values_that_no_gradient_reads_are_not_kept() -> None:
    with oc.Session():
        xs = oc.placeholder("xs", batch=[5], output=[3])
        w = oc.param("w", output=[3], input=[3])
        ys, last = oc.scan(lambda h, x: (w @ h + x, None), oc.tensor([1.0, 2.0, 3.0]), xs)
        loop = last.definition.loop
        before = len(loop.results)
        oc.gradients(last, [xs])
        assert ys is None
        assert len(loop.results) == before
        oc.gradients(last, [w])
        assert len(loop.results) == before + 1


def test_a_variable_on_which_no_step_depends_is_named() -> None:
    with oc.Session():
        xs, w = oc.placeholder("xs", batch=[5], output=[3]), oc.param("w")
        ys, _ = oc.scan(lambda h, x: (h + x, h * oc.stop_gradient(w)), oc.number(0.0), xs)
        with pytest.raises(oc.UsageError, match="parameter w"):
            oc.gradients(ys, [w])
