"""Narrow floats beside float32: products, work along rows and a training step, in PyTorch and JAX
as well where these are installed.

Compared is the speed for the same storage format: frameworks round intermediate results
differently. Every result is compared with that of float32, as far as the format has digits.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness  # before NumPy: it limits the threads

if harness.THREADS == 1:
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )

import numpy as np  # isort: skip
from workloads import narrow  # isort: skip

import ocannl_core as oc
from ocannl_core.base import settings

FORMATS = ("float32", "bfloat16", "float16", "float8_e5m2")
_DIGITS = {"float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2, "float8_e5m2": 2.0}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class FormatContender:
    """One framework's implementation of a workload.

    Attributes:
        name: The framework and the format.
        dtype: The format.
        run: A function that does the work a number of times.
        result: Its result, in float32.
    """

    name: str
    dtype: str
    run: Callable[[int], None]
    result: Callable[[], Array]


def own(work: narrow.Work, dtype: str, accumulation: str, backend: str | None) -> FormatContender:
    """Return a workload as this project runs it."""
    with oc.Session(dtype=dtype), settings.overrides(accumulation=accumulation):
        routine, result = work.own(dtype, backend)

    def run(times: int) -> None:
        for _ in range(times):
            routine()

    return FormatContender(f"compiled, {dtype}, {accumulation}", dtype, run, result)


def contenders(
    work: narrow.Work, formats: list[str], backend: str | None
) -> Iterator[FormatContender]:
    """Yield this project's, and every peer that is installed."""
    for dtype in formats:
        yield own(work, dtype, "float32", backend)
        if dtype == "bfloat16":
            yield own(work, dtype, "fast", backend)
    for peer in ("torch", "jax"):
        if importlib.util.find_spec(peer) is None:
            continue
        for dtype in formats:
            if not dtype.startswith("float8"):
                run, result = getattr(work, peer)(dtype, harness.THREADS)
                yield FormatContender(f"{peer}, {dtype}", dtype, run, result)


def compare(work: narrow.Work, formats: list[str], backend: str | None, rounds: int) -> None:
    """Print the least times of all contenders.

    Raises:
        SystemExit: if a contender computes something else.
    """
    ready = []
    for each in contenders(work, formats, backend):
        each.run(1)
        ready.append(each)
    expected = ready[0].result()
    scale = float(np.abs(expected).max())
    for each in ready:
        worst = float(np.abs(each.result().reshape(expected.shape) - expected).max())
        if not worst <= _DIGITS[each.dtype] * scale:
            sys.exit(f"{work.name}: {each.name} differs by {worst / scale:.1e}")
    timed = [harness.TimedWork(each.name, each.run) for each in ready]
    timings = harness.compare(timed, rounds=rounds, sample_seconds=0.02)
    print(f"{work.name}:")
    for timing in timings:
        ratio = timing.least / timings[0].least
        print(f"  {timing.name:<32} {timing.least * 1e3:>9.3f} ms {ratio:>8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--formats", default=",".join(FORMATS[:3]))
    parser.add_argument("--only", default="", help="a part of the names to run")
    options = parser.parse_args()
    for work in narrow.workloads():
        if options.only in work.name:
            compare(work, options.formats.split(","), options.backend, options.rounds)


if __name__ == "__main__":
    main()
