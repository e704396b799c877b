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
from digits_data import CLASSES, PIXELS, Digits, digits, shuffled_batches
from digits_picture import save_picture
from progress import ProgressBar

import ocannl_core as oc


@oc.op
def dense(x: oc.Tensor, *, width: int) -> oc.Tensor:
    """Return an affine function of `x` with `width` outputs; the number of inputs is inferred."""
    return oc.param("weight") @ x + oc.param("bias", output=[width], init=0.0)


@oc.op
def perceptron(x: oc.Tensor, *, hidden: tuple[int, ...]) -> oc.Tensor:
    """Return ten scores per image."""
    for width in hidden:
        x = oc.relu(dense(x, width=width))
    return dense(x, width=CLASSES)


@oc.op
def cross_entropy(scores: oc.Tensor, targets: oc.Tensor, *, examples: int) -> oc.Tensor:
    """Return the mean over examples of `-log softmax(scores)` at the true class.

    The largest score is subtracted first, so that no exponential overflows.
    """
    largest = oc.einmax("...|... => ...|0", scores)
    shifted = scores - oc.stop_gradient(largest)
    log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
    return oc.einsum("...|... => 0", targets * (log_total - shifted)) / examples


@dataclass(frozen=True, slots=True)
class Options:
    """Command-line options."""

    seeds: int = 5
    epochs: int = 40
    hidden: tuple[int, ...] = (128, 64)
    batch: int = 48
    learning_rate: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 1e-3
    backend: str | None = None
    out: Path = Path("build/digits")
    require: float = 0.0
    quiet: bool = False


class DivergedError(Exception):
    """Training left the numbers, or got worse than guessing."""


class Trainer:
    """One network on one device: compiled once, then trained epoch by epoch.

    A minibatch is chosen inside the compiled step: the whole epoch lies on the device, and the step
    takes the number of the minibatch as its only argument.
    """

    def __init__(self, data: Digits, options: Options) -> None:
        self.batches = len(data.train_images) // options.batch
        leading = [self.batches, options.batch]
        self.images = oc.placeholder("images", batch=leading, output=[PIXELS])
        self.targets = oc.placeholder("targets", batch=leading, output=[CLASSES])
        self.rate = oc.placeholder("learning_rate")
        held_out = oc.tensor(data.test_images, batch_axes=1, label="held_out")
        minibatch = oc.static_index("minibatch", range=self.batches)

        network = perceptron(hidden=options.hidden)
        self.loss = cross_entropy(
            network(self.images[minibatch]), self.targets[minibatch], examples=options.batch
        )
        self.scores = network(held_out)

        self.context = oc.Context(options.backend)
        update = oc.train.sgd_update(
            self.loss,
            learning_rate=self.rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
        )
        self.step = self.context.compile(
            oc.train.grad_update(self.loss) + update, bindings=[minibatch]
        )
        self.predict = self.context.compile(oc.train.forward(self.scores))
        self.context.init_params(self.loss)

    def train_epoch(
        self,
        images: npt.NDArray[np.float32],
        targets: npt.NDArray[np.float32],
        learning_rate: float,
    ) -> float:
        """Take one step per minibatch and return the mean loss.

        Raises:
            DivergedError: if a loss is no finite number, or the mean is far above that of guessing.
        """
        self.context[self.images] = images
        self.context[self.targets] = targets
        self.context[self.rate] = learning_rate
        total = 0.0
        for number in range(self.batches):
            self.step(minibatch=number)
            loss = self.context.item(self.loss)
            if not math.isfinite(loss):
                raise DivergedError(f"the loss of minibatch {number} is {loss}")
            total += loss
        mean = total / self.batches
        guessing = math.log(CLASSES)
        if mean > 2 * guessing:
            raise DivergedError(f"the mean loss is {mean:.3g}; guessing has {guessing:.3g}")
        return mean

    def predictions(self) -> npt.NDArray[np.int64]:
        """Return the digit of highest score for every held-out image."""
        self.predict()
        return np.asarray(self.context[self.scores].argmax(axis=-1), dtype=np.int64)


@dataclass(slots=True)
class Run:
    """Result of one seed."""

    seed: int
    losses: list[float]
    accuracies: list[float]
    predictions: npt.NDArray[np.int64]
    compile_seconds: float
    train_seconds: float
    target: str
    source: str
    language: str


def cosine(epoch: int, epochs: int, peak: float) -> float:
    """Return an epoch's learning rate: half a cosine from the peak down to a hundredth of it."""
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * epoch / max(1, epochs - 1))))


def train(data: Digits, options: Options, seed: int) -> Run:
    """Train one network. The seed decides its weights and the order of the images."""
    start = time.perf_counter()
    with oc.Session(seed=seed):
        trainer = Trainer(data, options)
        compiled = time.perf_counter()
        generator = np.random.default_rng(seed)
        run = Run(seed, [], [], trainer.predictions(), compiled - start, 0.0, "", "", "")
        bar = ProgressBar(f"seed {seed}", options.epochs, quiet=options.quiet)
        for epoch in range(options.epochs):
            rate = cosine(epoch, options.epochs, options.learning_rate)
            images, targets = shuffled_batches(
                data.train_images, data.train_classes, options.batch, generator
            )
            try:
                run.losses.append(trainer.train_epoch(images, targets, rate))
            except DivergedError as error:
                bar.interrupt()
                raise DivergedError(f"seed {seed}, epoch {epoch + 1}: {error}") from None
            run.predictions = trainer.predictions()
            run.accuracies.append(float((run.predictions == data.test_classes).mean()))
            bar.advance(f"loss {run.losses[-1]:.4f}  held-out accuracy {run.accuracies[-1]:.3f}")
        run.train_seconds = time.perf_counter() - compiled
        run.target = str(trainer.context.target)
        run.source = trainer.step.source
        run.language = trainer.step.language
    return run


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of a command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    flag = parser.add_argument
    defaults = Options()
    flag("--seeds", type=int, default=defaults.seeds, help="networks to train")
    flag("--epochs", type=int, default=defaults.epochs)
    flag("--hidden", type=int, nargs="+", default=list(defaults.hidden), help="widths of layers")
    flag("--batch", type=int, default=defaults.batch, help="images in a minibatch")
    flag("--learning-rate", type=float, default=defaults.learning_rate)
    flag("--momentum", type=float, default=defaults.momentum)
    flag("--weight-decay", type=float, default=defaults.weight_decay)
    flag(
        "--backend",
        default=defaults.backend,
        help="such as cpu_c or interp; by default the best one",
    )
    flag("--out", type=Path, default=defaults.out, help="folder for the picture and the code")
    flag("--require", type=float, default=defaults.require, help="fail below this mean accuracy")
    flag("--quiet", action="store_true", help="no progress bar")
    found = vars(parser.parse_args(arguments))
    if min(found["seeds"], found["epochs"], found["batch"], *found["hidden"]) < 1:
        parser.error("--seeds, --epochs, --batch and --hidden must be positive")
    return Options(**{**found, "hidden": tuple(found["hidden"])})


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if training diverged or stayed below the required accuracy."""
    options = parse(arguments)
    data = digits()
    runs = []
    try:
        for seed in range(options.seeds):
            run = train(data, options, seed)
            runs.append(run)
            print(
                f"seed {seed}: held-out accuracy {run.accuracies[-1]:.4f}, "
                f"loss {run.losses[-1]:.4f}, ready in {run.compile_seconds:.2f} s, "
                f"trained in {run.train_seconds:.2f} s"
            )
    except DivergedError as error:
        print(f"training diverged: {error}. Try a lower --learning-rate.", file=sys.stderr)
        return 1

    mean = statistics.fmean(run.accuracies[-1] for run in runs)
    seconds = sum(run.compile_seconds + run.train_seconds for run in runs)
    print(
        f"mean held-out accuracy {mean:.4f} over {len(runs)} seeds "
        f"({len(data.test_images)} images each), {seconds:.1f} s on {runs[-1].target}"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out / "digits.png"
    save_picture(runs, data, picture)
    print(f"curves and predictions: {picture}")
    source = options.out / f"step.{runs[-1].language}"
    source.write_text(runs[-1].source)
    print(f"generated code of a training step: {source}")
    if mean < options.require:
        print(f"the mean accuracy is below the required {options.require}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
