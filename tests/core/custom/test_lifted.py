"""Ops lifted from functions of numbers: equality, and refused functions."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.custom import Broadcast, Composite, Reduce
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
    square = Composite(lambda x: x * x, gradient=lambda x, g: [2.0 * x[0] * g[0]])
    check_op(square, [X])


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
    wrong: list[Any] = [(0,), 0, (), [], "-1", -1.5, [-1.0], None, (-1, -1), [-2, 1]]
    for axes in wrong:
        with pytest.raises(oc.UsageError, match="positions from the right") as caught:
            Reduce(np.add, axes)
        assert caught.value.where.startswith("test_lifted.py:")
    function: Any = "add"
    with pytest.raises(oc.UsageError, match="a function of two numbers"):
        Reduce(function, -1)
    with pytest.raises(oc.UsageError, match="made of pointwise primitives"):
        Composite(lambda a: oc.einsum("...|... => 0", a))
    with pytest.raises(oc.UsageError, match="computes something from its inputs"):
        Composite(lambda a, b: a)


def test_without_a_gradient_none_can_flow() -> None:
    w = oc.param("w", output=[3])
    loss = oc.einsum("...|... => 0", Broadcast(np.square)(w))
    with pytest.raises(oc.MissingGradientError):
        oc.train.grad_update(loss)
