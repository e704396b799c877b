"""Trainings in JAX: the whole step compiled, with Adam by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainings.work import HEAD, LENGTH, Array, Trainee, Training


def contenders(work: Training) -> dict[str, Callable[[], Trainee]]:
    """Return the compiled training."""
    return {"jax": partial(trainee, work)}


def trainee(work: Training) -> Trainee:
    """Return a model whose step is one compiled function."""
    loss_of = _cnn if work.kind == "cnn" else _gpt

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(w: Any, m: Any, v: Any, count: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(w, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        first, second = 1 - 0.9**count, 1 - 0.999**count

        def moved(w: Any, m: Any, v: Any) -> Any:
            return w - work.rate * (m / first) / (jnp.sqrt(v / second) + 1e-8)

        return jax.tree.map(moved, w, m, v), m, v, loss

    def epoch() -> Array:
        w = {name: jnp.asarray(cells) for name, cells in work.weights.items()}
        m, v = (jax.tree.map(jnp.zeros_like, w) for _ in range(2))
        losses = []
        for number, (x, y) in enumerate(zip(work.inputs, work.targets, strict=True)):
            w, m, v, loss = step(w, m, v, np.float32(number + 1), x, y)
            losses.append(loss)
        return np.asarray(jnp.stack(losses))

    return Trainee(epoch)


def _cross_entropy(scores: Any, y: Any) -> Any:
    logarithms = jax.nn.log_softmax(scores)
    return -jnp.take_along_axis(logarithms, y[..., None], -1).mean()


def _cnn(w: Any, x: Any, y: Any) -> Any:
    for layer in ("conv0", "conv1"):
        kernel, axes = w[f"{layer}.weight"], ("NHWC", "OHWI", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=axes)
        x, window = jax.nn.relu(x + w[f"{layer}.bias"]), (1, 2, 2, 1)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    x = jnp.einsum("bhwc,ohwc->bo", x, w["dense0.weight"]) + w["dense0.bias"]
    return _cross_entropy(jax.nn.relu(x) @ w["dense1.weight"].T + w["dense1.bias"], y)


def _norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gamma + beta


def _gpt(w: Any, ids: Any, y: Any) -> Any:
    x = w["tokens"][ids] + w["positions"]
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def layer(x: Any, p: Any) -> Any:
        normal = _norm(x, p["norm1.gamma"], p["norm1.beta"])
        q, k, v = (
            jnp.einsum("bsn,hdn->bhsd", normal, p[f"w_{each}"]) + p[f"b_{each}"][:, None]
            for each in "qkv"
        )
        scores = jnp.einsum("bhsd,bhtd->bhst", q, k) / HEAD**0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        mixed = jnp.einsum("bhst,bhtd->bshd", weights, v)
        x = x + jnp.einsum("bshd,nhd->bsn", mixed, p["w_o"]) + p["b_o"]
        normal = _norm(x, p["norm2.gamma"], p["norm2.beta"])
        inner = jax.nn.gelu(normal @ p["linear1.weight"].T + p["linear1.bias"])
        return x + inner @ p["linear2.weight"].T + p["linear2.bias"], None

    stacked = {n.removeprefix("layers."): w[n] for n in w if n.startswith("layers.")}
    x, _ = jax.lax.scan(layer, x, stacked)
    return _cross_entropy(_norm(x, w["norm.gamma"], w["norm.beta"]) @ w["scores"].T, y)
