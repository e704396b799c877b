"""From an optimised program to kernels: all that happens to it before code is generated."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.schedule.default import scheduled, scheduled_alone
from ocannl_core.schedule.joining.part import Part
from ocannl_core.schedule.memory import sink_fills
from ocannl_core.schedule.plan import Plan
from ocannl_core.schedule.sharing.parallel import mark_parallel
from ocannl_core.schedule.sharing.workspace import buffers_moved
from ocannl_core.schedule.split import split
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target


def planned(optimised: LoopProgram, target: Target) -> Plan:
    """Returns the kernels of a program, scheduled for a target."""
    return buffers_moved(mark_parallel(scheduled(cut(optimised), target)))


def planned_alone(plan: Plan, part: Part, schedules: Sequence[Schedule]) -> Plan:
    """Returns one kernel of a plan that is not scheduled yet, once by each of some schedules."""
    return buffers_moved(mark_parallel(scheduled_alone(plan, part, schedules)))


def cut(optimised: LoopProgram) -> Plan:
    """Returns the kernels of a program before anything is scheduled."""
    return sink_fills(split(optimised))
