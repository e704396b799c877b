"""Losses and metrics of predictions: one number for all examples, or one for each.

Examples are positions of the batch; the output axes of a prediction are its classes or features.
"""

from __future__ import annotations

from numbers import Real
from typing import Literal, get_args

from ocannl_core.dtypes import float32
from ocannl_core.errors import UsageError
from ocannl_core.nn.statistics import mean
from ocannl_core.origin import caller_location
from ocannl_core.tensor.activations import softplus
from ocannl_core.tensor.computation import require_tensor
from ocannl_core.tensor.contractions import einmax, einsum, where
from ocannl_core.tensor.literals import offsets
from ocannl_core.tensor.pointwise_operations import (
    cast,
    equal,
    exp,
    log,
    maximum,
    minimum,
    not_equal,
    stop_gradient,
)
from ocannl_core.tensor.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]

_ALL = "...|...->... => 0"
_EACH = "...|... => ...|"


def cross_entropy(
    scores: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return `-log softmax(scores)` at the true classes.

    Shapes: scores `...|classes`; targets `...|`, integers, the numbers of the classes, or
    `...|classes`, probabilities. An example whose probabilities are 0 has the loss 0.

    Args:
        scores: Unnormalised logarithms of probabilities.
        targets: The true classes. The number of no class selects no score: the loss is then the
            logarithm of the sum of exponentials.
        smoothing: The probability that is spread evenly over all classes.
        ignore: The number of a class whose examples do not count; only beside integers.
        reduction: `"mean"` over the examples that count, `"sum"`, or `"none"` for one number each.

    Raises:
        UsageError: for a smoothing that is no probability, or `ignore` beside probabilities.
    """
    _check(scores, targets, "cross_entropy", reduction)
    if not isinstance(smoothing, Real) or isinstance(smoothing, bool) or not 0 <= smoothing < 1:
        raise UsageError(
            "Label smoothing is a probability below 1.",
            found=f"smoothing={smoothing!r}",
            where=str(caller_location() or ""),
            fix="smoothing=0.1",
        )
    greatest = stop_gradient(einmax(_EACH, scores))
    is_finite = equal(greatest - greatest, 0.0)
    shifted = scores - where(is_finite, greatest, 0.0)
    total = log(einsum(_EACH, exp(shifted)))
    has_ids = targets.dtype.is_integer
    if has_ids:
        is_own = equal(offsets(output=[...], dtype="int32"), targets)
        chosen = einsum(_EACH, where(is_own, shifted, 0.0))
        each: Tensor = total - _smoothed(chosen, shifted, smoothing)
    else:
        logs = shifted - total
        each = -_smoothed(einsum(_EACH, targets * logs), logs, smoothing)
    if ignore is None:
        return _reduced(each, reduction)
    if not has_ids:
        raise UsageError(
            "An ignored class has a number: targets are integers.",
            found=f"ignore={ignore!r} beside targets of {targets.dtype}",
            where=str(caller_location() or ""),
            fix="set the probabilities of such examples to 0",
        )
    counts = cast(not_equal(targets, ignore), each.dtype)
    each = where(counts, each, 0.0)
    if reduction != "mean":
        return _reduced(each, reduction)
    result: Tensor = einsum(_ALL, each) / einsum(_ALL, counts)
    return result


def _smoothed(chosen: Tensor, logs: Tensor, smoothing: float) -> Tensor:
    if not smoothing:
        return chosen
    result: Tensor = (1.0 - smoothing) * chosen + smoothing * mean(_EACH, logs)
    return result


def binary_cross_entropy(
    scores: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the cross entropy of independent events, from scores: `log(1 + exp(s)) - t * s`.

    Shapes: those of `scores` and of `targets`, which are probabilities, agree.
    """
    _check(scores, targets, "binary_cross_entropy", reduction)
    return _reduced(softplus(scores) - targets * scores, reduction)


def mean_squared_error(
    predictions: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the squares of the differences."""
    _check(predictions, targets, "mean_squared_error", reduction)
    difference = predictions - targets
    return _reduced(difference * difference, reduction)


def huber(
    predictions: Tensor, targets: Tensor, *, delta: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """Return half the squares of differences up to `delta`, continued linearly.

    Raises:
        UsageError: if `delta` is not positive.
    """
    _check(predictions, targets, "huber", reduction)
    if not isinstance(delta, Real) or isinstance(delta, bool) or not delta > 0:
        raise UsageError(
            "The square of a Huber loss ends at a positive difference.",
            found=f"delta={delta!r}",
            where=str(caller_location() or ""),
            fix="delta=1.0",
        )
    difference = predictions - targets
    size = abs(difference)
    inside = minimum(size, delta)
    return _reduced(inside * (size - 0.5 * inside), reduction)


def hinge(scores: Tensor, signs: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return `max(0, 1 - sign * score)` for signs of -1 and 1."""
    _check(scores, signs, "hinge", reduction)
    return _reduced(maximum(1.0 - signs * scores, 0.0), reduction)


def kl_divergence(
    log_probabilities: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the divergence of predicted from true distributions over the output axes.

    Shapes: both `...|classes`; one number for each example before the reduction. Classes of
    probability 0 count 0.
    """
    _check(log_probabilities, targets, "kl_divergence", reduction)
    is_possible = targets > 0.0
    own = log(where(is_possible, targets, 1.0))
    each = einsum(_EACH, where(is_possible, targets * (own - log_probabilities), 0.0))
    return _reduced(each, reduction)


def accuracy(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the fraction of examples whose true class has the highest score.

    Shapes: scores `...|classes`, targets `...|`, integers. Equal scores count as right.
    """
    _check(scores, targets, "accuracy", "mean")
    if not targets.dtype.is_integer:
        raise UsageError(
            "Accuracy compares scores with the numbers of the true classes.",
            found=f"targets of {targets.dtype}",
            where=str(caller_location() or ""),
            fix='oc.tensor(ids, dtype="int32", batch_axes=1)',
        )
    is_own = equal(offsets(output=[...], dtype="int32"), targets)
    # the cell of the true class is not exceeded by any
    exceeding = einmax(_EACH, scores) > scores
    wrong = einsum(_EACH, where(is_own, cast(exceeding, float32), 0.0))
    return mean(_ALL, 1.0 - wrong)


def perplexity(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the exponential of the mean cross entropy, in number of equally likely classes."""
    result: Tensor = exp(cross_entropy(scores, targets))
    return result


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    match reduction:
        case "mean":
            return mean(_ALL, each)
        case "sum":
            total: Tensor = einsum(_ALL, each)
            return total
        case _:
            return each


def _check(predictions: object, targets: object, name: str, reduction: object) -> None:
    require_tensor(predictions, f"oc.nn.{name}")
    require_tensor(targets, f"oc.nn.{name}")
    if reduction not in get_args(Reduction):
        raise UsageError(
            'The reduction of a loss is "mean", "sum" or "none".',
            found=f"reduction={reduction!r}",
            where=str(caller_location() or ""),
        )
