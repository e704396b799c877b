"""Loops over time beside unrolled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ocannl_core as oc

Array = np.ndarray[Any, Any]
Step = Callable[[Any, Any], tuple[Any, Any]]
KEEP = ("carry", "reductions", "all")


def total(x: oc.Tensor) -> oc.Tensor:
    found: oc.Tensor = oc.einsum("...|...->... => 0", x)
    return found


def normal(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=dims).astype(np.float32)


def unrolled(step: Step, carry: Any, xs: oc.Tensor, count: int, *, reverse: bool = False) -> Any:
    """Return the values of all steps, in the order of positions, and the last carry."""
    values: list[Any] = [None] * count
    for position in reversed(range(count)) if reverse else range(count):
        carry, values[position] = step(carry, xs[position])
    return values, carry


def computed(
    target: str, feeds: dict[oc.Tensor, Array], *results: oc.Tensor
) -> tuple[list[Array], oc.Context]:
    """Return the cells of some tensors."""
    ctx = oc.Context(target)
    for placeholder, cells in feeds.items():
        ctx[placeholder] = cells
    code = oc.train.forward(results[0])
    for each in results[1:]:
        code += oc.train.forward(each)
    for each in results:
        ctx.init_params(each)
    ctx.compile(code)()
    return [ctx[each] for each in results], ctx


def differentiated(
    target: str, feeds: dict[oc.Tensor, Array], loss: oc.Tensor
) -> tuple[float, dict[str, Array], Any]:
    """Return a loss, the gradients of its parameters by name, and the routine."""
    ctx = oc.Context(target)
    for placeholder, cells in feeds.items():
        ctx[placeholder] = cells
    ctx.init_params(loss)
    routine = ctx.compile(oc.train.grad_update(loss))
    routine()
    gradients = {p.label[0]: ctx[p.grad] for p in loss.params if p.grad is not None}
    return ctx.item(loss), gradients, routine


def assert_same_gradients(
    target: str, feeds: dict[oc.Tensor, Array], loss: oc.Tensor, expected: oc.Tensor
) -> None:
    found, gradients, _ = differentiated(target, feeds, loss)
    wanted, others, _ = differentiated(target, feeds, expected)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert gradients.keys() >= others.keys()
    for name, cells in gradients.items():
        wanted_cells = others.get(name, np.zeros_like(cells))  # a loop reads every initial carry
        np.testing.assert_allclose(cells, wanted_cells, rtol=2e-4, atol=1e-5, err_msg=name)


def recurrence(steps: int) -> tuple[oc.Tensor, oc.Tensor]:
    xs = oc.placeholder("xs", batch=[steps, 2], output=[3])
    w, u = oc.param("w", output=[4], input=[3]), oc.param("u", output=[4], input=[4])
    ys, _ = oc.scan(lambda h, x: (oc.tanh(w @ x + u @ h), h), oc.param("h0", output=[4]), xs)
    return xs, total(ys * ys)
