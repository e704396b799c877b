"""Gradients as expressions: they equal those of backpropagation, and are differentiable again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base.errors import UsageError
from ocannl_core.testing.central_differences import Point, weighted
from tests.backends.test_every_gradient import CASES, FORMS, POINTWISE, cells, step
from tests.support.example_count import example_count
from tests.support.slow import slow


def check_second_gradients(
    function: Callable[..., oc.Tensor], points: list[Point], backend: str = "interp"
) -> None:
    """Compare gradients with backpropagation, and second ones with it and central differences."""
    with oc.Session(seed=7, dtype="float64"):
        start = [point if isinstance(point, tuple) else (point, 0) for point in points]
        x = [
            oc.param(f"p{i}", init=oc.tensor(np.asarray(cells, np.float64), input_axes=axes))
            for i, (cells, axes) in enumerate(start)
        ]
        loss = weighted(function(*x))
        first = oc.gradients(loss, x, allow_unused=True)
        assert [g.shape for g in first] == [each.shape for each in x]
        total = weighted(first[0]) + sum(map(weighted, first[1:])) + 0.0 * loss
        second = oc.gradients(total, x, allow_unused=True)
        ctx = oc.Context(backend)
        compute = ctx.compile(
            oc.train.grad_update(loss) + sum_of((*first, total)),
            keep=[total, *first, *(each.grad for each in x)],
        )
        again = ctx.compile(
            oc.train.grad_update(total) + sum_of(second), keep=[*(e.grad for e in x), *second]
        )
        ctx.init_params(total)
        at = [ctx[each] for each in x]
        compute()
        expected = [ctx[each.grad] for each in x]
        for found, wanted in zip(first, expected, strict=True):
            np.testing.assert_allclose(ctx[found], wanted, rtol=1e-12, atol=1e-14)
        again()
        found = [ctx[each] for each in second]
        for one, other in zip(found, x, strict=True):
            np.testing.assert_allclose(one, ctx[other.grad], rtol=1e-11, atol=1e-12)

        # the slope in one direction, which is different from zero in every cell
        rng = np.random.default_rng(3)
        ways = [rng.uniform(0.5, 1.5, each.shape) * rng.choice([-1, 1], each.shape) for each in at]

        def value(step: float) -> float:
            for operand, base, way in zip(x, at, ways, strict=True):
                ctx[operand] = base + step * way
            compute()
            return ctx.item(total)

        slope = (value(1e-6) - value(-1e-6)) / 2e-6
        moved = sum(float(np.sum(h * way)) for h, way in zip(found, ways, strict=True))
        assert moved == pytest.approx(slope, rel=2e-5, abs=2e-5)


def sum_of(tensors: tuple[oc.Tensor, ...]) -> Any:
    code = oc.train.forward(tensors[0])
    for each in tensors[1:]:
        code += oc.train.forward(each)
    return code


@pytest.mark.parametrize(
    "name",
    [*sorted(POINTWISE.keys() - {"atan2"}), *slow(["atan2"])],  # 5800 assignments
)
def test_the_second_gradient_of_a_primitive_is_the_slope_of_its_gradient(name: str) -> None:
    operation = POINTWISE[name]
    points: list[Point] = [cells(4) + 0.01 * i for i in range(operation.operands)]
    check_second_gradients(lambda *operands: operation(*operands), points)


@pytest.mark.parametrize("case", CASES)
def test_the_second_gradient_of_an_operation_is_the_slope_of_its_gradient(case: str) -> None:
    function, points = CASES[case]
    check_second_gradients(lambda *x: squashed(function(*x)), points)


def squashed(result: oc.Tensor) -> oc.Tensor:
    return result * result * 0.5 + result


@pytest.mark.parametrize(
    "case",
    [
        "matmul",
        "padded convolution",
        "padded max pooling",
        "tropical",
        "blocks",
        "softmax",
        "prod with zeros",
        "cumprod with zeros",
        "cummax",
    ],
)
def test_compiled_second_gradients_are_slopes_too(case: str) -> None:
    function, points = CASES[case]
    check_second_gradients(lambda *x: squashed(function(*x)), points, "cpu_c")


@given(st.lists(step, min_size=1, max_size=3))
@settings(max_examples=example_count(3), deadline=None)
def test_second_gradients_of_random_compositions_are_slopes(
    steps: list[tuple[str, int, int]],
) -> None:
    def function(a: oc.Tensor, b: oc.Tensor) -> oc.Tensor:
        made = [a, b]
        for name, first, second in steps:
            made.append(FORMS[name](made[first % len(made)], made[second % len(made)]))
        return made[-1] + a * b * 0.1

    check_second_gradients(function, [cells(2, 2), cells(2, 2) + 0.05])


def evaluate(target: str, *tensors: oc.Tensor) -> list[Any]:
    """Return the cells of tensors, computed in one routine from initial parameters."""
    ctx = oc.Context(target)
    routine = ctx.compile(sum_of(tensors), keep=tensors)
    for each in tensors:
        ctx.init_params(each)
    routine()
    return [ctx[each] for each in tensors]


def total(x: oc.Tensor) -> oc.Tensor:
    found: oc.Tensor = oc.einsum("...|... => 0", x)
    return found


def test_the_third_derivatives_of_products_are_those_of_the_other_factors() -> None:
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=[2.0, 0.0, 3.0, 5.0])
        (first,) = oc.gradients(x.prod(), [x])
        (second,) = oc.gradients(first[0], [x])
        (third,) = oc.gradients(second[1], [x])
        (scanned,) = oc.gradients(oc.cumprod(x, 0)[-1], [x])
        (second_scanned,) = oc.gradients(scanned[0], [x])
        (third_scanned,) = oc.gradients(second_scanned[1], [x])
        found = evaluate("cpu_c", first, second, third, scanned, second_scanned, third_scanned)
    expected = [[0, 30, 0, 0], [0, 15, 0, 0], [0, 0, 5, 3]]
    assert [each.tolist() for each in found] == expected * 2


def test_a_running_maximum_is_flat_to_the_second_order() -> None:
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=[1.0, 3.0, 2.0])
        (first,) = oc.gradients(oc.cummax(x, 0), [x])
        (second,) = oc.gradients(first, [x])
        found = evaluate("interp", first, second)
    assert [each.tolist() for each in found] == [[1, 2, 0], [0, 0, 0]]


def test_the_fourth_derivative_of_a_power_is_a_constant(target: str) -> None:
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=[1.0, -2.0, 0.0])
        derivatives = [x**4]
        for _ in range(4):
            derivatives += oc.gradients(derivatives[-1], [x])
        at = np.array([1.0, -2.0, 0.0])
        expected = [at**4, 4 * at**3, 12 * at**2, 24 * at, np.full(3, 24.0)]
        for found, wanted in zip(evaluate(target, *derivatives), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_code_of_a_third_derivative_has_parts_that_are_read_twice_once() -> None:
    y_at, x_at = np.array([0.3, -1.2]), np.array([2.0, 0.5])
    with oc.Session(dtype="float64"):
        y = oc.param("y", init=y_at)
        derivatives = [oc.atan2(y, oc.tensor(x_at, dtype="float64"))]
        lengths = []
        for _ in range(3):
            derivatives += oc.gradients(derivatives[-1], [y])
            routine = oc.Context("interp").compile(oc.train.forward(derivatives[-1]))
            lengths.append(len(str(routine.assignments).splitlines()))
            assert lengths[-1] < 1000, lengths
        found = evaluate("interp", *derivatives[1:])
    square = x_at**2 + y_at**2
    expected = [
        x_at / square,
        -2 * x_at * y_at / square**2,
        2 * x_at * (3 * y_at**2 - x_at**2) / square**3,
    ]
    for cells_found, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(cells_found, wanted, rtol=1e-12)


def test_derivatives_of_elementary_functions_have_their_closed_forms(target: str) -> None:
    at = np.array([0.3, 0.7, 1.9])
    tanh = np.tanh(at)
    forms = {
        oc.sin: -np.sin(at),
        oc.exp: np.exp(at),
        oc.log: -1 / at**2,
        oc.reciprocal: 2 / at**3,
        oc.sqrt: -0.25 * at**-1.5,
        oc.tanh: -2 * tanh * (1 - tanh**2),
        oc.relu: 0 * at,
    }
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=at)
        second = [oc.gradients(oc.gradients(f(x), x), x)[0] for f in forms]
        for found, wanted in zip(evaluate(target, *second), forms.values(), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_hessian_vector_product_equals_the_product_with_the_hessian(target: str) -> None:
    rng = np.random.default_rng(1)
    matrix, at, vector = rng.normal(size=(4, 4)), rng.normal(size=4), rng.normal(size=4)
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=at)
        y = oc.einsum("i;ij;j=>0", x, oc.tensor(matrix), oc.sin(x))
        (g,) = oc.gradients(y, [x])
        (product,) = oc.gradients(g, [x], grad_y=oc.tensor(vector))
        (found,) = evaluate(target, product)
    cosine = matrix * np.cos(at)
    hessian = cosine + cosine.T - np.diag(at @ matrix * np.sin(at))
    np.testing.assert_allclose(found, hessian @ vector, rtol=1e-12)


def test_second_gradients_of_maxima_are_those_of_the_selected_cells(target: str) -> None:
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=[[1.0, 5.0, 2.0], [7.0, 7.0, 3.0]])
        top = oc.einmax("ij=>i", x)
        (g,) = oc.gradients(top * top * top, [x])
        (h,) = oc.gradients(g, [x])
        (first, second) = evaluate(target, g, h)
    np.testing.assert_array_equal(first, [[0, 75, 0], [147, 0, 0]])
    np.testing.assert_array_equal(second, [[0, 30, 0], [42, 0, 0]])


def test_a_gradient_has_exactly_the_shape_of_its_variable(target: str) -> None:
    with oc.Session(dtype="float64"):
        scale = oc.param("scale", init=[2.0])
        row = oc.param("row", init=[[1.0, 2.0, 3.0]])
        y = scale * row * oc.tensor(np.ones((5, 2, 3)), batch_axes=1)
        found = oc.gradients(y, [scale, row])
        assert [g.shape for g in found] == [scale.shape, row.shape]
        first, second = evaluate(target, *found)
    np.testing.assert_array_equal(first, [60.0])
    np.testing.assert_array_equal(second, [[20.0, 20.0, 20.0]])


def test_variables_may_be_intermediate_results_placeholders_and_the_result_itself() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        middle = oc.exp(x)
        y = middle * middle
        gx, gm, gy = oc.gradients(y, [x, middle, y])
        ctx = oc.Context("interp")
        step = ctx.compile(sum_of((gx, gm, gy)), keep=[gx, gm, gy])
        ctx[x] = np.log([2.0, 3.0])
        step()
        np.testing.assert_allclose(ctx[gx], [8, 18], rtol=1e-6)
        np.testing.assert_allclose(ctx[gm], [4, 6], rtol=1e-6)
        np.testing.assert_array_equal(ctx[gy], [1, 1])


def test_shapes_may_be_inferred_after_a_gradient_is_taken(target: str) -> None:
    with oc.Session():
        w, x = oc.param("w"), oc.placeholder("x", batch=[4], output=[3])
        y = oc.sin(w @ x)
        gw, gx = oc.gradients(y, [w, x])
        (again,) = oc.gradients(gx, [w])
        oc.require_shape(y, "4|2")
        ctx = oc.Context(target)
        step = ctx.compile(sum_of((gw, gx, again)))
        assert [str(each.shape) for each in (gw, gx, again)] == ["3->2", "4|3", "3->2"]
        ctx.init_params(y)
        ctx[x] = np.ones((4, 3))
        step()


def test_a_gradient_is_zero_beside_the_position_that_is_read(target: str) -> None:
    with oc.Session():
        x, i = oc.placeholder("x", batch=[3], output=[2]), oc.static_index("i", range=3)
        (g,) = oc.gradients(x[i] ** 3, [x])
        (h,) = oc.gradients(g, [x])
        ctx = oc.Context(target)
        step = ctx.compile(sum_of((g, h)), bindings=[i])
        ctx[x] = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        step(i=1)
        assert ctx[g].tolist() == [[0, 0], [27, 48], [0, 0]]
        assert ctx[h].tolist() == [[0, 0], [18, 24], [0, 0]]


def test_recorded_code_takes_gradients_at_its_place() -> None:
    with oc.Session():
        x, seen = oc.param("x", init=[1.0, 2.0]), oc.declare("seen", output=[2])

        @oc.cd
        def code() -> None:
            seen[:] = oc.gradients(x**3, [x])[0]
            x[:] = 3.0
            seen.accumulate(oc.gradients(x**3, [x])[0])

        ctx = oc.Context("interp")
        step = ctx.compile(code())
        ctx.init_params(x * 1.0)
        step()
        assert ctx[seen].tolist() == [3 + 27, 12 + 27]


def test_several_results_and_their_gradients_add_up() -> None:
    with oc.Session():
        x = oc.param("x", init=[2.0, 3.0])
        (g,) = oc.gradients([x * x, oc.sin(x) * 0.0 + x], [x], grad_y=[oc.tensor([1.0, 10.0]), 2.0])
        assert evaluate("interp", g)[0].tolist() == [4 + 2, 60 + 2]


def test_the_gradient_has_the_number_format_of_its_variable() -> None:
    with oc.Session():
        x = oc.param("x", init=[1.5, 2.0], dtype="bfloat16")
        w = oc.param("w", init=[3.0, 4.0], dtype="float32")
        y = oc.cast(x, "float32") * w * w
        gx, gw = oc.gradients(y, [x, w])
        (gg,) = oc.gradients(gw * gw, [x])
        assert [str(each.dtype) for each in (gx, gw, gg)] == ["bfloat16", "float32", "bfloat16"]
        found = evaluate("interp", gx, gw, gg)
        assert [each.astype(float).tolist() for each in found] == [[9, 16], [9, 16], [108, 256]]


def test_a_gradient_follows_its_variable_to_a_wider_format() -> None:
    with oc.Session():
        x = oc.param("x", init=oc.tensor([1.0, 2.0]))
        p = oc.placeholder("p", output=[2])
        (g,) = oc.gradients(p * p * x, [p])
        wide = p + oc.tensor(np.ones(2), dtype="float64")
        assert (str(wide.dtype), g.dtype) == ("float64", p.dtype)
        (other,) = oc.gradients(g * g, [p])
        assert other.dtype is p.dtype


def test_a_critic_with_a_gradient_penalty_learns_slopes_of_one() -> None:
    with oc.Session(seed=3):
        real = oc.tensor(np.linspace(1.0, 2.0, 8)[:, None], batch_axes=1, dtype="float32")
        fake = oc.tensor(np.linspace(-2.0, -1.0, 8)[:, None], batch_axes=1, dtype="float32")
        between = oc.tensor(np.linspace(-2.0, 2.0, 8)[:, None], batch_axes=1, dtype="float32")

        @oc.op
        def critic(x: oc.Tensor) -> Any:
            hidden = oc.tanh(oc.param("w1") @ x + oc.param("b1", output=[8]))
            return oc.param("w2", output=[1]) @ hidden

        score = critic(label="critic")
        (slope,) = oc.gradients(score(between), [between])
        penalty = total((slope * slope - 1.0) ** 2) / 8.0
        loss = total(score(fake) - score(real)) / 8.0 + 10.0 * penalty
        ctx = oc.Context("cpu_c")
        step = ctx.compile(
            oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.003),
            keep=[loss, penalty, slope],
        )
        ctx.init_params(loss)
        step()
        before = ctx.item(penalty)
        for _ in range(150):
            step()
        assert ctx.item(penalty) < min(0.1, before)
        assert ctx.item(loss) < -1.5  # the critic separates the two, with slopes of about 1
        assert np.all(np.abs(ctx[slope]) < 1.4)


def test_a_network_satisfies_a_differential_equation() -> None:
    """u'' = -u with u(0) = 0, u'(0) = 1 is the sine."""
    with oc.Session(seed=1):
        t = oc.tensor(np.linspace(0.0, 1.5, 12)[:, None], batch_axes=1, dtype="float32")

        @oc.op
        def network(t: oc.Tensor) -> Any:
            hidden = oc.tanh(oc.param("w1") @ t + oc.param("b1", output=[8]))
            return oc.param("w2", output=[1]) @ hidden

        u = t + t * t * network(t)  # the conditions at 0 hold
        (du,) = oc.gradients(u, [t])
        (ddu,) = oc.gradients(du, [t])
        loss = total((ddu + u) ** 2) / 12.0
        ctx = oc.Context("cpu_c")
        step = ctx.compile(
            oc.train.grad_update(loss)
            + oc.train.sgd_update(loss, learning_rate=0.01, momentum=0.9),
            keep=[loss, u],
        )
        ctx.init_params(loss)
        for _ in range(200):
            step()
        np.testing.assert_allclose(ctx[u][:, 0], np.sin(np.linspace(0.0, 1.5, 12)), atol=0.02)


def test_backends_agree_on_the_steps_of_a_gradient_penalty() -> None:
    def steps(backend: str) -> list[Any]:
        with oc.Session(seed=5):
            x = oc.tensor(np.linspace(-1.0, 1.0, 6).reshape(3, 2), batch_axes=1, dtype="float64")
            y = oc.param("v", output=[1]) @ oc.tanh(oc.param("w", output=[4]) @ x)
            (slope,) = oc.gradients(y, [x])
            loss = total((slope * slope - 1.0) ** 2)
            ctx = oc.Context(backend)
            update = oc.train.sgd_update(loss, learning_rate=0.05)
            step = ctx.compile(oc.train.grad_update(loss) + update, keep=[loss])
            ctx.init_params(loss)
            return [step() or ctx.item(loss) for _ in range(3)]

    assert steps("cpu_c") == pytest.approx(steps("interp"), rel=1e-12)


def test_gradients_of_a_network_have_the_bits_of_backpropagation(target: str) -> None:
    with oc.Session(seed=2):
        x = oc.tensor(np.linspace(-1.0, 1.0, 24).reshape(6, 4), batch_axes=1, dtype="float32")
        hidden = oc.tanh(oc.param("w") @ x + oc.param("b", output=[5]))
        loss = total((oc.param("v", output=[2]) @ hidden) ** 2)
        params = list(loss.params)
        found = oc.gradients(loss, params)
        ctx = oc.Context(target)
        step = ctx.compile(
            oc.train.grad_update(loss) + sum_of(found), keep=[*found, *(p.grad for p in params)]
        )
        ctx.init_params(loss)
        step()
        for one, p in zip(found, params, strict=True):
            np.testing.assert_array_equal(ctx[one], ctx[p.grad])


def test_a_variable_that_the_result_does_not_depend_on_is_an_error_or_zero() -> None:
    with oc.Session():
        x, other = oc.param("x", init=[1.0, 2.0]), oc.param("other", init=[3.0, 4.0, 5.0])
        with pytest.raises(UsageError, match=r"(?s)parameter other.*does not depend.*allow_unused"):
            oc.gradients(x * x, [x, other])
        _, zeros = oc.gradients(x * x, [x, other], allow_unused=True)
        assert evaluate("interp", zeros)[0].tolist() == [0, 0, 0]


def test_the_error_names_the_operations_that_stop_the_gradient() -> None:
    with oc.Session():
        x = oc.param("x", init=[1.0, 2.0])
        with pytest.raises(UsageError, match="through stop_gradient only"):
            oc.gradients(oc.stop_gradient(x) * 2.0, [x])
        with pytest.raises(UsageError, match="through trunc only"):
            oc.gradients(oc.trunc(x), x)


def test_a_gradient_that_is_zero_almost_everywhere_is_no_error() -> None:
    with oc.Session():
        x = oc.param("x", init=[1.0, -2.0])
        (g,) = oc.gradients(oc.relu(x), [x])
        (h,) = oc.gradients(g, [x])
        assert evaluate("interp", h)[0].tolist() == [0, 0]


def test_arguments_that_have_no_gradient_are_refused() -> None:
    with oc.Session():
        x = oc.param("x", init=[1.0, 2.0])
        ids = oc.tensor([1, 2], dtype="int32")
        with pytest.raises(UsageError, match="int32"):
            oc.gradients(x * 2.0, [ids])
        with pytest.raises(UsageError, match="x is None"):
            oc.gradients(x * 2.0, [None])
        with pytest.raises(UsageError, match="0 variables"):
            oc.gradients(x * 2.0, [])
        with pytest.raises(UsageError, match="1 grad_y"):
            oc.gradients([x, x * 2.0], [x], grad_y=[1.0])
        with oc.Session():
            y = oc.param("y", init=[1.0, 2.0])
        with pytest.raises(UsageError, match="sessions"):
            oc.gradients(x * 2.0, [y])


def test_a_gradient_of_backpropagation_is_not_differentiated_silently() -> None:
    with oc.Session():
        x = oc.param("x", init=[1.0, 2.0])
        y = x * x
        assert y.grad is not None
        assert x.grad is not None
        with pytest.raises(UsageError, match=r"(?s)x_grad.*oc\.gradients"):
            oc.gradients(x.grad * y, [x])


def test_a_gradient_is_inlined_into_its_reader() -> None:
    with oc.Session():
        x = oc.param("x", init=[1.0, 2.0])
        (g,) = oc.gradients(oc.sin(x) * x, [x])
        (h,) = oc.gradients(g, [x])
        ctx = oc.Context("interp")
        result = h * 2.0
        routine = ctx.compile(oc.train.forward(result), keep=[result])
        stored = [
            line
            for line in str(routine.loop_ir).splitlines()
            if line.startswith("        ") and " = " in line
        ]
        assert len(stored) == 2  # the last loop, and a product that two of its terms share


@pytest.mark.parametrize("operation", ["take", "take_along", "scatter"])
def test_reads_and_writes_at_positions_have_second_derivatives(target: str, operation: str) -> None:
    cells = np.arange(1.0, 13.0).reshape(4, 3)
    with oc.Session(dtype="float64"):
        w = oc.param("w", init=oc.tensor(cells, dtype="float64"))
        ids = np.array([1, 3, 1, 0], np.int32)
        if operation == "take":
            y = oc.take(w, oc.tensor(ids, dtype="int32"), axis=0)
            counts = np.bincount(ids, minlength=4)[:, None] * np.ones((4, 3))
        elif operation == "take_along":
            y = oc.take_along(w, oc.tensor(np.stack([ids] * 3, axis=1), dtype="int32"), axis=0)
            counts = np.bincount(ids, minlength=4)[:, None] * np.ones((4, 3))
        else:
            unique = np.array([1, 3, 2, 0], np.int32)
            y = oc.scatter(oc.tensor(unique, dtype="int32"), w, size=5)
            counts = np.ones((4, 3))
        loss = oc.einsum("...|...->... => 0", y * y * y)
        (first,) = oc.gradients(loss, [w])
        (second,) = oc.gradients(oc.einsum("...|...->... => 0", first * first), [w])
        ctx = oc.Context(target)
        ctx.init_params(loss)
        code = oc.train.forward(first) + oc.train.forward(second)
        ctx.compile(code, keep=[first, second])()
        slope = 3 * cells**2 * counts
        np.testing.assert_allclose(ctx[first], slope)
        np.testing.assert_allclose(ctx[second], 2 * slope * 6 * cells * counts)
