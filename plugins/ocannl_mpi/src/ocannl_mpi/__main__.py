"""Measurement of an all-reduce: `mpiexec -n 4 python -m ocannl_mpi [MEBIBYTES ...]`."""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpi4py import MPI

from ocannl_core.backend_api import float32
from ocannl_core.train.communication import Partial, Summand
from ocannl_core.train.slot_tree import largest_spans, share
from ocannl_mpi.communicator import MpiCommunicator, communicator

_ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ocannl_mpi", description=__doc__)
    parser.add_argument("mebibytes", type=float, nargs="*", default=[0.001, 1, 16])
    sizes = parser.parse_args().mebibytes
    with communicator() as group:
        say(group, f"{MPI.Get_library_version().splitlines()[0]}, {group.size} process(es)")
        for size in sizes:
            count = max(1, int(size * 2**20) // 4)
            seconds, is_right = measure(group, count)
            if not is_right:
                raise SystemExit(f"a sum of {size:g} MiB is wrong")
            say(
                group,
                f"all-reduce of {size:g} MiB: {1e3 * seconds:.3f} ms, "
                f"{4 * count / seconds / 1e9:.2f} GB/s of sums",
            )


def say(group: MpiCommunicator, line: str) -> None:
    """Print a line in process 0."""
    if group.rank == 0:
        print(line, flush=True)


def measure(group: MpiCommunicator, count: int) -> tuple[float, bool]:
    """Return the least time of an all-reduce of so many cells, and True if the sums are right."""
    group.prepare([Summand("cells", float32, (count,))], group.size)
    (span,) = largest_spans(group.size, share(group.size, group.size, group.rank))
    own = Partial(span, (np.full(count, group.rank + 1, np.float32),))
    least, is_right = float("inf"), True
    for _ in range(_ROUNDS):
        group.broadcast([np.zeros(1, np.float32)])
        start = time.perf_counter()
        (total,) = group.all_reduce([own])
        least = min(least, time.perf_counter() - start)
        is_right &= bool((total == group.size * (group.size + 1) // 2).all())
    return least, is_right


if __name__ == "__main__":
    main()
