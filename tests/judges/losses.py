"""Losses and expressions for PyTorch's losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core import nn
from tests.judges.trial import Trial, adapter, same

ROWS = "...|... => ...|"
"""The sum over the classes of each example."""


def reduced(trial: Trial, each: oc.Tensor) -> Any:
    match trial.module.reduction:
        case "mean":
            return oc.mean(each), same
        case "sum":
            return oc.sum(each), same
        case "batchmean":
            return oc.sum(each) / (each.shape[0] if len(each.shape) else 1), same
        case _:
            return each, same


DISTANCES: dict[str, Callable[[Any, oc.Tensor, oc.Tensor], oc.Tensor]] = {
    "L1Loss": lambda m, x, y: abs(x - y),
    "MSELoss": lambda m, x, y: nn.mean_squared_error(x, y, reduction="none"),
    "HuberLoss": lambda m, x, y: nn.huber(x, y, delta=m.delta, reduction="none"),
    "SmoothL1Loss": lambda m, x, y: (
        nn.huber(x, y, delta=m.beta, reduction="none") / m.beta if m.beta else abs(x - y)
    ),
    "SoftMarginLoss": lambda m, x, y: oc.softplus(-y * x),
    "PoissonNLLLoss": lambda m, x, y: (
        (oc.exp(x) - y * x if m.log_input else x - y * oc.log(x + m.eps)) + _stirling(m, y)
    ),
    "BCELoss": lambda m, x, y: _weighted(
        m, -y * oc.maximum(oc.log(x), -100.0) - (1.0 - y) * oc.maximum(oc.log(1.0 - x), -100.0)
    ),
    "BCEWithLogitsLoss": lambda m, x, y: _weighted(
        m, nn.binary_cross_entropy(x, y, reduction="none")
    ),
    "KLDivLoss": lambda m, x, y: (
        oc.exp(y) * (y - x)
        if m.log_target
        else oc.where(y == 0.0, 0.0, y * (oc.log(oc.where(y == 0.0, 1.0, y)) - x))
    ),
    "HingeEmbeddingLoss": lambda m, x, y: oc.where(y > 0.0, x, oc.maximum(m.margin - x, 0.0)),
}


def _stirling(module: Any, y: oc.Tensor) -> Any:
    if not module.full:
        return 0.0
    more = y * oc.log(y) - y + 0.5 * oc.log(2.0 * math.pi * y)
    return oc.where(y > 1.0, more, 0.0)


def _weighted(module: Any, each: oc.Tensor) -> oc.Tensor:
    if module.weight is None:
        return each
    weight = module.weight.numpy()
    return each * (oc.tensor(weight) if weight.ndim else float(weight))


@adapter(*DISTANCES)
def distance(trial: Trial, x: Any, y: Any) -> Any:
    name = type(trial.module).__name__
    return reduced(trial, DISTANCES[name](trial.module, trial.leaf(x), trial.leaf(y)))


@adapter("MarginRankingLoss")
def ranking(trial: Trial, one: Any, other: Any, y: Any) -> Any:
    difference = trial.leaf(one) - trial.leaf(other)
    return reduced(trial, oc.maximum(trial.module.margin - trial.leaf(y) * difference, 0.0))


@adapter("GaussianNLLLoss")
def gaussian(trial: Trial, x: Any, y: Any, variance: Any) -> Any:
    module = trial.module
    spread = oc.maximum(trial.leaf(variance), module.eps)
    difference = trial.leaf(x) - trial.leaf(y)
    each = 0.5 * (oc.log(spread) + difference * difference / spread)
    return reduced(trial, each + 0.5 * math.log(2 * math.pi) if module.full else each)


@adapter("CosineEmbeddingLoss")
def cosine(trial: Trial, one: Any, other: Any, y: Any) -> Any:
    a, b, sign = trial.leaf(one), trial.leaf(other), trial.leaf(y, y.ndim)
    product, first, second = (oc.einsum(ROWS, c) for c in (a * b, a * a, b * b))
    angle = product / oc.sqrt((first + 1e-12) * (second + 1e-12))
    apart = oc.where(sign == -1.0, oc.maximum(angle - trial.module.margin, 0.0), 0.0)
    return reduced(trial, oc.where(sign == 1.0, 1.0 - angle, apart))


@adapter("MultiLabelSoftMarginLoss")
def soft_labels(trial: Trial, x: Any, y: Any) -> Any:
    scores, truths = trial.leaf(x), oc.cast(trial.leaf(y), "float64")
    each = nn.binary_cross_entropy(scores, truths, reduction="none")
    return reduced(trial, oc.einsum(ROWS, _weighted(trial.module, each)) / float(x.shape[-1]))


@adapter("MultiMarginLoss")
def multi_margin(trial: Trial, x: Any, y: Any) -> Any:
    module, classes = trial.module, x.shape[-1]
    scores, is_own = trial.leaf(x), one_hot(trial.leaf(y, y.ndim), classes)
    own = oc.einsum(ROWS, scores * is_own)
    excess = oc.maximum(module.margin - own + scores, 0.0) ** float(module.p)
    each = oc.einsum(ROWS, excess * (1.0 - is_own)) / float(classes)
    if module.weight is not None:
        each = each * oc.einsum("...|c; |c => ...|", is_own, oc.tensor(module.weight.numpy()))
    return reduced(trial, each)


@adapter("MultiLabelMarginLoss")
def multi_label_margin(trial: Trial, x: Any, y: Any) -> Any:
    scores, ids = trial.leaf(x), trial.leaf(y, y.ndim)
    before_end = oc.cumprod(oc.cast(ids >= 0, "float64"), axis=-1)
    chosen = one_hot(ids, x.shape[-1]) * before_end
    own = oc.einsum("... k|c; ...|c => ... k|", chosen, scores)
    is_other = 1.0 - oc.einmax("... k|c => ...|c", chosen)
    pairs = oc.maximum(1.0 - own + oc.einsum("...|c => ... 0|c", scores), 0.0)
    each = oc.einsum("... k|c; ... k|; ...|c => ...|", pairs, before_end, is_other)
    return reduced(trial, each / float(x.shape[-1]))


def one_hot(ids: oc.Tensor, classes: int) -> oc.Tensor:
    return oc.cast(oc.equal(oc.primitives.offsets(output=[classes], dtype="int32"), ids), "float64")


def last_classes(x: Any) -> Callable[[Any], Any]:
    """Return the conversion of scores to classes last: PyTorch has them after the batch."""
    axis = 1 if x.ndim > 1 else 0
    return lambda cells: np.moveaxis(cells, axis, -1)


@adapter("NLLLoss")
def likelihood(trial: Trial, x: Any, targets: Any) -> Any:
    scores = trial.leaf(x, x.ndim - 1, convert=last_classes(x))
    given, classes = trial.module.weight, scores.shape[-1]
    weight = oc.tensor(np.ones(classes) if given is None else given.numpy())
    is_own = one_hot(trial.leaf(targets, targets.ndim), classes)
    chosen = oc.einsum("...|c; ...|c; |c => ...|", scores, is_own, weight)
    return weighted_mean(trial.module, -chosen, targets)


@adapter("CTCLoss")
def alignment(trial: Trial, logs: Any, targets: Any, counts: Any, lengths: Any) -> Any:
    """PyTorch divides each loss by the length of its target before the mean."""
    module = trial.module
    # PyTorch's gradient holds for results of its softmax alone
    scores = logs.grad_fn.next_functions[0][0].variable
    given = targets.numpy().astype(np.int64)
    sizes = [int(n) for n in lengths]
    if given.ndim == 1:
        ends = np.cumsum(sizes)
        rows = [given[b - n : b] for n, b in zip(sizes, ends, strict=True)]
    else:
        rows = [row[:n] for n, row in zip(sizes, given, strict=True)]
    ids = np.full((len(rows), max(sizes)), -1)
    for own, row in zip(ids, rows, strict=True):
        own[: len(row)] = row
    each = nn.ctc_loss(
        trial.leaf(scores),
        oc.tensor(ids, batch_axes=2, dtype="int32"),
        lengths=oc.tensor(np.array([int(n) for n in counts]), batch_axes=1, dtype="int32"),
        target_lengths=oc.tensor(np.array(sizes), batch_axes=1, dtype="int32"),
        blank=module.blank,
        reduction="none",
    )
    if module.reduction == "mean":
        return oc.mean(each / oc.tensor(np.array(sizes, float), batch_axes=1)), same
    return (oc.sum(each) if module.reduction == "sum" else each), same


@adapter("CrossEntropyLoss")
def cross_entropy(trial: Trial, x: Any, targets: Any) -> Any:
    scores = trial.leaf(x, x.ndim - 1, convert=last_classes(x))
    return entropy(trial, scores, targets, last_classes(x))


@adapter("LinearCrossEntropyLoss")
def linear_cross_entropy(trial: Trial, x: Any, targets: Any) -> Any:
    module = trial.module
    classes, inner = module.num_classes, list(module.out_features)
    weight = oc.param("weight", output=[*inner, classes], input=[x.shape[-1]])
    own = module.linear.weight

    def layout(cells: Any) -> Any:
        return np.moveaxis(cells.reshape(classes, *inner, *cells.shape[1:]), 0, len(inner))

    trial.tie(weight, own, layout)
    axes = [f"o{k}" for k in range(len(inner))]
    row = "".join(f"{axis}, " for axis in axes)
    batch = "".join(f", {axis}" for axis in axes)
    scores = oc.einsum(f"...|n; n -> {row}c => ...{batch}|c", trial.leaf(x), weight)
    if module.linear.bias is not None:
        bias = oc.param("bias", output=[*inner, classes])
        trial.tie(bias, module.linear.bias, layout)
        scores = scores + oc.einsum(f"{row}c => {', '.join(axes)}|c", bias)
    return entropy(trial, scores, targets, last_classes(x))


def entropy(trial: Trial, scores: oc.Tensor, targets: Any, convert: Any) -> Any:
    """Return the cross entropy, by `oc.nn.cross_entropy` where no class has a weight."""
    module, smoothing = trial.module, trial.module.label_smoothing
    has_ids = not targets.is_floating_point()
    batch = targets.ndim if has_ids else targets.ndim - 1
    truths = trial.leaf(targets, batch, convert=None if has_ids else convert)
    ignore = module.ignore_index if has_ids else None
    is_ignored = ignore is not None and bool((targets == ignore).any())
    if module.weight is None:
        options: dict[str, Any] = {"ignore": ignore} if is_ignored else {}
        options |= {"smoothing": smoothing, "reduction": module.reduction}
        return nn.cross_entropy(scores, truths, **options), same
    classes = scores.shape[-1]
    logs, weight = oc.log_softmax(scores, axis=-1), oc.tensor(module.weight.numpy())
    shares = one_hot(truths, classes) if has_ids else truths
    own = oc.einsum("...|c; ...|c; |c => ...|", logs, shares, weight)
    even = oc.einsum("...|c; |c => ...|", logs, weight) / float(classes)
    each = -((1.0 - smoothing) * own + smoothing * even)
    if has_ids:
        return weighted_mean(module, each, targets)
    if module.reduction == "mean":
        return oc.sum(each) / float(math.prod(tuple(each.shape))), same
    return reduced(trial, each)


def weighted_mean(module: Any, each: oc.Tensor, targets: Any) -> Any:
    """Return the sum of the losses that count, by the sum of the weights of their classes."""
    counts = 1.0 * (targets.numpy() != module.ignore_index)
    each = each * oc.tensor(counts, batch_axes=targets.ndim)
    if module.weight is None:
        total = counts.sum()
    else:
        classes = np.clip(targets.numpy(), 0, len(module.weight) - 1)
        total = (counts * module.weight.numpy()[classes]).sum()
    if module.reduction == "mean":
        return oc.sum(each) / float(total), same
    return (oc.sum(each) if module.reduction == "sum" else each), same
