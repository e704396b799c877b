"""Gradients through user-written operations, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core.tensor.custom import Apply, Op
from tests.support.sample_ops import SAME, Product, Square, lines, total

Array = np.ndarray[Any, Any]


def gradients(ctx: oc.Context, loss: oc.Tensor, *tensors: oc.Tensor) -> list[Any]:
    kept = [each.grad for each in tensors if each.grad is not None]
    step = ctx.compile(oc.train.grad_update(loss), keep=[loss, *kept])
    ctx.init_params(loss)
    step()
    return [ctx[each].tolist() for each in kept]


def test_gradients_flow_into_every_input(ctx: oc.Context) -> None:
    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 5.0])
    loss = total(Product()(x, y) * lines(1, 10))
    assert gradients(ctx, loss, x, y) == [[3, 50], [1, 20]]


def test_every_use_adds_to_the_gradient(ctx: oc.Context) -> None:
    x = oc.param("x", init=[1.0, 2.0])
    loss = total(Product()(x, x) + Square()(x) + x)
    assert gradients(ctx, loss, x) == [[5, 9]]


def test_gradients_flow_through_ops_between_primitives(ctx: oc.Context) -> None:
    x = oc.param("x", init=[1.0, 2.0])
    loss = total(Square()(Square()(x * 2.0)))  # 16 x**4
    assert gradients(ctx, loss, x) == [[64, 512]]


def test_a_gradient_is_summed_over_all_outputs(ctx: oc.Context) -> None:
    class SumAndProduct(Op):
        spec = "n; n => n; n"

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            x, y = inputs
            output_storage[0][0], output_storage[1][0] = x + y, x * y

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            (x, y), (gz, gw) = inputs, output_gradients
            return gz + gw * y, gz + gw * x

    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 5.0])
    both, product = SumAndProduct()(x, y)
    assert gradients(ctx, total(both * 100.0 + product), x, y) == [[103, 105], [101, 102]]
    # an output outside of the loss has gradient zero
    assert gradients(ctx.child(), total(product * 1.0), x, y) == [[3, 5], [1, 2]]


def test_none_is_for_inputs_in_which_the_op_is_not_differentiable(ctx: oc.Context) -> None:
    class Step(Product):
        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [None, output_gradients[0] * inputs[0]]

    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 5.0])
    assert gradients(ctx, total(Step()(x, y)), x, y) == [[0, 0], [1, 2]]

    class Constant(Product):
        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [None] * len(inputs)

    assert gradients(ctx.child(), total(Constant()(x, y) + y), x, y) == [[0, 0], [1, 1]]


def test_the_gradient_of_an_op_may_use_ops_and_the_op_itself(ctx: oc.Context) -> None:
    class Exp(Op):
        __props__ = ()
        spec = SAME
        calls = 0

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            Exp.calls += 1
            output_storage[0][0] = np.exp(inputs[0])

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [Product()(output_gradients[0], self(inputs[0]))]

    x = oc.param("x", init=[0.0, 0.0])
    assert gradients(ctx, total(Exp()(x)), x) == [[1, 1]]
    assert Exp.calls == 1  # the op in the gradient is the node in the loss


def test_two_losses_in_one_computation_backpropagate_apart(ctx: oc.Context) -> None:
    x = oc.param("x", init=[1.0, 3.0])
    y = Square()(x)
    one, other = total(y * 1.0), total(y * 10.0)
    seen = oc.declare("seen", output=[2])

    @oc.cd
    def note() -> None:
        seen[:] = x.grad

    code = oc.train.grad_update(one) + note() + oc.train.grad_update(other)
    step = ctx.compile(code)
    ctx.init_params(one)
    step()
    assert ctx[seen].tolist() == [2, 6]
    assert ctx[x.grad].tolist() == [20, 60]


def test_the_gradient_of_a_repeated_input_is_summed(ctx: oc.Context) -> None:
    from ocannl_core.tensor.custom import Broadcast

    op = Broadcast(np.multiply, gradient=lambda x, g: [g[0] * x[1], g[0] * x[0]])
    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=3.0, output=[], input=[])
    assert gradients(ctx, total(op(x, y)), x, y) == [[3, 3], 3]


def test_training_goes_through_an_op(ctx: oc.Context) -> None:
    w, x = oc.param("w", output=[2], init=0.1), oc.tensor([1.0, 2.0, 3.0])
    loss = total(Square()(w @ x - lines(1, -1)))
    step = ctx.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.02))
    ctx.init_params(loss)
    losses = []
    for _ in range(40):
        step()
        losses.append(ctx.item(loss))
    assert losses[-1] < 1e-3 < losses[0]
