"""One training step of the digits demo, compiled, in NumPy, and in PyTorch where it is installed.

All start from the same weights, process the same minibatches and must agree before timing. Also
printed: the time of the import, and the time until the model is ready to train, with and without
compiled code on disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import harness  # before NumPy: it limits the threads
from digits_numpy import (
    Layer,
    new_layer,
    shuffled_batches,
    train_step,
)  # also makes examples/ importable

import numpy as np  # isort: skip

_RATE = 0.05
_CHECKED_STEPS = 20


@dataclass(frozen=True, slots=True)
class DigitsWork:
    """Initial weights and minibatches of every contender."""

    images: Any
    targets: Any
    weights: tuple[Any, ...]
    momentum: float
    weight_decay: float


@dataclass(frozen=True, slots=True)
class Peer:
    """A contender, and the functions by which it is compared.

    Attributes:
        step: A function that takes the step of one minibatch and returns the loss before it.
        weights: A function that returns the current weights and biases, in order of the layers.
        run: A function that takes steps and returns no losses.
    """

    name: str
    step: Callable[[int], float]
    weights: Callable[[], Sequence[Any]]
    run: Callable[[int], None]


def compiled(backend: str | None) -> tuple[Peer, DigitsWork, str]:
    """Return the demo's own step, the work for the others, and the device it runs on."""
    from digits_data import digits
    from digits_trainer import Options, Trainer

    options = Options(backend=backend)
    data = digits()
    trainer = Trainer(len(data.train_images), options)
    images, targets = shuffled_batches(
        data.train_images, data.train_classes, options.batch, np.random.default_rng(0)
    )
    context, parameters = trainer.context, trainer.loss.parameters()
    context[trainer.images] = images
    context[trainer.targets] = targets
    context[trainer.rate] = _RATE
    weights = tuple(np.array(context[p]) for p in parameters)
    work = DigitsWork(images, targets, weights, options.momentum, options.weight_decay)
    count = 0

    def step(number: int) -> float:
        trainer.step(minibatch=number)
        return float(context.item(trainer.loss))

    def run(times: int) -> None:
        nonlocal count
        for _ in range(times):
            trainer.step(minibatch=count % trainer.batches)
            count += 1
        context.backend.synchronize(context.target)

    peer = Peer("compiled", step, lambda: [context[p] for p in parameters], run)
    return peer, work, str(context.target)


def numpy_peer(work: DigitsWork) -> Peer:
    """Return the step written by hand."""
    layers = [
        new_layer(weight, bias)
        for weight, bias in zip(work.weights[::2], work.weights[1::2], strict=True)
    ]
    count = 0

    def step(number: int) -> float:
        return train_step(
            layers,
            work.images[number],
            work.targets[number],
            learning_rate=_RATE,
            momentum=work.momentum,
            weight_decay=work.weight_decay,
        )

    def run(times: int) -> None:
        nonlocal count
        for _ in range(times):
            step(count % len(work.images))
            count += 1

    return Peer("numpy", step, lambda: _flat(layers), run)


def _flat(layers: Sequence[Layer]) -> list[Any]:
    return [array for layer in layers for array in (layer.weight, layer.bias)]


def torch_peer(work: DigitsWork) -> Peer:
    """Return the step as a PyTorch user would write it."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(harness.THREADS)
    modules: list[Any] = []
    for weight, bias in zip(work.weights[::2], work.weights[1::2], strict=True):
        outputs, inputs = weight.shape
        linear = torch.nn.Linear(inputs, outputs)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
        modules += [linear, torch.nn.ReLU()]
    network = torch.nn.Sequential(*modules[:-1])
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=_RATE,
        momentum=work.momentum,
        weight_decay=work.weight_decay,
        fused=True,
    )
    images = list(torch.from_numpy(work.images).unbind(0))
    classes = list(torch.from_numpy(work.targets.argmax(-1)).unbind(0))
    count = 0

    def once(number: int) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(network(images[number]), classes[number])
        loss.backward()
        optimizer.step()
        return loss

    def run(times: int) -> None:
        nonlocal count
        for _ in range(times):
            once(count % len(images))
            count += 1

    return Peer(
        "torch",
        lambda number: float(once(number).detach()),
        lambda: [p.detach().numpy() for p in network.parameters()],
        run,
    )


def check_agreement(peers: Sequence[Peer], minibatches: int) -> float:
    """Return the largest difference of a loss or a weight after a few steps of every peer.

    Raises:
        SystemExit: if a peer does other work than the first.
    """
    losses = [
        np.array([peer.step(i % minibatches) for i in range(_CHECKED_STEPS)]) for peer in peers
    ]
    first = peers[0]
    worst = 0.0
    for peer, found in zip(peers[1:], losses[1:], strict=True):
        pairs = [(losses[0], found), *zip(first.weights(), peer.weights(), strict=True)]
        difference = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
        worst = max(worst, difference)
        if not difference < 1e-3:
            sys.exit(
                f"{peer.name} and {first.name} differ by {difference} after {_CHECKED_STEPS} steps"
            )
    return worst


def latencies(backend: str | None) -> None:
    """Print how long fresh processes take to import and to get ready.

    The first process finds no compiled code on disk, the later ones do.
    """
    with tempfile.TemporaryDirectory() as folder:
        cold = _start_up(backend, folder)
        warm = [_start_up(backend, folder) for _ in range(3)]
    importing = min(found["import"] for found in [cold, *warm])
    ready = min(found["ready"] for found in warm)
    print(f"import ocannl_core (NumPy loaded already): {importing * 1e3:.0f} ms")
    print(f"model built, compiled and initialized: {cold['ready']:.2f} s cold, {ready:.2f} s warm")


def _start_up(backend: str | None, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--start-up", "--threads", str(harness.THREADS)]
    if backend is not None:
        command += ["--backend", backend]
    environment = {**os.environ, "OCANNL_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def start_up(backend: str | None) -> None:
    """Print the times of this process as JSON."""
    start = time.perf_counter()
    import ocannl_core  # noqa: F401  (the import is timed)

    imported = time.perf_counter()
    from digits_data import digits
    from digits_trainer import Options, Trainer

    data = digits()
    loaded = time.perf_counter()
    Trainer(len(data.train_images), Options(backend=backend))
    ready = time.perf_counter()
    print(json.dumps({"import": imported - start, "ready": ready - loaded}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--start-up", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start_up:
        start_up(options.backend)
        return
    ours, work, target = compiled(options.backend)
    peers = [ours, numpy_peer(work)]
    if importlib.util.find_spec("torch") is not None:
        peers.append(torch_peer(work))
    else:
        print("PyTorch is not installed: left out")
    worst = check_agreement(peers, len(work.images))
    print(
        f"{' and '.join(peer.name for peer in peers)} agree within {worst:.1e} "
        f"after {_CHECKED_STEPS} steps"
    )
    widths = [work.weights[0].shape[1], *(len(bias) for bias in work.weights[1::2])]
    sizes = "-".join(str(width) for width in widths)
    print(
        f"one training step, layers {sizes}, minibatch {work.images.shape[1]}, on {target}; "
        f"{harness.THREADS} thread(s) allowed for each"
    )
    contenders = [harness.TimedWork(peer.name, peer.run) for peer in peers]
    print(harness.table(harness.compare(contenders, rounds=options.rounds)))
    latencies(options.backend)


if __name__ == "__main__":
    main()
