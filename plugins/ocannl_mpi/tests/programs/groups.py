"""The same training in groups of several sizes, one after the other; prints the bits of each.

    mpiexec -n 4 python groups.py 0,1,2,4 --optimizer adamw , 1,3 --backend interp

One launch serves all groups, of which processes that are not part wait. A size of 0 is training
without a communicator. With the option --passed, MPI takes memory of devices as it is.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import groupby

from mpi4py import MPI
from train import arguments, train

import ocannl_core as oc
import ocannl_mpi
from ocannl_core.train.communication import OneProcess


def main() -> None:
    for is_comma, words in groupby(sys.argv[1:], lambda word: word == ","):
        if is_comma:
            continue
        sizes, *options = words
        is_passed = "--passed" in options
        os.environ["OCANNL_MPI__DEVICE_MEMORY"] = "1" if is_passed else "0"
        options = [each for each in options if each != "--passed"]
        for size in map(int, sizes.split(",")):
            run(size, options)


def run(size: int, options: list[str]) -> None:
    """Train in a group of a size, and wait for it in the other processes."""
    world = MPI.COMM_WORLD
    is_member = world.rank < max(size, 1)
    part = world.Split(0 if is_member else 1, world.rank)
    if is_member:
        group = ocannl_mpi.communicator(part) if size else OneProcess()
        with oc.Session(seed=0):
            found = train(group, arguments(options))
        if world.rank == 0:
            print(f"{size} {' '.join(options)}: {found}", flush=True)
    waiting = world.Ibarrier()
    while not waiting.Test():
        time.sleep(0.02)


if __name__ == "__main__":
    main()
