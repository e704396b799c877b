"""Memory and file descriptors over many compilations and many runs: `python benchmarks/soak.py`.

Each cycle makes a session, compiles a training step, runs it and drops everything. Both counts are
sampled along the way; the slope of the second half says what one cycle, or one run, leaves behind.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import harness  # before NumPy: it limits the threads
import numpy as np

import ocannl_core as oc

_SAMPLES = 40
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def descriptors() -> int:
    """Return the number of open files."""
    return len(os.listdir("/proc/self/fd"))


def cycle(backend: str | None, width: int) -> Callable[[], None]:
    """Compile a training step of a perceptron; return a function that runs it."""
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
    slope = float(np.polyfit(places[late], memory[late], 1)[0])
    print(
        f"{title}: {count:,} in {time.perf_counter() - start:.0f} s; "
        f"memory {memory[0] / 1e6:.1f} to {memory[-1] / 1e6:.1f} MB, {slope:+.1f} bytes each; "
        f"open files {files[0]} to {files[-1]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=harness.THREADS)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100_000)
    given = parser.parse_args()
    soak("compile and run", given.cycles, lambda number: cycle(given.backend, 2 + number % 7)())
    step = cycle(given.backend, 8)
    soak("run", given.runs, lambda _: step())


if __name__ == "__main__":
    main()
