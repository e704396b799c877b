"""`ocannl show`: runs a program, and prints what its routines were compiled from and to.

ocannl show train.py                             assignments, loops, kernels and source
ocannl show --stage source --routine step train.py -- --epochs 1
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Collection, Iterator

from ocannl_core.cli.scripts import add_script_arguments, run_script
from ocannl_core.compile.stages import Build
from ocannl_core.ir.assignments import printer as assign_printer
from ocannl_core.ir.kernels import printer as kernel_printer
from ocannl_core.ir.loops import printer as loop_printer
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, observing

STAGES = ("assignments", "loops", "kernels", "source")


HELP = "run a program, and print the stages of compilation of its routines"
DESCRIPTION = (
    "Runs a Python program, and prints the assignments, loops, kernels and source "
    "of each routine when it is compiled."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("--stage", action="append", choices=STAGES, help="only these stages")
    add_script_arguments(command, selects_routines=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the program; return its exit code, or 1 if no routine was shown."""
    shown = _Shown(arguments.stage or STAGES, arguments.routine or "*")
    with observing(shown):
        code = run_script(arguments.script, arguments.arguments)
    if not shown.count:
        names = f" like {arguments.routine}" if arguments.routine else ""
        print(f"the program compiled no routine{names}")
        return code or 1
    return code


class _Shown(RunObserver):
    """An observer that prints routines."""

    def __init__(self, stages: Collection[str], pattern: str) -> None:
        self.count = 0
        self._stages = stages
        self._pattern = pattern

    def linked(self, routine: LinkedRoutine) -> None:
        if fnmatch.fnmatch(routine.name, self._pattern):
            self.count += 1
            print("\n".join(_lines(routine.build, self._stages)), flush=True)


def _lines(build: Build, stages: Collection[str]) -> Iterator[str]:
    yield f"===== routine {build.plan.name} on {build.target}"
    texts: dict[str, Callable[[], str]] = {
        "assignments": lambda: assign_printer.to_text(build.assignments),
        "loops": lambda: loop_printer.to_text(build.program.loops),
        "kernels": lambda: kernel_printer.to_text(build.plan),
        "source": lambda: build.text,
    }
    for stage, text in texts.items():
        if stage in stages:
            title = f"{stage} ({build.source.language})" if stage == "source" else stage
            yield f"----- {title}"
            yield text().rstrip("\n")
    yield ""
