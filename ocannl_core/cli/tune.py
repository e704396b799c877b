"""`ocannl tune`: measures schedules on this machine for a program, and caches the fastest.

    ocannl tune --budget 30 train.py -- --epochs 1     for the kernels that the program compiles
    ocannl tune --placements train.py                  placements of its routines first
    ocannl tune --show                                 prints the cache of this machine
    ocannl tune --forget                               empties it

Every later run of any program uses the cached schedules and placements.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from ocannl_core.cli.inventory import default_target
from ocannl_core.cli.scripts import SECONDS, add_script_arguments, environment, run_script
from ocannl_core.compile.placements.placement_cache import PlacementCache, placement_cache
from ocannl_core.compile.placements.report import report_searches
from ocannl_core.compile.profile import duration
from ocannl_core.compile.schedule_search import KernelTuning
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.schedule.tuning.entry_folder import Entry
from ocannl_core.schedule.tuning.tuning_cache import TuningCache, tuning_cache

HELP = "find the fastest schedules for a program on this machine, and remember them"
DESCRIPTION = (
    "Runs a Python program; for each kernel that it compiles, times schedules on "
    "this machine and remembers the fastest. Later runs of any program use them."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument(
        "--budget",
        type=SECONDS,
        metavar="SECONDS",
        help="the approximate time of the search for each routine (the setting tune_budget)",
    )
    command.add_argument(
        "--placements",
        action="store_true",
        help="first search, for as long again, which intermediate tensors of each routine to store "
        "(the setting tune_placements)",
    )
    what = command.add_mutually_exclusive_group()
    what.add_argument("--show", action="store_true", help="list the cached results")
    what.add_argument("--forget", action="store_true", help="remove the cached results")
    add_script_arguments(command, is_required=False)
    command.set_defaults(error=command.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code, or the program's if one runs."""
    if arguments.show or arguments.forget:
        target, error = default_target()
        if target is None:
            assert error is not None
            raise error
        schedules, placements = tuning_cache(target), placement_cache(target)
        return (_forget if arguments.forget else _show)(schedules, placements)
    if arguments.script is None:
        arguments.error("one of the arguments PROGRAM --show --forget is required")
    variables = {"OCANNL_TUNE": "search"}
    if arguments.budget is not None:
        variables["OCANNL_TUNE_BUDGET"] = str(arguments.budget)
    if arguments.placements:
        variables["OCANNL_TUNE_PLACEMENTS"] = "true"
    found: list[object] = []

    def listen(each: object) -> None:
        found.append(each)
        print(each, flush=True)

    with environment(**variables), report_searches(listen):
        code = run_script(arguments.script, arguments.arguments)
    kernels = sum(isinstance(each, KernelTuning) for each in found)
    print(f"\nkernels searched for: {kernels}")
    if len(found) > kernels:
        print(f"routines searched for placements: {len(found) - kernels}")
    return code


def _show(schedules: TuningCache, placements: PlacementCache) -> int:
    """Print the tuning cache; return 0."""
    entries = list(schedules.entries())
    print(f"{len(entries)} kernels in {schedules.folder}")
    for entry in entries:
        changes: list[object] = []
        if (found := entry.measured) is not None and found.schedule != found.default:
            changes = [schedule_text(found.schedule) or "plain loops"]
        print("\n".join(_lines(entry, "", "schedule", changes)))
        if found is not None:
            print("".join(f"    {line}\n" for line in entry.key.splitlines()), end="")
    routines = list(placements.entries())
    if routines:
        print(f"\nplacements of {len(routines)} routines in {placements.folder}")
    for routine in routines:
        flips = routine.measured.flips if routine.measured is not None else ()
        print("\n".join(_lines(routine, f"{routine.title}, ", "placements", flips)))
    return 0


def _lines(entry: Entry[Any], title: str, kind: str, changes: Sequence[object]) -> Iterator[str]:
    """Yield the measurement of an entry, and its changes of the default."""
    found = entry.measured
    if found is None:
        yield f"\n{entry.path.name}: not readable, so not used"
        return
    yield f"\n{entry.path.stem[:8]}: {title}{duration(found.seconds)}, best of {found.tried}"
    before = f"{duration(found.default_seconds)} by default"
    kept = f"the default's {kind}"
    yield f"  {before if changes else kept}"
    yield from (f"  {each}" for each in changes)


def _forget(schedules: TuningCache, placements: PlacementCache) -> int:
    """Empty the tuning cache; return 0."""
    print(f"{schedules.forget()} kernels forgotten in {schedules.folder}")
    count = placements.forget()
    if count:
        print(f"placements of {count} routines forgotten in {placements.folder}")
    return 0
