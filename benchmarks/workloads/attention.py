"""Attention of a sequence to itself: 1024 positions, 8 heads of 64, with and without a mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ocannl_core import nn
from workloads.functions import Array, Function

_LENGTH, _HEADS, _HEAD = 1024, 8, 64
_SCALE = _HEAD**-0.5
_HEADS_FIRST = (0, 2, 1, 3)


def workloads() -> Iterator[Function]:
    """Yield attention over all positions and over earlier ones, each also with gradients."""
    for causal in (False, True):
        for gradients in (False, True):
            yield Function(
                name=f"{'causal ' * causal}attention{' and gradients' * gradients}",
                arrays=_arrays,
                own=partial(_own, causal=causal),
                torch=partial(_torch, causal=causal),
                jax=partial(_jax, causal=causal),
                tinygrad=partial(_tinygrad, causal=causal),
                pytensor=None if causal else _pytensor,
                batch_axes=dict.fromkeys(("q", "k", "v", "result"), 2),
                result=(1, _LENGTH, _HEADS, _HEAD),
                gradients=gradients,
            )


def _arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)
    dims = (1, _LENGTH, _HEADS, _HEAD)
    return {each: random.standard_normal(dims, dtype=np.float32) for each in "qkv"}


def _own(*, q: Any, k: Any, v: Any, causal: bool) -> Any:
    return nn.attention(q * _SCALE, k, v, causal=causal)


def _torch(*, q: Any, k: Any, v: Any, causal: bool) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _jax(*, q: Any, k: Any, v: Any, causal: bool) -> Any:
    import jax

    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


def _tinygrad(*, q: Any, k: Any, v: Any, causal: bool) -> Any:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return q.scaled_dot_product_attention(k, v, is_causal=causal).transpose(1, 2)


def _pytensor(*, q: Any, k: Any, v: Any) -> Any:
    import pytensor.tensor as pt

    q, k, v = (each.transpose(*_HEADS_FIRST) for each in (q, k, v))
    scores = (q @ k.transpose(0, 1, 3, 2)) * np.float32(_SCALE)
    return (pt.special.softmax(scores, axis=-1) @ v).transpose(*_HEADS_FIRST)
