"""Train a multi-layer perceptron on handwritten digits and test it on held-out images.

`python examples/digits.py` trains five networks from different seeds and leaves a picture and the
generated code of a training step in `build/digits/`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from digits_data import CLASSES, PIXELS, Digits, digits
from digits_picture import save_picture

import ocannl_core as oc


@dataclass(slots=True)
class Run:
    """The training of one network: its history, its last predictions, and the code of a step."""

    seed: int
    losses: list[float]
    accuracies: list[float]
    predictions: npt.NDArray[np.int64]
    seconds: float
    target: str
    step: oc.Routine


def train(data: Digits, options: argparse.Namespace, seed: int) -> Run:
    """Train one network. The seed decides its weights and the order of the images."""
    start = time.perf_counter()
    with oc.Session(seed=seed):
        images = oc.placeholder("images", batch=[options.batch], output=[PIXELS])
        classes = oc.placeholder("classes", batch=[options.batch], dtype="int32")
        network = oc.nn.mlp(hidden=options.hidden, output=[CLASSES])
        loss = oc.nn.cross_entropy(network(images), classes)
        scores = network(oc.tensor(data.test_images, batch_axes=1, label="held_out"))
        guessed = oc.argmax(scores, axis=-1)

        known = data.train_images, data.train_classes
        loader = oc.data.Loader(*known, batch=options.batch, shuffle=True, seed=seed)
        peak, steps = options.learning_rate, options.epochs * len(loader)
        rate = oc.train.cosine(peak, steps=steps, final=0.01 * peak)
        optimizer = oc.train.SGD(learning_rate=rate, momentum=0.9, weight_decay=1e-3)
        ctx = oc.Context(options.backend)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        predict = ctx.compile(oc.train.forward(guessed))
        ctx.init_params(loss)
        accuracies: list[float] = []

        def judge(run: oc.train.Run) -> None:
            if run.epoch_losses[-1] > 2 * math.log(CLASSES):
                raise oc.DivergenceError(f"The loss {run.epoch_losses[-1]:.3g} is above a guess's.")
            predict()
            accuracies.append(float((ctx[guessed] == data.test_classes).mean()))

        inputs, shown = [images, classes], False if options.quiet else None
        run = oc.train.fit(
            step, loader, inputs, loss=loss, epochs=options.epochs, on_epoch=judge, progress=shown
        )
        predictions = np.asarray(ctx[guessed], np.int64)
    seconds = time.perf_counter() - start
    return Run(seed, run.epoch_losses, accuracies, predictions, seconds, str(ctx.target), step)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    flag = parser.add_argument
    flag("--seeds", type=int, default=5, help="networks to train")
    flag("--epochs", type=int, default=40)
    flag("--hidden", type=int, nargs="+", default=[128, 64], help="widths of layers")
    flag("--batch", type=int, default=48, help="images in a minibatch")
    flag("--learning-rate", type=float, default=0.2)
    flag("--backend", help="such as cpu_c or interp; by default the best one")
    flag("--out", type=Path, default=Path("build/digits"), help="folder for picture and code")
    flag("--require", type=float, default=0.0, help="fail below this mean accuracy")
    flag("--quiet", action="store_true", help="no progress line")
    found = parser.parse_args(arguments)
    if min(found.seeds, found.epochs, found.batch, *found.hidden) < 1:
        parser.error("--seeds, --epochs, --batch and --hidden must be positive")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if training diverged or stayed below the required accuracy."""
    options, data = parse(arguments), digits()
    runs: list[Run] = []
    try:
        for seed in range(options.seeds):
            run = train(data, options, seed)
            runs.append(run)
            print(f"seed {seed}: held-out accuracy {run.accuracies[-1]:.4f}, ", end="")
            print(f"loss {run.losses[-1]:.4f}, {run.seconds:.2f} s")
    except oc.DivergenceError as error:
        print(f"training diverged: seed {seed}: {error}\nTry another rate.", file=sys.stderr)
        return 1

    mean = statistics.fmean(run.accuracies[-1] for run in runs)
    print(f"mean held-out accuracy {mean:.4f} over {len(runs)} seeds ", end="")
    seconds = sum(run.seconds for run in runs)
    print(f"({len(data.test_images)} images each), {seconds:.1f} s on {runs[-1].target}")
    options.out.mkdir(parents=True, exist_ok=True)
    picture, code = options.out / "digits.png", options.out / f"step.{runs[-1].step.language}"
    save_picture(runs, data, picture)
    code.write_text(runs[-1].step.source)
    print(f"curves and predictions: {picture}\ngenerated code of a training step: {code}")
    if mean < options.require:
        print(f"the mean accuracy is below the required {options.require}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
