"""Execution of a user's program by a command; commands of plugins may use it, too."""

from __future__ import annotations

import argparse
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

from ocannl_core.base.errors import OcannlError, UsageError
from ocannl_core.runtime.routine import Routine

N = TypeVar("N", int, float)


def checked(kind: type[N], holds: Callable[[N], bool], rule: str) -> Callable[[str], N]:
    """Return the type of an argument that is a number with a property, which `rule` states."""

    def value(text: str) -> N:
        try:
            found = kind(text)
        except ValueError:
            found = None
        if found is None or not holds(found):
            raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
        return found

    return value


SECONDS = checked(float, lambda seconds: 0 < seconds < math.inf, "a positive number of seconds")
"""The type of an argument that is a duration."""


def add_script_arguments(
    command: argparse.ArgumentParser, *, selects_routines: bool = False, is_required: bool = True
) -> None:
    """Add a program and its arguments to a command, as `script`, None without one, and
    `arguments`.
    """
    if selects_routines:
        command.add_argument(
            "--routine", metavar="PATTERN", help="only routines whose name matches: step*"
        )
    program = command.add_argument(
        "script",
        metavar="PROGRAM",
        nargs=argparse.PARSER,  # the rest of the command line, "--" included
        action=_Program,
        help="a program, and its arguments after --",
    )
    program.required = is_required
    command.set_defaults(arguments=[])


class _Program(argparse.Action):
    """A program and its arguments."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        script, *arguments = values[values[0] == "--" :]
        if not Path(script).is_file():
            parser.error(f"there is no file {script!r}")
        own = {text for action in parser._actions for text in action.option_strings}
        found = [each for each in arguments if each.partition("=")[0] in own - {"-h", "--help"}]
        if found and arguments[0] != "--":
            parser.error(
                f"{found[0]} stands behind the program: options of {parser.prog} stand in front of "
                "it, and arguments of the program behind --"
            )
        namespace.script, namespace.arguments = script, arguments


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
    """Set the arguments, without `--` in front, and the module path as for a program that is run
    as a script. An exception of the program is printed as Python does, and ends the command.
    """
    before = sys.argv, sys.path[:]
    given = arguments[1:] if arguments[:1] == ["--"] else arguments
    sys.argv = [script, *given]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    except BrokenPipeError:  # the reader of the output, such as `head`, has seen enough
        raise
    except Exception as error:
        _print_error(error, script)
        raise SystemExit(1) from None
    finally:
        sys.argv, sys.path[:] = before


def _print_error(error: Exception, script: str) -> None:
    """Print an exception of a program, without the frames of the command around it."""
    if isinstance(error, OcannlError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames))
