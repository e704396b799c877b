"""Blocks and expressions for PyTorch's activations, layers and losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ocannl_core as oc
from ocannl_core import nn
from tests.judges.trial import Missing, Trial, adapter, same

# ----- activations --------------------------------------------------------------------------------

POINTWISE: dict[str, Callable[[Any, oc.Tensor], oc.Tensor]] = {
    "CELU": lambda m, x: oc.maximum(x, 0.0) + oc.minimum(m.alpha * oc.expm1(x / m.alpha), 0.0),
    "ELU": lambda m, x: oc.elu(x, alpha=m.alpha),
    "GELU": lambda m, x: oc.gelu(x, approximate=m.approximate),
    "Hardshrink": lambda m, x: oc.where(abs(x) > m.lambd, x, 0.0),
    "Hardswish": lambda m, x: oc.hardswish(x),
    "Hardtanh": lambda m, x: oc.clip(x, m.min_val, m.max_val),
    "LeakyReLU": lambda m, x: oc.leaky_relu(x, m.negative_slope),
    "LogSigmoid": lambda m, x: oc.log_sigmoid(x),
    "Mish": lambda m, x: oc.mish(x),
    "ReLU": lambda m, x: oc.relu(x),
    "ReLU6": lambda m, x: oc.relu6(x),
    "SELU": lambda m, x: oc.selu(x),
    "SiLU": lambda m, x: oc.silu(x),
    "Sigmoid": lambda m, x: oc.sigmoid(x),
    "Softplus": lambda m, x: oc.where(
        m.beta * x > m.threshold, x, oc.softplus(m.beta * x) / m.beta
    ),
    "Softshrink": lambda m, x: oc.where(abs(x) > m.lambd, x - m.lambd * oc.sign(x), 0.0),
    "Softsign": lambda m, x: oc.softsign(x),
    "Tanh": lambda m, x: oc.tanh(x),
    "Tanhshrink": lambda m, x: x - oc.tanh(x),
    "Threshold": lambda m, x: oc.where(x > m.threshold, x, m.value),
    "LogSoftmax": lambda m, x: oc.log_softmax(x, axis=m.dim),
    "Softmax": lambda m, x: oc.softmax(x, axis=m.dim),
    "Softmin": lambda m, x: oc.softmax(-x, axis=m.dim),
    "Softmax2d": lambda m, x: oc.softmax(x, axis=-3),
}


@adapter(*POINTWISE)
def pointwise(trial: Trial, x: Any) -> Any:
    module = trial.module
    if hasattr(module, "dim") and x.ndim == 0:
        raise Missing("an axis of a number")
    return POINTWISE[type(module).__name__](module, trial.leaf(x)), same


@adapter("GLU")
def glu(trial: Trial, x: Any) -> Any:
    ours, axis = trial.leaf(x), trial.module.dim % x.ndim
    half = x.shape[axis] // 2
    key = (slice(None),) * axis
    return ours[(*key, slice(0, half))] * oc.sigmoid(ours[(*key, slice(half, None))]), same


@adapter("PReLU")
def prelu(trial: Trial, x: Any) -> Any:
    weight = trial.module.weight
    shape = [1] * x.ndim
    if x.ndim > 1:
        shape[1] = weight.numel()
    slope = trial.leaf(weight, 0, convert=lambda cells: cells.reshape(shape))
    ours = trial.leaf(x, 0)
    return oc.where(ours > 0.0, ours, slope * ours), same


# ----- linear layers ------------------------------------------------------------------------------


@adapter("Linear")
def linear(trial: Trial, input: Any) -> Any:
    module = trial.module
    result = nn.dense(trial.leaf(input), output=[module.out_features], bias=module.bias is not None)
    trial.tie_by_order(result)
    return result, same


@adapter("Bilinear")
def bilinear(trial: Trial, one: Any, other: Any) -> Any:
    weight = oc.param("weight", output=list(trial.module.weight.shape))
    result = oc.einsum("...|i; |o,i,j; ...|j => ...|o", trial.leaf(one), weight, trial.leaf(other))
    if trial.module.bias is not None:
        result = result + oc.param("bias", output=[trial.module.bias.numel()])
    trial.tie_by_order(result)
    return result, same


@adapter("Embedding")
def embedding(trial: Trial, ids: Any) -> Any:
    module = trial.module
    sizes = {"entries": module.num_embeddings, "width": module.embedding_dim}
    result = nn.embedding(trial.leaf(ids, ids.ndim), **sizes)
    trial.tie_by_order(result)
    return result, same


# ----- normalisation ------------------------------------------------------------------------------


def normalised(trial: Trial, x: Any, axes: int, block: Callable[..., Any]) -> Any:
    if x.numel() == 0:
        raise Missing("a batch without cells")
    result = block(trial.images(x, axes))
    for path, tensor in result.params.items():
        theirs = getattr(trial.module, "weight" if path.endswith("gamma") else "bias", None)
        if theirs is not None:  # ours start as 1 and 0
            trial.tie(tensor, theirs)
    return result, lambda cells: np.moveaxis(cells, x.ndim - axes - 1, -1)


@adapter("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
def batch_norm(trial: Trial, x: Any) -> Any:
    axes = x.ndim - 2
    places = "".join(f"l{k}, " for k in range(axes))
    block = functools.partial(
        nn.batch_norm, axes=f"...|{places}c", features="c", epsilon=trial.module.eps
    )
    return normalised(trial, x, axes, block)


@adapter("GroupNorm")
def group_norm(trial: Trial, x: Any) -> Any:
    axes, module = x.ndim - 2, trial.module
    block = functools.partial(
        nn.group_norm, groups=module.num_groups, axes=axes, epsilon=module.eps
    )
    return normalised(trial, x, axes, block)


@adapter("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
def instance_norm(trial: Trial, x: Any) -> Any:
    axes = int(type(trial.module).__name__[-2])
    block = functools.partial(nn.instance_norm, axes=axes, epsilon=trial.module.eps)
    return normalised(trial, x, axes, block)


@adapter("LayerNorm", "RMSNorm")
def layer_norm(trial: Trial, x: Any) -> Any:
    if x.numel() == 0:
        raise Missing("a batch without cells")
    module = trial.module
    block = nn.layer_norm if isinstance(module, torch.nn.LayerNorm) else nn.rms_norm
    epsilon = torch.finfo(x.dtype).eps if module.eps is None else module.eps
    result = block(trial.leaf(x, x.ndim - len(module.normalized_shape)), epsilon=epsilon)
    for path, tensor in result.params.items():
        theirs = getattr(module, "weight" if path.endswith("gamma") else "bias", None)
        if theirs is not None:
            trial.tie(tensor, theirs)
    return result, same


# ----- convolution and pooling --------------------------------------------------------------------


def kernel_last(cells: Any) -> Any:
    """Return a kernel with the channels of the input last."""
    return np.moveaxis(cells, 1, -1)


@adapter(*(f"{lazy}Conv{axes}d" for axes in (1, 2, 3) for lazy in ("", "Lazy")))
def conv(trial: Trial, x: Any) -> Any:
    module, axes = trial.module, trial.module.weight.ndim - 2
    is_same = module.padding == "same"
    if not is_same and any(module.padding):
        raise Missing(f"padding={module.padding}")
    result = nn.conv(
        trial.images(x, axes),
        axes=axes,
        kernel=module.kernel_size,
        channels=module.out_channels,
        stride=module.stride,
        dilation=module.dilation,
        padded=is_same,
        groups=module.groups,
        bias=module.bias is not None,
    )
    trial.tie_by_order(result, weight=kernel_last)
    return result, lambda cells: np.moveaxis(cells, x.ndim - axes - 1, -1)


@adapter(*(f"{lazy}ConvTranspose{axes}d" for axes in (1, 2, 3) for lazy in ("", "Lazy")))
def transposed(trial: Trial, x: Any) -> Any:
    module, axes = trial.module, trial.module.weight.ndim - 2
    result = nn.conv(
        trial.images(x, axes),
        axes=axes,
        kernel=module.kernel_size,
        channels=module.out_channels,
        stride=module.stride,
        padded=False,
        transposed=True,
    )
    trial.tie_by_order(result, weight=lambda cells: np.moveaxis(np.swapaxes(cells, 0, 1), 1, -1))
    return result, lambda cells: np.moveaxis(cells, x.ndim - axes - 1, -1)


@adapter(*(f"{kind}Pool{axes}d" for axes in (1, 2, 3) for kind in ("Avg", "Max")))
def pool(trial: Trial, x: Any) -> Any:
    module = trial.module
    name = type(module).__name__
    axes = int(name[-2])
    each = [
        (n,) * axes if isinstance(n, int) else tuple(n)
        for n in (module.kernel_size, module.stride, module.padding)
    ]
    window, stride, padding = each
    ours = trial.images(x, axes)
    if any(padding):
        fill = 0.0 if name.startswith("Avg") else -math.inf
        widths = [(0, 0)] * (x.ndim - axes - 1) + [(n, n) for n in padding] + [(0, 0)]
        ours = oc.pad(ours, widths, value=fill)
    if getattr(module, "return_indices", False):
        raise Missing("return_indices")
    block = nn.avg_pool if name.startswith("Avg") else nn.max_pool
    # PyTorch leaves out windows that do not fit; here the rest is cut off first
    places = [
        (n - w) // s * s + w
        for n, w, s in zip(ours.shape[-1 - axes : -1], window, stride, strict=True)
    ]
    if getattr(module, "ceil_mode", False):
        raise Missing("ceil_mode")
    ours = ours[(..., *(slice(0, n) for n in places), slice(None))]
    result = block(ours, axes=axes, window=window, stride=stride)
    if getattr(module, "divisor_override", None):
        result = result * (math.prod(window) / module.divisor_override)
    return result, lambda cells: np.moveaxis(cells, x.ndim - axes - 1, -1)


@adapter(*(f"AdaptiveAvgPool{axes}d" for axes in (1, 2, 3)))
def adaptive(trial: Trial, x: Any) -> Any:
    axes, sizes = int(type(trial.module).__name__[-2]), trial.module.output_size
    sizes = (sizes,) * axes if isinstance(sizes, int) else tuple(sizes)
    found = x.shape[-axes:]
    sizes = tuple(n if m is None else m for n, m in zip(found, sizes, strict=True))
    if any(n % m for n, m in zip(found, sizes, strict=True)):
        raise Missing("windows of different sizes")
    window = [n // m for n, m in zip(found, sizes, strict=True)]
    result = nn.avg_pool(trial.images(x, axes), axes=axes, window=window)
    return result, lambda cells: np.moveaxis(cells, x.ndim - axes - 1, -1)


@adapter(*(f"{kind}Pad{axes}d" for axes in (1, 2, 3) for kind in ("Zero", "Constant")))
def pad(trial: Trial, x: Any) -> Any:
    pairs = np.reshape(trial.module.padding, (-1, 2))[::-1].tolist()
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [tuple(pair) for pair in pairs]
    return oc.pad(trial.leaf(x, 0), widths, value=float(getattr(trial.module, "value", 0.0))), same


# ----- losses -------------------------------------------------------------------------------------


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
        else oc.where(y > 0.0, y * (oc.log(oc.where(y > 0.0, y, 1.0)) - x), 0.0)
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


@adapter("CrossEntropyLoss", "NLLLoss")
def cross_entropy(trial: Trial, x: Any, targets: Any) -> Any:
    module, smoothing = trial.module, getattr(trial.module, "label_smoothing", 0.0)
    has_ids = not targets.is_floating_point()
    axis = 1 if x.ndim > 1 else 0
    last = lambda cells: np.moveaxis(cells, axis, -1)  # noqa: E731
    scores = trial.leaf(x, x.ndim - 1, convert=last)
    ignore = module.ignore_index if has_ids else None
    is_ignored = ignore is not None and bool((targets == ignore).any())
    if type(module).__name__ == "NLLLoss":  # of logarithms of probabilities
        ids = trial.leaf(targets, targets.ndim)
        chosen = oc.einsum("...|c; ...|c => ...|", scores, one_hot(ids, x.shape[axis]))
        return weighted_mean(module, -chosen, targets, ids)
    if module.weight is not None and (smoothing or not has_ids):
        raise Missing("weights of classes beside probabilities")
    ours = (
        trial.leaf(targets, targets.ndim)
        if has_ids
        else trial.leaf(targets, targets.ndim - 1, convert=last)
    )
    if module.weight is None:
        reduction = module.reduction
        options = {"ignore": ignore} if is_ignored else {}
        result = nn.cross_entropy(scores, ours, smoothing=smoothing, reduction=reduction, **options)
        return result, same
    each = nn.cross_entropy(scores, ours, reduction="none")
    return weighted_mean(module, each, targets, ours)


def one_hot(ids: oc.Tensor, classes: int) -> oc.Tensor:
    return oc.cast(oc.equal(oc.offsets(output=[classes], dtype="int32"), ids), "float64")


def weighted_mean(module: Any, each: oc.Tensor, targets: Any, ids: oc.Tensor) -> Any:
    """Return the sum of weighted losses by the sum of the weights."""
    weight = np.ones(targets.shape) * (targets.numpy() != module.ignore_index)
    if module.weight is not None:
        classes = np.clip(targets.numpy(), 0, len(module.weight) - 1)
        weight = weight * module.weight.numpy()[classes]
    each = each * oc.tensor(weight, batch_axes=targets.ndim)
    match module.reduction:
        case "mean":
            return oc.sum(each) / float(weight.sum()), same
        case "sum":
            return oc.sum(each), same
        case _:
            return each, same
