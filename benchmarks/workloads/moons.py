"""A training step so small that calling it is most of the work: layers 2-16-1, 32 points.

Two moons, mean hinge loss, plain gradient descent; one call for each step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Attempts, Contender, TrainingStep, take_steps

_HIDDEN, _BATCH, _BATCHES, _RATE = 16, 32, 8, 0.1


def _data() -> tuple[Array, Array]:
    """Return points `minibatch, example, 2`, and 1 or -1 for each."""
    random = np.random.default_rng(4)
    count = _BATCHES * _BATCH
    angle, label = random.uniform(0, np.pi, count), random.integers(0, 2, count)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], 1)
    points = np.where(label[:, None] == 0, upper, lower) + 0.1 * random.standard_normal((count, 2))
    signs = (2.0 * label - 1).astype(np.float32)
    return (points.astype(np.float32).reshape(_BATCHES, _BATCH, 2), signs.reshape(_BATCHES, _BATCH))


def _parameters() -> dict[str, Array]:
    random = np.random.default_rng(6)
    return {
        "w0": random.standard_normal((_HIDDEN, 2), dtype=np.float32),
        "b0": np.zeros(_HIDDEN, np.float32),
        "w1": random.standard_normal((1, _HIDDEN), dtype=np.float32) * np.float32(0.5),
        "b1": np.zeros(1, np.float32),
    }


def _own(x: Any, w0: Any, b0: Any, w1: Any, b1: Any) -> Any:
    return w1 @ oc.relu(w0 @ x + b0) + b1


def _torch(x: Any, w0: Any, b0: Any, w1: Any, b1: Any) -> Any:
    from torch.nn.functional import linear, relu

    return linear(relu(linear(x, w0, b0)), w1, b1)


def _jax(x: Any, w0: Any, b0: Any, w1: Any, b1: Any) -> Any:
    from jax.nn import relu

    return relu(x @ w0.T + b0) @ w1.T + b1


def _tinygrad(x: Any, w0: Any, b0: Any, w1: Any, b1: Any) -> Any:
    return x.linear(w0.T, b0).relu().linear(w1.T, b1)


def _pytensor(x: Any, w0: Any, b0: Any, w1: Any, b1: Any) -> Any:
    import pytensor.tensor as pt

    return pt.maximum(x @ w0.T + b0, np.float32(0)) @ w1.T + b1


MOONS = TrainingStep(
    name="tiny step 2-16-1",
    parameters=_parameters,
    batches=lambda: _data()[0],
    targets=lambda: _data()[1],
    loss="hinge",
    own=_own,
    torch=_torch,
    jax=_jax,
    tinygrad=_tinygrad,
    pytensor=_pytensor,
    input_axes={"w0": 1, "w1": 1},
    rate=_RATE,
    momentum=0.0,
)


def by_hand_in_numpy() -> Attempts:
    """Return the step written by hand in NumPy, with its derivatives."""
    return {"numpy": _numpy}


def _numpy() -> Contender:
    points, signs = _data()
    w0, b0, w1, b1 = parameters = list(_parameters().values())
    inputs, targets = list(points), list(signs[..., np.newaxis])
    rate, share = np.float32(_RATE), np.float32(1 / _BATCH)

    def step(number: int) -> None:
        x, y = inputs[number], targets[number]
        hidden = np.maximum(x @ w0.T + b0, 0)
        margin = 1 - y * (hidden @ w1.T + b1)
        error = -y * share * (margin > 0)
        inner = (error @ w1) * (hidden > 0)
        w1[...] -= rate * (error.T @ hidden)
        b1[...] -= rate * error.sum(0)
        w0[...] -= rate * (inner.T @ x)
        b0[...] -= rate * inner.sum(0)

    return Contender(take_steps(step, _BATCHES), lambda: parameters)


def by_hand_in_numba() -> Attempts:
    """Return loops written by hand for these extents, compiled by Numba.

    With `fastmath`, which allows what IEEE arithmetic does not, as Numba's guide to speed advises,
    and without.
    """
    return {"numba": partial(_numba, fastmath=True), "numba, IEEE": partial(_numba, fastmath=False)}


def _numba(*, fastmath: bool) -> Contender:
    import numba

    points, signs = _data()
    w0, b0, w1, b1 = _parameters().values()
    w0 = np.ascontiguousarray(w0.T)  # so that the loops over hidden cells are vectors
    inputs, targets = list(points), list(signs)
    rate, share = np.float32(_RATE), np.float32(1 / _BATCH)
    zero, one = np.float32(0), np.float32(1)

    @numba.njit(fastmath=fastmath, error_model="numpy")
    def update(x, y, w0, b0, w1, b1):  # type: ignore[no-untyped-def]
        dw0, db0 = np.zeros((2, _HIDDEN), np.float32), np.zeros(_HIDDEN, np.float32)
        dw1, db1 = np.zeros(_HIDDEN, np.float32), zero
        hidden = np.empty(_HIDDEN, np.float32)
        for i in range(_BATCH):
            score = b1[0]
            for j in range(_HIDDEN):
                hidden[j] = max(x[i, 0] * w0[0, j] + x[i, 1] * w0[1, j] + b0[j], zero)
                score += hidden[j] * w1[0, j]
            if one - y[i] * score > zero:
                error = -y[i] * share
                db1 += error
                for j in range(_HIDDEN):
                    dw1[j] += error * hidden[j]
                    inner = error * w1[0, j] if hidden[j] > zero else zero
                    db0[j] += inner
                    dw0[0, j] += inner * x[i, 0]
                    dw0[1, j] += inner * x[i, 1]
        for j in range(_HIDDEN):
            w1[0, j] -= rate * dw1[j]
            b0[j] -= rate * db0[j]
            w0[0, j] -= rate * dw0[0, j]
            w0[1, j] -= rate * dw0[1, j]
        b1[0] -= rate * db1

    def step(number: int) -> None:
        update(inputs[number], targets[number], w0, b0, w1, b1)

    return Contender(take_steps(step, _BATCHES), lambda: [w0.T, b0, w1, b1])
