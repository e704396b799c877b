"""Preparation, comparison and timing of contenders, and results on file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import harness  # before NumPy: it limits the threads

import numpy as np  # isort: skip

from results import LIBRARIES, OWN, WorkloadResult
from workloads import own
from workloads.functions import Array, Attempts, Contender, Function, TrainingStep, Workload

_CHECKED_STEPS = 5
_LONGEST_REASON = 150
_CLOSE, _CLOSE_TO_EXACT = 1e-4, 1e-5
"""By how much contenders may differ from each other and from a value in double precision."""


class Named(Protocol):
    """Work with a title."""

    @property
    def name(self) -> str: ...


def options(description: str | None, rounds: int, sample: float) -> argparse.Namespace:
    """Return the command-line arguments common to all comparisons.

    Args:
        description: The description of the program.
        rounds: The default number of samples of each contender.
        sample: Seconds that a sample takes, if once does not take longer.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--sample", type=float, default=sample, help="seconds of a sample")
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--exactly", metavar="NAME", help="the only workload to run")
    parser.add_argument(
        "--peers", nargs="*", choices=LIBRARIES, default=list(LIBRARIES), help="libraries to ask"
    )
    parser.add_argument("--json", type=Path, help="a file to add the results to, one in a line")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    return parser.parse_args()


def run(works: Iterable[Workload], chosen: argparse.Namespace) -> None:
    """Compare on all workloads that are chosen."""
    works = [work for work in works if is_selected(work, chosen)]
    if chosen.list:
        for work in works:
            print(work.name)
        return
    for work in works:
        report(measure(prepare(work, attempts(work, chosen)), chosen), chosen.json)


def is_selected(work: Named, chosen: argparse.Namespace) -> bool:
    """Return True if the command line selects a workload."""
    return chosen.only in work.name and chosen.exactly in (None, work.name)


def report(result: WorkloadResult, file: Path | None) -> None:
    """Print a result and add it to the file, if there is one."""
    print(result, flush=True)
    if file:
        with file.open("a") as lines:
            lines.write(json.dumps(asdict(result)) + "\n")


def attempts(work: Workload, chosen: argparse.Namespace) -> Attempts:
    """Return this project's contenders and those of every selected peer that is installed."""
    from workloads import in_numpy

    found = dict(own.contenders(work, chosen.backend)) | dict(in_numpy.contenders(work))
    for library in installed_libraries(chosen.peers):
        match library:
            case "torch":
                from workloads import in_torch

                found |= in_torch.contenders(work)
            case "jax":
                from workloads import in_jax

                found |= in_jax.contenders(work)
            case "tinygrad":
                from workloads import in_tinygrad

                found |= in_tinygrad.contenders(work)
            case "pytensor":
                from workloads import in_pytensor

                found |= in_pytensor.contenders(work)
    return found


def installed_libraries(libraries: Iterable[str]) -> list[str]:
    """Return the installed libraries; print the missing ones once."""
    found = [each for each in libraries if importlib.util.find_spec(each) is not None]
    missing = [each for each in libraries if each not in found]
    if missing and not _told_of_missing:
        print(f"left out, not installed: {', '.join(missing)}", flush=True)
        _told_of_missing.append(True)
    return found


_told_of_missing: list[bool] = []


@dataclass(frozen=True, slots=True)
class Ready:
    """Contenders with equal results, ready for timing.

    Attributes:
        work: Their workload.
        contenders: The contenders, by name.
        first: Seconds until their first result.
        failed: The errors of the others.
    """

    work: Workload
    contenders: dict[str, Contender]
    first: dict[str, float]
    failed: dict[str, str]


def prepare(work: Workload, attempts: Attempts) -> Ready:
    """Return the contenders after a few steps, compared with each other.

    A peer that fails is noted and left out; this project's own failures are raised.

    Raises:
        SystemExit: if a contender computes something else.
    """
    ready = Ready(work, {}, {}, {})
    for name, attempt in attempts.items():
        start = time.perf_counter()
        try:
            contender = attempt()
            contender.run(1)
            seconds = time.perf_counter() - start
            if isinstance(work, TrainingStep):
                contender.run(_CHECKED_STEPS - 1)
            contender.results()
        except Exception as error:
            if name.startswith(OWN):
                raise
            ready.failed[name] = in_a_line(error)
        else:
            ready.contenders[name], ready.first[name] = contender, seconds
    _check_agreement(work, ready.contenders)
    return ready


def measure(ready: Ready, chosen: argparse.Namespace) -> WorkloadResult:
    """Return the times of all contenders."""
    timed = [harness.TimedWork(name, each.run) for name, each in ready.contenders.items()]
    timings = harness.compare(timed, rounds=chosen.rounds, sample_seconds=chosen.sample)
    return WorkloadResult(
        ready.work.name,
        harness.THREADS,
        {each.name: each.least for each in timings},
        {each.name: each.median for each in timings},
        ready.first,
        ready.failed,
        ready.work.flops if isinstance(ready.work, Function) else None,
    )


def in_a_line(error: Exception) -> str:
    """Return the kind and the first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else 'without a message'}"
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _check_agreement(work: Workload, ready: dict[str, Contender]) -> None:
    """Exit if the results of a contender are wrong."""
    expected, tolerance = _expected(work)
    for name, each in ready.items():
        found = each.results()
        if expected is None:
            expected = found
        for number, (theirs, wanted) in enumerate(zip(found, expected, strict=True)):
            scale = float(np.abs(wanted).max())
            worst = float(np.abs(theirs.reshape(wanted.shape) - wanted).max())
            if not worst <= tolerance * scale:
                sys.exit(f"{work.name}: {name} differs by {worst / scale:.1e}, array {number}")


def _expected(work: Workload) -> tuple[list[Array] | None, float]:
    """Return the value in double precision, if it is defined, and the accepted error of results."""
    if isinstance(work, Function) and work.exact is not None:
        return [work.exact(**work.arrays())], _CLOSE_TO_EXACT
    return None, _CLOSE
