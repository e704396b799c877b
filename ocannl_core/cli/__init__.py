"""The command `ocannl`: lists backends, checks the installation, shows settings, measures, tunes,
shows checkpoints, exports."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from ocannl_core.backend import registry
from ocannl_core.backend.plugins import describe
from ocannl_core.backend.results import shown
from ocannl_core.base import settings
from ocannl_core.base.errors import OcannlError, UsageError
from ocannl_core.base.interruptions import reraise_interruption
from ocannl_core.base.origin import skip_lines_of_script
from ocannl_core.base.version import __version__
from ocannl_core.cli import (
    backends,
    bench,
    cache,
    check_backend,
    checkpoint,
    config,
    doctor,
    export,
    migrate,
    new_backend,
    repeat,
    show,
    tune,
    verify,
)

COMMANDS = (
    backends,
    doctor,
    config,
    cache,
    show,
    verify,
    repeat,
    bench,
    tune,
    checkpoint,
    export,
    migrate,
    new_backend,
    check_backend,
)
"""The modules of the commands, which have the texts `HELP` and `DESCRIPTION`, `add_arguments` of a
parser, and `run`, from parsed arguments to the exit code.
"""


class Command(Protocol):
    """A module of a command; plugins name theirs in the entry-point group `ocannl.commands`."""

    HELP: str
    DESCRIPTION: str

    def add_arguments(self, command: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


class _BrokenCommand:
    """The command of a plugin that does not load."""

    def __init__(self, entry: registry.PluginEntry, error: BaseException) -> None:
        self.entry = entry
        self.error = describe(error)
        self.HELP = f"(does not load: {entry.distribution})"
        self.DESCRIPTION = f"Does not load: {self.error}".replace("%", "%%")

    def add_arguments(self, command: argparse.ArgumentParser) -> None:
        command.add_argument("arguments", nargs=argparse.REMAINDER)

    def run(self, arguments: argparse.Namespace) -> int:
        raise UsageError(
            f"The command {self.entry.name} is in a plugin that loads.",
            found=self.error,
            where=str(self.entry),
            fix=self.entry.repair,
        )


def commands(arguments: Sequence[str]) -> dict[str, Command]:
    """Return the core's commands by name, and those of plugins that arguments may mean."""
    found = {each.__name__.rpartition(".")[2].replace("_", "-"): each for each in COMMANDS}
    result = cast(dict[str, Command], found)
    first = next((each for each in arguments if not each.startswith("-")), None)
    if first in result:
        return result
    added = registry.commands()
    for name, (entry, load) in added.items():
        if name in result or (first is not None and first != name and first in added):
            continue
        try:
            result[name] = _checked(cast(Command, load()))
        except BaseException as error:
            reraise_interruption(error)
            result[name] = _BrokenCommand(entry, error)
    return result


def _checked(command: Command) -> Command:
    """Return the command of a plugin, after printing its help to a text."""
    top = argparse.ArgumentParser()
    own = top.add_subparsers().add_parser("own", help=command.HELP, description=command.DESCRIPTION)
    command.add_arguments(own)
    top.format_help()
    own.format_help()
    if not callable(command.run):
        raise TypeError(f"its run must be a function, and is {shown(command.run)}")
    return command


def parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="ocannl", description="Inspects and tunes an installation of OCANNL for Python."
    )
    top.add_argument("--version", action="version", version=f"ocannl {__version__}")
    top.set_defaults(run=None)
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in commands(arguments).items():
        own = subparsers.add_parser(name, help=command.HELP, description=command.DESCRIPTION)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0 for success, 1 for a failure, 2 for wrong usage."""
    if arguments is None:
        skip_lines_of_script(sys._getframe(1))
    others = settings.other_arguments(arguments)
    top = parser(others)
    parsed = top.parse_args(others)
    if parsed.run is None:
        top.print_help(sys.stderr)
        return 2
    try:
        code: int = parsed.run(parsed)
        print(end="", flush=True)
    except OcannlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_output()
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return code


def _drop_output() -> None:
    """Let the interpreter, which writes the rest of the output at its end, do so nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
