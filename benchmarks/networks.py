"""Pieces of networks and training steps: compiled, in PyTorch as written and compiled, in JAX.

Every contender gets the same numbers and must agree with the first before it is timed. All are
sampled in turn, in one process. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Iterator

import harness  # before NumPy: it limits the threads

if harness.THREADS == 1:
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )

import numpy as np  # isort: skip
from workloads import block, convolutions, own, rows, training  # isort: skip
from workloads.functions import Contender, Workload  # isort: skip

_CHECKED_STEPS = 5


def workloads() -> Iterator[Workload]:
    """Yields all of them."""
    for module in (rows, convolutions, training, block):
        yield from module.workloads()


def contenders(work: Workload, backend: str | None, *, torch_compile: bool) -> Iterator[Contender]:
    """Yields this project's, and every peer that is installed."""
    yield from own.contenders(work, backend)
    if importlib.util.find_spec("torch") is not None:
        from workloads import in_torch

        yield from in_torch.contenders(work, compiled=torch_compile)
    if importlib.util.find_spec("jax") is not None:
        from workloads import in_jax

        yield from in_jax.contenders(work)


def compare(work: Workload, backend: str | None, *, rounds: int, torch_compile: bool) -> None:
    """Prints the least times of all contenders and the ratio to the best peer.

    Raises:
        SystemExit: if a contender computes something else.
    """
    ready: list[Contender] = []
    starts: list[str] = []
    building = contenders(work, backend, torch_compile=torch_compile)
    while True:
        start = time.perf_counter()
        each = next(building, None)
        if each is None:
            break
        each.run(1)
        starts.append(f"{each.name} {time.perf_counter() - start:.2f}")
        each.run(_CHECKED_STEPS - 1)
        ready.append(each)
    check_agreement(work, ready)
    timed = [harness.Contender(each.name, each.run) for each in ready]
    timings = harness.compare(timed, rounds=rounds, sample_seconds=0.02)
    peers = [each for each in timings if not each.name.startswith("compiled")]
    best = min((each.least for each in peers), default=float("nan"))
    print(f"{work.name}: ratio to the best peer {timings[0].least / best:.2f}")
    for each in timings:
        print(f"  {each.name:<20} {each.least * 1e3:>9.3f} ms, median {each.median * 1e3:.3f}")
    print(f"  seconds to the first result: {', '.join(starts)}", flush=True)


def check_agreement(work: Workload, ready: list[Contender]) -> None:
    """Exits if the results of two contenders differ."""
    expected = ready[0].results()
    for each in ready[1:]:
        for number, (ours, theirs) in enumerate(zip(expected, each.results(), strict=True)):
            scale = float(np.abs(theirs).max())
            worst = float(np.abs(ours.reshape(theirs.shape) - theirs).max())
            if not worst <= 1e-4 * scale:
                sys.exit(f"{work.name}: {each.name} differs by {worst / scale:.1e}, array {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--no-torch-compile", action="store_true")
    options = parser.parse_args()
    for work in workloads():
        if options.only in work.name:
            compare(
                work,
                options.backend,
                rounds=options.rounds,
                torch_compile=not options.no_torch_compile,
            )


if __name__ == "__main__":
    main()
