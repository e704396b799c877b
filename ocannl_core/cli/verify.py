"""`ocannl verify`: runs a program, and compares two backends node by node.

ocannl verify train.py                             the default backend with the reference
ocannl verify --backends cuda,cpu_c train.py       two others
"""

from __future__ import annotations

import argparse

from ocannl_core.backend.manager import reference, select
from ocannl_core.base.errors import UsageError
from ocannl_core.cli.scripts import add_script_arguments, environment, require_script, run_script
from ocannl_core.runtime.observers.comparison import Comparison
from ocannl_core.runtime.observers.observers import observing

_OPTIONS = ("--backends", "--tolerance", "--runs")


HELP = "run a program, and compare two backends node by node"
DESCRIPTION = (
    "Runs a Python program on one backend. Each assignment of its routines is "
    "repeated on another one, from the same operands, and the results are compared."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument(
        "--backends",
        metavar="A,B",
        help="the backend to examine, and the one that is right; by default the default backend "
        "and the reference interpreter",
    )
    command.add_argument(
        "--tolerance",
        type=float,
        help="the accepted difference, relative to the largest number of a tensor; by default the "
        "square root of the precision of its format",
    )
    command.add_argument(
        "--runs", type=int, default=1, help="how many runs of each routine to compare (default 1)"
    )
    add_script_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    """Run the program; return 1 if the backends differ, or else its exit code."""
    script = require_script("verify", arguments.script)
    misplaced = [each for each in arguments.arguments if each.partition("=")[0] in _OPTIONS]
    if misplaced and arguments.arguments[:1] != ["--"]:
        raise UsageError(
            "Options of `ocannl verify` come before the program, those of the program after `--`.",
            found=f"{misplaced[0]} after {script}",
            fix=f"ocannl verify {misplaced[0]} ... {script}, or ocannl verify {script} -- ...",
        )
    names = arguments.backends.split(",") if arguments.backends else []
    if len(names) not in (0, 2):
        raise UsageError(
            "A comparison needs two backends.",
            found=arguments.backends,
            fix="--backends cpu_c,interp",
        )
    _, examined = select(names[0] if names else None)
    other, target = select(names[1]) if names else reference()
    comparison = Comparison(other, target, arguments.tolerance, arguments.runs)
    with environment(OCANNL_BACKEND=str(examined)), observing(comparison):
        code = run_script(script, arguments.arguments)
    for each in comparison.found:
        print(each)
    what = f"{comparison.compared} runs, {comparison.assignments} assignments"
    if not comparison.compared:
        print("the program ran no routine")
        return code or 1
    print(f"{examined} and {target}: {what}, {len(comparison.found)} differences")
    return 1 if comparison.found else code
