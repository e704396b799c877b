"""A physics-informed network: the motion and the constants of a pendulum from twelve
measurements.

`python examples/pendulum.py` fits a network `u(t)` so that it obeys

    u'' + c u' + k sin(u) = 0

everywhere, and passes near twelve noisy measurements. The damping `c` and the stiffness `k` are
parameters like the weights. It prints both, and the error of the motion between the measurements,
against a numerical solution.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Times = npt.NDArray[np.float32]
DAMPING, STIFFNESS, START, END = 0.3, 2.0, 1.2, 6.0


def solution(times: Times, steps: int = 4000) -> Times:
    """Return the angles at some times by the method of Runge and Kutta."""

    def slope(state: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.array([state[1], -DAMPING * state[1] - STIFFNESS * np.sin(state[0])])

    h, state, angles = END / steps, np.array([START, 0.0]), [START]
    for _ in range(steps):
        k1 = slope(state)
        k2 = slope(state + h / 2 * k1)
        k3 = slope(state + h / 2 * k2)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + h * k3))
        angles.append(state[0])
    return np.interp(times, np.linspace(0, END, steps + 1), angles).astype(np.float32)


@oc.op
def angle(time: oc.Tensor, *, hidden: int = 32) -> oc.Tensor:
    """Return the angle at each time; its value and slope at 0 hold for all weights."""
    network = oc.nn.mlp(time / END, hidden=[hidden, hidden], output=[1], activation=oc.tanh)
    return START + oc.tanh(time) ** 2 * network


class Result(NamedTuple):
    """The recovered constants, the greatest error of the angle, and the loss of each step."""

    damping: float
    stiffness: float
    error: float
    losses: list[float]


def train(steps: int, points: int = 64, noise: float = 0.02) -> Result:
    random = np.random.default_rng(0)
    measured = np.linspace(0.1, END, 12, dtype=np.float32)
    angles = solution(measured) + noise * random.normal(size=measured.shape)
    times = np.linspace(0, END, points, dtype=np.float32)

    t = oc.tensor(times[:, None], batch_axes=1)
    network = angle()
    u = network(t)
    (velocity,) = oc.gradients(u, [t])
    (acceleration,) = oc.gradients(velocity, [t])
    damping, stiffness = (oc.param(name, init=1.0, output=[]) for name in ("c", "k"))
    residual = acceleration + damping * velocity + stiffness * oc.sin(u)
    misfit = network(oc.tensor(measured[:, None], batch_axes=1)) - oc.tensor(
        angles[:, None], batch_axes=1, dtype="float32"
    )
    loss = oc.mean(residual**2) + 10.0 * oc.mean(misfit**2)

    rate = oc.train.cosine(1e-2, steps=steps, final=1e-5, warmup=50)
    optimizer = oc.train.Adam(learning_rate=rate)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss), keep=[loss, u])
    losses = []
    for _ in range(steps):
        step()
        losses.append(ctx.item(loss))
    error = float(np.abs(ctx[u][:, 0] - solution(times)).max())
    return Result(ctx.item(damping), ctx.item(stiffness), error, losses)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        result = train(options.steps)
    print(
        f"damping {result.damping:.3f} (true {DAMPING}), stiffness {result.stiffness:.3f}", end=""
    )
    print(f" (true {STIFFNESS}), greatest error of the angle {result.error:.4f} of {START}")
    return result


if __name__ == "__main__":
    main()
