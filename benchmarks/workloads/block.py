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
    """Yields the block forward, and forward and backward."""
    for gradients in (False, True):
        yield Function(
            "transformer block" + (" and gradients" if gradients else ""),
            _arrays,
            _own,
            _torch,
            _jax,
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
    def normalised(x: Any, number: int) -> Any:
        difference = x - nn.mean("...|... => ...|0", x)
        variance = nn.mean("...|... => ...|0", difference * difference)
        scaled = difference * oc.recip_sqrt(variance + 1e-5)
        return p[f"gamma{number}"] * scaled + p[f"beta{number}"]

    y = normalised(x, 0)
    queries = (p["q"] @ y) * _HEAD**-0.5
    x = x + p["o"] @ nn.attention(queries, p["k"] @ y, p["v"] @ y)
    y = normalised(x, 1)
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

    def normalised(x: Any, number: int) -> Any:
        difference = x - x.mean(-1, keepdims=True)
        variance = (difference * difference).mean(-1, keepdims=True)
        scaled = difference * jax.lax.rsqrt(variance + 1e-5)
        return p[f"gamma{number}"] * scaled + p[f"beta{number}"]

    y = normalised(x, 0)
    queries, keys, values = (jnp.einsum("bsn,hdn->bhsd", y, p[each]) for each in "qkv")
    scores = jnp.einsum("bhsd,bhtd->bhst", queries, keys) * _HEAD**-0.5
    found = jnp.einsum("bhst,bhtd->bshd", jax.nn.softmax(scores), values)
    x = x + jnp.einsum("bshd,nhd->bsn", found, p["o"])
    y = normalised(x, 1)
    return x + jax.nn.relu(y @ p["up"].T + p["up_bias"]) @ p["down"].T + p["down_bias"]
