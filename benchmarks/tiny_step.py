"""One training step of a network so small that calling it is most of the work: layers 2-16-1.

Two moons, minibatches of 32, mean hinge loss, plain gradient descent; one call per step. All start
from the same weights and must agree before anything is timed. Beside them: a routine with the same
static index and nothing to do, which is what a call costs by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness  # before NumPy: it limits the threads

import numpy as np  # isort: skip

import ocannl_core as oc

_HIDDEN, _BATCH, _BATCHES, _RATE = 16, 32, 8, 0.1
_CHECKED_STEPS = 20


@dataclass(frozen=True, slots=True)
class Peer:
    """A contender: takes one step on a minibatch; tells its weights."""

    name: str
    step: Callable[[int], None]
    weights: Callable[[], list[Any]]

    def run(self, times: int) -> None:
        step = self.step
        for number in range(times):
            step(number % _BATCHES)


def moons() -> tuple[Any, Any, list[Any]]:
    """Returns points and labels by minibatch, and the weights to start from."""
    random = np.random.default_rng(4)
    count = _BATCHES * _BATCH
    angle, label = random.uniform(0, np.pi, count), random.integers(0, 2, count)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], 1)
    points = np.where(label[:, None] == 0, upper, lower) + 0.1 * random.standard_normal((count, 2))
    weights = [
        random.standard_normal((_HIDDEN, 2)),
        np.zeros(_HIDDEN),
        random.standard_normal((1, _HIDDEN)) * 0.5,
        np.zeros(1),
    ]
    return (
        points.astype(np.float32).reshape(_BATCHES, _BATCH, 2),
        (2.0 * label - 1).astype(np.float32).reshape(_BATCHES, _BATCH, 1),
        [each.astype(np.float32) for each in weights],
    )


def compiled(backend: str | None) -> tuple[Peer, Callable[[int], None], str]:
    """Returns the step of this project, an empty routine, and the device."""
    points, labels, weights = moons()
    number = oc.static_index("minibatch", range=_BATCHES)
    x, y = (oc.tensor(each, batch_axes=2)[number] for each in (points, labels))
    w0, b0 = oc.param("w0", output=[_HIDDEN]), oc.param("b0", output=[_HIDDEN])
    w1, b1 = oc.param("w1", output=[1]), oc.param("b1", output=[1])
    margin = 1 - y * (w1 @ oc.relu(w0 @ x + b0) + b1)
    loss = oc.einsum("...|... => 0", oc.relu(margin)) / _BATCH
    context = oc.Context(backend)
    update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=_RATE)
    step = context.compile(update, bindings=[number], keep=())
    parameters = [w0, b0, w1, b1]
    for parameter, cells in zip(parameters, weights, strict=True):
        context[parameter] = cells
    one = oc.tensor(np.arange(_BATCHES, dtype=np.float32), batch_axes=1)[number]
    nothing = context.compile(oc.train.forward(one), bindings=[number])
    peer = Peer(
        "compiled",
        lambda each: step(minibatch=each),
        lambda: [context[each] for each in parameters],
    )
    return peer, lambda each: nothing(minibatch=each), str(context.target)


def numpy_peer() -> Peer:
    """Returns the step written by hand."""
    points, labels, (w0, b0, w1, b1) = moons()
    rate, share = np.float32(_RATE), np.float32(1 / _BATCH)

    def step(number: int) -> None:
        x, y = points[number], labels[number]
        hidden = np.maximum(x @ w0.T + b0, 0)
        margin = 1 - y * (hidden @ w1.T + b1)
        error = -y * share * (margin > 0)
        inner = (error @ w1) * (hidden > 0)
        w1[...] -= rate * (error.T @ hidden)
        b1[...] -= rate * error.sum(0)
        w0[...] -= rate * (inner.T @ x)
        b0[...] -= rate * inner.sum(0)

    return Peer("numpy", step, lambda: [w0, b0, w1, b1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    ours, nothing, target = compiled(options.backend)
    peers = [ours, numpy_peer()]
    for peer in peers:
        peer.run(_CHECKED_STEPS)
    found, expected = (peer.weights() for peer in peers)
    worst = max(float(abs(a - b).max()) for a, b in zip(found, expected, strict=True))
    if not worst < 1e-4:
        raise SystemExit(f"weights differ by {worst:.1e} after {_CHECKED_STEPS} steps")
    print(f"weights agree within {worst:.1e} after {_CHECKED_STEPS} steps, on {target}")
    peers.insert(1, Peer("an empty call", nothing, list))
    contenders = [harness.Contender(peer.name, peer.run) for peer in peers]
    print(harness.table(harness.compare(contenders, rounds=options.rounds, sample_seconds=0.005)))


if __name__ == "__main__":
    main()
