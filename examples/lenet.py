"""A small LeNet on handwritten digits: Adam, a cosine schedule, dropout, evaluation, a
checkpoint.

`python examples/lenet.py` trains on the digits of scikit-learn, 8 by 8 pixels, and prints the
accuracy on held-out images. `--idx FOLDER` reads MNIST's files from a folder instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from digits_data import digit_images

import ocannl_core as oc

Data = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]
"""Images of the shape (count, height, width, 1), and the digit in each."""


@oc.op
def lenet(
    images: oc.Tensor, *, channels: tuple[int, int] = (16, 32), hidden: int = 96
) -> oc.Tensor:
    """Return ten scores per image; the sizes between the layers are inferred."""
    x = images
    for count in channels:
        x = oc.relu(oc.nn.conv2d(x, kernel=3, channels=[count]))
        x = oc.nn.max_pool2d(x, window=2)
    x = oc.relu(oc.nn.dense(x, output=[hidden]))
    return oc.nn.dense(oc.nn.dropout(x, rate=0.4), output=[10])


def mnist(folder: Path) -> tuple[Data, Data]:
    """Return the 60000 and 10000 images of MNIST from its four files."""

    def data(part: str) -> Data:
        images, classes = (
            oc.data.read_idx(next(folder.glob(f"{part}-{kind}-ubyte*")))
            for kind in ("images-idx3", "labels-idx1")
        )
        return images[..., None].astype(np.float32) / 255, classes.astype(np.int32)

    return data("train"), data("t10k")


def train(
    known: Data, held_out: Data, epochs: int, batch: int = 48, file: Path | None = None
) -> oc.train.Run:
    """Train a network, and save it; the evaluations are accuracies on the held-out images."""
    n = oc.static_extent("n", max=batch)
    images = oc.placeholder("images", batch=[n], output=known[0].shape[1:])
    classes = oc.placeholder("classes", batch=[n], dtype="int32")
    network = lenet()
    loss = oc.nn.cross_entropy(network(images), classes, smoothing=0.05)
    with oc.evaluation():
        right = oc.nn.accuracy(network(images), classes)

    loader = oc.data.Loader(*known, batch=batch, shuffle=True, classes=10)
    others = oc.data.Loader(*held_out, batch=batch, last="short")
    rate = oc.train.cosine(4e-3, steps=epochs * len(loader), warmup=len(loader))
    optimizer = oc.train.AdamW(learning_rate=rate, weight_decay=0.02)
    ctx, inputs = oc.Context(), [images, classes]
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
    judge = ctx.compile(oc.train.forward(right))
    return oc.train.fit(
        step,
        loader,
        inputs,
        loss=loss,
        epochs=epochs,
        evaluation=oc.train.Evaluation(
            judge, others, inputs, right, lambda _, each: {"n": len(each[0])}
        ),
        checkpoint=file and oc.train.Checkpoint(file, loss, optimizer),
    )


def main(arguments: Sequence[str] | None = None) -> oc.train.Run:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--idx", type=Path, help="the folder of MNIST's files")
    parser.add_argument("--save", type=Path, help="the file of the trained network")
    options = parser.parse_args(arguments)
    known, held_out = mnist(options.idx) if options.idx else digit_images()
    with oc.Session(seed=0):
        run = train(known, held_out, options.epochs, file=options.save)
        print(oc.curves({"accuracy": run.evaluations}, x_name="epochs"))
    print(f"held-out accuracy {run.evaluations[-1]:.4f} after {options.epochs} epochs")
    return run


if __name__ == "__main__":
    main()
