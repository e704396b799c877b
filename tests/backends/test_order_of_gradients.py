"""The contributions to a gradient are added in one order, by backpropagation and in expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from tests.support.example_count import example_count

OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: (a + b) * a,
    lambda a, b: oc.tanh(a) * b,
    lambda a, b: a / (2.0 + b * b),
    lambda a, b: oc.einsum("i;i=>i", a, b) - a,
    lambda a, b: oc.maximum(a, b) * a,
)
SIZE = 5

Links = list[tuple[int, int, int]]
"""An operation, and the positions of its operands among the tensors so far, from the newest one."""


def gradients(links: Links, seed: int) -> list[tuple[bytes, bytes]]:
    """Return the gradients of two parameters, both ways."""
    rng = np.random.default_rng(seed)
    with oc.Session(), oc.settings.overrides(contract=False):
        parameters = [
            oc.param(name, init=oc.tensor((10.0 ** rng.uniform(-3, 1, SIZE)).astype(np.float32)))
            for name in ("p", "q")
        ]
        tensors: list[Any] = list(parameters)
        for operation, left, right in links:
            a, b = tensors[-1 - left % len(tensors)], tensors[-1 - right % len(tensors)]
            tensors.append(OPERATIONS[operation](a, b))
        loss = (tensors[-1] + parameters[0] * parameters[1]).sum()
        found = oc.gradients(loss, parameters)
        context = oc.Context()
        context.init_params(loss)
        context.compile(oc.train.grad_update(loss))()
        context.compile(oc.train.forward(found[0]) + oc.train.forward(found[1]))()
        return [
            (np.array(context[p.grad]).tobytes(), np.array(context[g]).tobytes())
            for p, g in zip(parameters, found, strict=True)
        ]


@settings(max_examples=example_count(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    links=st.lists(
        st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 6), st.integers(0, 6)),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1000),
)
def test_both_ways_to_a_gradient_add_in_one_order(links: Links, seed: int) -> None:
    for accumulated, expression in gradients(links, seed):
        assert accumulated == expression


def test_the_contribution_of_the_newest_use_comes_first() -> None:
    with oc.Session(), oc.settings.overrides(contract=False):
        p = oc.param("p", init=oc.tensor(np.ones(1, np.float32)))
        first, second, third = (p * factor for factor in (1.0, 2.0**24, -(2.0**24)))
        loss = (first + second + third).sum()
        context = oc.Context()
        context.init_params(loss)
        context.compile(oc.train.grad_update(loss))()
        # (-2**24 + 2**24) + 1, where (1 + 2**24) - 2**24 would be 0
        assert context[p.grad].item() == 1.0
