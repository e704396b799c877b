"""`ocannl bench`: runs a program, and measures its routines on their last operands.

ocannl bench train.py                            each routine, and each of its kernels
ocannl bench --routine 'step*' --seconds 3 train.py -- --epochs 1
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ocannl_core.backend.protocols import Launcher
from ocannl_core.cli.scripts import SECONDS, add_script_arguments, run_script
from ocannl_core.compile.profile import Profile, duration, profile
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, observing

HELP = "run a program, and measure the kernels of its routines"
DESCRIPTION = (
    "Runs a Python program; then measures each routine that it called, kernel by "
    "kernel, on copies of its operands. The routines that took the most time come first."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument(
        "--seconds",
        type=SECONDS,
        default=1.0,
        metavar="SECONDS",
        help="the approximate time to measure each routine (default 1)",
    )
    add_script_arguments(command, selects_routines=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the program and measure; return its exit code, or 1 if no routine was measured."""
    calls = _Calls(arguments.routine or "*")
    with observing(calls):
        code = run_script(arguments.script, arguments.arguments)
    if not calls.routines:
        names = f" like {arguments.routine}" if arguments.routine else ""
        print(f"the program called no routine{names}")
        return code or 1
    measured = [(each, each.measure(arguments.seconds)) for each in calls.routines]
    measured.sort(key=lambda pair: pair[0].count * pair[1].seconds, reverse=True)
    for called, found in measured:
        print("\n".join(_lines(called, found)), flush=True)
    return code


@dataclass(slots=True, eq=False)
class _Called:
    """A routine that the program called, and the static indices of its last call."""

    routine: LinkedRoutine
    count: int = 0
    numbers: tuple[int, ...] = ()

    def measure(self, seconds: float) -> Profile:
        """Return the times of the kernels."""
        build = self.routine.build
        memory = self.routine.buffers
        return profile(build.plan, build.backend, build.target, self.numbers, memory, seconds)


class _Calls(RunObserver):
    """An observer that counts the calls of routines."""

    def __init__(self, pattern: str) -> None:
        self.routines: list[_Called] = []
        self._pattern = pattern

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that counts."""
        if not fnmatch.fnmatch(routine.name, self._pattern):
            return launch
        called = _Called(routine)

        def run(numbers: Sequence[int]) -> None:
            if not called.count:
                self.routines.append(called)
            called.count += 1
            called.numbers = tuple(numbers)
            launch(numbers)

        return run


def _lines(called: _Called, found: Profile) -> Iterator[str]:
    times = "time" if called.count == 1 else "times"
    total = duration(called.count * found.seconds)
    where = called.routine.build.target
    yield f"===== called {called.count} {times} on {where}: {total} in kernels"
    yield str(found)
    yield ""
