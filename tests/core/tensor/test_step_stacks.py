"""Sums into gradients that run behind a loop over time, and those that stay in its steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import ocannl_core as oc
from tests.support.loops import total

Step = Callable[[oc.Tensor, oc.Tensor], tuple[oc.Tensor, oc.Tensor]]


def sums_into(name: str, loss: oc.Tensor, **settings: Any) -> list[tuple[int, str]]:
    """Return the sums into a gradient: how many loops are around, and the text."""
    with oc.settings.overrides(**settings):
        code = oc.Context("interp").compile(oc.train.grad_update(loss)).assignments
    assert code is not None
    body = code[code.index('section "backpropagate"') :].splitlines()
    found, depth = [], 0
    for line in body:
        indent = (len(line) - len(line.lstrip()) - 4) // 2
        depth = min(depth, indent)
        if line.lstrip().startswith("repeat"):
            depth = indent + 1
        elif f"{name}_grad[" in line and "+=" in line:
            found.append((depth, line.split("   #")[0].strip()))
    return found


def recurrence(step: Step, *, batch: int, width: int = 64, keep: str = "reductions") -> oc.Tensor:
    xs = oc.placeholder("xs", batch=[5, batch], output=[3])
    ys, _ = oc.scan(step, oc.param("h0", output=[width]), xs, keep=keep)
    return total(ys * ys)


def rnn() -> Step:
    w, u = oc.param("w", input=[3]), oc.param("u")

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        h = oc.tanh(w @ x + u @ h)
        return h, h

    return step


def test_sums_over_steps_read_their_operands_from_stacks() -> None:
    loss = recurrence(rnn(), batch=2)
    assert sums_into("u", loss) == [
        (0, "u_grad[o, i] += add_grad_steps[t2, b, o] * carry_steps[t2, b, i]")
    ]
    # the gradient of the sum is stored for u, and the entries are an input of the program
    assert sums_into("w", loss) == [(0, "w_grad[o, i] += add_grad_steps[t2, b, o] * xs[t2, b, i]")]


def test_a_sum_that_is_not_far_larger_than_its_operands_stays_in_the_step() -> None:
    ((depth, _),) = sums_into("u", recurrence(rnn(), batch=3))
    assert depth == 1


def test_a_loop_that_keeps_nothing_but_carries_stores_no_operands() -> None:
    ((depth, _),) = sums_into("u", recurrence(rnn(), batch=1, keep="carry"))
    assert depth == 1


@pytest.mark.parametrize(("budget", "around"), [("1M", 0), (0, 1)])
def test_stacks_fit_a_memory_budget(budget: str | int, around: int) -> None:
    ((depth, _),) = sums_into("u", recurrence(rnn(), batch=1), memory_budget=budget)
    assert depth == around


def test_each_value_of_an_operand_that_changes_has_a_stack() -> None:
    """A layer of two equal parts adds two products to the gradient, of two states."""
    u = oc.param("u")

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        h = oc.tanh(u @ oc.tanh(u @ h)) + oc.sum(x)
        return h, h

    found = sums_into("u", recurrence(step, batch=1))
    assert [depth for depth, _ in found] == [0, 0]
    assert len({text.split("+=")[1] for _, text in found}) == 2


def test_a_loop_inside_of_a_step_hands_its_sums_on() -> None:
    """The sum behind the inner loop is a sum of the outer step, over stacks of all inner steps."""
    u = oc.param("u")

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        _, h = oc.scan(lambda c, _: (oc.tanh(u @ c), None), h, length=2)
        h = h + oc.sum(x)
        return h, h

    ((depth, text),) = sums_into("u", recurrence(step, batch=1, width=128))
    assert depth == 0
    assert len(re.findall(r"\[t\d+, t\d+, ", text)) == 2


def with_gradients_of_entries(batch: int) -> oc.Tensor:
    """Return a loss of a recurrence whose entries are computed from a parameter."""
    u, w = oc.param("u"), oc.param("w", input=[3])
    xs = oc.placeholder("xs", batch=[5, batch], output=[3])

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        h = oc.tanh(x + u @ h)
        return h, h

    ys, _ = oc.scan(step, oc.param("h0", output=[64]), w @ xs)
    return total(ys * ys)


def test_a_sum_of_more_terms_stays_in_the_step() -> None:
    ((depth, _),) = sums_into("u", with_gradients_of_entries(17))
    assert depth == 1


def test_gradients_of_entries_serve_as_stacks() -> None:
    """The sum of a large batch needs no memory either: its operand is the gradient of the input."""
    loss = with_gradients_of_entries(16)
    assert sums_into("u", loss) == [
        (0, "u_grad[o, i] += add_grad_steps[t2, b, o] * carry_steps[t2, b, i]")
    ]
    (passed,) = (each for each in sums_into("matmul", loss) if "steps" in each[1])
    assert passed == (0, "matmul_grad[t2, b, o] += add_grad_steps[t2, b, o]")
