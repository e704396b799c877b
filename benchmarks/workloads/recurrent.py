"""A gated recurrent unit over a sequence of 96 entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function

_STEPS, _BATCH, _WIDTH = 96, 32, 128
_GATES = ("z", "r", "n")


def workloads() -> Iterator[Function]:
    """Yield the states of all steps, and the same with gradients."""
    yield _UNIT
    yield replace(_UNIT, name=f"{_UNIT.name} and gradients", gradients=True)


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
