"""Blocks and losses beside PyTorch's modules, on the inputs of its own test suite.

    python tests/judges/modules.py [--backend interp] [--only Conv2d LSTM] [--most 40]

For every input of `torch.testing._internal.common_modules.module_db`, the module's parameters are
copied to the block, and the outputs and the gradients of a weighted sum of them are compared in
float64. A line for each module counts the inputs that agree; `--verbose` shows the others.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_modules import module_db

import ocannl_core as oc
from ocannl_core import nn


class Missing(Exception):
    """An option that blocks do not have."""


class Trial:
    """One input of a module, and the tensors that stand for PyTorch's.

    Attributes:
        module: The module.
        pairs: Tensors, PyTorch's for them, and the conversion of arrays to the layout of the first.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.pairs: list[tuple[oc.Tensor, Any, Callable[[Any], Any]]] = []

    def leaf(self, x: Any, batch: int | None = None, *, convert: Any = None) -> oc.Tensor:
        """Return an input; all axes but the last are batch axes unless stated."""
        change = convert or (lambda cells: cells)
        cells = change(x.detach().numpy())
        if np.isnan(cells).any():
            raise Missing("data with NaN")
        axes = max(0, cells.ndim - 1) if batch is None else batch
        if not x.is_floating_point():
            return oc.tensor(cells.astype(np.int32), batch_axes=axes, dtype="int32")
        made = oc.tensor(cells, batch_axes=axes, requires_grad=True)
        self.pairs.append((made, x, change))
        return made

    def images(self, x: Any, axes: int) -> oc.Tensor:
        """Return features with channels last."""
        batch = x.ndim - axes - 1
        return self.leaf(x, batch, convert=lambda cells: np.moveaxis(cells, batch, -1))

    def tie(self, tensor: oc.Tensor, parameter: Any, convert: Any = None) -> None:
        """State that a parameter has the value of PyTorch's."""
        self.pairs.append((tensor, parameter, convert or (lambda cells: cells)))

    def tie_by_order(self, result: oc.Tensor, **conversions: Any) -> None:
        """Tie parameters to those of the module of the same name."""
        own = dict(self.module.named_parameters())
        names = {"gamma": "weight", "beta": "bias", "table": "weight"}
        for path, tensor in result.params.items():
            name = path.rsplit(".", 1)[-1]
            theirs = own.get(names.get(name, name))
            if theirs is not None:
                self.tie(tensor, theirs, conversions.get(name))


Adapter = Callable[..., tuple[oc.Tensor, Callable[[Any], Any]]]
ADAPTERS: dict[str, Adapter] = {}


def same(cells: Any) -> Any:
    return cells


def adapter(*names: str) -> Callable[[Adapter], Adapter]:
    def register(function: Adapter) -> Adapter:
        ADAPTERS.update(dict.fromkeys(names, function))
        return function

    return register


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


# ----- recurrent networks -------------------------------------------------------------------------


def gates(count: int) -> Any:
    """Return the conversion of stacked gates to an axis of gates."""
    return lambda cells: (
        cells if count == 1 else cells.reshape(count, cells.shape[0] // count, *cells.shape[1:])
    )


@adapter("RNNCell", "GRUCell", "LSTMCell")
def cell(trial: Trial, x: Any, state: Any = None) -> Any:
    module = trial.module
    name = type(module).__name__
    width = {"width": module.hidden_size}
    if name == "RNNCell":
        width["activation"] = getattr(oc, module.nonlinearity)
    block = {"RNNCell": nn.rnn_cell, "GRUCell": nn.gru_cell, "LSTMCell": nn.lstm_cell}[name]
    zero = oc.tensor(np.zeros((*x.shape[:-1], module.hidden_size)), batch_axes=x.ndim - 1)
    given = [
        trial.leaf(s) for s in (state if isinstance(state, tuple) else (state,)) if s is not None
    ]
    pair = name == "LSTMCell"
    first = (tuple(given) if pair else given[0]) if given else ((zero, zero) if pair else zero)
    _, output = block(first, trial.leaf(x), **width)
    change = gates({"RNNCell": 1, "GRUCell": 3, "LSTMCell": 4}[name])
    trial.tie_by_order(
        output, **dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), change)
    )
    return output, same


@adapter("RNN", "GRU", "LSTM")
def recurrent(trial: Trial, xs: Any, state: Any = None) -> Any:
    module = trial.module
    name = type(module).__name__
    if getattr(module, "proj_size", 0):
        raise Missing("proj_size")
    swap = (lambda c: np.swapaxes(c, 0, 1)) if module.batch_first and xs.ndim == 3 else same
    ours = trial.leaf(xs, convert=swap)
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = None
    if state is not None:
        both = [trial.leaf(s) for s in (state if isinstance(state, tuple) else (state,))]
        each = [tuple(s[k] for s in both) for k in range(count)]
        states = each if name == "LSTM" else [one for (one,) in each]
    options: dict[str, Any] = (
        {"activation": getattr(oc, module.nonlinearity)} if name == "RNN" else {}
    )
    block = {"RNN": nn.rnn, "GRU": nn.gru, "LSTM": nn.lstm}[name]
    outputs, _ = block(
        ours,
        states,
        width=module.hidden_size,
        layers=module.num_layers,
        bidirectional=module.bidirectional,
        **options,
    )
    own = dict(module.named_parameters())
    change = gates({"RNN": 1, "GRU": 3, "LSTM": 4}[name])
    for path, tensor in outputs.params.items():
        *_, layer, leaf = path.split(".")
        theirs = own.get(f"{leaf}_{layer}")
        if theirs is not None:
            trial.tie(tensor, theirs, change)
    return outputs, swap


# ----- transformers -------------------------------------------------------------------------------


def allowed(mask: Any, padding: Any, heads: int, queries: int) -> oc.Tensor | None:
    """Return the mask of allowed pairs for PyTorch's masks of hidden ones."""
    if mask is None and padding is None:
        return None

    def is_seen(given: Any) -> Any:
        cells = given.numpy()
        if given.dtype == torch.bool:
            return ~cells
        if not np.isin(cells, (0.0, -np.inf)).all():
            raise Missing("a mask that is added to scores")
        return cells == 0.0

    seen: Any = np.ones((), bool)
    if mask is not None:
        seen = is_seen(mask)
        if seen.ndim == 3:
            seen = seen.reshape(-1, heads, *seen.shape[1:])
            seen = np.moveaxis(seen, 1, 2)  # batch, queries, heads, keys
    if padding is not None:
        kept = is_seen(padding)
        seen = np.broadcast_to(seen, (queries, kept.shape[-1])) if seen.ndim < 3 else seen
        seen = seen & (kept[..., None, :] if seen.ndim < 4 else kept[..., None, None, :])
    if not seen.any(-1).all():
        raise Missing("a query without keys")
    if mask is not None and mask.ndim == 3:
        if padding is None or padding.ndim == 1:
            seen = seen if seen.shape[0] > 1 else seen[0]
        return oc.tensor(seen.astype(np.uint8), batch_axes=seen.ndim - 2, input_axes=1)
    return oc.tensor(seen.astype(np.uint8), batch_axes=seen.ndim - 1, input_axes=1)


def tie_attention(trial: Trial, params: Any, module: Any, prefix: str) -> None:
    """Tie the products of an attention to PyTorch's stacked ones."""
    heads = module.num_heads
    for number, each in enumerate("qkv"):
        part = slice(number * module.embed_dim, (number + 1) * module.embed_dim)

        def change(cells: Any, part: slice = part) -> Any:
            cells = cells[part]
            return cells.reshape(heads, -1, *cells.shape[1:])

        if module.in_proj_weight is None:
            raise Missing("kdim and vdim")
        trial.tie(params[f"{prefix}w_{each}"], module.in_proj_weight, change)
        if module.in_proj_bias is not None:
            trial.tie(params[f"{prefix}b_{each}"], module.in_proj_bias, change)
    split = lambda cells: cells.reshape(cells.shape[0], heads, -1)  # noqa: E731
    trial.tie(params[f"{prefix}w_o"], module.out_proj.weight, split)
    if module.out_proj.bias is not None:
        trial.tie(params[f"{prefix}b_o"], module.out_proj.bias)


def batch_first(module: Any, x: Any) -> Any:
    is_first = getattr(module, "batch_first", True)
    return same if is_first or x.ndim < 3 else (lambda cells: np.swapaxes(cells, 0, 1))


@adapter("MultiheadAttention")
def attention(
    trial: Trial,
    q: Any,
    k: Any,
    v: Any,
    key_padding_mask: Any = None,
    attn_mask: Any = None,
    **_: Any,
) -> Any:
    module = trial.module
    if module.bias_k is not None or module.add_zero_attn:
        raise Missing("add_bias_kv and add_zero_attn")
    if k is not v and not torch.equal(k, v):
        raise Missing("values of another sequence than keys")
    change = batch_first(module, q)
    x, memory = trial.leaf(q, convert=change), trial.leaf(k, convert=change)
    mask = allowed(attn_mask, key_padding_mask, module.num_heads, change(q.detach()).shape[-2])
    result = nn.multi_head_attention(
        x,
        mask,
        memory,
        heads=module.num_heads,
        output=[module.embed_dim],
        bias=module.in_proj_bias is not None,
        label="attention",
    )
    tie_attention(trial, result.params, module, "attention.")
    return result, change


def layer_options(layer: Any) -> dict[str, Any]:
    activation = layer.activation
    return {
        "heads": layer.self_attn.num_heads,
        "hidden": layer.linear1.out_features,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
        "activation": oc.gelu if "gelu" in str(activation) else oc.relu,
        "norm": functools.partial(nn.layer_norm, epsilon=layer.norm1.eps),
    }


def tie_layer(trial: Trial, params: Any, layer: Any, prefix: str) -> None:
    tie_attention(trial, params, layer.self_attn, f"{prefix}attention.")
    if hasattr(layer, "multihead_attn"):
        tie_attention(trial, params, layer.multihead_attn, f"{prefix}cross_attention.")
    for name, module in layer.named_children():
        if name.startswith(("linear", "norm")):
            for ours, theirs in (
                ("weight", "weight"),
                ("bias", "bias"),
                ("gamma", "weight"),
                ("beta", "bias"),
            ):
                value = getattr(module, theirs)
                if f"{prefix}{name}.{ours}" in params and value is not None:
                    trial.tie(params[f"{prefix}{name}.{ours}"], value)


@adapter("TransformerEncoderLayer")
def encoder_layer(
    trial: Trial,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    layer = trial.module
    change = batch_first(layer.self_attn, src)
    mask = allowed(
        src_mask, src_key_padding_mask, layer.self_attn.num_heads, change(src.detach()).shape[-2]
    )
    result = nn.transformer_layer(
        trial.leaf(src, convert=change), mask, **layer_options(layer), label="layer"
    )
    tie_layer(trial, result.params, layer, "layer.")
    return result, change


@adapter("TransformerDecoderLayer")
def decoder_layer(
    trial: Trial,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    **_: Any,
) -> Any:
    layer = trial.module
    heads, change = layer.self_attn.num_heads, batch_first(layer.self_attn, tgt)
    queries = change(tgt.detach()).shape[-2]
    masks = [
        allowed(tgt_mask, tgt_key_padding_mask, heads, queries),
        allowed(memory_mask, memory_key_padding_mask, heads, queries),
    ]
    result = nn.transformer_layer(
        trial.leaf(tgt, convert=change),
        masks[0],
        trial.leaf(memory, convert=change),
        masks[1],
        **layer_options(layer),
        label="layer",
    )
    tie_layer(trial, result.params, layer, "layer.")
    return result, change


# ----- the comparison -----------------------------------------------------------------------------


def compare(trial: Trial, adapted: Adapter, forward: Any, backend: str) -> str:
    """Return the reason for a disagreement, or nothing."""
    expected = trial.module(*forward.args, **forward.kwargs)
    expected = expected[0] if isinstance(expected, tuple) else expected
    with oc.Session(dtype="float64"):
        result, change = adapted(trial, *forward.args, **forward.kwargs)
        ctx = oc.Context(backend)
        rng = np.random.default_rng(0)
        weights = rng.normal(size=np.shape(change(expected.detach().numpy())))
        assert result.info
        dims = result.shape
        weighting = oc.placeholder(
            "weighting", batch=dims.batch.sizes, output=dims.output.sizes, input=dims.input.sizes
        )
        loss = oc.einsum("...|...->... => 0", result * weighting)
        grads = [tensor.grad for tensor, theirs, _ in trial.pairs if theirs.requires_grad]
        step = ctx.compile(oc.train.grad_update(loss), keep=[result, *grads])
        ctx.init_params(loss)
        for tensor, theirs, convert in trial.pairs:
            if tensor.is_parameter:
                ctx[tensor] = convert(theirs.detach().numpy()).reshape(tensor.info.dims)
        ctx[weighting] = weights.reshape(weighting.info.dims)
        step()
        ours = ctx[result].reshape(weights.shape)
        if not np.allclose(ours, change(expected.detach().numpy()), rtol=1e-7, atol=1e-9):
            return "another output"
        wanted = [(t, x, c) for t, x, c in trial.pairs if x.requires_grad]
        back = torch.tensor(weights)
        moved = torch.tensor(np.ascontiguousarray(_undo(change, weights, expected)))
        (expected * (moved if moved.shape == expected.shape else back)).sum().backward()
        for tensor, theirs, convert in wanted:
            if theirs.grad is None:
                continue
            gradient = convert(theirs.grad.numpy())
            if not np.allclose(ctx[tensor.grad].reshape(gradient.shape), gradient, 1e-6, 1e-8):
                return f"another gradient of {tensor.label[0]}"
    return ""


def _undo(change: Any, cells: Any, like: Any) -> Any:
    """Return cells in the layout before a conversion that permutes them."""
    order = change(np.arange(like.numel()).reshape(like.shape))
    result = np.empty(like.numel())
    result[order.ravel()] = cells.ravel()
    return result.reshape(like.shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--most", type=int, default=40, help="inputs of each module")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    for info in module_db:
        name = info.name.split(".")[1]
        if arguments.only and name not in arguments.only:
            continue
        torch.manual_seed(0)
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=True
        )[: arguments.most]
        outcomes: Counter[str] = Counter()
        for each in inputs:
            outcome = judge(info, name, each, arguments.backend)
            kind = "agree" if outcome == "" else outcome.split(":")[0]
            outcomes[kind] += 1
            if arguments.verbose and kind == "differ":
                print(f"    {name}: {outcome}")
        reasons = ", ".join(f"{n} {kind}" for kind, n in outcomes.items() if kind != "agree")
        print(f"{name:24} {outcomes['agree']:4} of {len(inputs):4}  {reasons}", flush=True)
        total.update(outcomes)
        total["modules"] += outcomes["agree"] == len(inputs)
    print(
        f"{total['agree']} inputs agree in outputs and gradients, {total['differ']} differ, "
        f"{total['missing']} have options that blocks lack, {total['unmapped']} are of other modules; "
        f"{total['modules']} modules agree in all inputs"
    )
    return int(total["differ"] > 0)


def judge(info: Any, name: str, each: Any, backend: str) -> str:
    """Return the outcome of one input."""
    adapted = ADAPTERS.get(name)
    if adapted is None:
        return "unmapped"
    module = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs)
    module = module.double().train()
    try:
        with torch.no_grad():
            module(*each.forward_input.args, **each.forward_input.kwargs)  # lazy parameters
        if hasattr(module, "reset_running_stats"):
            module.reset_running_stats()
        return (
            f"differ: {reason}"
            if (reason := compare(Trial(module), adapted, each.forward_input, backend))
            else ""
        )
    except Missing as missing:
        return f"missing: {missing}"
    except Exception as error:
        return f"differ: {type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
