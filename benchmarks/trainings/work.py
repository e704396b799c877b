"""An epoch of training: minibatches in their order, initial weights, the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import digits_numpy  # noqa: F401  (makes examples/ importable)
import numpy as np
from digits_data import digit_images

Array = np.ndarray[Any, Any]
CHANNELS, HIDDEN, CLASSES = (16, 32), 96, 10
LAYERS, HEADS, HEAD, LENGTH = 2, 4, 16, 64
WIDTH = HEADS * HEAD


@dataclass(frozen=True, slots=True)
class Training:
    """One epoch by Adam.

    Attributes:
        name: Its title.
        kind: The model: a convolutional network for images, or a decoder for characters.
        inputs: The inputs of all minibatches, stacked along the first axis.
        targets: The class numbers, stacked likewise.
        weights: The initial weights by name; the last axes of a matrix are its inputs.
        rate: The learning rate.
        classes: The number of classes.
    """

    name: str
    kind: Literal["cnn", "gpt"]
    inputs: Array
    targets: Array
    weights: Mapping[str, Array]
    rate: float
    classes: int


@dataclass(frozen=True, slots=True)
class Trainee:
    """A framework's model.

    Attributes:
        epoch: A function that trains from the initial weights for an epoch, and returns the loss of
            each step.
    """

    epoch: Callable[[], Array]


def trainings() -> list[Training]:
    """Return the trainings."""
    return [digits_cnn(), character_gpt()]


def digits_cnn(batch: int = 48) -> Training:
    """Return an epoch of the digits of scikit-learn: 1437 images of 8 by 8 pixels."""
    (images, classes), _ = digit_images()
    random, steps = np.random.default_rng(0), len(images) // batch
    order = random.permutation(len(images))[: steps * batch].reshape(steps, batch)
    first, second = CHANNELS
    weights = {
        "conv0.weight": _uniform(random, first, 3, 3, 1),
        "conv0.bias": np.zeros(first, np.float32),
        "conv1.weight": _uniform(random, second, 3, 3, first),
        "conv1.bias": np.zeros(second, np.float32),
        "dense0.weight": _uniform(random, HIDDEN, 2, 2, second),
        "dense0.bias": np.zeros(HIDDEN, np.float32),
        "dense1.weight": _uniform(random, CLASSES, HIDDEN),
        "dense1.bias": np.zeros(CLASSES, np.float32),
    }
    title = "epoch of the digits CNN"
    return Training(title, "cnn", images[order], classes[order], weights, 3e-3, CLASSES)


def character_gpt(batch: int = 24, steps: int = 100) -> Training:
    """Return an epoch of windows of this project's documentation, character by character."""
    pages = sorted((Path(__file__).resolve().parents[2] / "docs").rglob("*.md"))
    text = "".join(page.read_text(encoding="ascii", errors="ignore") for page in pages)
    points = np.frombuffer(text.encode("ascii"), np.uint8)
    present, codes = np.unique(points, return_inverse=True)
    random = np.random.default_rng(0)
    starts = random.integers(0, len(codes) - LENGTH - 1, (steps, batch))
    windows = codes[starts[..., None] + np.arange(LENGTH + 1)].astype(np.int32)
    count = len(present)
    weights = {
        "tokens": 0.02 * random.standard_normal((count, WIDTH), dtype=np.float32),
        "positions": 0.02 * random.standard_normal((LENGTH, WIDTH), dtype=np.float32),
        "norm.gamma": np.ones(WIDTH, np.float32),
        "norm.beta": np.zeros(WIDTH, np.float32),
        "scores": _uniform(random, count, WIDTH),
    }
    for name, *extents in (
        *((f"w_{each}", HEADS, HEAD, WIDTH) for each in "qkv"),
        ("w_o", WIDTH, HEADS, HEAD),
        ("linear1.weight", 4 * WIDTH, WIDTH),
        ("linear2.weight", WIDTH, 4 * WIDTH),
    ):
        inputs = HEADS * HEAD if name == "w_o" else extents[-1]
        stacked = [_uniform(random, *extents, inputs=inputs) for _ in range(LAYERS)]
        weights[f"layers.{name}"] = np.stack(stacked)
    for name, *extents in (
        *((f"b_{each}", HEADS, HEAD) for each in "qkv"),
        ("b_o", WIDTH),
        ("linear1.bias", 4 * WIDTH),
        ("linear2.bias", WIDTH),
        ("norm1.beta", WIDTH),
        ("norm2.beta", WIDTH),
    ):
        weights[f"layers.{name}"] = np.zeros((LAYERS, *extents), np.float32)
    for name in ("norm1.gamma", "norm2.gamma"):
        weights[f"layers.{name}"] = np.ones((LAYERS, WIDTH), np.float32)
    title = "epoch of the character GPT"
    return Training(title, "gpt", windows[..., :-1], windows[..., 1:], weights, 2e-3, count)


def _uniform(random: np.random.Generator, *shape: int, inputs: int | None = None) -> Array:
    """Return centered numbers of variance 1 / inputs."""
    fan = int(np.prod(shape[1:])) if inputs is None else inputs
    return ((random.random(shape, dtype=np.float32) - 0.5) * (12 / fan) ** 0.5).astype(np.float32)
