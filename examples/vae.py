"""A variational autoencoder of handwritten digits: encode to a distribution, sample, decode.

`python examples/vae.py` trains for some seconds, prints the bound of `-log` likelihood per image on
held-out digits, and draws digits that were decoded from random codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from digits_data import PIXELS, digits

import ocannl_core as oc

Array = npt.NDArray[np.float32]


@oc.op
def encode(image: oc.Tensor, *, hidden: int, code: int) -> tuple[oc.Tensor, oc.Tensor]:
    """Return the mean, and the logarithm of the variance, of the codes of an image."""
    h = oc.gelu(oc.nn.dense(image, output=[hidden]))
    return oc.nn.dense(h, output=[code], label="mean"), oc.nn.dense(h, output=[code], label="log")


@oc.op
def decode(code: oc.Tensor, *, hidden: int) -> oc.Tensor:
    """Return a score for each pixel: positive where ink is likely."""
    return oc.nn.dense(oc.gelu(oc.nn.dense(code, output=[hidden])), output=[PIXELS])


class Result(NamedTuple):
    """The bound in nats per image before and after training, and decoded random codes."""

    first: float
    last: float
    images: Array


def train(
    epochs: int,
    *,
    batch: int = 60,
    hidden: int = 128,
    code: int = 8,
    scale: oc.train.DynamicScale | None = None,
) -> Result:
    """Train an autoencoder; float16 needs a scale of the loss."""
    data = digits()
    known, held_out = data.train_images, data.test_images
    image = oc.placeholder("image", batch=[batch], output=[PIXELS])
    call, first = oc.static_index("call"), encode(hidden=hidden, code=code)
    second = decode(hidden=hidden)

    mean, log_variance = first(image)
    drawn = mean + oc.exp(0.5 * log_variance) * oc.normal(counter=call)
    pixels = oc.nn.binary_cross_entropy(second(drawn), image, reduction="sum")
    divergence = 0.5 * oc.sum(oc.exp(log_variance) + mean**2 - 1.0 - log_variance)
    loss = (pixels + divergence) / batch

    loader = oc.data.Loader(known, batch=batch, shuffle=True)
    rate = oc.train.one_cycle(4e-3, steps=epochs * len(loader))
    optimizer = oc.train.Adam(learning_rate=rate, loss_scale=scale)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(optimizer.minimize(loss), bindings=[call])
    evaluate = ctx.compile(oc.train.forward(loss), bindings=[call])

    def bound() -> float:
        """Return the mean over the held-out images, one sample of the code for each."""
        others = oc.data.Loader(held_out, batch=batch)
        return oc.train.evaluate(
            evaluate, others, [image], loss, indices=lambda number, _: {"call": number}
        )

    before = bound()
    oc.train.fit(
        step, loader, [image], loss=loss, epochs=epochs, indices=lambda done, _: {"call": done}
    )
    after = bound()

    codes = np.random.default_rng(0).standard_normal((8, code)).astype(np.float32)
    decoded = oc.sigmoid(second(oc.tensor(codes, batch_axes=1)))
    ctx.compile(oc.train.forward(decoded))()
    return Result(before, after, ctx[decoded].reshape(-1, 8, 8))


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        result = train(options.epochs)
    print(oc.heatmap(result.images, low=0.0, high=1.0, across=8))
    print(f"held-out bound {result.last:.2f} nats per image, {result.first:.2f} at first")
    return result


if __name__ == "__main__":
    main()
