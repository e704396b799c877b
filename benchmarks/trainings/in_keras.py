"""Trainings in Keras on JAX, by `compile` and `fit`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers

from trainings.work import (
    CHANNELS,
    HEAD,
    HEADS,
    HIDDEN,
    LAYERS,
    LENGTH,
    WIDTH,
    Array,
    Trainee,
    Training,
)


def contenders(work: Training) -> dict[str, Callable[[], Trainee]]:
    """Return the training by `fit`."""
    return {"keras": partial(trainee, work)}


class _Losses(keras.callbacks.Callback):
    """The sum of the losses of the steps so far, after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.sums.append((batch + 1) * logs["loss"])


def trainee(work: Training) -> Trainee:
    """Return a model of layers."""
    model, initial = (_cnn if work.kind == "cnn" else _gpt)(work)
    model.compile(
        keras.optimizers.Adam(work.rate, epsilon=1e-8),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    x = work.inputs.reshape(-1, *work.inputs.shape[2:])
    y = work.targets.reshape(-1, *work.targets.shape[2:])
    batch = work.inputs.shape[1]
    model.optimizer.build(model.trainable_variables)
    zeros = [np.zeros(each.shape, np.float32) for each in model.optimizer.variables]

    def epoch() -> Array:
        model.set_weights(initial)
        for variable, cells in zip(model.optimizer.variables, zeros, strict=True):
            if "learning_rate" not in variable.path:
                variable.assign(cells.astype(variable.dtype))
        losses = _Losses()
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, callbacks=[losses])
        return np.diff([0.0, *(float(each) for each in losses.sums)])

    return Trainee(epoch)


def _cnn(work: Training) -> tuple[Any, list[Array]]:
    model = keras.Sequential([keras.Input(work.inputs.shape[2:])])
    for channels in CHANNELS:
        model.add(layers.Conv2D(channels, 3, padding="same", activation="relu"))
        model.add(layers.MaxPool2D(2))
    model.add(layers.Flatten())
    model.add(layers.Dense(HIDDEN, activation="relu"))
    model.add(layers.Dense(work.classes))
    found = []
    for name, cells in work.weights.items():
        if name.startswith("conv") and cells.ndim == 4:
            cells = cells.transpose(1, 2, 3, 0)
        elif cells.ndim > 1:
            cells = cells.reshape(len(cells), -1).T
        found.append(cells)
    return model, found


def _gpt(work: Training) -> tuple[Any, list[Array]]:
    ids = keras.Input((LENGTH,), dtype="int32")
    tokens, places = layers.Embedding(work.classes, WIDTH), layers.Embedding(LENGTH, WIDTH)
    x, w = tokens(ids) + places(keras.ops.arange(LENGTH)), work.weights
    pairs: list[tuple[Any, list[Array]]] = [(tokens, [w["tokens"]]), (places, [w["positions"]])]
    for k in range(LAYERS):
        p = {name.removeprefix("layers."): w[name][k] for name in w if name.startswith("layers.")}
        attend = layers.MultiHeadAttention(HEADS, HEAD)
        norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
        inner, outer = layers.Dense(4 * WIDTH), layers.Dense(WIDTH)
        normal = norms[0](x)
        x = x + attend(normal, normal, use_causal_mask=True)
        x = x + outer(keras.activations.gelu(inner(norms[1](x)), approximate=True))
        pairs += [
            (norm, [p[f"norm{number}.gamma"], p[f"norm{number}.beta"]])
            for number, norm in enumerate(norms, 1)
        ]
        projections = [(p[f"w_{each}"].transpose(2, 0, 1), p[f"b_{each}"]) for each in "qkv"]
        output = p["w_o"].transpose(1, 2, 0), p["b_o"]
        pairs.append((attend, [cells for pair in (*projections, output) for cells in pair]))
        pairs += [
            (dense, [p[f"{name}.weight"].T, p[f"{name}.bias"]])
            for dense, name in ((inner, "linear1"), (outer, "linear2"))
        ]
    last, scores = (
        layers.LayerNormalization(epsilon=1e-5),
        layers.Dense(work.classes, use_bias=False),
    )
    pairs += [(last, [w["norm.gamma"], w["norm.beta"]]), (scores, [w["scores"].T])]
    model = keras.Model(ids, scores(last(x)))
    for layer, cells in pairs:
        # query, key, value and output are weights of the layer in this order in every version
        layer.set_weights(cells)
    return model, model.get_weights()
