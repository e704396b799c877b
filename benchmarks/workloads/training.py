"""Training steps of whole networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core import nn
from workloads.functions import Array, TrainingStep, classes


def workloads() -> Iterator[TrainingStep]:
    """Yield a perceptron and a convolutional network."""
    yield _PERCEPTRON
    yield _LENET


def _normal(random: np.random.Generator, *shape: int, scale: float) -> Array:
    return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)


# --- a perceptron: 784-512-256-10, minibatches of 128 -------------------------------------------

_WIDTHS = (784, 512, 256, 10)


def _perceptron_parameters() -> dict[str, Array]:
    random = np.random.default_rng(3)
    found: dict[str, Array] = {}
    for number, (inputs, outputs) in enumerate(itertools.pairwise(_WIDTHS)):
        found[f"w{number}"] = _normal(random, outputs, inputs, scale=(2 / inputs) ** 0.5)
        found[f"b{number}"] = np.zeros(outputs, np.float32)
    return found


def _perceptron_own(x: Any, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return w2 @ oc.relu(w1 @ oc.relu(w0 @ x + b0) + b1) + b2


def _perceptron_torch(x: Any, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    from torch.nn.functional import linear, relu

    return linear(relu(linear(relu(linear(x, w0, b0)), w1, b1)), w2, b2)


def _perceptron_jax(x: Any, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    from jax.nn import relu

    return relu(relu(x @ w0.T + b0) @ w1.T + b1) @ w2.T + b2


def _perceptron_tinygrad(x: Any, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return x.linear(w0.T, b0).relu().linear(w1.T, b1).relu().linear(w2.T, b2)


def _perceptron_pytensor(x: Any, w0: Any, b0: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    import pytensor.tensor as pt

    zero = np.float32(0)
    x = pt.maximum(x @ w0.T + b0, zero)
    return pt.maximum(x @ w1.T + b1, zero) @ w2.T + b2


_PERCEPTRON = TrainingStep(
    name="perceptron 784-512-256-10",
    parameters=_perceptron_parameters,
    batches=lambda: _normal(np.random.default_rng(5), 8, 128, _WIDTHS[0], scale=1.0),
    targets=lambda: classes(_WIDTHS[-1], 8, 128),
    loss="cross entropy",
    own=_perceptron_own,
    torch=_perceptron_torch,
    jax=_perceptron_jax,
    tinygrad=_perceptron_tinygrad,
    pytensor=_perceptron_pytensor,
    input_axes={"w0": 1, "w1": 1, "w2": 1},
)


# --- LeNet: two convolutions and two layers, images of 28x28, minibatches of 64 -------------------

_FEATURES = (16, 32, 128)


def _lenet_parameters() -> dict[str, Array]:
    random, (first, second, hidden) = np.random.default_rng(7), _FEATURES
    return {
        "c0": _normal(random, first, 5, 5, 1, scale=0.2),
        "d0": np.zeros(first, np.float32),
        "c1": _normal(random, second, 5, 5, first, scale=0.07),
        "d1": np.zeros(second, np.float32),
        "w0": _normal(random, hidden, 7, 7, second, scale=0.035),
        "b0": np.zeros(hidden, np.float32),
        "w1": _normal(random, 10, hidden, scale=0.12),
        "b1": np.zeros(10, np.float32),
    }


def _convolved(x: Any, kernel: Any, bias: Any) -> Any:
    sums = oc.einsum("...|y=+v, x=+u, ..i..; v, u, ..i.. -> ..o.. => ...|y, x, ..o..", x, kernel)
    return oc.add(sums, bias, logic="...|y, x, ..o..; ..o.. => ...|y, x, ..o..")


def _lenet_own(
    x: Any, c0: Any, d0: Any, c1: Any, d1: Any, w0: Any, b0: Any, w1: Any, b1: Any
) -> Any:
    x = nn.max_pool2d(oc.relu(_convolved(x, c0, d0)))
    x = nn.max_pool2d(oc.relu(_convolved(x, c1, d1)))
    return w1 @ oc.relu(w0 @ x + b0) + b1


def _lenet_torch(
    x: Any, c0: Any, d0: Any, c1: Any, d1: Any, w0: Any, b0: Any, w1: Any, b1: Any
) -> Any:
    from torch.nn.functional import conv2d, linear, max_pool2d, relu

    x = x.permute(0, 3, 1, 2)
    x = max_pool2d(relu(conv2d(x, c0.permute(0, 3, 1, 2), d0, padding=2)), 2)
    x = max_pool2d(relu(conv2d(x, c1.permute(0, 3, 1, 2), d1, padding=2)), 2)
    x = x.permute(0, 2, 3, 1).flatten(1)
    return linear(relu(linear(x, w0.flatten(1), b0)), w1, b1)


def _lenet_jax(
    x: Any, c0: Any, d0: Any, c1: Any, d1: Any, w0: Any, b0: Any, w1: Any, b1: Any
) -> Any:
    import jax
    from jax.nn import relu

    def convolved(x: Any, kernel: Any, bias: Any) -> Any:
        found = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "OHWI", "NHWC")
        )
        windows = (1, 2, 2, 1)
        found = relu(found + bias)
        return jax.lax.reduce_window(found, -np.inf, jax.lax.max, windows, windows, "VALID")

    x = convolved(convolved(x, c0, d0), c1, d1)
    hidden = relu(x.reshape(len(x), -1) @ w0.reshape(len(w0), -1).T + b0)
    return hidden @ w1.T + b1


def _lenet_tinygrad(
    x: Any, c0: Any, d0: Any, c1: Any, d1: Any, w0: Any, b0: Any, w1: Any, b1: Any
) -> Any:
    x = x.permute(0, 3, 1, 2)
    x = x.conv2d(c0.permute(0, 3, 1, 2), d0, padding=2).relu().max_pool2d()
    x = x.conv2d(c1.permute(0, 3, 1, 2), d1, padding=2).relu().max_pool2d()
    x = x.permute(0, 2, 3, 1).flatten(1)
    return x.linear(w0.flatten(1).T, b0).relu().linear(w1.T, b1)


_LENET = TrainingStep(
    name="LeNet",
    parameters=_lenet_parameters,
    batches=lambda: _normal(np.random.default_rng(5), 8, 64, 28, 28, 1, scale=1.0),
    targets=lambda: classes(10, 8, 64),
    loss="cross entropy",
    own=_lenet_own,
    torch=_lenet_torch,
    jax=_lenet_jax,
    tinygrad=_lenet_tinygrad,
    pytensor=None,
    input_axes={"c0": 3, "c1": 3, "w0": 3, "w1": 1},
)
