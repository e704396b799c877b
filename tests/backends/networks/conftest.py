"""Check of a network against a function written in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
Reference = Callable[..., Array]
Check = Callable[..., list[str]]
Compare = Callable[[oc.Tensor, Callable[..., Any]], list[str]]


def central_difference(function: Callable[[], float], cells: Array) -> Array:
    """Return the gradient with respect to cells that the function reads."""
    step = 1e-6
    gradient = np.zeros_like(cells)
    for at in np.ndindex(cells.shape):
        here = cells[at]
        ends = []
        for sign in (1, -1):
            cells[at] = here + sign * step
            ends.append(function())
        cells[at] = here
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def check_network(target: str, network: oc.Tensor, reference: Reference) -> list[str]:
    """Check the values of a network and the gradients of a weighted sum of them.

    Args:
        target: The device.
        network: The result, in float64.
        reference: Takes the parameters' cells, oldest first, and returns the result's.

    Returns the shapes of the parameters, oldest first.
    """
    ctx = oc.Context(target)
    params = sorted(network.params, key=lambda p: p.id)
    weights = oc.placeholder("weights", **rows(network))
    loss = oc.einsum("...|...->... => 0", network * weights)
    step = ctx.compile(oc.train.grad_update(loss), keep=[network, *(p.grad for p in params)])
    ctx.init_params(loss)
    rng = np.random.default_rng(7)
    values: list[Array] = []
    for p in params:
        values.append(rng.normal(scale=0.5, size=ctx[p].shape))
        ctx[p] = values[-1]
    expected = reference(*values)
    weighting = rng.normal(size=expected.shape)
    ctx[weights] = weighting
    step()
    np.testing.assert_allclose(ctx[network], expected, rtol=1e-10, atol=1e-12)
    for p, cells in zip(params, values, strict=True):
        gradient = central_difference(lambda: float(np.sum(reference(*values) * weighting)), cells)
        np.testing.assert_allclose(ctx[p.grad], gradient, rtol=2e-5, atol=2e-7, err_msg=str(p))
    return [str(p.shape) for p in params]


def rows(tensor: oc.Tensor) -> dict[str, Sequence[int]]:
    """Return the sizes of a tensor's rows, once they are inferred."""
    assert tensor.info.dims is not None
    shape = tensor.shape
    return {"batch": shape.batch.sizes, "input": shape.input.sizes, "output": shape.output.sizes}


@pytest.fixture
def check(target: str) -> Any:
    """Run `check_network` on the target, in a session of its own with float64."""
    with oc.Session(dtype="float64"):
        yield lambda network, reference: check_network(target, network, reference)


@pytest.fixture
def compare(target: str) -> Any:
    """Run a network of a session of its own, in float64, and compare it with PyTorch's."""
    with oc.Session(dtype="float64"):
        yield lambda network, reference: _compare(target, network, reference)


def _compare(target: str, network: oc.Tensor, reference: Callable[..., Any]) -> list[str]:
    """Check values and gradients; return the shapes of the parameters, oldest first.

    Args:
        target: The device.
        network: The result.
        reference: Takes the parameters as PyTorch's tensors, oldest first; returns the result.
    """
    torch = pytest.importorskip("torch")
    ctx = oc.Context(target)
    params = sorted(network.params, key=lambda p: p.id)
    weights = oc.placeholder("weights", **rows(network))
    loss = oc.einsum("...|...->... => 0", network * weights)
    step = ctx.compile(oc.train.grad_update(loss), keep=[network, *(p.grad for p in params)])
    ctx.init_params(loss)
    random = np.random.default_rng(7)
    values = []
    for p in params:
        ctx[p] = random.normal(scale=0.5, size=ctx[p].shape)
        values.append(torch.tensor(ctx[p], dtype=torch.float64, requires_grad=True))
    expected = reference(*values)
    weighting = random.normal(size=expected.shape)
    ctx[weights] = weighting
    (expected * torch.tensor(weighting)).sum().backward()
    step()
    np.testing.assert_allclose(ctx[network], expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    for p, value in zip(params, values, strict=True):
        gradient = value.grad.numpy()
        np.testing.assert_allclose(ctx[p.grad], gradient, rtol=1e-8, atol=1e-10, err_msg=str(p))
    return [str(p.shape) for p in params]
