"""Random choices by scores."""

from __future__ import annotations

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.tensor.computations.computation import require_tensor
from ocannl_core.tensor.graph.expression import Operand
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import sized_axes_of
from ocannl_core.tensor.operations.random import Counter, uniform_of, words_of
from ocannl_core.tensor.operations.reductions import argmax
from ocannl_core.tensor.operations.required_shapes import require_shapes
from ocannl_core.tensor.primitives.pointwise_operations import cast, log, maximum

_SMALLEST = {float32: 2.0**-25, float64: 2.0**-54}
"""At most half of the least uniform number above 0, in place of 0."""


def categorical(
    scores: Tensor, *, axis: int = -1, temperature: Operand = 1.0, counter: Counter | None = None
) -> Tensor:
    """Return a position along an axis, drawn with probability `softmax(scores / temperature)`, as
    an integer of 32 bits.

    It is the position of the greatest sum of a score and a random number of Gumbel's distribution,
    so that no probabilities are computed, and a score of minus infinity is never chosen.

    Args:
        scores: The logarithms of probabilities, up to a term that is the same along the axis.
        temperature: A number or a tensor of one cell. At 0 the result is the position of the
            greatest score.
        counter: As for `uniform`: with another number in each call, calls draw independently.

    Raises:
        UsageError: if the scores are no floats, or the temperature is a negative number.
    """
    require_tensor(scores, "oc.categorical")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not scores.dtype.is_float or (is_number and not temperature >= 0):
        raise UsageError.at_caller(
            "A choice has scores that are floats, and a temperature of 0 or more.",
            found=f"scores of {scores.dtype}, temperature={temperature!r}",
            fix="oc.categorical(scores, temperature=0.8)",
        )
    return drawn_position(scores, axis, temperature, counter)


def drawn_position(
    scores: Tensor,
    axis: int,
    temperature: Operand,
    counter: Counter | None,
    identity: Tensor | None = None,
) -> Tensor:
    """Return a position as `categorical` does, by the random numbers of an identity."""
    sized_axes_of(scores, "oc.categorical")
    working = float64 if scores.dtype is float64 else float32
    drawn = uniform_of(words_of(identity, counter), dtype=working)
    noise = -log(maximum(-log(maximum(drawn, _SMALLEST[working])), _SMALLEST[working]))
    noisy = cast(scores, working) + temperature * noise
    # neither the random numbers nor their sum with the scores have other axes
    require_shapes("; ".join(["..b..|..n..->..i.."] * 3), scores, noise, noisy)
    found: Tensor = argmax(noisy, axis=axis)
    return found
