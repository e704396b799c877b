"""Means, variances and softmax along an einsum specification."""

from __future__ import annotations

import math
from collections.abc import Callable

from ocannl_core.assign.nodes import Constant, EmbedIndex
from ocannl_core.errors import ShapeError
from ocannl_core.indexing import variables
from ocannl_core.shape.projections import project
from ocannl_core.shape.terms import closed_shape
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.contractions import einmax, einsum
from ocannl_core.tensor.definitions import Applied
from ocannl_core.tensor.dimension import count
from ocannl_core.tensor.operands import as_tensor, fill_tensor
from ocannl_core.tensor.pointwise_operations import equal, exp, maximum, stop_gradient, where
from ocannl_core.tensor.tensor import Tensor

OVER_OUTPUTS = "...|... => ...|0"
"""Over all output axes, one number for each position of the batch."""


def mean(spec: str, x: Tensor) -> Tensor:
    """Return the mean of the cells that a specification sums up.

        mean("...|... => ...|0", x)          # over the output axes: shape b|n --> b|1

    The number of cells is that of the inferred shape: a constant of the compiled program, or for
    an axis whose extent is known at run time the value of the call.
    """
    total = as_tensor(einsum(spec, x), sessions.current())
    result: Tensor = total / _count_terms(total)
    return result


def variance(spec: str, x: Tensor, center: Tensor) -> Tensor:
    """Return the mean squared distance of the cells from a center, along a specification.

    Computed from the differences, not from the mean of the squares, which would cancel.
    """
    difference = x - center
    return mean(spec, difference * difference)


def softmax(spec: str, x: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return `exp(scale * x)` divided by its sum along a specification; the shape is that of `x`.

        softmax("...|... => ...|0", scores)                     # over the output axes
        softmax("... s | t -> h => ... s | 0 -> h", scores)     # over the input axis t

    The maximum is subtracted first, so that no exponential overflows. The result does not depend on
    it, and so no gradient flows through it.

    Cells of minus infinity have weight 0. Where all cells are, all weights are 0, and so are the
    gradients.

    Args:
        spec: A reduction of one operand, with 0 in the result for the axes that are summed.
        x: The scores.
        scale: A factor; the inverse of the temperature.
    """
    scaled = x if scale == 1 else scale * x
    greatest = stop_gradient(einmax(spec, scaled))
    is_finite = equal(greatest - greatest, 0.0)  # in every format: not all have infinities
    exponentials = exp(scaled - where(is_finite, greatest, 0.0))
    # the maximum alone makes the sum 1, or a little less where it is rounded
    result: Tensor = exponentials / maximum(einsum(spec, exponentials), 0.5)
    return result


def mean_and_correction(spec: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `mean(spec, x)`, and `n / (n - 1)` for the number n of cells that it is the mean of, a
    constant once shapes are closed.

    Raises:
        ShapeError: at compilation, if n is 1.
    """
    total = as_tensor(einsum(spec, x), sessions.current())

    def factor(count: int) -> float:
        if count == 1:
            raise ShapeError(
                "The variance of a batch needs two cells or more for each feature.",
                found=f"one cell for each feature of {x.shape}",
                where=str(total.origin),
                fix="train on larger batches; evaluate single examples inside "
                "`with oc.evaluation():`",
            )
        return count / (count - 1) if count else 1.0

    return total / _count_terms(total), _of_count(total, factor)


def _count_terms(total: Tensor) -> Tensor:
    """Return the number of terms of each cell of a sum: a constant once shapes are closed."""
    return _of_count(total, float)


def _of_count(total: Tensor, function: Callable[[int], float]) -> Tensor:
    """Return a function of the number of terms of each cell of a sum."""
    definition = total.definition
    assert isinstance(definition, Applied)
    logic, operands, origin = definition.logic, definition.operands, total.origin

    def terms() -> Constant | EmbedIndex:
        found = project(logic, total.shape, [operand.shape for operand in operands], origin)
        kept = {var for index in found.lhs for var in variables(index)}
        reduced = [(var, extent) for var, extent in found.domain if var not in kept]
        size = math.prod(extent for _, extent in reduced)
        extents = [var.size for var, _ in reduced if var.size is not None]
        if not extents:
            return Constant(function(size))
        if function is not float:
            raise ShapeError(
                "The correction of a variance is computed for a constant number of cells.",
                found=f"an axis of the extent {extents[0]}",
                where=str(origin),
                fix="give the axis a constant size where running statistics are updated",
            )
        return count(size, extents)

    return fill_tensor(total.session, terms, closed_shape(), total.dtype, "count")
