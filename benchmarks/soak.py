"""Memory and file descriptors over many compilations and many runs: `python benchmarks/soak.py`.

Each cycle makes a session, compiles a program, runs it and drops everything. Most programs compute
a few numbers; one in ten takes a step of gradient descent, and one in fifty trains a perceptron
with random weights. Later cycles find their code in the caches, but for one in a hundred: it has a
constant that no earlier one had, so that code is generated, compiled and loaded anew. As many
programs come before as a process keeps loaded, so that those do not count as growth.

Memory and descriptors are sampled along the way. The slope of the second half, a median of slopes,
says what one cycle, or one run, leaves behind. Both take minutes on an idle processor.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import harness  # before NumPy: it limits the threads
import numpy as np

import ocannl_core as oc

_SAMPLES = 40
_KEPT = 256
"""The number of compiled objects that the C backend keeps loaded for later programs."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def descriptors() -> int:
    """Return the number of open files."""
    return len(os.listdir("/proc/self/fd"))


def forward(backend: str | None, width: int) -> Callable[[], None]:
    """Compile a function of a few numbers; return a function that computes it."""
    with oc.Session(seed=1):
        x = oc.placeholder("x", output=[width])
        context = oc.Context(backend)
        step = context.compile(oc.train.forward(oc.relu(x * 2.0)))
        context[x] = 1.0
    return step


def descent(backend: str | None, width: int, offset: float = 0.5) -> Callable[[], None]:
    """Compile a step of gradient descent on a few numbers; return a function that takes it."""
    with oc.Session(seed=1):
        x, w = oc.placeholder("x", output=[width]), oc.param("w", output=[width], init=0.5)
        error = w * x - offset
        loss = oc.einsum("i => 0", error * error)
        context = oc.Context(backend)
        code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.01)
        step = context.compile(code)
        context[w], context[x] = 0.5, np.ones(width, np.float32)
    return step


def perceptron(backend: str | None, width: int) -> Callable[[], None]:
    """Compile a training step of a perceptron; return a function that takes it."""
    with oc.Session(seed=1):
        x = oc.placeholder("x", batch=[4], output=[3])
        guess = oc.param("w2", output=[2]) @ oc.relu(oc.param("w1", output=[width]) @ x)
        loss = oc.einsum("...|... => 0", guess * guess)
        code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.01)
        context = oc.Context(backend)
        step = context.compile(code)
        context.init_params(loss)
        context[x] = np.ones((4, 3), np.float32)
    return step


def cycle(backend: str | None, number: int, first_constant: float) -> None:
    """Compile a program, run it, and drop it."""
    width = 2 + number % 7
    if number % 100 == 50:
        descent(backend, width, first_constant + number)()
    elif number % 50 == 0:
        perceptron(backend, width)()
    elif number % 10 == 0:
        descent(backend, width)()
    else:
        forward(backend, width)()


def median_slope(places: list[int], values: list[int]) -> float:
    """Return the median of the slopes of all pairs of samples: a single step does not change it."""
    points = list(zip(places, values, strict=True))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)]
    return statistics.median(slopes) if slopes else 0.0


def soak(title: str, count: int, once: Callable[[int], object]) -> None:
    """Repeat work, and print the growth for each repetition in the second half."""
    places, memory, files = [], [], []
    start = time.perf_counter()
    for number in range(count):
        once(number)
        if number % max(1, count // _SAMPLES) == 0:
            gc.collect()
            places.append(number)
            memory.append(resident())
            files.append(descriptors())
    late = slice(len(places) // 2, None)
    slope = median_slope(places[late], memory[late])
    print(
        f"{title}: {count:,} in {time.perf_counter() - start:.0f} s; "
        f"memory {memory[0] / 1e6:.1f}, {memory[len(memory) // 2] / 1e6:.1f} at half time, "
        f"{memory[-1] / 1e6:.1f} MB at the end, {slope:+.1f} bytes each; "
        f"open files {files[0]} to {files[-1]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=harness.THREADS)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--kept", type=int, default=_KEPT, help="programs before the first sample")
    given = parser.parse_args()
    first_constant = time.time() % 1e6  # no earlier process had it
    for number in range(given.kept):
        descent(given.backend, 2, first_constant - 1 - number)()
    soak("compile and run", given.cycles, lambda each: cycle(given.backend, each, first_constant))
    step = perceptron(given.backend, 8)
    soak("run", given.runs, lambda _: step())


if __name__ == "__main__":
    main()
