"""The formulas of optimizers in NumPy, as their papers or PyTorch's documentation state them.

Each returns a function of the parameter, its gradient and the number of the update, which returns
the new parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
Step = Callable[[Array, Array, int], Array]


def sgd(
    learning_rate: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Step:
    buffer: Array = None

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal buffer
        g = (-g if maximize else g) + weight_decay * p
        if momentum:
            buffer = g.copy() if t == 1 else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        return p - learning_rate * g

    return step


def rmsprop(
    learning_rate: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
) -> Step:
    square: Array = 0.0
    mean: Array = 0.0
    buffer: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal square, mean, buffer
        square = alpha * square + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        root = np.sqrt(square - mean**2 if centered else square) + eps
        buffer = momentum * buffer + g / root
        return p - learning_rate * buffer

    return step


def adagrad(
    learning_rate: float,
    lr_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
) -> Step:
    total: Array = initial_accumulator_value

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal total
        total = total + g**2
        return p - learning_rate / (1 + (t - 1) * lr_decay) * g / (np.sqrt(total) + eps)

    return step


def adadelta(learning_rate: float, rho: float = 0.9, eps: float = 1e-6) -> Step:
    square: Array = 0.0
    moved: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal square, moved
        square = rho * square + (1 - rho) * g**2
        delta = np.sqrt(moved + eps) / np.sqrt(square + eps) * g
        moved = rho * moved + (1 - rho) * delta**2
        return p - learning_rate * delta

    return step


def adam(
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    decoupled: bool = False,
) -> Step:
    m: Array = 0.0
    v: Array = 0.0
    largest: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal m, v, largest
        if decoupled:
            p = p - learning_rate * weight_decay * p
        else:
            g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        largest = np.maximum(largest, v)
        square = (largest if amsgrad else v) / (1 - betas[1] ** t)
        return p - learning_rate * (m / (1 - betas[0] ** t)) / (np.sqrt(square) + eps)

    return step


def adamw(learning_rate: float, weight_decay: float = 0.01, **kwargs: Any) -> Step:
    return adam(learning_rate, weight_decay=weight_decay, decoupled=True, **kwargs)


def adamax(
    learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Step:
    m: Array = 0.0
    u: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal m, u
        m = betas[0] * m + (1 - betas[0]) * g
        u = np.maximum(betas[1] * u, np.abs(g) + eps)
        return p - learning_rate / (1 - betas[0] ** t) * m / u

    return step


def nadam(
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    momentum_decay: float = 4e-3,
) -> Step:
    m: Array = 0.0
    v: Array = 0.0
    product = 1.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal m, v, product
        now, after = (betas[0] * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
        product *= now
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        mean = after * m / (1 - product * after) + (1 - now) * g / (1 - product)
        return p - learning_rate * mean / (np.sqrt(v / (1 - betas[1] ** t)) + eps)

    return step


def radam(
    learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Step:
    m: Array = 0.0
    v: Array = 0.0
    limit = 2 / (1 - betas[1]) - 1

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal m, v
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        mean = m / (1 - betas[0] ** t)
        length = limit - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        if length <= 5:
            return p - learning_rate * mean
        adaptive = np.sqrt(1 - betas[1] ** t) / (np.sqrt(v) + eps)
        variance = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
        return p - learning_rate * mean * np.sqrt(variance) * adaptive

    return step


def rprop(
    learning_rate: float,
    etas: tuple[float, float] = (0.5, 1.2),
    step_sizes: tuple[float, float] = (1e-6, 50.0),
) -> Step:
    before: Array = 0.0
    size: Array = learning_rate

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal before, size
        agreement = np.sign(g * before)
        factor = np.where(agreement > 0, etas[1], np.where(agreement < 0, etas[0], 1.0))
        size = np.clip(size * factor, *step_sizes)
        before = np.where(agreement < 0, 0.0, g)
        return p - np.sign(before) * size

    return step


def lion(
    learning_rate: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> Step:
    m: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal m
        direction = np.sign(betas[0] * m + (1 - betas[0]) * g)
        m = betas[1] * m + (1 - betas[1]) * g
        return p - learning_rate * (direction + weight_decay * p)

    return step


def lamb(
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    trust: float = 0.0,
) -> Step:
    m: Array = 0.0
    v: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal m, v
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        move = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + trust * p
        norm, length = np.linalg.norm(p), np.linalg.norm(move)
        return p - learning_rate * move * (norm / length if norm and length else 1.0)

    return step


def muon(
    learning_rate: float, momentum: float = 0.95, nesterov: bool = True, weight_decay: float = 0.1
) -> Step:
    buffer: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal buffer
        buffer = momentum * buffer + (1 - momentum) * g
        x = momentum * buffer + (1 - momentum) * g if nesterov else buffer
        x = x / max(np.linalg.norm(x), 1e-7)
        a, b, c = 3.4445, -4.775, 2.0315
        for _ in range(5):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
        return p - learning_rate * (scale * x + weight_decay * p)

    return step


def adafactor(
    learning_rate: float,
    beta2_decay: float = -0.8,
    eps: tuple[float, float] = (1e-14, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
) -> Step:
    rows: Array = 0.0
    columns: Array = 0.0
    square: Array = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal rows, columns, square
        decay = 1 - t**beta2_decay
        size = max(eps[1], np.sqrt((p**2).mean()))
        if p.ndim > 1:
            rows = decay * rows + (1 - decay) * (g**2).mean(axis=1, keepdims=True)
            columns = decay * columns + (1 - decay) * (g**2).mean(axis=0, keepdims=True)
            variance = rows * columns / max(rows.mean(), eps[0])
        else:
            square = decay * square + (1 - decay) * g**2
            variance = square
        move = g / np.sqrt(np.maximum(variance, eps[0]))
        excess = max(1.0, np.sqrt((move**2).mean()) / d)
        rate = min(learning_rate, 1 / np.sqrt(t))
        return p * (1 - learning_rate * weight_decay) - rate * size * move / excess

    return step


def schedule_free_adamw(
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Step:
    v: Array = 0.0
    z: Array = None
    x: Array = None
    largest = total = 0.0

    def step(p: Array, g: Array, t: int) -> Array:
        nonlocal v, z, x, largest, total
        if t == 1:
            z, x = p.copy(), p.copy()
        v = betas[1] * v + (1 - betas[1]) * g**2
        rate = learning_rate * np.sqrt(1 - betas[1] ** t)
        z = z - rate * (g / (np.sqrt(v) + eps) + weight_decay * p)
        largest = max(largest, rate)
        total += largest**2
        x = x + largest**2 / total * (z - x)
        return betas[0] * x + (1 - betas[0]) * z

    return step
