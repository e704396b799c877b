"""An encoder and a decoder, transformers both, that sort rows of digits.

`python examples/sort_digits.py` trains on rows that are drawn anew for every step, then writes
sorted rows digit by digit from its own output, and prints how many of 500 new rows are sorted
entirely.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Codes = npt.NDArray[np.int32]
DIGITS, BEGIN, LENGTH = 10, 10, 8
"""The digits, a mark in front of the output, and the length of a row."""


def rows(count: int, random: np.random.Generator) -> Codes:
    return random.integers(DIGITS, size=(count, LENGTH), dtype=np.int32)


@oc.op
def sorter(source: oc.Tensor, written: oc.Tensor, *, width: int, layers: int) -> oc.Tensor:
    """Return scores of the digit after each place of the output so far."""
    embedded = (
        oc.nn.learned_positions(
            oc.nn.embedding(ids, entries=DIGITS + 1, width=width, label=name), length=LENGTH
        )
        for ids, name in ((source, "source"), (written, "target"))
    )
    x = oc.nn.transformer(*embedded, layers=layers, heads=4, hidden=4 * width, norm_first=True)
    return oc.nn.dense(x, output=[DIGITS])


class Result(NamedTuple):
    """The loss of each step, the fraction of new rows that are sorted, and some of them."""

    losses: list[float]
    sorted: float
    shown: list[tuple[Codes, Codes]]


def train(steps: int, *, batch: int = 100, width: int = 48, layers: int = 1) -> Result:
    source, written, wanted = (
        oc.placeholder(name, batch=[batch, LENGTH], dtype="int32")
        for name in ("source", "written", "wanted")
    )
    scores = sorter(source, written, width=width, layers=layers)
    loss = oc.nn.cross_entropy(scores, wanted)
    rate = oc.train.one_cycle(5e-3, steps=steps)
    optimizer = oc.train.AdamW(learning_rate=rate, clip_norm=1.0)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
    predict = ctx.compile(oc.train.forward(scores))

    random, losses = np.random.default_rng(0), []
    begin = np.full((batch, 1), BEGIN, np.int32)
    for _ in range(steps):
        ctx[source] = given = rows(batch, random)
        ctx[wanted] = answer = np.sort(given, axis=1)
        ctx[written] = np.hstack([begin, answer[:, :-1]])
        step()
        losses.append(ctx.item(loss))

    right, shown = [], []
    for _ in range(500 // batch):
        ctx[source] = given = rows(batch, random)
        output = np.repeat(begin, LENGTH + 1, axis=1)
        for place in range(LENGTH):
            ctx[written] = output[:, :-1]
            predict()
            output[:, place + 1] = ctx[scores][:, place].argmax(axis=1)
        right.append((output[:, 1:] == np.sort(given, axis=1)).all(axis=1))
        shown.append((given[0], output[0, 1:]))
    return Result(losses, float(np.mean(right)), shown)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        result = train(options.steps)
    for given, output in result.shown:
        print(*given, " -> ", *output)
    print(f"{result.sorted:.1%} of new rows are sorted entirely")
    return result


if __name__ == "__main__":
    main()
