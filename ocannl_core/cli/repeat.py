"""`ocannl repeat`: runs a program several times, and compares the bits of all results.

ocannl repeat train.py                     three times
ocannl repeat --times 20 train.py -- -v    twenty times
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import zip_longest
from multiprocessing import get_context

from ocannl_core.backend.protocols import Launcher
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.cli.scripts import add_script_arguments, checked, run_script
from ocannl_core.ir.assignments.traverse import leaves, targets
from ocannl_core.ir.host_arrays import interior
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, observing

HELP = "run a program several times, and compare the bits of all results"
DESCRIPTION = (
    "Runs a Python program several times, each in a process of its own, and "
    "compares the tensors of each routine after each of its runs, bit for bit."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument(
        "--times",
        type=checked(int, lambda times: times >= 2, "an integer of 2 or more"),
        default=3,
        help="the number of runs of the program (default 3)",
    )
    add_script_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    """Run the program; return 1 if its results differ, or else its exit code."""
    script = arguments.script
    code, first = _results(script, arguments.arguments)
    if not first:
        print("the program ran no routine")
        return code or 1
    differing = 0
    for number in range(2, arguments.times + 1):
        again, found = _results(script, arguments.arguments)
        code = code or again
        if text := _difference(first, found):
            differing += 1
            print(f"run {number} of {script} differs from the first: {text}")
    runs = f"{arguments.times - differing} of {arguments.times} runs"
    print(f"{runs} agree in {len(first)} tensors after runs of routines")
    return 1 if differing else code


def _results(script: str, arguments: Sequence[str]) -> tuple[int, list[Digest]]:
    """Return the exit code and the digests of a run of the program in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        try:
            return processes.submit(_observed, script, list(arguments)).result()
        except BrokenProcessPool:
            raise UsageError(
                "A program whose runs are compared ends by returning or by sys.exit.",
                found=f"the process of {script} ended without a result",
            ) from None


def _observed(script: str, arguments: list[str]) -> tuple[int, list[Digest]]:
    digests = Digests()
    with observing(digests):
        code = run_script(script, arguments)
    return code, digests.found


def _difference(first: list[Digest], found: list[Digest]) -> str:
    """Return a description of the first difference; empty if there is none."""
    for expected, each in zip_longest(first, found):
        if expected == each:
            continue
        if expected is None or each is None:
            return "it runs other routines"
        if (expected.routine, expected.node) != (each.routine, each.node):
            return "it runs other routines"
        cause = "computes other bits in" if each.is_written else "reads other bits from"
        return f"{each.routine}, run {each.run} of all routines, {cause} {each.node}"
    return ""


@dataclass(frozen=True, slots=True)
class Digest:
    """The cells of a tensor after a run of a routine."""

    routine: str
    run: int
    """The number of the run among all runs of the program, from 1."""
    node: str
    is_written: bool
    """False for a tensor that the routine only reads."""
    cells: bytes
    """A digest of shape, format and cells."""


class Digests(RunObserver):
    """An observer that takes digests of all tensors of each routine, before and after its runs:
    first of the tensors that it only reads.
    """

    def __init__(self) -> None:
        self.found: list[Digest] = []
        self._runs = 0

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that takes digests after each run."""
        plan, build = routine.build.plan, routine.build
        written = {node for each in leaves(build.assignments.body) for node in targets(each)}
        order = sorted(plan.params, key=lambda node: node in written)

        def run(numbers: Sequence[int]) -> None:
            launch(numbers)
            build.backend.synchronize(build.target)
            self._runs += 1
            for node, cells in routine.cells(order).items():
                inner = interior(cells, plan.nodes[node])
                content = hashlib.sha256(f"{inner.shape} {inner.dtype}".encode())
                content.update(inner.tobytes())
                is_written = node in written
                digest = content.digest()
                self.found.append(Digest(routine.name, self._runs, node.name, is_written, digest))

        return run
