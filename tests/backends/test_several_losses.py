"""Gradients of several losses in one computation add up; an update of parameters ends the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.ir.assignments.traverse import leaves
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
Losses = tuple[oc.Tensor, oc.Tensor, oc.Tensor]
Code = Callable[[oc.Tensor, oc.Tensor], oc.Computation]

grad_update = oc.train.grad_update


def model() -> tuple[oc.Tensor, oc.Tensor, oc.Tensor, oc.Tensor]:
    """Return a parameter, a tensor that both losses are computed from, and the losses."""
    p = oc.param("p", init=[1.0, 2.0, 3.0])
    shared = oc.multiply(p, p, label="shared")
    first = oc.einsum("i; i => 0", shared, oc.param("q", init=[1.0, 2.0, 4.0]))
    return p, shared, first, oc.einsum("i => 0", shared * 3.0)


def gradients(target: str, code: Code, calls: int = 2) -> dict[str, list[float]]:
    """Return the gradients that are left, by name, and the parameters."""
    with oc.Session(dtype="float64"):
        p, shared, first, second = model()
        q = first.params["q"]
        ctx = oc.Context(target)
        kept = [p.grad, q.grad, shared.grad]
        step = ctx.compile(code(first, second), keep=kept)
        ctx.init_params(first)
        for _ in range(calls):
            step()
        names = ("p", "q", "shared")
        found = {name: ctx[each].tolist() for name, each in zip(names, kept, strict=True)}
        return found | {"value of p": ctx[p].tolist()}


def of_sum(first: oc.Tensor, second: oc.Tensor) -> oc.Computation:
    return grad_update(first + second)


SUMS: dict[str, Code] = {
    "one after the other": lambda a, b: grad_update(a) + grad_update(b),
    "in the other order": lambda a, b: grad_update(b) + grad_update(a),
    "with forward code in between": lambda a, b: (
        grad_update(a) + oc.train.forward(oc.exp(b)) + grad_update(b)
    ),
    "after forward code": lambda a, b: oc.train.forward(b) + grad_update(a) + grad_update(b),
}


@pytest.mark.parametrize("name", SUMS)
def test_gradients_of_losses_that_share_a_parameter_add_up(target: str, name: str) -> None:
    assert gradients(target, SUMS[name]) == gradients(target, of_sum)


def test_recorded_gradient_updates_add_up(target: str) -> None:
    def recorded(a: oc.Tensor, b: oc.Tensor) -> oc.Computation:
        @oc.cd
        def step() -> None:
            grad_update(a)
            grad_update(b)

        return step()

    assert gradients(target, recorded) == gradients(target, of_sum)


@pytest.mark.parametrize("style", ["sections", "other assignments"])
def test_gradients_of_parameters_add_up_across_other_code(target: str, style: str) -> None:
    def apart(a: oc.Tensor, b: oc.Tensor) -> oc.Computation:
        calls = oc.declare("calls", output=[1])

        @oc.cd
        def sections() -> None:
            for number, loss in enumerate((a, b)):
                with oc.section(f"loss {number}"):
                    grad_update(loss)

        @oc.cd
        def count() -> None:
            calls.accumulate(1.0)

        if style == "sections":
            return sections()
        return grad_update(a) + count() + grad_update(b)

    found, right = gradients(target, apart), gradients(target, of_sum)
    assert (found["p"], found["q"]) == (right["p"], right["q"])


def test_the_same_loss_twice_counts_twice(target: str) -> None:
    found = gradients(target, lambda a, _: grad_update(a) + grad_update(a))
    assert found == gradients(target, lambda a, _: grad_update(a + a))


@pytest.mark.parametrize("is_inner_first", [False, True])
def test_a_loss_that_is_computed_from_another_one_adds_its_gradients(
    target: str, is_inner_first: bool
) -> None:
    def nested(a: oc.Tensor, b: oc.Tensor) -> oc.Computation:
        outer = a * 2.0 + b
        pair = (a, outer) if is_inner_first else (outer, a)
        return grad_update(pair[0]) + grad_update(pair[1])

    assert gradients(target, nested) == gradients(target, lambda a, b: grad_update(a * 3.0 + b))


def test_after_an_update_of_parameters_gradients_begin_afresh(target: str) -> None:
    def stepwise(a: oc.Tensor, b: oc.Tensor) -> oc.Computation:
        return grad_update(a) + oc.train.sgd_update(a, learning_rate=0.125) + grad_update(b)

    found = gradients(target, stepwise, calls=1)
    moved = np.array([1.0, 2.0, 3.0]) - 0.125 * np.array([2.0, 8.0, 24.0])
    assert found["value of p"] == moved.tolist()
    assert found["p"] == (6.0 * moved).tolist()


@pytest.mark.parametrize("is_computed", [False, True])
def test_after_a_gradient_is_read_the_next_ones_begin_afresh(
    target: str, is_computed: bool
) -> None:
    with oc.Session(dtype="float64"):
        p, _, first, second = model()
        seen = oc.declare("seen", output=[3])

        @oc.cd
        def note() -> None:
            seen[:] = p.grad * 2.0 if is_computed else p.grad

        ctx = oc.Context(target)
        step = ctx.compile(grad_update(first) + note() + grad_update(second))
        ctx.init_params(first)
        step()
        of_first = np.array([2.0, 8.0, 24.0])
        assert ctx[seen].tolist() == (of_first * (2.0 if is_computed else 1.0)).tolist()
        assert ctx[p.grad].tolist() == [6, 12, 18]


def test_two_updates_in_turn_use_the_gradients_of_their_own_losses(target: str) -> None:
    """As a generator and a discriminator do, whose losses both reach both."""
    with oc.Session(dtype="float64"):
        p, q = oc.param("p", init=[2.0]), oc.param("q", init=[3.0])
        first, second = oc.einsum("i => 0", p * q), oc.einsum("i => 0", p * q * 10.0)

        @oc.cd
        def descend(parameter: oc.Tensor) -> None:
            parameter -= 0.5 * parameter.grad

        ctx = oc.Context(target)
        code = grad_update(first) + descend(p) + grad_update(second) + descend(q)
        step = ctx.compile(code)
        ctx.init_params(second)
        step()
        assert ctx.item(p) == 2.0 - 0.5 * 3.0
        assert ctx.item(q) == 3.0 - 0.5 * 10.0 * 0.5
        assert ctx.item(q.grad) == 10.0 * 0.5


def test_gradients_that_are_cleared_in_between_do_not_add_up(target: str) -> None:
    found = gradients(target, lambda a, b: grad_update(a) + a.zero_grads() + grad_update(b))
    alone = gradients(target, lambda a, b: a.zero_grads() + grad_update(b))
    assert found == alone


def test_losses_without_code_in_between_share_one_backpropagation() -> None:
    _, shared, first, second = model()
    code = (grad_update(first) + grad_update(second)).resolve()
    writes = [each.target.name for each in leaves(code.body)]
    assert writes.count("shared") == 1
    assert writes.count("p_grad") == 3  # cleared, and both factors of the square
    assert shared.grad is not None


FORMS: list[Callable[[oc.Tensor, oc.Tensor], oc.Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: oc.relu(a) - b,
    lambda a, b: oc.maximum(a, b),
    lambda a, b: oc.einsum("i => 0", a) + b,
    lambda a, _: oc.einmax("i => 0", a) * a,
]


@hypothesis_settings(
    max_examples=example_count(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(st.tuples(st.integers(0, 5), *[st.integers(0, 9)] * 2), min_size=2, max_size=6),
    chosen=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_gradients_of_any_losses_are_those_of_their_sum(
    steps: list[tuple[int, int, int]], chosen: list[int], seed: int
) -> None:
    """Of whole numbers, so that the order of additions changes nothing."""

    def found(is_sum: bool) -> list[Array]:
        with oc.Session(dtype="float64"):
            random = np.random.default_rng(seed)
            params = [oc.param(f"p{k}", init=random.integers(-2, 3, 3)) for k in range(2)]
            tensors = list(params)
            for form, left, right in steps:
                operands = tensors[left % len(tensors)], tensors[right % len(tensors)]
                tensors.append(FORMS[form](*operands))
            losses = [oc.einsum("...|... => 0", tensors[-1 - k % len(steps)]) for k in chosen]
            total = losses[0]
            for loss in losses[1:]:
                total = total + loss
            code = grad_update(losses[0])
            for loss in losses[1:]:
                code = code + grad_update(loss)
            wanted = [p.grad for p in total.params]
            ctx = oc.Context("interp")
            step = ctx.compile(grad_update(total) if is_sum else code, keep=wanted)
            ctx.init_params(total)
            step()
            return [ctx[each] for each in wanted]

    for one, other in zip(found(False), found(True), strict=True):
        np.testing.assert_array_equal(one, other)


def pieces(loss: oc.Tensor) -> None:
    loss.forward()
    loss.zero_grads()
    loss.grad[:] = 1.0
    loss.backprop()


def test_a_loss_does_not_clear_the_unread_gradients_of_another_one() -> None:
    with oc.Session():
        _p, _, first, second = model()

        @oc.cd
        def one_after_the_other() -> None:
            pieces(first)
            pieces(second)

        with pytest.raises(oc.UsageError, match=r"(?s)add up.*parameter p .*grad_update"):
            oc.Context("interp").compile(one_after_the_other())


def test_gradients_that_were_read_or_are_cleared_by_name_may_be_replaced(target: str) -> None:
    with oc.Session():
        p, _, first, second = model()
        seen = oc.declare("seen", output=[3])

        @oc.cd
        def read_in_between() -> None:
            pieces(first)
            seen[:] = p.grad
            pieces(second)

        @oc.cd
        def cleared_by_name() -> None:
            pieces(first)
            first.zero_grads()
            pieces(second)

        for code in (read_in_between, cleared_by_name):
            ctx = oc.Context(target)
            step = ctx.compile(code())
            ctx.init_params(first + second)
            step()
            assert ctx[p.grad].tolist() == [6, 12, 18]
