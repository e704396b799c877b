"""Comparison of gradients with central differences, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocannl_core.runtime.context import Context
from ocannl_core.tensor.computations.computation import forward, gradient_update
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.literals import tensor

Array = np.ndarray[Any, Any]
Point = Array | tuple[Array, int]
"""The cells of an operand: all axes are output axes, or the given number of trailing ones input."""


def check_gradients(
    function: Callable[..., Tensor],
    *points: Point,
    backend: str = "interp",
    step: float = 1e-6,
    tolerance: float = 1e-5,
) -> None:
    """Compare the gradients of a function of tensors with central differences.

    The function is differentiated at the points, weighted with numbers that differ from cell to
    cell, so that no error cancels. It must be smooth there: keep away from kinks by more than the
    step.

    Args:
        function: A function of as many tensors as there are points to one tensor.
        points: The cells of the operands.
        step: The distance by which cells are moved to either side.
        tolerance: The difference allowed, relative to the slope or to 1, whichever is larger.

    Raises:
        AssertionError: if a gradient is wrong; names the operand and the cell.
    """
    with Session(seed=7, dtype="float64"):
        start = [point if isinstance(point, tuple) else (point, 0) for point in points]
        operands = [
            param(f"p{i}", init=tensor(np.asarray(cells, np.float64), input_axes=axes))
            for i, (cells, axes) in enumerate(start, start=1)
        ]
        loss = weighted(function(*operands))
        context = Context(backend)
        gradients = [operand.grad for operand in operands if operand.grad is not None]
        differentiate = context.compile(gradient_update(loss), keep=[loss, *gradients])
        compute = context.compile(forward(loss))
        context.init_params(loss)
        for operand, (cells, _) in zip(operands, start, strict=True):
            context[operand] = np.asarray(cells, np.float64)
        differentiate()
        found = [context[gradient] for gradient in gradients]

        def value(operand: Tensor, cells: Array) -> float:
            context[operand] = cells
            compute()
            return context.item(loss)

        for position, (operand, (cells, _)) in enumerate(zip(operands, start, strict=True)):
            base = np.asarray(cells, np.float64)
            for cell in np.ndindex(base.shape):
                moved = np.zeros_like(base)
                moved[cell] = step
                slope = (value(operand, base + moved) - value(operand, base - moved)) / (2 * step)
                gradient = found[position][cell]
                if not abs(gradient - slope) <= tolerance * max(1.0, abs(slope)):
                    raise AssertionError(
                        f"operand {position + 1} at {list(cell)}: the gradient is {gradient}, the "
                        f"slope {slope}"
                    )
            context[operand] = base


def weighted(result: Tensor) -> Tensor:
    """Return the sum of the cells, each with a weight of its own."""
    dims = result.info.dims
    weights = np.random.default_rng(5).uniform(0.5, 1.5, dims)
    batch, inputs = len(result.shape.batch.sizes), len(result.shape.input.sizes)
    factor = tensor(weights, batch_axes=batch, input_axes=inputs, dtype="float64")
    total: Tensor = einsum("...|...->... => 0", result * factor)
    return total
