"""A gated recurrent network that adds two marked numbers of a long row.

`python examples/gru.py` trains for some seconds on rows that are drawn anew for every step, and
prints the squared error on others. Guessing 1 every time has an error of 1/6.

The network is `oc.nn.gru`; its loop over time is compiled once, and differentiated as a loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Rows = npt.NDArray[np.float32]


def marked_rows(count: int, length: int, random: np.random.Generator) -> tuple[Rows, Rows]:
    """Return rows of pairs (a number, a mark), time first, and the sums of the marked numbers."""
    numbers = random.random((length, count))
    marks = np.zeros_like(numbers)
    first = random.integers(length // 2, size=count)
    second = random.integers(length // 2, length, size=count)
    for place in (first, second):
        marks[place, np.arange(count)] = 1
    sums = (numbers * marks).sum(axis=0)
    return np.stack([numbers, marks], axis=-1).astype(np.float32), sums[:, None].astype(np.float32)


class Result(NamedTuple):
    """The mean squared error of each step, and that on other rows after training."""

    losses: list[float]
    held_out: float


def train(steps: int, *, length: int = 40, batch: int = 64, width: int = 48) -> Result:
    xs = oc.placeholder("xs", batch=[length, batch], output=[2])
    sums = oc.placeholder("sums", batch=[batch], output=[1])
    _, (last,) = oc.nn.gru(xs, width=width)
    loss = oc.nn.mean_squared_error(oc.nn.dense(last, output=[1]), sums)
    rate = oc.train.cosine(1e-2, steps=steps, final=1e-4)
    optimizer = oc.train.Adam(learning_rate=rate, clip_norm=1.0)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
    evaluate = ctx.compile(oc.train.forward(loss))
    random, losses, held_out = np.random.default_rng(0), [], []
    for number in range(steps + 10):
        ctx[xs], ctx[sums] = marked_rows(batch, length, random)
        if number < steps:
            step()
            losses.append(ctx.item(loss))
        else:
            evaluate()
            held_out.append(ctx.item(loss))
    return Result(losses, float(np.mean(held_out)))


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--length", type=int, default=40)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        result = train(options.steps, length=options.length)
    print(f"squared error {result.held_out:.5f} on new rows; guessing has {1 / 6:.5f}")
    return result


if __name__ == "__main__":
    main()
