"""Observers in force when a routine is linked.

The settings `log_runs`, `guard_values`, `check_bounds` and `timeline` install observers for
routines linked while they are on; `observing` adds others. Without any, launchers are left as they
are, so that observation costs nothing when it is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ocannl_core.backend.protocols import Buffer, Launcher
from ocannl_core.base import settings
from ocannl_core.compile.stages import Build
from ocannl_core.ir.node import TensorNode
from ocannl_core.runtime.observers.observers import FindBuffer, LinkedRoutine, RunObserver, added


def observed(
    launch: Launcher, build: Build, buffers: Mapping[TensorNode, Buffer], find: FindBuffer
) -> Launcher:
    """Return the launcher of a routine under the observers in force; the same without any."""
    observers = (*_from_settings(), *added())
    if not observers:
        return launch
    routine = LinkedRoutine(build, buffers, find)
    for each in observers:
        each.linked(routine)
        launch = each.launcher(routine, launch)
    return launch


def _from_settings() -> Iterator[RunObserver]:
    chosen = settings.current()
    if chosen.timeline is not None:
        from ocannl_core.runtime.observers.kernel_timeline import KernelTimeline

        yield KernelTimeline()
    if chosen.check_bounds:
        from ocannl_core.runtime.observers.bounds import BoundsCheck

        yield BoundsCheck()
    if chosen.guard_values != "off":
        from ocannl_core.runtime.observers.value_guard import ValueGuard

        yield ValueGuard(infinite=chosen.guard_values == "infinite")
    if chosen.log_runs:
        from ocannl_core.runtime.observers.run_log import RunLog

        yield RunLog(chosen.log_runs)
