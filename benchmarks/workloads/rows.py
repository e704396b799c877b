"""Work along the rows of a matrix: chains of pointwise operations, softmax, layer normalization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function

_SHAPE = (4096, 1024)
_EPSILON = 1e-5


def workloads() -> Iterator[Function]:
    """Yield every function without and with its gradients."""
    for each in (_CHAIN, _SOFTMAX, _LAYER_NORM):
        yield each
        yield replace(each, name=f"{each.name} and gradients", gradients=True)


def _arrays(*vectors: str) -> dict[str, Array]:
    random = np.random.default_rng(0)
    arrays = {"x": random.standard_normal(_SHAPE, dtype=np.float32)}
    return arrays | {name: random.standard_normal(_SHAPE[1:], dtype=np.float32) for name in vectors}


def _chain_own(x: Any, w: Any, b: Any) -> Any:
    return oc.relu(x * w + b) * oc.tanh(x) + oc.exp(-x * x)


def _chain_torch(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.relu(x * w + b) * torch.tanh(x) + torch.exp(-x * x)


def _chain_jax(x: Any, w: Any, b: Any) -> Any:
    import jax.numpy as jnp

    return jnp.maximum(x * w + b, 0) * jnp.tanh(x) + jnp.exp(-x * x)


def _chain_tinygrad(x: Any, w: Any, b: Any) -> Any:
    return (x * w + b).relu() * x.tanh() + (-x * x).exp()


def _chain_pytensor(x: Any, w: Any, b: Any) -> Any:
    import pytensor.tensor as pt

    return pt.maximum(x * w + b, np.float32(0)) * pt.tanh(x) + pt.exp(-x * x)


_CHAIN = Function(
    name="pointwise chain",
    arrays=lambda: _arrays("w", "b"),
    own=_chain_own,
    torch=_chain_torch,
    jax=_chain_jax,
    tinygrad=_chain_tinygrad,
    pytensor=_chain_pytensor,
    batch_axes={"x": 1, "result": 1},
    result=_SHAPE,
)


def _softmax_torch(x: Any) -> Any:
    import torch

    return torch.softmax(x, -1)


def _softmax_jax(x: Any) -> Any:
    import jax

    return jax.nn.softmax(x)


def _softmax_pytensor(x: Any) -> Any:
    import pytensor.tensor as pt

    return pt.special.softmax(x, axis=-1)


_SOFTMAX = Function(
    name="softmax",
    arrays=_arrays,
    own=lambda x: oc.softmax(x, logic="...|... => ...|0"),
    torch=_softmax_torch,
    jax=_softmax_jax,
    tinygrad=lambda x: x.softmax(),
    pytensor=_softmax_pytensor,
    batch_axes={"x": 1, "result": 1},
    result=_SHAPE,
)


def _layer_norm_own(x: Any, gamma: Any, beta: Any) -> Any:
    difference = x - oc.mean(x, logic="...|... => ...|0")
    variance = oc.mean(difference * difference, logic="...|... => ...|0")
    return gamma * (difference * oc.rsqrt(variance + _EPSILON)) + beta


def _layer_norm_torch(x: Any, gamma: Any, beta: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, _EPSILON)


def _layer_norm_jax(x: Any, gamma: Any, beta: Any) -> Any:
    import jax

    difference = x - x.mean(-1, keepdims=True)
    variance = (difference * difference).mean(-1, keepdims=True)
    return gamma * (difference * jax.lax.rsqrt(variance + _EPSILON)) + beta


def _layer_norm_pytensor(x: Any, gamma: Any, beta: Any) -> Any:
    import pytensor.tensor as pt

    difference = x - x.mean(-1, dtype="float32", keepdims=True)
    variance = (difference * difference).mean(-1, dtype="float32", keepdims=True)
    return gamma * (difference / pt.sqrt(variance + np.float32(_EPSILON))) + beta


_LAYER_NORM = Function(
    name="layer norm",
    arrays=lambda: _arrays("gamma", "beta"),
    own=_layer_norm_own,
    torch=_layer_norm_torch,
    jax=_layer_norm_jax,
    tinygrad=lambda x, gamma, beta: x.layernorm(eps=_EPSILON) * gamma + beta,
    pytensor=_layer_norm_pytensor,
    batch_axes={"x": 1, "result": 1},
    result=_SHAPE,
)
