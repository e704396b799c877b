"""The command `ocannl`: lists backends, checks the installation, shows settings, measures, tunes,
shows checkpoints, exports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ocannl_core.base import settings
from ocannl_core.base.errors import OcannlError
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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="ocannl", description="Inspects and tunes an installation of OCANNL for Python."
    )
    top.add_argument("--version", action="version", version=f"ocannl {__version__}")
    top.set_defaults(run=None)
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2].replace("_", "-")
        own = subparsers.add_parser(name, help=command.HELP, description=command.DESCRIPTION)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0 for success, 1 for a failure, 2 for wrong usage."""
    top = parser()
    parsed = top.parse_args(settings.other_arguments(arguments))
    if parsed.run is None:
        top.print_help(sys.stderr)
        return 2
    try:
        code: int = parsed.run(parsed)
    except OcannlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 1
    return code
