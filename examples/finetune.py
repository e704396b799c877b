"""Fine-tuning from a checkpoint: even or odd, from thirty images.

`python examples/finetune.py` trains a network to tell the ten digits apart, and saves it. Then it
trains networks to tell even digits from odd ones on thirty images: one from scratch, one from the
saved layers with a new last layer, first alone (the saved layers frozen), then all. It prints the
accuracies on held-out images.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from digits_data import digit_images

import ocannl_core as oc

Images = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int32]
Digits = tuple[Images, Classes]


@oc.op
def body(images: oc.Tensor) -> oc.Tensor:
    """Return features of an image."""
    x = oc.relu(oc.nn.conv2d(images, kernel=3, channels=[16]))
    x = oc.nn.max_pool2d(x, window=2)
    x = oc.relu(oc.nn.conv2d(x, kernel=3, channels=[32]))
    return oc.relu(oc.nn.dense(oc.nn.max_pool2d(x, window=2), output=[64]))


@oc.op
def head(features: oc.Tensor, *, classes: int) -> oc.Tensor:
    """Return a score for each class."""
    return oc.nn.dense(features, output=[classes])


class Network:
    """A network in a context of its own, with the accuracy on given images."""

    def __init__(self, known: Digits, held_out: Digits, count: int, batch: int) -> None:
        self.loader = oc.data.Loader(*known, batch=batch, shuffle=True, classes=count)
        self.inputs = (
            oc.placeholder("images", batch=[batch], output=[8, 8, 1]),
            oc.placeholder("classes", batch=[batch], dtype="int32"),
        )
        self.body, self.head, self.ctx = body(), head(classes=count), oc.Context()
        images, classes = self.inputs
        self.loss = oc.nn.cross_entropy(self.head(self.body(images)), classes)
        others = (oc.tensor(each, batch_axes=1) for each in held_out)
        self.right = oc.nn.accuracy(self.head(self.body(next(others))), next(others))
        self.ctx.init_params(self.loss)

    def train(self, epochs: int, rate: float, frozen: Sequence[str] = ()) -> float:
        """Train all parameters but the frozen ones, and return the accuracy."""
        groups: Any = dict.fromkeys(frozen)
        falling = oc.train.cosine(rate, steps=epochs * len(self.loader))
        optimizer = oc.train.AdamW(learning_rate=falling, weight_decay=0.01, groups=groups)
        code = oc.train.grad_update(self.loss) + optimizer.update(self.loss)
        step = self.ctx.compile(code)
        oc.train.fit(step, self.loader, list(self.inputs), loss=self.loss, epochs=epochs)
        self.ctx.compile(oc.train.forward(self.right))()
        return self.ctx.item(self.right)


class Result(NamedTuple):
    """Accuracies on held-out images: of ten digits, and in three ways of even and odd."""

    first: float
    scratch: float
    frozen: float
    tuned: float


def train(epochs: int, file: Path, examples: int = 30) -> Result:
    (images, classes), (others, right) = digit_images()
    few = slice(-examples, None)
    first = Network((images[:-examples], classes[:-examples]), (others, right), 10, batch=48)
    accuracy = first.train(epochs, 4e-3)
    oc.save(file, first.ctx, first.body)

    known, held_out = (images[few], classes[few] % 2), (others, right % 2)
    scratch = Network(known, held_out, 2, batch=10).train(4 * epochs, 4e-3)
    second = Network(known, held_out, 2, batch=10)
    oc.load(file, second.ctx, second.body)
    frozen = second.train(4 * epochs, 2e-2, frozen=["body*"])
    return Result(accuracy, scratch, frozen, second.train(2 * epochs, 1e-3))


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0), tempfile.TemporaryDirectory() as folder:
        result = train(options.epochs, Path(folder) / "digits.safetensors")
    print(f"ten digits                      {result.first:.3f}")
    print(f"even or odd, from scratch       {result.scratch:.3f}")
    print(f"even or odd, new last layer     {result.frozen:.3f}")
    print(f"even or odd, then all layers    {result.tuned:.3f}")
    return result


if __name__ == "__main__":
    main()
