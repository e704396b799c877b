"""Losses and metrics of predictions: one number for all examples, of shape `()`, or one for each.

Examples are positions of the batch; the output axes of a prediction are its classes or features.
Targets are not broadcast: a loss states the axes that predictions and targets have in common, and
information on sizes flows both ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal, get_args

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.shape.language.shape_terms import Size
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.activations import formats_of, logaddexp, widened
from ocannl_core.tensor.operations.axes import require_shapes, sized_axes_of
from ocannl_core.tensor.operations.contractions import einmax, einsum, where
from ocannl_core.tensor.operations.filled import full_like
from ocannl_core.tensor.operations.literals import number, offsets
from ocannl_core.tensor.operations.positions import checked, second, take_along
from ocannl_core.tensor.operations.reductions import argmax, in_format_of, log_softmax
from ocannl_core.tensor.operations.reductions import mean_along as mean
from ocannl_core.tensor.operations.repetition import pad
from ocannl_core.tensor.operations.scan import scan
from ocannl_core.tensor.primitives import pointwise_operations
from ocannl_core.tensor.primitives.operands import require_operand
from ocannl_core.tensor.primitives.operation import define_operation
from ocannl_core.tensor.primitives.pointwise_operations import exp, less, log1p, minimum, neg

Reduction = Literal["mean", "sum", "none"]

_PAIRED = "..b..|..i..->..o..; ..b..|..i..->..o.."
"""The shapes of predictions and of targets that are compared cell by cell."""

_NUMBERED = "..b..|_; ..b..|..t..->..u.."
"""The shapes of scores and of the numbers of true classes, whose other axes have size 1."""

_ALL = "...|...->... => "
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
        scores: Unnormalized logarithms of probabilities.
        targets: The true classes.
        smoothing: The probability that is spread evenly over all classes.
        ignore: A target whose examples do not count, such as -100; only beside integers.
        reduction: `"mean"` over the examples that count, `"sum"`, or `"none"` for one number each.

    Raises:
        UsageError: for a smoothing that is no probability, or `ignore` beside probabilities; and
            when the routine runs, if a target is the number of no class.
    """
    _check(scores, targets, "cross_entropy", reduction, has_classes=True)
    if not isinstance(smoothing, Real) or isinstance(smoothing, bool) or not 0 <= smoothing < 1:
        raise UsageError.at_caller(
            "Label smoothing is a probability below 1.",
            found=f"smoothing={smoothing!r}",
            fix="smoothing=0.1",
        )
    greatest = pointwise_operations.stop_gradient(einmax(_EACH, scores))
    is_finite = pointwise_operations.equal(greatest - greatest, 0.0)
    wide, narrow = formats_of(scores)
    # a difference may leave the range; where that is no infinity, it is computed in a wide one
    dtype = None if scores.dtype.has_infinities else wide
    shifted = pointwise_operations.sub(scores, where(is_finite, greatest, 0.0), dtype=dtype)
    exponentials = pointwise_operations.exp(shifted)
    total = pointwise_operations.log(einsum(_EACH, exponentials, dtype=wide))
    has_ids = targets.dtype.is_integer
    if ignore is not None and not has_ids:
        raise UsageError.at_caller(
            "An ignored class has a number: targets are integers.",
            found=f"ignore={ignore!r} beside targets of {targets.dtype}",
            fix="set the probabilities of such examples to 0",
        )
    if has_ids:
        chosen = _at_class(_known(targets, ignore), shifted)
        each: Tensor = pointwise_operations.sub(
            total, _smoothed(chosen, shifted, smoothing), dtype=narrow
        )
    else:
        logs = pointwise_operations.sub(shifted, total, dtype=narrow)
        each = -_smoothed(einsum(_EACH, targets * logs), logs, smoothing)
    return _reduced_counted(each, targets, ignore, reduction)


def _smoothed(chosen: Tensor, logs: Tensor, smoothing: float) -> Tensor:
    if not smoothing:
        return chosen
    return (1.0 - smoothing) * chosen + smoothing * mean(_EACH, logs)


def binary_cross_entropy(
    scores: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the cross entropy of independent events, from scores: `log(1 + exp(s)) - t * s`,
    computed as a sum of positive terms.

    Shapes: both equal, of any kind of axes. A mean is over all cells.

    Args:
        scores: Unnormalized logarithms of odds.
        targets: Probabilities.
        reduction: As for `cross_entropy`; `"none"` is one number for each cell.

    Raises:
        ShapeError: if the shapes differ.
    """
    _check(scores, targets, "binary_cross_entropy", reduction)
    return _reduced(_event_entropy(scores, targets), reduction)


def _entropy(v: Any, v1: Any, v2: Any) -> None:
    size, missed = abs(v1), where(less(v1, 0.0), v2, 1.0 - v2)
    v[:] = size * missed + log1p(exp(neg(size)))


def _entropy_gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    odds = exp(minimum(neg(v1), v1))  # has a derivative at 0, where `abs` has none
    share = odds / (1.0 + odds)
    g1 += g * where(less(v1, 0.0), share - v2, (1.0 - v2) - share)
    g2 -= g * v1


_event_entropy = define_operation(
    "binary_cross_entropy", forward=_entropy, gradient=_entropy_gradient
)


def mean_squared_error(
    predictions: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the squared differences of predictions and targets.

    Shapes, arguments and errors are as for `binary_cross_entropy`; predictions and targets are any
    numbers.
    """
    _check(predictions, targets, "mean_squared_error", reduction)
    difference = predictions - targets
    return _reduced(difference * difference, reduction)


def huber(
    predictions: Tensor, targets: Tensor, *, delta: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """Return half the squares of differences up to `delta`, continued linearly.

    Shapes and other arguments are as for `mean_squared_error`.

    Args:
        delta: The difference from which on the loss is linear.

    Raises:
        UsageError: if `delta` is not positive.
    """
    _check(predictions, targets, "huber", reduction)
    if not isinstance(delta, Real) or isinstance(delta, bool) or not delta > 0:
        raise UsageError.at_caller(
            "The square of a Huber loss ends at a positive difference.",
            found=f"delta={delta!r}",
            fix="delta=1.0",
        )
    difference = predictions - targets
    size = abs(difference)
    inside = pointwise_operations.minimum(size, delta)
    return _reduced(inside * (size - 0.5 * inside), reduction)


def hinge(scores: Tensor, signs: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Return `max(0, 1 - sign * score)` for signs of -1 and 1.

    Shapes, other arguments and errors are as for `binary_cross_entropy`.
    """
    _check(scores, signs, "hinge", reduction)
    return _reduced(pointwise_operations.maximum(1.0 - signs * scores, 0.0), reduction)


def kl_divergence(
    log_probabilities: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return the divergence of predicted from true distributions over the output axes.

    Shapes: both `...|classes`; one number for each example before the reduction. A class of
    probability 0 contributes 0.

    Args:
        log_probabilities: Logarithms of the predicted probabilities, as of `oc.log_softmax`.
        targets: The true probabilities.
        reduction: As for `cross_entropy`.
    """
    _check(log_probabilities, targets, "kl_divergence", reduction, has_classes=True)
    is_possible = targets > 0.0
    own = pointwise_operations.log(where(is_possible, targets, 1.0))
    each = einsum(_EACH, where(is_possible, targets * (own - log_probabilities), 0.0))
    return _reduced(each, reduction)


def ctc_loss(
    scores: Tensor,
    targets: Tensor,
    *,
    lengths: Tensor | None = None,
    target_lengths: Tensor | None = None,
    blank: int = 0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return `-log` of the probability of target sequences: connectionist temporal classification
    (Graves et al. 2006). The classes of the steps are a target after repetitions are merged and
    blanks are left out.

    Shapes: scores `t,...|classes`, as the results of `oc.nn.lstm`; targets `...,n|`, integers; one
    number for each sequence before the reduction, infinite if the steps are too few for the target.

    Args:
        scores: Unnormalized logarithms of the probabilities of the classes in each step.
        targets: The classes of each sequence, none of them blank.
        lengths: The number of steps of each sequence, integers `...|`; all of them by default.
        target_lengths: The number of classes of each target, likewise; those behind are not read.
        blank: The class of steps that stand for nothing.
        reduction: As for `cross_entropy`; the mean is over sequences, whatever their lengths.

    Raises:
        UsageError: if targets are no integers, or the blank is no class; when the routine runs, for
            the number of no class, or a length that the targets do not have.
        ShapeError: if the number of classes, or the sizes of the targets' axes, are unknown.
    """
    sizes = [each for each in (lengths, target_lengths) if each is not None]
    _check_sequences(scores, targets, sizes, reduction)
    count = sized_axes_of(scores, "oc.nn.ctc_loss").known_size(-1)
    if not isinstance(blank, Integral) or isinstance(blank, bool) or not 0 <= blank < count:
        raise UsageError.at_caller(
            "The blank is the number of a class.",
            found=f"blank={blank!r} beside {count} classes",
            fix=f"blank=0, or blank={count - 1} for the last class",
        )
    logs = log_softmax(widened(scores), axis=-1)
    classes = einsum("..., n| => ...|n", targets)
    if target_lengths is not None:  # what follows may be the number of no class
        places = offsets(output=[...], dtype=int32)
        is_own = less(places, target_lengths, logic="|n; ...| => ...|n")
        classes = where(is_own, classes, blank)
    first = pad(classes[..., :-1], (1, 0), axis=-1, value=blank)
    is_repeated = pointwise_operations.equal(classes, first)
    none = full_like(classes, -math.inf, dtype=logs.dtype)

    # the logarithms of the probabilities that a step ends behind k classes of the target, by
    # whether its own class is blank, for k from 0, or the last of these, for k from 1
    def step(state: Any, entry: Any) -> Any:
        at, (gaps, marks) = state
        blanks, own = entry
        moved = pad(marks, (1, 0), axis=-1, value=-math.inf)
        stays = logaddexp(marks, gaps[..., :-1])
        skips = where(is_repeated, -math.inf, moved[..., :-1])
        after = blanks + logaddexp(gaps, moved), own + logaddexp(stays, skips)
        if lengths is not None:
            is_inside = less(at, lengths)
            after = where(is_inside, after[0], gaps), where(is_inside, after[1], marks)
        return (at + 1, after), None

    entries = logs[..., blank : blank + 1], take_along(logs, classes, axis=-1)
    start = pad(none, (1, 0), axis=-1, value=0.0), none
    _, (_, (gaps, marks)) = scan(step, (number(0, dtype=int32), start), entries)
    marks = pad(marks, (1, 0), axis=-1, value=-math.inf)
    if target_lengths is None:
        ends = gaps[..., -1], marks[..., -1]
    else:
        last = einsum("...| => ...|0", target_lengths)
        ends = take_along(gaps, last, axis=-1)[..., 0], take_along(marks, last, axis=-1)[..., 0]
    each = neg(logaddexp(*ends), dtype=formats_of(scores)[1])
    return _reduced(each, reduction)


def accuracy(
    scores: Tensor, targets: Tensor, *, ignore: int | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """Return the fraction of examples whose true class has the highest score.

    Shapes: scores `...|classes`, targets `...|`, integers. Equal scores count as right.

    Args:
        scores: The scores of the classes.
        targets: The true classes.
        ignore: A target whose examples do not count, such as -100.
        reduction: As for `cross_entropy`; `"none"` is 1 for each example that is right.

    Raises:
        UsageError: if targets are no integers; when the routine runs, if one is no class.
    """
    _check_classes(scores, targets, "accuracy", reduction)
    # the cell of the true class is not exceeded by any
    exceeding = einmax(_EACH, scores) > scores
    wrong = _at_class(_known(targets, ignore), pointwise_operations.cast(exceeding, float32))
    return _reduced_counted(1.0 - wrong, targets, ignore, reduction)


def confusion(scores: Tensor, targets: Tensor, *, ignore: int | None = None) -> Tensor:
    """Return the confusion matrix: the number of examples of each true and predicted class.

    Shapes: scores `...|classes`, targets `...|`, integers; the result `|true,predicted`, int32. The
    predicted class is the first one with the highest score. Arguments and errors are as for
    `accuracy`.
    """
    _check_classes(scores, targets, "confusion", "none")
    is_true = _is_class(_known(targets, ignore), scores)
    if ignore is not None:
        is_true = is_true * pointwise_operations.cast(
            pointwise_operations.not_equal(targets, ignore), is_true.dtype
        )
    is_predicted = _is_class(argmax(scores, axis=-1), scores)
    return einsum("...|t; ...|p => t,p", is_true, is_predicted)


def perplexity(scores: Tensor, targets: Tensor, *, ignore: int | None = None) -> Tensor:
    """Return the exponential of the mean cross entropy, in number of equally likely classes.

    For several batches, average the cross entropies before the exponential, not the perplexities.
    Shapes, arguments and errors are as for `cross_entropy` with integer targets.
    """
    return pointwise_operations.exp(cross_entropy(scores, targets, ignore=ignore))


def _known(targets: Tensor, ignore: int | None) -> Tensor:
    """Return the numbers of the true classes, 0 for examples that do not count."""
    if ignore is None:
        return targets
    if not isinstance(ignore, Integral) or isinstance(ignore, bool):
        raise UsageError.at_caller(
            "An ignored target is an integer, as the numbers of classes are.",
            found=f"ignore={ignore!r}",
            fix="ignore=-100, with that number in the targets that do not count",
        )
    return where(pointwise_operations.equal(targets, ignore), 0, targets)


def _reduced_counted(
    each: Tensor, targets: Tensor, ignore: int | None, reduction: Reduction
) -> Tensor:
    """Reduce one number for each example, without the examples of an ignored target."""
    if ignore is None:
        return _reduced(each, reduction)
    counts = pointwise_operations.cast(pointwise_operations.not_equal(targets, ignore), each.dtype)
    each = where(counts, each, 0.0)
    if reduction != "mean":
        return _reduced(each, reduction)
    wide, _ = formats_of(each)
    total, count = (einsum(_ALL, terms, dtype=wide) for terms in (each, counts))
    return in_format_of(each, total / count)


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    match reduction:
        case "mean":
            return mean(_ALL, each)
        case "sum":
            return einsum(_ALL, each)
        case _:
            return each


def _at_class(ids: Tensor, x: Tensor) -> Tensor:
    """Return the cell of each example's class: `...|, ...|classes -> ...|`."""
    return einsum(_EACH, where(_is_class(ids, x), x, 0.0))


def _is_class(ids: Tensor, scores: Tensor) -> Tensor:
    """Return 1 at the class of each example, along the axis of the classes in scores."""
    _check_are_examples(ids)
    classes = offsets(output=[...], dtype="int32", label="classes")
    own = pointwise_operations.equal(classes, checked(ids, classes), logic="|c; ...| => ...|c")
    return second(scores, own, logic="...|c; ...|c => ...|c", dtype="int32")


def _check_are_examples(ids: Tensor) -> None:
    """Refuse numbers of classes along output or input axes, which are axes of one example."""
    axes = (*ids.shape.output.dims, *ids.shape.input.dims)
    if any(isinstance(axis, Size) and axis.n != 1 for axis in axes):
        raise ShapeError.at_caller(
            "The numbers of the true classes have batch axes only: one number for each example.",
            found=f"targets of shape {ids.shape}",
            fix='oc.tensor(ids, dtype="int32", batch_axes=1), or '
            'oc.placeholder("ids", batch=[...], dtype="int32")',
        )


def _check_classes(scores: object, targets: object, name: str, reduction: object) -> None:
    if isinstance(targets, Tensor) and not targets.dtype.is_integer:
        raise UsageError.at_caller(
            f"oc.nn.{name} compares scores with the numbers of the true classes.",
            found=f"targets of {targets.dtype}",
            fix='oc.tensor(ids, dtype="int32", batch_axes=1)',
        )
    _check(scores, targets, name, reduction, has_classes=True)


def _check_sequences(
    scores: object, targets: object, sizes: Sequence[object], reduction: object
) -> None:
    """Refuse arguments of `ctc_loss` of other kinds or shapes."""
    tensors = _checked((scores, targets, *sizes), "ctc_loss", reduction)
    for each in tensors[1:]:
        if not each.dtype.is_integer:
            raise UsageError.at_caller(
                "The classes of a target sequence, and lengths, are integers.",
                found=f"{each.describe()} of {each.dtype}",
                fix='dtype="int32"',
            )
    shapes = "; ".join(("t,..b..|c", "..b..,n|", *("..b..|" for _ in sizes)))
    try:
        require_shapes(shapes, *tensors)
    except ShapeError:
        names = ("scores", "targets", "a length", "a length")
        found = ", ".join(
            f"{name} of shape {each.shape}" for name, each in zip(names, tensors, strict=False)
        )
        raise ShapeError.at_caller(
            "Scores of steps have the time in front of the batch, as in t,b|classes, and targets "
            "have their classes behind it: b,n|. A length is one number for each sequence: b|.",
            found=found,
            fix="oc.tensor(targets, batch_axes=2), and batch_axes=1 for lengths",
        ) from None


def _checked(tensors: Sequence[object], name: str, reduction: object) -> list[Tensor]:
    """Return tensors, after a check of their kinds and of a reduction."""
    found = [require_operand(each, f"oc.nn.{name}") for each in tensors]
    if reduction not in get_args(Reduction):
        raise UsageError.at_caller(
            'The reduction of a loss is "mean", "sum" or "none".', found=f"reduction={reduction!r}"
        )
    return found


def _check(
    predictions: object, targets: object, name: str, reduction: object, *, has_classes: bool = False
) -> None:
    """Refuse arguments of other kinds, and shapes of which one would be broadcast."""
    predictions, targets = _checked((predictions, targets), name, reduction)
    for each in (predictions, targets):
        if each.is_determined:  # else an axis of size 1 would be stretched to fit the other one
            sized_axes_of(each, f"oc.nn.{name}")
    are_ids = has_classes and targets.dtype.is_integer
    if are_ids:
        _check_are_examples(targets)
    try:
        require_shapes(_NUMBERED if are_ids else _PAIRED, predictions, targets)
    except ShapeError:
        wanted = "a target of its own shape"
        fix = "oc.reshape, oc.broadcast_to or batch_axes= states the correspondence"
        if are_ids:
            wanted = "the number of its class"
        elif has_classes:
            fix = f'dtype="int32" for numbers of classes; for probabilities, {fix}'
        raise ShapeError.at_caller(
            f"oc.nn.{name} compares each example with {wanted}; none is broadcast.",
            found=f"predictions of shape {predictions.shape} and targets of shape {targets.shape}",
            fix=fix,
        ) from None
