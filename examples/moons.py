"""Separate two half moons with a perceptron and a margin loss, like micrograd's demo.

`python examples/moons.py` trains for a second or so and draws the predicted regions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Array = npt.NDArray[np.float32]


def moons(count: int, noise: float = 0.1, seed: int = 0) -> tuple[Array, Array]:
    """Return points of two interleaved half circles, shape (count, 2), and their classes 1, -1."""
    rng = np.random.default_rng(seed)
    angle, upper = rng.uniform(0, np.pi, count), rng.permutation(np.arange(count) % 2 == 0)
    points = np.where(
        upper, (np.cos(angle), np.sin(angle)), (1 - np.cos(angle), 0.5 - np.sin(angle))
    )
    points += noise * rng.normal(size=points.shape)
    return points.T.astype(np.float32), np.where(upper, 1, -1).astype(np.float32)[:, None]


def train(epochs: int = 60, size: int = 20, count: int = 400) -> tuple[float, str]:
    """Return the accuracy on points it was not trained on, and a picture of the decisions."""
    (points, classes), (others, other_classes) = moons(count), moons(200, seed=1)
    batches = count // size
    i = oc.static_index("i", range=batches)
    xs = oc.tensor(points.reshape(batches, size, 2), batch_axes=2)
    ys = oc.tensor(classes.reshape(batches, size, 1), batch_axes=2)
    network = oc.nn.mlp(hidden=[16, 16], output=[1])
    margin = oc.relu(1 - ys[i] * network(xs[i]))
    weights = sum(oc.einsum("...->... => 0", p * p) for p in margin.params)
    loss = oc.einsum("...|... => 0", margin) / size + 1e-4 * weights

    ctx, rate = oc.Context(), oc.placeholder("learning_rate")
    update = oc.train.sgd_update(loss, learning_rate=rate, momentum=0.9)
    step = ctx.compile(oc.train.grad_update(loss) + update, bindings=[i])
    ctx.init_params(loss)
    for epoch in range(epochs):
        ctx[rate] = 0.05 * (1 - epoch / epochs)
        for number in range(batches):
            step(i=number)

    grid = np.stack(np.meshgrid(np.linspace(-1.5, 2.5, 61), np.linspace(1.5, -1, 21)), axis=-1)
    scores, decisions = (
        network(oc.tensor(each, batch_axes=each.ndim - 1, dtype="float32"))
        for each in (others, grid)
    )
    ctx.compile(oc.train.forward(scores) + oc.train.forward(decisions))()
    accuracy = float(((ctx[scores] > 0) == (other_classes > 0)).mean())
    picture = "\n".join("".join("#" if s > 0 else "." for s in row) for row in ctx[decisions])
    return accuracy, picture


if __name__ == "__main__":
    accuracy, picture = train()
    print(picture)
    print(f"accuracy on new points: {accuracy:.3f}")
