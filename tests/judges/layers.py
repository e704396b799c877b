"""Blocks and expressions for PyTorch's activations, layers and losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ocannl_core as oc
from ocannl_core import nn
from tests.judges.trial import Missing, Trial, adapter, same

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


def normalized(trial: Trial, x: Any, axes: int, block: Callable[..., Any]) -> Any:
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
        nn.batch_norm, shape=f"...|{places}c", features="c", epsilon=trial.module.eps
    )
    return normalized(trial, x, axes, block)


@adapter("GroupNorm")
def group_norm(trial: Trial, x: Any) -> Any:
    axes, module = x.ndim - 2, trial.module
    block = functools.partial(
        nn.group_norm, groups=module.num_groups, axes=axes, epsilon=module.eps
    )
    return normalized(trial, x, axes, block)


@adapter("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
def instance_norm(trial: Trial, x: Any) -> Any:
    axes = int(type(trial.module).__name__[-2])
    block = functools.partial(nn.instance_norm, axes=axes, epsilon=trial.module.eps)
    return normalized(trial, x, axes, block)


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
