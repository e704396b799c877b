"""Owners of code: pieces inside recorded functions, consumed and lost code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.ir.assignments.traverse import leaves


def targets(computation: oc.Computation) -> list[str]:
    """Return the names of the nodes that a computation writes, in program order."""
    return [each.target.name for each in leaves(computation.resolve().body)]


@pytest.fixture
def loss() -> oc.Tensor:
    p = oc.param("p", init=[1.0, 2.0])
    return oc.multiply(oc.einsum("i=>0", p), 3.0, label="loss")


def test_the_pieces_of_a_gradient_update_can_be_put_together_by_hand(loss: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        with oc.section("forward"):
            loss.forward()
        with oc.section("zero gradients"):
            loss.zero_grads()
        with oc.section("backpropagate"):
            loss.grad[:] = 1.0
            loss.backprop()

    written, given = code().resolve(), oc.train.grad_update(loss).resolve()
    assert [each.target for each in leaves(written.body)] == [
        each.target for each in leaves(given.body)
    ]
    assert written.results >= given.results


def test_forward_code_comes_first_and_gradients_flow_from_the_newest_tensor_to_the_oldest(
    loss: oc.Tensor,
) -> None:
    assert targets(oc.train.grad_update(loss)) == [
        "einsum",
        "loss",
        "p_grad",
        "einsum_grad",
        "loss_grad",
        "loss_grad",
        "einsum_grad",
        "p_grad",
    ]


def test_training_code_called_inside_recorded_code_becomes_a_part_of_it(loss: oc.Tensor) -> None:
    @oc.cd
    def step() -> None:
        oc.train.grad_update(loss)
        oc.train.sgd_update(loss, learning_rate=0.1)

    together = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
    assert targets(step()) == targets(together)


def test_forward_code_of_a_shared_operand_is_contained_once(loss: oc.Tensor) -> None:
    two = oc.exp(loss) + oc.sin(loss)
    assert targets(oc.train.forward(two)).count("loss") == 1
    assert targets(oc.train.forward(two) + oc.train.forward(loss)).count("loss") == 1


def test_code_of_another_computation_does_not_hinder_forward_code(loss: oc.Tensor) -> None:
    first, second = oc.train.forward(loss), oc.train.forward(loss)
    assert targets(first) == targets(second)


def test_recorded_code_reads_tensors_of_a_compiled_computation(loss: oc.Tensor) -> None:
    c = oc.declare("c")

    @oc.cd
    def code() -> None:
        c[:] = loss

    assert targets(code()) == ["einsum", "loss", "c_loss"]  # compiling resolves first
    assert targets(code()) == ["c_loss"]


def test_printing_code_lays_no_claim_to_it(loss: oc.Tensor) -> None:
    c = oc.declare("c")

    @oc.cd
    def code() -> None:
        c[:] = loss

    assert "loss[0] =" in str(code())
    assert targets(code()) == ["einsum", "loss", "c_loss"]


def test_roots_are_unchanged_by_code_compiled_only_for_its_shapes(loss: oc.Tensor) -> None:
    c = oc.declare("c")

    @oc.cd
    def code() -> None:
        c[:] = loss

    with oc.train.unchanged_roots():
        code().resolve()
        loss.consume_backprop()
    loss.consume_backprop()
    with oc.train.unchanged_roots():
        loss.consume_forward()
    assert targets(code()) == ["einsum", "loss", "c_loss"]


def test_forward_code_is_consumed_once(loss: oc.Tensor) -> None:
    assert targets(loss.consume_forward()) == ["einsum", "loss"]
    with pytest.raises(oc.UsageError, match="Forward code is consumed once") as error:
        (loss + 1.0).consume_forward()
    assert "tensor loss" in error.value.found
    assert error.value.fix == (
        "run that computation and read the tensor, or compute it again: oc.train.forward(add)"
    )


def test_code_for_backpropagation_is_consumed_once(loss: oc.Tensor) -> None:
    loss.consume_backprop()
    with pytest.raises(oc.UsageError, match="backpropagation is consumed once"):
        loss.consume_backprop()


def test_lost_forward_code_is_named_with_the_call_that_computes_it_again(loss: oc.Tensor) -> None:
    c = oc.declare("c")

    @oc.cd
    def code() -> None:
        c[:] = loss

    loss.consume_forward()  # dropped
    with pytest.raises(oc.LinkError, match=r"oc\.train\.forward\(loss\)"):
        oc.Context("interp").compile(code())


def test_the_fix_for_lost_code_helps(loss: oc.Tensor) -> None:
    c = oc.declare("c")

    @oc.cd
    def code() -> None:
        c[:] = loss

    loss.consume_forward()
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(loss) + code())
    ctx.init_params(loss)
    step()
    assert ctx.item(c) == 9


def test_an_update_in_front_of_the_gradients_that_it_reads_is_refused(loss: oc.Tensor) -> None:
    update = oc.train.sgd_update(loss, learning_rate=0.1)
    with pytest.raises(oc.LinkError, match="read first, and computed later") as error:
        oc.Context("interp").compile(update + oc.train.grad_update(loss))
    assert "put the code that computes p_grad before its reads" in error.value.fix


def test_delayed_updates_are_allowed_once_the_gradients_have_values(loss: oc.Tensor) -> None:
    (p,) = loss.params
    ctx = oc.Context("interp")
    ctx.init_params(loss)
    ctx[p.grad] = 0.0
    update = oc.train.sgd_update(loss, learning_rate=1.0)
    step = ctx.compile(update + oc.train.grad_update(loss))
    step()
    assert ctx[p].tolist() == [1, 2]
    step()
    assert ctx[p].tolist() == [-2, -1]


def test_gradients_in_memory_are_differentiated_as_expressions(loss: oc.Tensor) -> None:
    (p,) = loss.params
    norm = oc.einsum("i;i=>0", p.grad, p.grad)
    assert norm.grad is None
    for differentiate in (oc.train.grad_update, lambda tensor: oc.gradients(tensor, [p])):
        with pytest.raises(oc.UsageError, match="no expression of one loss") as caught:
            differentiate(norm)
        assert "gradient p_grad" in caught.value.found
        assert "test_code_ownership.py" in caught.value.where
        assert caught.value.fix == "(g,) = oc.gradients(loss, [p]), and g in place of p.grad"


class Product(oc.custom.Op):
    __props__ = ()
    spec = "...; ... => ..."

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * inputs[1]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * inputs[1], output_gradients[0] * inputs[0]]


def test_a_gradient_in_memory_beside_its_tensor_is_a_constant_or_refused(loss: oc.Tensor) -> None:
    (p,) = loss.params
    ctx = oc.Context("interp")
    ctx.init_params(loss)
    ctx.compile(oc.train.grad_update(loss))()
    assert ctx[p.grad].tolist() == [3, 3]
    beside = oc.einsum("i=>0", p.grad * 2.0 + p * p)
    ctx.compile(oc.train.grad_update(beside))()
    assert ctx[p.grad].tolist() == [2, 4]
    for product in (p.grad * p, Product()(p.grad, p)):  # its gradient is read when it is cleared
        with pytest.raises(oc.UsageError, match="no expression of one loss"):
            ctx.compile(oc.train.grad_update(oc.einsum("i=>0", product)))
    q = oc.param("q", init=[1.0, 1.0])
    apart = oc.einsum("i=>0", Product()(p.grad, q) + p.grad * q)
    ctx.init_params(apart)
    ctx.compile(oc.train.grad_update(loss) + oc.train.grad_update(apart))()
    assert ctx[q.grad].tolist() == [6, 6]
    (g,) = oc.gradients(loss, [p])
    ctx.compile(oc.train.grad_update(oc.einsum("i=>0", g * p)))()
    assert ctx[p.grad].tolist() == [3, 3]


def test_backpropagation_of_a_tensor_without_gradients_is_an_error() -> None:
    x = oc.tensor([1.0])
    for piece in (x.zero_grads, x.backprop, x.consume_backprop):
        with pytest.raises(oc.UsageError, match="depends on none"):
            piece()


def test_a_gradient_that_two_losses_share_is_not_passed_on_twice() -> None:
    p = oc.param("p", init=[1.0])
    shared = p * p
    losses = [oc.einsum("i=>0", shared), oc.einsum("i=>0", shared * 2.0)]

    @oc.cd
    def code(cleared: list[oc.Tensor]) -> None:
        for loss in losses:
            loss.forward()
            for each in cleared:
                each.zero_grads()
            loss.grad[:] = 1.0
            loss.backprop()

    with pytest.raises(oc.UsageError, match="passed on to operands once") as error:
        code([]).resolve()
    assert "gradient mul_grad" in error.value.found
    with pytest.raises(oc.UsageError, match="none replaces that of another one unread"):
        code(losses[1:]).resolve()
    code(losses).resolve()


def backpropagating() -> tuple[oc.Context, oc.Tensor, oc.Tensor, Callable[[], None]]:
    """Return a context, a parameter, a loss, and a function that sets the gradients of both."""
    p = oc.param("p", init=[3.0])
    loss = oc.einsum("i=>0", p * p)

    @oc.cd
    def start() -> None:
        loss.forward()
        loss.zero_grads()
        loss.grad[:] = 1.0

    ctx = oc.Context("interp")
    ctx.init_params(loss)
    tensors = [loss, *loss.operands, p]
    kept = [*tensors, *(each.grad for each in tensors if each.grad is not None)]
    return ctx, p, loss, ctx.compile(start(), name="start", keep=kept)


def test_a_gradient_with_sums_of_an_earlier_run_is_not_passed_on_again() -> None:
    ctx, p, loss, start = backpropagating()
    backward = ctx.compile(loss.backprop(), name="backward", keep=[p.grad])
    for _ in range(3):
        start()
        backward()
    assert ctx.item(p.grad) == 6
    with pytest.raises(oc.UsageError, match="passed on to operands once") as error:
        backward()
    assert "mul_grad" in error.value.found
    assert "backward, compiled at test_code_ownership.py" in error.value.found
    assert "running backward, compiled at test_code_ownership.py" in error.value.where
    assert ctx.item(p.grad) == 6


def test_two_routines_do_not_pass_on_one_gradient_unless_it_is_set_in_between() -> None:
    ctx, p, loss, start = backpropagating()
    shared = loss.operands[0]
    inner = shared * 2.0
    other = oc.einsum("i=>0", inner)

    @oc.cd
    def second() -> None:
        other.forward()
        inner.grad[:] = 0.0
        other.grad[:] = 1.0
        other.backprop()

    first = ctx.compile(loss.backprop(), name="first", keep=[p.grad])
    again = ctx.compile(second(), name="second")
    start()
    first()
    with pytest.raises(oc.UsageError, match="first, compiled at") as error:
        again()
    assert "running second, compiled at" in error.value.where
    ctx[shared.grad] = [0.0]
    again()
    assert ctx.item(p.grad) == 6 + 12


def test_gradients_of_parameters_add_up_over_runs() -> None:
    p = oc.param("p", init=[3.0])
    loss = oc.einsum("i=>0", p)

    @oc.cd
    def code() -> None:
        loss.forward()
        loss.grad[:] = 1.0
        loss.backprop()

    ctx = oc.Context("interp")
    ctx[p.grad] = [0.0]
    step = ctx.compile(code())
    ctx.init_params(loss)
    for _ in range(3):
        step()
    assert ctx.item(p.grad) == 3


def test_updates_of_nothing_are_refused() -> None:
    with pytest.raises(oc.UsageError, match="parameters that gradients flow into"):
        oc.train.sgd_update(oc.tensor([1.0]), learning_rate=0.1)


def test_empty_code_prints_that_and_warns() -> None:
    @oc.cd
    def nothing() -> None:
        pass

    code = nothing()
    assert str(code) == "nothing: nothing is assigned"
    with pytest.warns(UserWarning, match="the code nothing assigns nothing"):
        oc.Context("interp").compile(code)()


def test_empty_code_beside_other_code_is_fine(loss: oc.Tensor) -> None:
    @oc.cd
    def nothing() -> None:
        pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oc.Context("interp").compile(nothing() + oc.train.forward(loss))


def test_a_computation_lists_its_nodes_and_its_embedded_nodes(loss: oc.Tensor) -> None:
    program = oc.train.sgd_update(loss, learning_rate=0.1).resolve()
    (p,) = loss.params
    assert p.grad is not None
    assert p.grad.node in program.nodes
    assert p.grad.node not in program.embedded
    assert p.node in program.embedded


def test_a_training_step_prints_like_code(loss: oc.Tensor) -> None:
    step = oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    assert "\n".join(
        line for line in str(step).splitlines() if not line.lstrip().startswith("#")
    ) == snapshot("""\
sgd_update:
  mul: float32[2]
  p: float32[2]  # result
  p_grad: float32[2]  # input
  sgd_delta_p: float32[2]
  mul1: float32[2]
  sgd_momentum_p: float32[2]  # kept
  section "sgd_step p":
    mul[o] = 0.01 * p[o]   # over o<2
    sgd_delta_p[o] = p_grad[o] + mul[o]   # over o<2
    mul1[o] = 0.9 * sgd_momentum_p[o]   # over o<2
    sgd_momentum_p[o] = mul1[o] + sgd_delta_p[o]   # over o<2
    sgd_delta_p[o] = sgd_momentum_p[o]   # over o<2
    p[o] -= 0.1 * sgd_delta_p[o]   # over o<2\
""")


def test_an_origin_is_printed_once_above_its_assignments() -> None:
    x = oc.placeholder("x", output=[2])
    y = oc.tanh(x) * 2.0
    z = y - 1.0
    remarks = [line.strip() for line in str(oc.train.forward(z)).splitlines() if "  #" in line]
    assert [remark.split(": ")[-1] for remark in remarks if "test_code_ownership" in remark] == [
        "y = oc.tanh(x) * 2.0",
        "z = y - 1.0",
    ]


def test_gradients_that_nothing_contributes_to_are_not_passed_on() -> None:
    with oc.Session():
        p = oc.param("p", output=[4])
        height = oc.exp(p, label="height")
        loss = (p * oc.stop_gradient(height)).sum()
        step = oc.Context("interp:0").compile(oc.train.grad_update(loss))
    assert "height_grad[:] = 0.0" in step.assignments
    assert "height_grad[o]" not in step.assignments
