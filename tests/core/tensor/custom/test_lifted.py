"""Ops lifted from functions of numbers: equality, and refused functions."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.tensor.custom import Broadcast, Composite, Reduce
from ocannl_core.testing import check_op

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])


@pytest.fixture(autouse=True)
def session() -> Any:
    with oc.Session(seed=1) as session:
        yield session


def test_they_keep_their_contract() -> None:
    check_op(Broadcast(np.hypot), [X, X + 1])
    check_op(Broadcast(operator.sub, gradient=lambda x, g: [g[0], -1.0 * g[0]]), [X, X[0]])
    check_op(Broadcast(np.multiply, inplace=True), [X, 2.0])
    check_op(Reduce(np.add, (-1,)), [X])
    check_op(Reduce(np.maximum, (-1, -2)), [oc.tensor(X[None], batch_axes=1, dtype="float64")])
    check_op(Reduce(lambda a, b: a * b + 1, (-2,)), [X])
    check_op(Reduce(np.add, [-1]), [X])
    check_op(Reduce(np.add, -2), [X])
    check_op(Reduce(np.add, 0), [X])
    check_op(Reduce(lambda a, b: 10 * a + b, [1, 0]), [X])
    check_op(Reduce(np.maximum, [0, -1]), [np.arange(24.0).reshape(2, 3, 4)])
    square = Composite(lambda x: x * x, gradient=lambda x, g: [2.0 * x[0] * g[0]])
    check_op(square, [X])
    check_op(Composite(lambda x, y: oc.exp(x) * y + oc.sin(y)), [X, X[0]])
    check_op(Composite(lambda x, y: x**2 + oc.gelu(x) * oc.sigmoid(y)), [X, X[0]])
    cube = Composite(lambda x: 2 * x**3, gradient=lambda x, g: [6 * x[0] ** 2 * g[0]])
    check_op(cube, [X])
    beyond = Composite(lambda x: x + (2**53 + 1), gradient=lambda x, g: [None])
    check_op(beyond, [np.array([1, 2])])


def test_equal_functions_make_equal_ops() -> None:
    assert Broadcast(np.hypot) == Broadcast(np.hypot) != Broadcast(np.hypot, inplace=True)
    assert Reduce(np.add, (-1,)) == Reduce(np.add, (-1,)) != Reduce(np.add, (-2,))
    assert Reduce(np.add, (-1,)) != Reduce(np.multiply, (-1,))
    assert (
        len({Reduce(np.add, axes) for axes in (-1, np.int64(-1), [-1], (-1,), np.array([-1]))}) == 1
    )
    assert Composite(lambda a, b: a * b + 2.0) == Composite(lambda x, y: x * y + 2.0)
    assert Composite(lambda a, b: a * b + 2.0) != Composite(lambda x, y: x * y + 3.0)
    assert Composite(lambda a, b: a * b) != Composite(lambda x, y: y * x)
    assert hash(Composite(lambda a: a + 1.0)) == hash(Composite(lambda x: x + 1.0))
    assert repr(Composite(lambda a: oc.exp(a) + 1.0)) == "Composite(exp, add)"
    assert Composite(oc.trunc) == Composite(lambda a, *, scale=1.0: oc.trunc(a))


def test_numbers_of_a_composite_keep_their_class() -> None:
    pixels = oc.tensor([100, 200], dtype="uint8")
    assert Composite(lambda x: x - 128.0)(pixels).dtype is oc.float32
    assert Composite(lambda x: 2 * x)(pixels).dtype is oc.uint8
    assert Composite(lambda x: x**2)(pixels).dtype is oc.uint8
    assert Composite(lambda x: x**2.0)(pixels).dtype is oc.float32
    assert Composite(lambda x: 2 * x) != Composite(lambda x: 2.0 * x)
    check_op(Composite(lambda x: oc.minimum(x, np.inf) + 2**53), [np.array([2**60 + 1])])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("function", [oc.gelu, oc.sigmoid, lambda x: x**3])
def test_a_composite_that_runs_in_python_has_the_bits_of_its_expression(
    function: Any, dtype: str
) -> None:
    in_python = Composite(function, gradient=lambda x, g: [oc.softmax(g[0], axis=-1)])
    with oc.Session():
        x = oc.tensor(np.linspace(-3.0, 3.0, 97), dtype=dtype)
        found, expected = in_python(x), function(x)
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(found) + oc.train.forward(expected))()
        np.testing.assert_array_equal(ctx[found], ctx[expected])


def test_operands_broadcast_kind_of_axis_by_kind_of_axis() -> None:
    x, b = oc.placeholder("x", batch=[4], output=[3]), oc.placeholder("b", output=[3])
    both, sums = Broadcast(np.hypot)(x, b), Reduce(np.add, (-1,))(x)
    (oc.train.forward(both) + oc.train.forward(sums)).resolve()  # closes shapes
    assert [str(both.shape), str(sums.shape)] == ["4|3", "4|"]
    with pytest.raises(oc.ShapeError):
        Broadcast(np.add, inplace=True)(b, x)  # the result does not fit into b


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(oc.UsageError, match="takes 2 inputs"):
        Broadcast(np.hypot)(1.0)
    wrong: list[Any] = [(), [], "-1", -1.5, [-1.0], None, (-1, -1), [0, 0]]
    for axes in wrong:
        with pytest.raises(oc.UsageError, match="by their positions, each once") as caught:
            Reduce(np.add, axes)
        assert caught.value.where.startswith("test_lifted.py:")
    function: Any = "add"
    with pytest.raises(oc.UsageError, match="a function of two numbers"):
        Reduce(function, -1)
    with pytest.raises(oc.UsageError, match="made of pointwise operations"):
        Composite(lambda a: oc.einsum("...|... => 0", a))
    with pytest.raises(oc.UsageError, match="computes something from its inputs"):
        Composite(lambda a, b: a)


def test_without_a_gradient_none_can_flow() -> None:
    w = oc.param("w", output=[3])
    loss = oc.einsum("...|... => 0", Broadcast(np.square)(w))
    with pytest.raises(oc.MissingGradientError):
        oc.train.grad_update(loss)


def test_axes_count_from_either_end_as_in_numpy() -> None:
    cells = np.arange(24.0).reshape(2, 3, 4)
    x = oc.tensor(cells[None], batch_axes=1)
    for axes in (0, 1, 2, -1, -3, (0, 2), [2, 0], [0, -1], (1, 0), (0, -2)):
        result = Reduce(np.add, axes)(x)
        numpy_axes = tuple(np.atleast_1d(axes))
        assert values_of(result).tolist() == cells.sum(axis=numpy_axes)[None].tolist()
    with pytest.raises(oc.ShapeError):
        Reduce(np.add, 3)(x)


def values_of(tensor: oc.Tensor, backend: str = "interp") -> Any:
    """Return the cells of a tensor."""
    ctx = oc.Context(backend)
    routine = ctx.compile(oc.train.forward(tensor), keep=[tensor])
    ctx.init_params(tensor)
    routine()
    return ctx[tensor]


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_composite_compiles_to_the_loops_of_its_expression(backend: str) -> None:
    def function(a: oc.Tensor, b: oc.Tensor) -> oc.Tensor:
        found: oc.Tensor = oc.exp(a) * b + oc.tanh(a - 0.5)
        return found

    def compiled(build: Any) -> tuple[str, Any]:
        with oc.Session():
            a = oc.placeholder("a", batch=[3], output=[2])
            b = oc.placeholder("b", output=[2])
            result = oc.einsum("...|...=>0", build(a, b), label="result")
            ctx = oc.Context(backend)
            routine = ctx.compile(oc.train.forward(result))
            ctx[a], ctx[b] = np.arange(6.0).reshape(3, 2) / 6, np.array([2.0, 3.0])
            routine()
            return str(routine.loop_ir), ctx[result].tolist()

    assert compiled(Composite(function)) == compiled(function)
    assert "call" not in compiled(Composite(function))[0]


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_composite_has_the_gradients_of_its_expression(backend: str) -> None:
    at = np.array([0.3, 0.8])
    x = oc.param("x", init=at, dtype="float64")
    y = Composite(lambda a, b: oc.exp(a) * b)(x, x)  # one tensor as both inputs
    (g,) = oc.gradients(y, [x])
    (h,) = oc.gradients(g, [x])
    np.testing.assert_allclose(values_of(h, backend), np.exp(at) * (at + 2))
    loss = oc.einsum("...=>0", y)
    ctx = oc.Context(backend)
    step = ctx.compile(oc.train.grad_update(loss))
    ctx.init_params(loss)
    step()
    np.testing.assert_allclose(ctx[x.grad], np.exp(at) * (at + 1))


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_stated_gradient_takes_the_place_of_the_derived_one(backend: str) -> None:
    x, b = oc.param("x", init=[[1.0, 2.0]]), oc.param("b", init=[3.0, 4.0])
    straight = Composite(lambda a, b: oc.trunc(a) * b, gradient=lambda x, g: [g[0] * x[1], g[0]])
    y = straight(x, b)
    loss = oc.einsum("...=>0", y)
    ctx = oc.Context(backend)
    step = ctx.compile(oc.train.grad_update(loss))
    assert "call" not in str(step.loop_ir)
    ctx.init_params(loss)
    step()
    assert ctx[x.grad].tolist() == [[3, 4]]
    assert ctx[b.grad].tolist() == [1, 1]


def test_a_stated_gradient_beyond_primitives_runs_as_the_op() -> None:
    def gradient(x: Any, g: Any) -> Any:
        return [g[0] * oc.einsum("...|...=>0", x[0])]

    x = oc.param("x", init=[1.0, 2.0])
    loss = oc.einsum("...=>0", Composite(lambda a: a * a, gradient=gradient)(x))
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.grad_update(loss))
    ctx.init_params(loss)
    step()
    assert ctx.item(loss) == 5
    assert ctx[x.grad].tolist() == [3, 3]


def test_equal_composites_of_equal_inputs_are_merged() -> None:
    x = oc.param("x", init=[1.0, 2.0])
    one, other = Composite(lambda a: a * a + 1.0), Composite(lambda b: b * b + 1.0)
    assert one(x) is other(x)
    assert one(x) is not one(x * 1.0)
    assert isinstance(one.make_node(x), oc.custom.Apply)  # the op itself is another application
    assert one(x) is other(x)


def test_conversions_and_stopped_gradients_of_a_composite_are_those_of_its_expression() -> None:
    x = oc.param("x", init=[1.2, 2.7], dtype="float64")
    whole = Composite(lambda a: oc.cast(oc.cast(a, "int32"), "float64") + oc.stop_gradient(a) * a)
    y = whole(x)
    (g,) = oc.gradients(y, [x])
    np.testing.assert_allclose(values_of(y), [1 + 1.2**2, 2 + 2.7**2])
    np.testing.assert_allclose(values_of(g), [1.2, 2.7])
    assert oc.custom.Composite(lambda a: oc.exp(a))(oc.tensor([1, 2])).dtype.is_float


def test_a_composite_is_a_part_of_recorded_code() -> None:
    c, x = oc.declare("c", output=[2]), oc.param("x", init=[1.0, 2.0])
    twice = Composite(lambda a: a + a)

    @oc.cd
    def code() -> None:
        c[:] = twice(x)
        x[:] = 5.0
        c.accumulate(twice(x))

    ctx = oc.Context("interp")
    routine = ctx.compile(code())
    ctx.init_params(x * 1.0)
    routine()
    assert ctx[c].tolist() == [12, 14]
