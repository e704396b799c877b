"""`ocannl doctor`: checks the installation, and prints a repair for each failure."""

from __future__ import annotations

import argparse
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

import numpy as np

from ocannl_core.backend.manager import Backend, checks_named, wrapper_entries
from ocannl_core.backend.manager import backend as backend_named
from ocannl_core.backend.plugins import describe
from ocannl_core.backend.protocols import Check, CheckOutcome, HostBuffer
from ocannl_core.base import settings
from ocannl_core.base.errors import LinkError, OcannlError
from ocannl_core.base.files.directory import open_private
from ocannl_core.base.files.new_files import unfinished_name
from ocannl_core.cli.inventory import BackendRow, default_target, inventory
from ocannl_core.compile.placements.placement_cache import placement_cache
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Binary, Block, For, Load, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.schedule.tuning.tuning_cache import tuning_cache

HELP = "check the installation and suggest repairs"
DESCRIPTION = "Checks the installation; compiles and runs a small kernel on every device."


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument(
        "backend",
        nargs="?",
        help="check this backend, or plugin with checks, only; it must then work",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run and print the checks; return 0 if none failed."""
    counts: Counter[CheckOutcome] = Counter()
    for check in checks(arguments.backend):
        print(check, flush=True)
        counts[check.outcome] += 1
    named = ((CheckOutcome.FAIL, "failed"), (CheckOutcome.WARN, "warnings"))
    found = [f"{name}: {counts[outcome]}" for outcome, name in named if counts[outcome]]
    print("\n" + (", ".join(found) or "no problems found"))
    return 1 if counts[CheckOutcome.FAIL] else 0


def checks(only: str | None = None) -> Iterator[Check]:
    """Yield the checks of the installation.

    Args:
        only: A backend that must work, or another plugin with checks; None checks all backends, of
            which one must work, and each that would be used in its place if its devices worked.

    Raises:
        BackendNotFoundError: if the backend to check is not installed.
    """
    rows = inventory()
    if only is not None and only not in {row.entry.name for row in rows}:
        if (own := checks_named(only)) is not None:
            yield from own()
            return
        backend_named(only)  # raises, and lists the installed backends
    yield Check("Python", CheckOutcome.OK, f"{platform.python_version()} at {sys.executable}")
    yield Check("NumPy", CheckOutcome.OK, np.__version__)
    target, error = default_target()
    is_chosen = bool(settings.current().backend)
    used = inf if is_chosen or target is None else target.priority  # of the device of new contexts
    for row in rows:
        if only is None or row.entry.name == only:
            must_work = only is not None or row.report.priority > used
            yield from _backend_checks(row, must_work=must_work)
    if only is None:
        for entry in wrapper_entries():
            outcome = CheckOutcome.FAIL if entry.error else CheckOutcome.OK
            yield Check(f"wrapper {entry.name}", outcome, entry.error or str(entry))
        if error is not None:
            yield Check("default backend", CheckOutcome.FAIL, error.rule, error.fix)
        else:
            yield Check("default backend", CheckOutcome.OK, str(target))
        if target is not None:
            yield from _tuning_checks(target)
    yield _cache_check()


def _backend_checks(row: BackendRow, *, must_work: bool) -> Iterator[Check]:
    what = f"backend {row.entry.name}"
    if row.state != "available" or row.backend is None:
        is_failure = must_work or row.state == "broken"
        outcome = CheckOutcome.FAIL if is_failure else CheckOutcome.WARN
        yield Check(what, outcome, f"{row.state}: {row.reason} ({row.entry})", row.fix)
    else:
        yield Check(what, CheckOutcome.OK, "\n".join((str(row.entry), *row.report.details)))
        for plugin in row.entry.shadowed:
            found = f"{plugin} has the same name, and is not used"
            yield Check(what, CheckOutcome.WARN, found, "uninstall one of them")
        for target in row.report.targets:
            blocks = target.thread_blocks
            if blocks is not None and blocks.limits is not None:
                yield Check(f"{target}, launches", CheckOutcome.OK, str(blocks.limits))
            device = f"{target}, a kernel compared with NumPy"
            try:
                check_kernel(row.backend, target)
            except OcannlError as error:
                yield Check(device, CheckOutcome.FAIL, f"{type(error).__name__}: {error}")
            except Exception as error:
                yield Check(device, CheckOutcome.FAIL, describe(error))
            else:
                yield Check(device, CheckOutcome.OK)


def _tuning_checks(target: Target) -> Iterator[Check]:
    """Yield checks that the tuning cache can be read; none of a part that is empty."""
    schedules, placements = tuning_cache(target), placement_cache(target)
    kept = [(entry.path.name, entry.measured is None) for entry in schedules.entries()]
    yield from _entry_check("remembered schedules", "kernels", schedules.folder, kept)
    kept = [(entry.path.name, entry.measured is None) for entry in placements.entries()]
    yield from _entry_check("remembered placements", "routines", placements.folder, kept)


def _entry_check(
    what: str, subjects: str, folder: Path, entries: Sequence[tuple[str, bool]]
) -> Iterator[Check]:
    """Yield a check of the entries of a cache, each a name, and True if it is unreadable."""
    broken = [name for name, is_broken in entries if is_broken]
    if broken:
        yield Check(
            what,
            CheckOutcome.WARN,
            f"{len(broken)} of {len(entries)} in {folder} cannot be read, so these {subjects} "
            f"run by default: {', '.join(broken[:3])}",
            "ocannl tune --forget, and tune again",
        )
    elif entries:
        yield Check(what, CheckOutcome.OK, f"{len(entries)} in {folder}")


def _cache_check() -> Check:
    """Return a check that compiled code can be cached; make the directory if it is missing."""
    folder = settings.cache_directory()
    try:
        scratch, name = open_private(folder, create=True).scratch, unfinished_name()
        scratch.create(name, b"")
    except OSError as error:
        return Check(
            "cache directory",
            CheckOutcome.WARN,
            f"{folder} cannot be written ({error}), so every process compiles afresh",
            "set OCANNL_CACHE_DIR to a directory that only you can write",
        )
    scratch.remove(name)
    return Check("cache directory", CheckOutcome.OK, str(folder))


_EXTENT = 96


def _multiply_and_add() -> Plan:
    """Return a plan of one kernel: `c[i] = a[i] * b[i] + a[i]`."""
    a, b, c = (TensorNode(ordinal, (name,)) for ordinal, name in enumerate("abc"))
    var = fresh_var()
    at = (VarIndex(var),)
    product = Binary(BinaryOp.MUL, Load(a, at, float32), Load(b, at, float32), float32)
    total = Binary(BinaryOp.ADD, product, Load(a, at, float32), float32)
    loop = For(var, 0, _EXTENT, Block((Store(c, at, total),)))
    info = NodeInfo(float32, (_EXTENT,))
    return Plan(
        name="probe",
        steps=(Kernel(Block((loop,)), arguments=(a, b, c), indices=()),),
        params=(a, b, c),
        scratch=(),
        indices=(),
        nodes={a: info, b: info, c: info},
    )


def check_kernel(backend: Backend, target: Target) -> None:
    """Compile and run the kernel on a device, and compare its cells with NumPy's, bit by bit."""
    plan = _multiply_and_add()
    a, b, c = plan.params
    random = np.random.default_rng(0)
    cells = {node: random.standard_normal(_EXTENT).astype(np.float32) for node in (a, b)}
    executable = backend.compile(backend.generate(plan, target), target)
    buffers = {node: backend.allocate(plan.nodes[node], target) for node in plan.params}
    for node, values in cells.items():
        backend.transfer(buffers[node], HostBuffer(values, plan.nodes[node])).wait()
    backend.link(executable, buffers)([])
    backend.synchronize(target)
    result = HostBuffer(np.empty(_EXTENT, np.float32), plan.nodes[c])
    backend.transfer(result, buffers[c]).wait()
    expected = cells[a] * cells[b] + cells[a]
    wrong = int(np.count_nonzero(result.array != expected))
    if wrong:
        raise LinkError(
            "A kernel of exactly rounded operations must give NumPy's result.",
            found=f"{wrong} of {_EXTENT} cells differ",
            where=f"{target}, c[i] = a[i] * b[i] + a[i]",
            fix=f"this is a defect of the plugin {backend.plugin}: report it to its authors",
        )
