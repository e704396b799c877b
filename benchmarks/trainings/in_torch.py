"""Trainings in PyTorch: eager, and with the loss compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import harness
import numpy as np
import torch
from torch.nn.functional import (
    conv2d,
    cross_entropy,
    gelu,
    layer_norm,
    linear,
    max_pool2d,
    relu,
    scaled_dot_product_attention,
)

from trainings.work import LAYERS, WIDTH, Array, Trainee, Training

torch.set_num_threads(harness.THREADS)


def contenders(work: Training) -> dict[str, Callable[[], Trainee]]:
    """Return the training as written and compiled."""
    return {
        "torch": partial(trainee, work, lambda each: each),
        "torch compiled": partial(trainee, work, partial(torch.compile, dynamic=False)),
    }


def trainee(work: Training, compiled: Any) -> Trainee:
    """Return a model with the fused optimizer."""
    loss_of = compiled(_cnn if work.kind == "cnn" else _gpt)
    initial = {name: torch.from_numpy(_layout(cells)) for name, cells in work.weights.items()}
    weights = {name: cells.clone().requires_grad_(True) for name, cells in initial.items()}
    inputs, targets = torch.from_numpy(work.inputs), torch.from_numpy(work.targets).long()
    inputs = inputs.permute(0, 1, 4, 2, 3) if work.kind == "cnn" else inputs.long()

    def epoch() -> Array:
        with torch.no_grad():
            for name, cells in weights.items():
                cells.copy_(initial[name])
        optimizer = torch.optim.Adam(list(weights.values()), lr=work.rate, fused=True)
        losses = []
        for x, y in zip(inputs, targets, strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(weights, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return np.asarray(torch.stack(losses))

    return Trainee(epoch)


def _layout(cells: Array) -> Array:
    """Return kernels with the channels in front, as PyTorch has them."""
    is_kernel = cells.ndim == 4 and cells.shape[1] == cells.shape[2] and cells.shape[1] in (2, 3)
    return np.ascontiguousarray(cells.transpose(0, 3, 1, 2) if is_kernel else cells)


def _cnn(w: Mapping[str, Any], x: Any, y: Any) -> Any:
    for layer in ("conv0", "conv1"):
        x = max_pool2d(relu(conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], padding=1)), 2)
    x = relu(linear(x.flatten(1), w["dense0.weight"].flatten(1), w["dense0.bias"]))
    return cross_entropy(linear(x, w["dense1.weight"], w["dense1.bias"]), y)


def _gpt(w: Mapping[str, Any], ids: Any, y: Any) -> Any:
    x = w["tokens"][ids] + w["positions"]
    for k in range(LAYERS):
        p = {name.removeprefix("layers."): w[name][k] for name in w if name.startswith("layers.")}
        normal = layer_norm(x, (WIDTH,), p["norm1.gamma"], p["norm1.beta"])
        q, k_, v = (
            linear(normal, p[f"w_{each}"].flatten(0, 1), p[f"b_{each}"].flatten())
            .unflatten(-1, p["b_q"].shape)
            .transpose(1, 2)
            for each in "qkv"
        )
        mixed = scaled_dot_product_attention(q, k_, v, is_causal=True).transpose(1, 2)
        x = x + linear(mixed.flatten(2), p["w_o"].flatten(1), p["b_o"])
        normal = layer_norm(x, (WIDTH,), p["norm2.gamma"], p["norm2.beta"])
        inner = gelu(linear(normal, p["linear1.weight"], p["linear1.bias"]), approximate="tanh")
        x = x + linear(inner, p["linear2.weight"], p["linear2.bias"])
    x = layer_norm(x, (WIDTH,), w["norm.gamma"], w["norm.beta"])
    return cross_entropy(linear(x, w["scores"]).flatten(0, 1), y.flatten())
