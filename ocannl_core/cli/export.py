"""`ocannl export`: runs a function of a program, and writes the routines that it returns as C.

ocannl export train.py:exported model.c
ocannl export train.py:exported model.wasm --weights beside -- --epochs 5
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.cli.scripts import returned_by
from ocannl_core.runtime.export.object_sizes import object_sizes
from ocannl_core.runtime.routine import Routine

_NAMES = frozenset(("routines", "inputs", "outputs"))
"""The arguments of `Context.export` that a function may return."""

HELP = "write routines of a program as a C file or a WebAssembly module"
DESCRIPTION = (
    "Runs a Python program as a module, calls one of its functions, and exports the routine, or "
    "the dictionary of routines, that it returns, as `Context.export` does. The function may name "
    'inputs and outputs: {"routines": ..., "inputs": ..., "outputs": {"scores": y}}.'
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("program", metavar="PROGRAM:FUNCTION", help="train.py:exported")
    _add_options(command)
    command.add_argument(
        "arguments",
        metavar="FILE",
        nargs=argparse.REMAINDER,
        help="model.c or model.wasm; then options, and arguments of the program after --",
    )


def _add_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--target", metavar="NAME", help="the processor: portable, cortex-m4, ...")
    add("--weights", choices=("inside", "beside"), default="inside")
    add("--threads", action="store_true", help="let threads of the caller share the work")


def run(arguments: argparse.Namespace) -> int:
    """Export; return 0."""
    rest = arguments.arguments
    end = rest.index("--") if "--" in rest else len(rest)
    options = argparse.ArgumentParser(prog="ocannl export PROGRAM:FUNCTION")
    options.add_argument("path", metavar="FILE")
    _add_options(options)
    options.parse_args(rest[:end], arguments)
    made = returned_by("export", arguments.program, rest[end:], "model.c")
    routines, named = _routines_of(*made, arguments.program)
    context = next(iter(routines.values())).context
    files = context.export(
        routines,
        arguments.path,
        **named,
        target=arguments.target,
        weights=arguments.weights,
        threads=arguments.threads,
    )
    for file in (files.source, files.header, files.weights, *files.module):
        if file is not None:
            print(f"{file.stat().st_size:>12,} bytes  {file}")
    print(f"{files.state_bytes:>12,} bytes  of memory for a state")
    sizes = object_sizes(files.source, arguments.target or "")
    if sizes is not None:
        print(f"{sizes.code:>12,} bytes  of code for {arguments.target}, optimized for size")
        inside = ", weights included" if files.weights is None and files.weights_bytes else ""
        print(f"{sizes.constants + sizes.variables:>12,} bytes  of constants{inside}")
    return 0


def _routines_of(
    function: str, made: Any, program: str
) -> tuple[Mapping[str, Routine], Mapping[str, Any]]:
    """Return the routines of a function's result by name, and the inputs and outputs it names."""
    named: dict[str, Any] = {}
    routines = made
    if isinstance(made, Mapping) and {"routines"} <= made.keys() <= _NAMES:
        named = {name: each for name, each in made.items() if name != "routines"}
        routines = made["routines"]
    if isinstance(routines, Routine):
        return {routines.name: routines}, named
    found = [*routines.values()] if isinstance(routines, Mapping) else []
    if found and all(isinstance(each, Routine) for each in found):
        return routines, named
    raise UsageError(
        "The function of a program that is exported returns a routine, or a dictionary of them; or "
        "the arguments of Context.export by name.",
        found=f"{function} is {made!r}",
        where=program,
        fix=f'def {function}(): ...; return {{"predict": predict}}, or\n'
        'return {"routines": {"predict": predict}, "outputs": {"scores": y}}',
    )
