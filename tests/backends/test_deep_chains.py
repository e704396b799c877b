"""Long chains of operations: any depth compiles, with an effort linear in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from benchmarks import transformer

LINKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scaled": lambda m, y, x: y * 0.75 + 0.25,
    "mixed": lambda m, y, x: m.sin(y * x) + 0.5,
    "shared": lambda m, y, x: y * y - x,
    "chosen": lambda m, y, x: m.where(m.less(y, 0.5), y + x, y - 0.5),
}
START = np.linspace(0.1, 0.9, 7)


def chain(m: Any, link: Callable[[Any, Any, Any], Any], x: Any, depth: int) -> Any:
    y = x
    for _ in range(depth):
        y = link(m, y, x)
    return y


@pytest.mark.parametrize(("name", "cells"), [*((name, 7) for name in LINKS), ("shared", 1)])
def test_a_chain_of_200_links_agrees_with_numpy(target: str, name: str, cells: int) -> None:
    start = START[:cells]
    x = oc.tensor(start, dtype="float64")
    y = chain(oc, LINKS[name], x, 200)
    context = oc.Context(target)
    context.compile(oc.train.forward(y))()
    expected = chain(np, LINKS[name], start, 200)
    np.testing.assert_allclose(context[y], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mixed", "chosen"])
def test_gradients_of_a_chain_of_120_links_agree_with_its_slope(target: str, name: str) -> None:
    x = oc.param("x", init=oc.tensor(START, dtype="float64"), dtype="float64")
    y = chain(oc, LINKS[name], x, 120)
    loss = oc.einsum("... => 0", y)
    context = oc.Context(target)
    step = context.compile(oc.train.grad_update(loss))
    context.init_params(loss)
    step()
    value, slope = START, np.ones_like(START)
    for _ in range(120):
        shift = 1e-20j  # the imaginary part is the derivative: no difference is taken
        moved = chain_link(name, value + shift * slope, START + shift)
        slope = moved.imag / 1e-20
        value = moved.real
    np.testing.assert_allclose(context[x.grad], slope, rtol=1e-6, atol=1e-9)


def chain_link(name: str, y: Any, x: Any) -> Any:
    """Return a link in complex numbers, which NumPy does not order."""
    if name == "chosen":
        return np.where(y.real < 0.5, y + x, y - 0.5)
    return LINKS[name](np, y, x)


def test_a_chain_compiles_far_down_the_call_stack(target: str) -> None:
    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            y = chain(oc, LINKS["mixed"], oc.tensor(START, dtype="float64"), 300)
            context = oc.Context(target)
            context.compile(oc.train.forward(y))()
            expected = chain(np, LINKS["mixed"], START, 300)
            np.testing.assert_allclose(context[y], expected, rtol=1e-9, atol=1e-12)

    deeper(sys.getrecursionlimit() // 4)


def test_the_code_of_an_operation_may_be_a_chain_of_1000_primitives(target: str) -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = chain(oc, LINKS["scaled"], v1, 500)

    def gradient(g: Any, g1: Any, v1: Any) -> None:
        g1 += g * chain(oc, LINKS["scaled"], v1, 500)

    x = oc.param("x", init=oc.tensor(START, dtype="float64"), dtype="float64")
    y = oc.define_operation("chain", forward=forward, gradient=gradient)(x)
    loss = oc.sum(y)
    context = oc.Context(target)
    step = context.compile(oc.train.grad_update(loss), keep=[y, x.grad])
    context.init_params(loss)
    step()
    expected = chain(np, LINKS["scaled"], START, 500)
    np.testing.assert_allclose(context[y], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(context[x.grad], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "cells"), [("mixed", 7), ("chosen", 7), ("shared", 1)])
def test_four_times_the_links_take_four_times_the_calls(name: str, cells: int) -> None:
    calls_for(name, cells, 5)  # warms up imports and caches
    few, many = calls_for(name, cells, 15), calls_for(name, cells, 60)
    assert many < 4.3 * few


def calls_for(name: str, cells: int, depth: int) -> int:
    """Return the number of Python calls that building and compiling a chain takes."""
    context = oc.Context("interp")

    def compiled() -> None:
        x = oc.param("x", init=oc.tensor(START[:cells], dtype="float64"), dtype="float64")
        y = chain(oc, LINKS[name], x, depth)
        context.compile(oc.train.grad_update(oc.einsum("... => 0", y)))

    return calls_in(compiled)


def calls_in(run: Callable[[], object]) -> int:
    """Return the number of Python calls that a function makes."""
    count = 0

    def counted(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def test_a_layer_of_a_transformer_takes_few_calls_until_its_assignments() -> None:
    calls_of_transformer(1)  # warms up imports and caches
    per_layer = (calls_of_transformer(4) - calls_of_transformer(2)) / 2
    assert per_layer < 90_000


def test_calls_of_a_stack_grow_with_the_number_of_its_tensors() -> None:
    calls_of_stack(2)  # warms up imports and caches
    assert calls_of_stack(40) < 2.4 * calls_of_stack(20)


def test_calls_of_gradients_of_a_stack_grow_with_the_number_of_its_parameters() -> None:
    calls_of_gradients(2)  # warms up imports and caches
    assert calls_of_gradients(80) < 2.4 * calls_of_gradients(40)


def calls_of_gradients(parts: int) -> int:
    """Return the number of Python calls that the assignments of a stack's gradients take."""
    with oc.Session():
        given = [oc.param(f"x{i}", output=[3]) for i in range(parts)]
        return calls_in(
            lambda: oc.train.grad_update(oc.einsum("... => 0", oc.tensor(given))).resolve()
        )


def calls_of_stack(parts: int) -> int:
    """Return the number of Python calls that building and compiling a stack takes."""
    with oc.Session():
        context = oc.Context("interp")
        given = [oc.placeholder(f"x{i}", output=[3]) for i in range(parts)]
        return calls_in(lambda: context.compile(oc.train.forward(oc.stack(given, axis=0))))


def calls_of_transformer(layers: int) -> int:
    """Return the number of Python calls that the assignments of a transformer's training take."""
    with oc.Session():
        return calls_in(lambda: oc.train.grad_update(transformer.loss(layers)).resolve())
