"""Train two steps of a tiny model on every available backend of the installed distributions."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

import ocannl_core as oc
from ocannl_core.backend.manager import backend_entries, load_all


def train(backend: str) -> tuple[float, float]:
    """Return the loss before the first and after the second step."""
    oc.reset()
    x = oc.placeholder("x", batch=[8], output=[2])
    y = oc.placeholder("y", batch=[8], output=[1])
    hidden = oc.relu(oc.param("w1", output=[4]) @ x + oc.param("b1", output=[4], init=0.0))
    predicted = oc.param("w2") @ hidden
    loss = oc.einsum("...|... => 0", (predicted - y) ** 2.0)
    context = oc.Context(backend)
    step = context.compile(
        oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.01)
    )
    context.init_params(loss)
    inputs = np.random.default_rng(0).uniform(-1, 1, (8, 2)).astype(np.float32)
    context[x] = inputs
    context[y] = inputs[:, :1] * inputs[:, 1:]
    losses = []
    for _ in range(3):
        step()
        losses.append(context.item(loss))
    return losses[0], losses[2]


def main() -> int:
    """Return 0 if every available backend learns and at least one is available."""
    checkout = Path(oc.__file__).resolve().parent.parent
    if (checkout / ".ci").exists():
        print(f"error: the installed package is the checkout at {checkout}")
        return 1
    entries = {entry.name: entry for entry in backend_entries()}
    trained = 0
    for backend in load_all():
        report = backend.targets()
        if not report.targets:
            print(f"{backend.name:<8} not available: {report.reason}")
            continue
        before, after = train(backend.name)
        print(f"{backend.name:<8} {entries[backend.name]}: loss {before:.6f} --> {after:.6f}")
        if not (math.isfinite(after) and after < before):
            print(f"error: {backend.name} does not learn")
            return 1
        trained += 1
    print(f"backends trained: {trained} of {len(entries)}")
    return 0 if trained else 1


if __name__ == "__main__":
    sys.exit(main())
