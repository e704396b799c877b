"""The digits model written by hand in NumPy: forward, backward and update, without a framework.

It is the peer that the compiled step is compared with, value by value and second by second, and it
trains by itself: `python benchmarks/digits_numpy.py --seeds 5`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from digits_data import CLASSES, PIXELS, Classes, Images, digits  # needs the path above

Array = npt.NDArray[np.float32]


def one_hot(classes: Classes) -> Images:
    """Return rows of ten numbers: 1 at the class, 0 elsewhere."""
    return np.eye(CLASSES, dtype=np.float32)[classes]


def shuffled_batches(
    images: Images, classes: Classes, batch: int, generator: np.random.Generator
) -> tuple[Images, Images]:
    """Return shuffled images, `(batches, batch, 64)`, and one-hot classes, `(batches, batch, 10)`.

    Images that do not fill a last batch sit this epoch out; the next shuffle brings others.
    """
    batches = len(images) // batch
    order = generator.permutation(len(images))[: batches * batch]
    return (
        images[order].reshape(batches, batch, PIXELS),
        one_hot(classes[order]).reshape(batches, batch, CLASSES),
    )


@dataclass(slots=True)
class Layer:
    """Weights of shape `(outputs, inputs)` and a bias, each with its velocity."""

    weight: Array
    bias: Array
    weight_velocity: Array
    bias_velocity: Array


def new_layer(weight: Array, bias: Array) -> Layer:
    """Return a layer over copies of the arrays, at rest."""
    return Layer(weight.copy(), bias.copy(), np.zeros_like(weight), np.zeros_like(bias))


def random_layers(sizes: Sequence[int], generator: np.random.Generator) -> list[Layer]:
    """Return layers with weights uniform in plus or minus `sqrt(3 / inputs)` and zero biases."""
    layers = []
    for inputs, outputs in pairwise(sizes):
        bound = math.sqrt(3 / inputs)
        weight = generator.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        layers.append(new_layer(weight, np.zeros(outputs, np.float32)))
    return layers


def logits(layers: Sequence[Layer], images: Array) -> list[Array]:
    """Return the input of every layer, then the output of the last."""
    values = [images]
    for layer in layers[:-1]:
        values.append(np.maximum(values[-1] @ layer.weight.T + layer.bias, np.float32(0)))
    values.append(values[-1] @ layers[-1].weight.T + layers[-1].bias)
    return values


def train_step(
    layers: Sequence[Layer],
    images: Array,
    targets: Array,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> float:
    """Update the layers by one step of SGD and return the mean cross-entropy before it."""
    *inputs, output = logits(layers, images)
    shifted = output - output.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(1, keepdims=True)
    loss = float((targets * (np.log(total) - shifted)).sum() / np.float32(len(images)))
    gradient = (exponentials / total - targets) * np.float32(1 / len(images))
    rate, friction, decay = (np.float32(x) for x in (learning_rate, momentum, weight_decay))
    for layer, value in zip(reversed(layers), reversed(inputs), strict=True):
        weight_gradient = gradient.T @ value
        bias_gradient = gradient.sum(0)
        gradient = (gradient @ layer.weight) * (value > 0)
        weight_change = weight_gradient + decay * layer.weight
        layer.weight_velocity[:] = friction * layer.weight_velocity + weight_change
        bias_change = bias_gradient + decay * layer.bias
        layer.bias_velocity[:] = friction * layer.bias_velocity + bias_change
        layer.weight -= rate * layer.weight_velocity
        layer.bias -= rate * layer.bias_velocity
    return loss


def accuracy(layers: Sequence[Layer], images: Array, classes: npt.NDArray[np.int64]) -> float:
    """Return the share of images whose largest logit is the right one."""
    return float((logits(layers, images)[-1].argmax(1) == classes).mean())


def cosine(epoch: int, epochs: int, peak: float) -> float:
    """Return an epoch's learning rate: half a cosine from the peak down to a hundredth of it."""
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * epoch / max(1, epochs - 1))))


def train(options: argparse.Namespace, seed: int) -> float:
    """Return the held-out accuracy after a whole training run."""
    data = digits()
    generator = np.random.default_rng(seed)
    layers = random_layers((PIXELS, *options.hidden, CLASSES), generator)
    for epoch in range(options.epochs):
        images, targets = shuffled_batches(
            data.train_images, data.train_classes, options.batch, generator
        )
        for batch_images, batch_targets in zip(images, targets, strict=True):
            train_step(
                layers,
                batch_images,
                batch_targets,
                learning_rate=cosine(epoch, options.epochs, options.learning_rate),
                momentum=options.momentum,
                weight_decay=options.weight_decay,
            )
    return accuracy(layers, data.test_images, data.test_classes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-3)
    options: Any = parser.parse_args(arguments)
    start = time.perf_counter()
    found = [train(options, seed) for seed in range(options.seeds)]
    seconds = (time.perf_counter() - start) / options.seeds
    each = " ".join(f"{value:.4f}" for value in found)
    print(f"held-out accuracy {each}, mean {np.mean(found):.4f}, {seconds:.2f} s a seed")


if __name__ == "__main__":
    main()
