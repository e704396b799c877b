"""Timing of contenders that do the same work.

Import this module before NumPy: it reads `--threads` from the command line, pins the process to
that many processors and sets the environment variables that numerical libraries read once, when
they are loaded.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_LIBRARIES = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM", "NUMBA")
_FEWEST_SAMPLES, _LONGEST_SECONDS = 3, 1.0
PAUSE_SECONDS = 0.02
"""A pause before each sample: OpenMP threads of the previous contender spin for some
milliseconds.
"""
_ONE_THREAD_OF_XLA = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def _limit_threads() -> int:
    """Return the number of threads that every contender may use."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--threads", type=int, default=1)
    threads = max(1, int(parser.parse_known_args()[0].threads))
    allowed = sorted(os.sched_getaffinity(0))
    threads = min(threads, len(allowed))
    os.sched_setaffinity(0, allowed[:threads])
    for library in _LIBRARIES:
        os.environ[f"{library}_NUM_THREADS"] = str(threads)
    os.environ["NUM_CPU_THREADS"] = str(threads)  # tinygrad
    if threads == 1:
        os.environ.setdefault("XLA_FLAGS", _ONE_THREAD_OF_XLA)
    os.environ |= {"DEV": "CPU", "JAX_PLATFORMS": "cpu", "PYTENSOR_FLAGS": "floatX=float32"}
    os.environ["KERAS_BACKEND"] = "jax"
    return threads


if "numpy" in sys.modules:
    raise ImportError("the harness must be imported before NumPy, whose threads it limits")
THREADS = _limit_threads()


@dataclass(frozen=True, slots=True)
class TimedWork:
    """One way to do the work.

    Attributes:
        name: How it is printed; names are unique in a comparison.
        run: Does the work so many times and returns when all of it is finished.
    """

    name: str
    run: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one unit of work."""

    name: str
    least: float
    median: float
    samples: int
    repetitions: int


def compare(
    contenders: Sequence[TimedWork], *, rounds: int = 15, sample_seconds: float = 0.05
) -> list[Timing]:
    """Return one timing per contender.

    Every round samples each contender once, so that a slow phase of the machine affects all of
    them, after a pause in which the threads of the previous one fall asleep. The least time
    measures the code, the median the busy machine. Contenders whose samples add up to a second skip
    the last rounds.
    """
    repetitions = [_repetitions(each, sample_seconds) for each in contenders]
    samples: list[list[float]] = [[] for _ in contenders]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for each, count, found in zip(contenders, repetitions, samples, strict=True):
                if len(found) >= _FEWEST_SAMPLES and sum(found) * count > _LONGEST_SECONDS:
                    continue
                time.sleep(PAUSE_SECONDS)
                start = time.perf_counter()
                each.run(count)
                found.append((time.perf_counter() - start) / count)
    finally:
        gc.enable()
    return [
        Timing(each.name, min(found), statistics.median(found), len(found), count)
        for each, count, found in zip(contenders, repetitions, samples, strict=True)
    ]


def _repetitions(contender: TimedWork, sample_seconds: float) -> int:
    """Return how often to do the work in one sample; warms everything up on the way."""
    count = 1
    contender.run(1)
    while True:
        start = time.perf_counter()
        contender.run(count)
        seconds = time.perf_counter() - start
        if seconds >= sample_seconds / 2:
            return max(1, round(count * sample_seconds / seconds))
        count *= 2


def table(timings: Sequence[Timing]) -> str:
    """Return the timings as text, with each least time as a multiple of the first one's."""
    own = timings[0].least
    lines = [f"{'':<16}{'least':>12}{'median':>12}{'least / ' + timings[0].name:>20}"]
    for each in timings:
        least, median = _duration(each.least), _duration(each.median)
        lines.append(f"{each.name:<16}{least:>12}{median:>12}{each.least / own:>20.2f}")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
