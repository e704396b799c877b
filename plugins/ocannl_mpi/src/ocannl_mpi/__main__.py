"""Measurement of an all-reduce: `mpiexec -n 4 python -m ocannl_mpi [MEBIBYTES ...]`."""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpi4py import MPI

from ocannl_core.train.communication import Cells, Parcel
from ocannl_core.train.slot_tree import share
from ocannl_mpi.communicator import Array, MpiCommunicator, communicator

_ROUNDS = 20


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
    """Return the least time of an all-reduce of so many cells, and True if the sums are right.

    Each process gets its cells from all others, adds them up, and sends the sums to them, as in a
    step of training.
    """
    own = np.full(count, group.rank + 1, np.float32)
    others = [each for each in range(group.size) if each != group.rank]
    parts = [share(count, group.size, process) for process in range(group.size)]
    mine = parts[group.rank]
    inbox = {other: np.empty(len(mine), np.float32) for other in others}
    scatter = group.exchange(
        [Parcel(k, _cells(own, parts[k]), _cells(inbox[k], range(len(mine)))) for k in others],
        "the measurement",
    )
    gather = group.exchange(
        [Parcel(k, _cells(own, mine), _cells(own, parts[k])) for k in others], "the measurement"
    )

    def all_reduce() -> None:
        for exchange in (scatter, gather):
            exchange.start()
            while not exchange.is_over():
                group.wait([exchange])
            if exchange is scatter:
                total = own[mine.start : mine.stop]
                for each in inbox.values():
                    np.add(total, each, out=total)

    least, is_right = float("inf"), True
    for _ in range(_ROUNDS):
        own[...] = group.rank + 1
        group.broadcast([np.zeros(1, np.float32)])
        start = time.perf_counter()
        all_reduce()
        least = min(least, time.perf_counter() - start)
        is_right &= bool((own == group.size * (group.size + 1) // 2).all())
    return least, is_right


def _cells(array: Array, part: range) -> tuple[Cells, ...]:
    nbytes = len(part) * array.itemsize
    return (Cells(array, part.start * array.itemsize, nbytes),) if nbytes else ()


if __name__ == "__main__":
    main()
