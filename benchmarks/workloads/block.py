"""A block of a transformer: width 256, 8 heads, sequences of 128, minibatches of 8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core import nn
from workloads.functions import Array, Function

_BATCH, _LENGTH, _WIDTH, _HEADS = 8, 128, 256, 8
_HEAD = _WIDTH // _HEADS


def workloads() -> Iterator[Function]:
    """Yield the block forward, and forward and backward."""
    for gradients in (False, True):
        yield Function(
            name="transformer block" + (" and gradients" if gradients else ""),
            arrays=_arrays,
            own=_own,
            torch=_torch,
            jax=_jax,
            tinygrad=_tinygrad,
            pytensor=_pytensor,
            batch_axes={"x": 2, "result": 2},
            input_axes={"q": 1, "k": 1, "v": 1, "o": 2, "up": 1, "down": 1},
            result=(_BATCH, _LENGTH, _WIDTH),
            gradients=gradients,
        )


def _arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)

    def normal(*shape: int, inputs: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(inputs**-0.5)

    wide = 4 * _WIDTH
    return {
        "x": normal(_BATCH, _LENGTH, _WIDTH, inputs=1),
        **{each: normal(_HEADS, _HEAD, _WIDTH, inputs=_WIDTH) for each in "qkv"},
        "o": normal(_WIDTH, _HEADS, _HEAD, inputs=_WIDTH),
        "up": normal(wide, _WIDTH, inputs=_WIDTH),
        "up_bias": np.zeros(wide, np.float32),
        "down": normal(_WIDTH, wide, inputs=wide),
        "down_bias": np.zeros(_WIDTH, np.float32),
        **{f"gamma{number}": np.ones(_WIDTH, np.float32) for number in range(2)},
        **{f"beta{number}": np.zeros(_WIDTH, np.float32) for number in range(2)},
    }


def _own(x: Any, **p: Any) -> Any:
    def normalized(x: Any, number: int) -> Any:
        difference = x - oc.mean(x, logic="...|... => ...|0")
        variance = oc.mean(difference * difference, logic="...|... => ...|0")
        scaled = difference * oc.rsqrt(variance + 1e-5)
        return p[f"gamma{number}"] * scaled + p[f"beta{number}"]

    y = normalized(x, 0)
    queries = (p["q"] @ y) * _HEAD**-0.5
    x = x + p["o"] @ nn.attention(queries, p["k"] @ y, p["v"] @ y)
    y = normalized(x, 1)
    return x + p["down"] @ oc.relu(p["up"] @ y + p["up_bias"]) + p["down_bias"]


def _torch(x: Any, **p: Any) -> Any:
    from torch.nn.functional import layer_norm, linear, relu, scaled_dot_product_attention

    y = layer_norm(x, (_WIDTH,), p["gamma0"], p["beta0"], 1e-5)
    shape = (_BATCH, _LENGTH, _HEADS, _HEAD)
    queries, keys, values = (
        linear(y, p[each].reshape(_WIDTH, _WIDTH)).view(shape).transpose(1, 2) for each in "qkv"
    )
    found = scaled_dot_product_attention(queries, keys, values).transpose(1, 2)
    x = x + linear(found.reshape(x.shape), p["o"].reshape(_WIDTH, _WIDTH))
    y = layer_norm(x, (_WIDTH,), p["gamma1"], p["beta1"], 1e-5)
    hidden = relu(linear(y, p["up"], p["up_bias"]))
    return x + linear(hidden, p["down"], p["down_bias"])


def _jax(x: Any, **p: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def normalized(x: Any, number: int) -> Any:
        difference = x - x.mean(-1, keepdims=True)
        variance = (difference * difference).mean(-1, keepdims=True)
        scaled = difference * jax.lax.rsqrt(variance + 1e-5)
        return p[f"gamma{number}"] * scaled + p[f"beta{number}"]

    y = normalized(x, 0)
    queries, keys, values = (jnp.einsum("bsn,hdn->bhsd", y, p[each]) for each in "qkv")
    scores = jnp.einsum("bhsd,bhtd->bhst", queries, keys) * _HEAD**-0.5
    found = jnp.einsum("bhst,bhtd->bshd", jax.nn.softmax(scores), values)
    x = x + jnp.einsum("bshd,nhd->bsn", found, p["o"])
    y = normalized(x, 1)
    return x + jax.nn.relu(y @ p["up"].T + p["up_bias"]) @ p["down"].T + p["down_bias"]


def _tinygrad(x: Any, **p: Any) -> Any:
    y = x.layernorm(eps=1e-5) * p["gamma0"] + p["beta0"]
    shape = (_BATCH, _LENGTH, _HEADS, _HEAD)
    queries, keys, values = (
        y.linear(p[each].reshape(_WIDTH, _WIDTH).T).reshape(shape).transpose(1, 2) for each in "qkv"
    )
    found = queries.scaled_dot_product_attention(keys, values).transpose(1, 2)
    x = x + found.reshape(x.shape).linear(p["o"].reshape(_WIDTH, _WIDTH).T)
    y = x.layernorm(eps=1e-5) * p["gamma1"] + p["beta1"]
    hidden = y.linear(p["up"].T, p["up_bias"]).relu()
    return x + hidden.linear(p["down"].T, p["down_bias"])


def _pytensor(x: Any, **p: Any) -> Any:
    import pytensor.tensor as pt

    def normalized(x: Any, number: int) -> Any:
        difference = x - x.mean(-1, dtype="float32", keepdims=True)
        variance = (difference * difference).mean(-1, dtype="float32", keepdims=True)
        scaled = difference / pt.sqrt(variance + np.float32(1e-5))
        return p[f"gamma{number}"] * scaled + p[f"beta{number}"]

    def linear(x: Any, weights: Any) -> Any:  # one product of matrices
        return x @ weights.reshape((-1, x.shape[-1])).T

    rows, shape = (_BATCH * _LENGTH, _WIDTH), (_BATCH, _LENGTH, _HEADS, _HEAD)
    x = x.reshape(rows)
    y = normalized(x, 0)
    queries, keys, values = (
        linear(y, p[each]).reshape(shape).transpose(0, 2, 1, 3) for each in "qkv"
    )
    scores = (queries @ keys.transpose(0, 1, 3, 2)) * np.float32(_HEAD**-0.5)
    found = pt.special.softmax(scores, axis=-1) @ values
    x = x + linear(found.transpose(0, 2, 1, 3).reshape(rows), p["o"])
    hidden = pt.maximum(linear(normalized(x, 1), p["up"]) + p["up_bias"], np.float32(0))
    return (x + linear(hidden, p["down"]) + p["down_bias"]).reshape((_BATCH, _LENGTH, _WIDTH))
