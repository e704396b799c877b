"""One epoch of whole models beside other frameworks, from the same weights, in the same order.

Contenders must have the same losses, so that the time of the epoch is that to the same loss. Times
include the copies of minibatches from the host, and the loop in Python.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

import comparison  # before NumPy: it limits the threads
import harness

import numpy as np  # isort: skip

from results import OWN, WorkloadResult
from trainings import own
from trainings.work import Array, Trainee, Training, trainings

_CLOSE = 0.02
"""By how much the mean losses of tenths of the epoch may differ, as a part of the first one."""


def main() -> None:
    chosen = comparison.options(__doc__, rounds=7, sample=0.05)
    works = [work for work in trainings() if comparison.is_selected(work, chosen)]
    if chosen.list:
        print("\n".join(work.name for work in works))
        return
    for work in works:
        comparison.report(measure(work, attempts(work, chosen), chosen), chosen.json)


def attempts(work: Training, chosen: argparse.Namespace) -> Mapping[str, Callable[[], Trainee]]:
    """Return this project's trainee and those of every selected peer that is installed."""
    found = own.contenders(work, chosen.backend)
    peers = [each for each in ("torch", "jax", "keras") if each in chosen.peers]
    for library in comparison.installed_libraries(peers):
        match library:
            case "torch":
                from trainings import in_torch

                found |= in_torch.contenders(work)
            case "jax":
                from trainings import in_jax

                found |= in_jax.contenders(work)
            case "keras":
                from trainings import in_keras

                found |= in_keras.contenders(work)
    return found


def measure(
    work: Training, attempts: Mapping[str, Callable[[], Trainee]], chosen: argparse.Namespace
) -> WorkloadResult:
    """Return the times of an epoch; a peer that fails is noted and left out.

    Raises:
        SystemExit: if the losses of a contender are others.
    """
    timed, first, failed = [], {}, {}
    expected: Array | None = None
    for name, attempt in attempts.items():
        start = time.perf_counter()
        try:
            trainee = attempt()
            losses = trainee.epoch()
        except Exception as error:
            if name.startswith(OWN):
                raise
            failed[name] = comparison.in_a_line(error)
            continue
        first[name] = time.perf_counter() - start
        parts = np.array([part.mean() for part in np.array_split(losses, 10)])
        expected = parts if expected is None else expected
        worst = float(np.abs(parts - expected).max() / expected[0])
        if not worst <= _CLOSE:
            sys.exit(f"{work.name}: the losses of {name} differ by {worst:.1%}")
        timed.append(harness.TimedWork(name, _repeated(trainee.epoch)))
    assert expected is not None
    print(f"{work.name}: {len(work.inputs)} steps, loss {expected[0]:.2f} -> {expected[-1]:.2f}")
    timings = harness.compare(timed, rounds=chosen.rounds, sample_seconds=chosen.sample)
    least = {each.name: each.least for each in timings}
    median = {each.name: each.median for each in timings}
    return WorkloadResult(work.name, harness.THREADS, least, median, first, failed)


def _repeated(epoch: Callable[[], Array]) -> Callable[[int], None]:
    def run(times: int) -> None:
        for _ in range(times):
            epoch()

    return run


if __name__ == "__main__":
    main()
