"""Classify the period of noisy rows of symbols, with user-written operations.

The symbols are looked up in a table of vectors, Fourier transformed along the row, and the power of
every frequency is the input of a linear classifier, so that the phase of a period does not matter.
The look-up has C code, the transform runs in NumPy, and parameters are updated in place.

`python examples/periods.py` trains for a few seconds and prints the accuracy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from periods_ops import FourierTransform, Momentum, Rows

import ocannl_core as oc

SYMBOLS, LENGTH, WIDTH = 8, 24, 4
PERIODS = (2, 3, 4, 6)
NOISE = 0.15
"""The share of symbols that are replaced by others."""

Symbols = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PeriodsOptions:
    """Command-line options."""

    steps: int = 250
    batch: int = 64
    learning_rate: float = 0.05
    seed: int = 1
    require: float = 0.0
    backend: str | None = None


def rows_of_symbols(count: int, random: np.random.Generator) -> tuple[Symbols, Symbols]:
    """Return rows that repeat with some period, and the place of the period in `PERIODS`."""
    classes = random.integers(len(PERIODS), size=count)
    rows = np.empty((count, LENGTH), np.int32)
    for row, each in zip(rows, classes, strict=True):
        pattern = random.choice(SYMBOLS, size=PERIODS[each], replace=False)
        row[:] = np.resize(np.roll(pattern, random.integers(LENGTH)), LENGTH)
    noisy = random.random(rows.shape) < NOISE
    rows[noisy] = random.integers(SYMBOLS, size=int(noisy.sum()))
    return rows, classes.astype(np.int32)


@oc.op
def classifier(symbols: oc.Tensor) -> oc.Tensor:
    """Return a score for each period."""
    vectors = Rows()(oc.param("table", output=[SYMBOLS, WIDTH]), symbols)
    spectrum = FourierTransform()(vectors)
    power = oc.einsum("...|n, w, c; ...|n, w, c => ...|n", spectrum, spectrum)
    return oc.nn.dense(oc.log(power + 1.0), output=[len(PERIODS)])


@oc.cd
def momentum_update(loss: oc.Tensor, *, learning_rate: float) -> None:
    """Update every parameter in place; the operation keeps the velocity in a tensor of its own."""
    for parameter in sorted(loss.params, key=lambda tensor: tensor.id):
        velocity = oc.declare("velocity")
        Momentum(learning_rate, 0.9)(parameter, parameter.grad, velocity)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The loss of every step, and the accuracy on new rows."""

    losses: list[float]
    accuracy: float


def train(options: PeriodsOptions) -> TrainingResult:
    """Return how training went."""
    random = np.random.default_rng(options.seed)
    with oc.Session(seed=options.seed):
        symbols = oc.placeholder("symbols", batch=[options.batch], output=[LENGTH], dtype="int32")
        targets = oc.placeholder("targets", batch=[options.batch], dtype="int32")
        scores = classifier(symbols)
        loss = oc.nn.cross_entropy(scores, targets)
        update = momentum_update(loss, learning_rate=options.learning_rate)
        ctx = oc.Context(options.backend)
        step = ctx.compile(oc.train.grad_update(loss) + update)
        predict = ctx.compile(oc.train.forward(scores))
        ctx.init_params(loss)
        losses = []
        for _ in range(options.steps):
            ctx[symbols], ctx[targets] = rows_of_symbols(options.batch, random)
            step()
            losses.append(ctx.item(loss))
        ctx[symbols], wanted = rows_of_symbols(options.batch, random)
        predict()
        right = ctx[scores].argmax(axis=1) == wanted
        return TrainingResult(losses, float(right.mean()))


def parse(arguments: Sequence[str]) -> PeriodsOptions:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    defaults = PeriodsOptions()
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--batch", type=int, default=defaults.batch)
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--require", type=float, default=0.0, help="the least accuracy")
    parser.add_argument("--backend", default=None)
    return PeriodsOptions(**vars(parser.parse_args(arguments)))


def main(arguments: Sequence[str]) -> int:
    """Train, print the result, and return the exit status."""
    options = parse(arguments)
    outcome = train(options)
    print(f"loss {outcome.losses[0]:.3f} at first, {outcome.losses[-1]:.3f} at last")
    print(f"{outcome.accuracy:.0%} of new rows are told right")
    if outcome.accuracy < options.require:
        print(f"below the required {options.require:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
