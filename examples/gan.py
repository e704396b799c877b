"""A generative adversarial network that learns eight clusters of points on a circle.

`python examples/gan.py` trains a generator against a critic for some seconds, draws generated
points, and prints the number of clusters that they cover.

One routine updates both networks: the critic on real and generated points, then the generator by
the gradient that the critic passes on to it. A penalty on the critic's slopes makes that stable;
training by it takes second derivatives.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Points = npt.NDArray[np.float32]
CLUSTERS, SPREAD = 8, 0.05


def clusters(count: int, random: np.random.Generator) -> Points:
    """Return points around eight places on the unit circle."""
    angle = random.integers(CLUSTERS, size=count) * (2 * np.pi / CLUSTERS)
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (places + SPREAD * random.normal(size=places.shape)).astype(np.float32)


@oc.op
def generator(noise: oc.Tensor, *, hidden: int) -> oc.Tensor:
    """Return a point for each row of noise."""
    return oc.nn.mlp(noise, hidden=[hidden, hidden], output=[2])


@oc.op
def critic(point: oc.Tensor, *, hidden: int) -> oc.Tensor:
    """Return a score: higher for points that look real."""
    return oc.nn.mlp(point, hidden=[hidden, hidden], output=[1], activation=oc.silu)


class Result(NamedTuple):
    """Generated points, the fraction near a cluster, and the number of clusters they cover."""

    points: Points
    near: float
    covered: int


def judge(points: Points) -> Result:
    """Return the quality of points: those within four standard deviations of a cluster are near."""
    angle = np.round(np.arctan2(points[:, 1], points[:, 0]) * CLUSTERS / (2 * np.pi))
    places = np.stack([np.cos(angle * 2 * np.pi / CLUSTERS), np.sin(angle * 2 * np.pi / CLUSTERS)])
    is_near = np.linalg.norm(points - places.T, axis=1) < 4 * SPREAD
    counts = np.bincount(angle[is_near].astype(int) % CLUSTERS, minlength=CLUSTERS)
    return Result(points, float(is_near.mean()), int((counts > 0.02 * len(points)).sum()))


def train(steps: int, *, batch: int = 256, hidden: int = 64) -> Result:
    real = oc.placeholder("real", batch=[batch], output=[2])
    call = oc.static_index("call")
    make, score = generator(hidden=hidden), critic(hidden=hidden)
    noise = oc.require_shape(oc.normal(counter=call), f"{batch}|4")
    fake = make(noise)

    # the critic compares pairs; its slopes at both points are held small (Huang et al., 2024)
    fixed = oc.stop_gradient(fake)
    margin = score(real) - score(fixed)
    slopes = oc.gradients(oc.sum(score(real)) + oc.sum(score(fixed)), [real, fixed])
    penalty = sum(oc.sum(slope * slope) for slope in slopes) / (2 * batch)
    critic_loss = oc.mean(oc.softplus(-margin)) + 0.02 * penalty
    generator_loss = oc.mean(oc.softplus(score(real) - score(fake)))

    rate = oc.train.linear(5e-3, steps=steps, final=1e-4)
    first = oc.train.Adam(learning_rate=rate, betas=(0.0, 0.99))
    second = oc.train.Adam(learning_rate=rate, betas=(0.0, 0.99), groups={"critic.*": None})
    ctx = oc.Context()
    ctx.init_params(critic_loss)
    ctx.init_params(generator_loss)
    learn_to_judge = oc.train.grad_update(critic_loss) + first.update(critic_loss)
    learn_to_make = oc.train.grad_update(generator_loss) + second.update(generator_loss)
    step = ctx.compile(learn_to_judge + learn_to_make, bindings=[call])
    random = np.random.default_rng(0)
    for number in range(steps):
        ctx[real] = clusters(batch, random)
        step(call=number)

    seeds = oc.tensor(random.standard_normal((1000, 4)), batch_axes=1, dtype="float32")
    made = make(seeds)
    ctx.compile(oc.train.forward(made))()
    return judge(ctx[made])


def picture(points: Points, rows: int = 24) -> str:
    """Return a map of the square from -1.5 to 1.5."""
    counts, _, _ = np.histogram2d(
        -points[:, 1], points[:, 0], bins=(rows, 2 * rows), range=[[-1.5, 1.5]] * 2
    )
    return "\n".join("".join(" .:+#@"[min(int(n), 5)] for n in row).rstrip() for row in counts)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8000)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        result = train(options.steps)
    print(picture(result.points))
    print(f"{result.near:.0%} of the points are near a cluster; {result.covered} of 8 are covered")
    return result


if __name__ == "__main__":
    main()
