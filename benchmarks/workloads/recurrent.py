"""A gated recurrent unit over a sequence of 96 entries, and long short-term memories over 64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function

_STEPS, _BATCH, _WIDTH = 96, 32, 128
_GATES = ("z", "r", "n")
_MEMORY_STEPS, _ENTRY, _MEMORY_WIDTH = 64, 256, 512


def workloads() -> Iterator[Function]:
    """Yield the states of all steps, and the same with gradients."""
    for each in (_UNIT, _memory(8), _memory(32)):
        yield each
        yield replace(each, name=f"{each.name} and gradients", gradients=True)


def _arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)
    scale = np.float32(1 / np.sqrt(_WIDTH))
    weights = {
        f"{kind}_{gate}": random.standard_normal((_WIDTH, _WIDTH), dtype=np.float32) * scale
        for kind in "wu"
        for gate in _GATES
    }
    return {
        "xs": random.standard_normal((_STEPS, _BATCH, _WIDTH), dtype=np.float32),
        "start": np.full((_BATCH, _WIDTH), 0.1, np.float32),
    } | weights


def _own(xs: Any, start: Any, **weights: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        z = oc.sigmoid(weights["w_z"] @ x + weights["u_z"] @ h)
        r = oc.sigmoid(weights["w_r"] @ x + weights["u_r"] @ h)
        n = oc.tanh(weights["w_n"] @ x + weights["u_n"] @ (r * h))
        h = (1 - z) * n + z * h
        return h, h

    return oc.scan(step, start, xs)[0]


def _torch(xs: Any, start: Any, **weights: Any) -> Any:
    import torch

    inner = {gate: xs @ weights[f"w_{gate}"].T for gate in _GATES}
    h, states = start, []
    for at in range(_STEPS):
        z = torch.sigmoid(inner["z"][at] + h @ weights["u_z"].T)
        r = torch.sigmoid(inner["r"][at] + h @ weights["u_r"].T)
        n = torch.tanh(inner["n"][at] + (r * h) @ weights["u_n"].T)
        h = (1 - z) * n + z * h
        states.append(h)
    return torch.stack(states)


def _jax(xs: Any, start: Any, **weights: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(h: Any, x: Any) -> Any:
        z = jax.nn.sigmoid(x["z"] + h @ weights["u_z"].T)
        r = jax.nn.sigmoid(x["r"] + h @ weights["u_r"].T)
        n = jnp.tanh(x["n"] + (r * h) @ weights["u_n"].T)
        h = (1 - z) * n + z * h
        return h, h

    inner = {gate: xs @ weights[f"w_{gate}"].T for gate in _GATES}
    return jax.lax.scan(step, start, inner)[1]


_UNIT = Function(
    name=f"gated recurrent unit, {_STEPS} steps",
    arrays=_arrays,
    own=_own,
    torch=_torch,
    jax=_jax,
    tinygrad=None,
    pytensor=None,
    batch_axes={"xs": 2, "start": 1, "result": 2},
    input_axes={f"{kind}_{gate}": 1 for kind in "wu" for gate in _GATES},
    result=(_STEPS, _BATCH, _WIDTH),
)


def _memory(batch: int) -> Function:
    """Return a long short-term memory with inputs of 256 and a width of 512."""

    def arrays() -> dict[str, Array]:
        random = np.random.default_rng(0)
        scale = np.float32(1 / np.sqrt(_MEMORY_WIDTH))

        def normal(*dims: int) -> Array:
            return random.standard_normal(dims, dtype=np.float32)

        return {
            "xs": normal(_MEMORY_STEPS, batch, _ENTRY),
            "w": normal(4, _MEMORY_WIDTH, _ENTRY) * scale,
            "u": normal(4, _MEMORY_WIDTH, _MEMORY_WIDTH) * scale,
            "bias": normal(4, _MEMORY_WIDTH) * scale,
        }

    return Function(
        name=f"long short-term memory, {_MEMORY_STEPS} steps, {batch} sequences",
        arrays=arrays,
        own=_own_memory,
        torch=_torch_memory,
        jax=_jax_memory,
        tinygrad=None,
        pytensor=None,
        batch_axes={"xs": 2, "result": 2},
        input_axes={"w": 1, "u": 1},
        result=(_MEMORY_STEPS, batch, _MEMORY_WIDTH),
    )


def _own_memory(xs: Any, w: Any, u: Any, bias: Any) -> Any:
    def step(state: tuple[Any, Any], projected: Any) -> tuple[Any, Any]:
        h, c = state
        gates = projected + u @ h
        i, f, g, o = (oc.einsum(f"...|{gate}, n => ...|n", gates) for gate in range(4))
        c = oc.sigmoid(f) * c + oc.sigmoid(i) * oc.tanh(g)
        h = oc.sigmoid(o) * oc.tanh(c)
        return (h, c), h

    return oc.scan(step, (0.0, 0.0), w @ xs + bias)[0]


def _torch_memory(xs: Any, w: Any, u: Any, bias: Any) -> Any:
    import torch

    start = xs.new_zeros(1, xs.shape[1], _MEMORY_WIDTH)
    weights = [w.flatten(0, 1), u.flatten(0, 1), bias.flatten(), torch.zeros_like(bias.flatten())]
    return torch._VF.lstm(xs, (start, start), weights, True, 1, 0.0, False, False, False)[0]


def _jax_memory(xs: Any, w: Any, u: Any, bias: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(state: Any, projected: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.moveaxis(projected + jnp.einsum("gnk,bk->bgn", u, h), 1, 0)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((xs.shape[1], _MEMORY_WIDTH), xs.dtype)
    return jax.lax.scan(step, (start, start), jnp.einsum("gnk,tbk->tbgn", w, xs) + bias)[1]
