"""The training step of the digits benchmark, compiled: an epoch lies on the device, and a call
takes the number of a minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import digits_numpy  # makes examples/ importable  # noqa: F401
from digits_data import CLASSES, PIXELS

import ocannl_core as oc


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes and the hyperparameters."""

    hidden: tuple[int, ...] = (128, 64)
    batch: int = 48
    momentum: float = 0.9
    weight_decay: float = 1e-3
    backend: str | None = None


class Trainer:
    """One network on one device.

    Args:
        count: The number of images to train on.
        options: The sizes and the hyperparameters.
    """

    def __init__(self, count: int, options: Options) -> None:
        self.batches = count // options.batch
        leading = [self.batches, options.batch]
        self.images = oc.placeholder("images", batch=leading, output=[PIXELS])
        self.targets = oc.placeholder("targets", batch=leading, output=[CLASSES])
        self.rate = oc.placeholder("learning_rate")
        minibatch = oc.static_index("minibatch", range=self.batches)
        network = oc.nn.mlp(hidden=options.hidden, output=[CLASSES])
        scores, targets = network(self.images[minibatch]), self.targets[minibatch]
        shifted = scores - oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
        log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
        total = oc.einsum("...|... => 0", targets * (log_total - shifted))
        self.loss = total / options.batch

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
        self.context.init_params(self.loss)
