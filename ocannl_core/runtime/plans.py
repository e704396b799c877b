"""From an optimised program to kernels: all that happens to it before code is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.schedule.default import scheduled, scheduled_alone
from ocannl_core.schedule.joining.part import Part
from ocannl_core.schedule.memory import sink_fills
from ocannl_core.schedule.plan import Infos, Nest, Plan, Step, Steps, step_by_step
from ocannl_core.schedule.sharing.parallel import marked
from ocannl_core.schedule.sharing.workspace import moved
from ocannl_core.schedule.split import split
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target


def planned(
    optimised: LoopProgram,
    target: Target,
    on_kernel: Callable[[Nest, Infos], None] | None = None,
) -> Plan:
    """Returns the kernels of a program, scheduled for a target.

    Args:
        optimised: The program.
        target: What the kernels will run on.
        on_kernel: Told of each kernel as soon as nothing about it changes any more, but not of
            those that are like an earlier one.
    """

    def finish(step: Step, nodes: Infos) -> Steps:
        found = finished(step, nodes)
        for each in found.steps:
            if on_kernel is not None and isinstance(each, Nest):
                on_kernel(each, nodes)
        return found

    return scheduled(cut(optimised), target, finish)


def planned_alone(plan: Plan, part: Part, schedules: Sequence[Schedule]) -> Plan:
    """Returns one kernel of a plan that is not scheduled yet, once by each of some schedules."""
    return step_by_step(scheduled_alone(plan, part, schedules), finished)


def finished(step: Step, nodes: Infos) -> Steps:
    """Returns a scheduled step as phases that threads share, its large buffers outside."""
    phases = marked(step, nodes)
    found = [moved(each, nodes) for each in phases.steps]
    steps = tuple(each for every in found for each in every.steps)
    return Steps(steps, (*phases.scratch, *(node for each in found for node in each.scratch)))


def cut(optimised: LoopProgram) -> Plan:
    """Returns the kernels of a program before anything is scheduled."""
    return sink_fills(split(optimised))
