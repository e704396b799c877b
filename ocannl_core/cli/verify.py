"""`ocannl verify`: runs a program, and compares two backends node by node.

ocannl verify train.py                             the default backend with the reference
ocannl verify --backends cuda,cpu_c train.py       two others
"""

from __future__ import annotations

import argparse

from ocannl_core.backend.manager import reference, select
from ocannl_core.cli.scripts import add_script_arguments, checked, environment, run_script
from ocannl_core.runtime.observers.comparison import Comparison
from ocannl_core.runtime.observers.observers import observing

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
        type=_pair,
        help="the backend to examine, and the one that is right; by default the default backend "
        "and the reference interpreter",
    )
    command.add_argument(
        "--tolerance",
        type=checked(float, lambda tolerance: tolerance >= 0, "a number of 0 or more"),
        help="the accepted difference, relative to the largest number of a tensor; by default the "
        "square root of the precision of its format",
    )
    command.add_argument(
        "--runs",
        type=checked(int, lambda runs: runs >= 1, "an integer of 1 or more"),
        default=1,
        help="the number of runs of each routine that are compared (default 1)",
    )
    add_script_arguments(command)


def _pair(text: str) -> list[str]:
    names = text.split(",")
    if len(names) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not two backends, such as cpu_c,interp")
    return names


def run(arguments: argparse.Namespace) -> int:
    """Run the program; return 1 if the backends differ, or else its exit code."""
    names = arguments.backends
    _, examined = select(names[0] if names else None)
    other, target = select(names[1]) if names else reference()
    comparison = Comparison(other, target, arguments.tolerance, arguments.runs)
    with environment(OCANNL_BACKEND=str(examined)), observing(comparison):
        code = run_script(arguments.script, arguments.arguments)
    for each in comparison.found:
        print(each)
    what = f"{comparison.compared} runs, {comparison.assignments} assignments"
    if not comparison.compared:
        print("the program ran no routine")
        return code or 1
    print(f"{examined} and {target}: {what}, {len(comparison.found)} differences")
    return 1 if comparison.found else code
