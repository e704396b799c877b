"""Time to compile and to run a training step of a gated recurrent network, against its length.

A loop over time beside the unrolled program, which computes the same. Both compile without reading
the cache of compiled code. Times are least ones, of the wall clock; the memory is that of the
routine's own nodes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import harness  # before NumPy: it limits the threads
import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings

KEPT = ("carry", "reductions", "all")
_RUNS = 20


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a network.

    Attributes:
        steps: The length of a sequence.
        batch: The number of sequences.
        width: The size of the carry, and of an entry.
    """

    steps: int
    batch: int
    width: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of one program.

    Attributes:
        name: The program.
        steps: The length of a sequence.
        compile_seconds: From the expressions to a routine.
        run_seconds: The least time of a training step.
        kernels: The number of kernels in the code.
        nbytes: The memory of the routine's own nodes.
    """

    name: str
    steps: int
    compile_seconds: float
    run_seconds: float
    kernels: int
    nbytes: int


def sigmoid(x: oc.Tensor) -> oc.Tensor:
    found: oc.Tensor = oc.reciprocal(1 + oc.exp(-x))
    return found


def total(x: oc.Tensor) -> oc.Tensor:
    found: oc.Tensor = oc.einsum("...|...->... => 0", x)
    return found


def gated_unit(width: int) -> Any:
    """Return the step of a gated recurrent unit, with its parameters."""
    inner = [oc.param(f"w_{name}", output=[width], input=[width]) for name in "zrn"]
    outer = [oc.param(f"u_{name}", output=[width], input=[width]) for name in "zrn"]

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        update = sigmoid(inner[0] @ x + outer[0] @ h)
        reset = sigmoid(inner[1] @ x + outer[1] @ h)
        new = oc.tanh(inner[2] @ x + outer[2] @ (reset * h))
        h = (1 - update) * new + update * h
        return h, h

    return step


def loss_of(xs: oc.Tensor, size: Size, keep: str | None) -> oc.Tensor:
    """Return the loss of a network as a loop, or unrolled if nothing is said about kept values."""
    step, start = gated_unit(size.width), oc.param("start", output=[size.width], init=0.1)
    if keep is not None:
        hs, _ = oc.scan(step, start, xs, keep=keep)
        return total(hs * hs)
    h, loss = step(start, xs[0])
    loss = total(h * h)
    for position in range(1, size.steps):
        h, _ = step(h, xs[position])
        loss = loss + total(h * h)
    return loss


def measure(size: Size, keep: str | None, backend: str | None) -> StepTimes:
    """Compile a training step and run it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.overrides(cache_dir=folder),
        oc.Session(seed=1),
    ):
        start = time.perf_counter()
        xs = oc.placeholder("xs", batch=[size.steps, size.batch], output=[size.width])
        loss = loss_of(xs, size, keep)
        ctx = oc.Context(backend)
        routine = ctx.compile(oc.train.grad_update(loss))
        compiled = time.perf_counter() - start
        ctx.init_params(loss)
        shape = (size.steps, size.batch, size.width)
        ctx[xs] = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        least = float("inf")
        for _ in range(_RUNS):
            before = time.perf_counter()
            routine()
            ctx.synchronize()
            least = min(least, time.perf_counter() - before)
        name = "unrolled" if keep is None else f"scan, keep={keep}"
        plan = routine.plan
        nbytes = routine.memory_plan.nbytes
        return StepTimes(name, size.steps, compiled, least, len(plan.kernels), nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, nargs="*", default=[12, 48, 96])
    parser.add_argument("--unrolled", type=int, default=12, help="the longest unrolled program")
    given = parser.parse_args()
    print(f"gated recurrent unit, {given.batch} x {given.width}, {harness.THREADS} thread(s)")
    print(f"{'steps':>5}  {'program':24} {'compile':>9} {'step':>10} {'kernels':>8} {'memory':>10}")
    for steps in given.steps:
        size = Size(steps, given.batch, given.width)
        for keep in (*KEPT, *((None,) if steps <= given.unrolled else ())):
            found = measure(size, keep, given.backend)
            print(
                f"{found.steps:>5}  {found.name:24} {found.compile_seconds:>7.2f} s "
                f"{1e3 * found.run_seconds:>7.2f} ms {found.kernels:>8} "
                f"{found.nbytes / 1e6:>7.2f} MB"
            )


if __name__ == "__main__":
    main()
