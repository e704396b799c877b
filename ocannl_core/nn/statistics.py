"""Means, variances and softmax along an einsum specification."""

from __future__ import annotations

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.reductions import count_terms, softmax_along
from ocannl_core.tensor.operations.reductions import mean_along as mean
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import as_tensor

OVER_OUTPUTS = "...|... => ...|0"
"""Over all output axes, one number for each position of the batch."""


def variance(spec: str, x: Tensor, center: Tensor) -> Tensor:
    """Return the mean squared distance of the cells from a center, along a specification.

    Computed from the differences, not from the mean of the squares, which would cancel.
    """
    difference = x - center
    return mean(spec, difference * difference)


def softmax(
    spec: str, x: Tensor | None = None, *, scale: float = 1.0, axis: object = None
) -> Tensor:
    """Return `exp(scale * x)` divided by its sum along a specification, in the shape of `x`.

        softmax("...|... => ...|0", scores)                     # over the output axes
        softmax("... s | t -> h => ... s | 0 -> h", scores)     # over the input axis t

    The maximum is subtracted first, so that no exponential overflows. The result does not depend on
    it, and so no gradient flows through it.

    Cells of minus infinity have weight 0. Where all cells are minus infinity, all weights are 0,
    and so are the gradients.

    Args:
        spec: A reduction of one operand, with 0 in the result for the axes that are summed.
        scale: A factor; the inverse of the temperature.
        axis: An argument of `oc.softmax`, refused with its name.
    """
    if not isinstance(spec, str) or x is None:
        raise UsageError.at_caller(
            "oc.nn.softmax takes a specification; along axes by number softmax is oc.softmax.",
            found="no specification" if axis is None else f"axis={axis!r}",
            fix="oc.softmax(x, axis=-1)",
        )
    return softmax_along(spec, x, scale)


def mean_and_correction(spec: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `mean(spec, x)`, and `n / (n - 1)` of n averaged cells, 1 of one cell."""
    total = as_tensor(einsum(spec, x), sessions.current())

    def check(count: int) -> None:
        if count == 1:
            raise ShapeError(
                "The variance of a batch needs two cells or more for each feature.",
                found=f"one cell for each feature of {x.shape}",
                where=str(total.origin),
                fix="train on larger batches; evaluate single examples inside "
                "`with oc.evaluation():`",
            )

    count = count_terms(total, check)
    return total / count, count / pointwise.maximum(count - 1.0, 1.0)
