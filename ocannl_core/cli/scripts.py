"""Execution of a user's program by a command; commands of plugins may use it, too."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.runtime.routine import Routine


def add_script_arguments(
    command: argparse.ArgumentParser, *, selects_routines: bool = False
) -> None:
    """Add the program and its arguments to a command."""
    if selects_routines:
        command.add_argument(
            "--routine", metavar="PATTERN", help="only routines of such a name: step*"
        )
    command.add_argument("script", nargs="?", help="the program")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, after --")


def require_script(command: str, script: str | None, other: str = "") -> str:
    """Return the path of a program.

    Args:
        other: Another use of the command, for the message.

    Raises:
        UsageError: if there is no such file.
    """
    if script is None or not Path(script).is_file():
        raise UsageError(
            f"`ocannl {command}` takes a program.",
            found=script or "no file",
            fix=f"ocannl {command} program.py{other}",
        )
    return script


def returned_by(command: str, program: str, arguments: Sequence[str], file: str) -> tuple[str, Any]:
    """Run a program as a module, `__ocannl_export__`, and call one of its functions.

    Args:
        command: The name of the command, for messages.
        program: `PROGRAM:FUNCTION`, such as `train.py:exported`.
        arguments: The arguments of the program, perhaps with `--` in front.
        file: An example of the command's other arguments, for messages.

    Returns:
        The name of the function, and its result; a routine or other value under the name, as it is.

    Raises:
        UsageError: if there is no such file, or no function of the name, or none is named.
    """
    script, _, name = program.rpartition(":")
    wrong = program
    if name.isidentifier():
        wrong = "" if Path(script).is_file() else f"{script}, which is no file"
    if not wrong:
        with script_arguments(script, arguments):
            module: dict[str, Any] = runpy.run_path(script, run_name="__ocannl_export__")
            if name in module:
                found = module[name]
                called = callable(found) and not isinstance(found, Routine)
                return name, found() if called else found
        others = ", ".join(key for key, each in module.items() if isfunction(each))
        wrong = f"no function {name} in {script}{others and ', but '}{others}"
    raise UsageError(
        f"`ocannl {command}` takes a program and the name of a function in it.",
        found=wrong,
        fix=f"ocannl {command} train.py:exported {file}",
    )


def run_script(script: str, arguments: Sequence[str]) -> int:
    """Run a program as Python does; return its exit code."""
    with script_arguments(script, arguments):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            if end.code is not None and not isinstance(end.code, int):
                print(end.code, file=sys.stderr)
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables, which child processes inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def script_arguments(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set the arguments, without `--` in front, and the module path of a script."""
    before = sys.argv, sys.path[:]
    given = arguments[1:] if arguments[:1] == ["--"] else arguments
    sys.argv = [script, *given]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
