"""From an optimised program to kernels: all that happens to it before code is generated."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.kernel_passes.analysed_kernel import AnalysedKernel
from ocannl_core.kernel_passes.parallelise import parallelise_step
from ocannl_core.kernel_passes.schedule_kernels import schedule_variants, stream_kernels
from ocannl_core.kernel_passes.split_kernels import split_kernels
from ocannl_core.kernel_passes.workspace import allocate_workspace_of
from ocannl_core.kernels.memory_plan import sink_fills
from ocannl_core.kernels.nodes import NodeInfos, Plan, Step, StepReplacement, map_steps
from ocannl_core.kernels.stream import KernelStream
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.target import Target


def plan_kernels(optimised: LoopProgram, target: Target) -> KernelStream:
    """Return the kernels of a program, each scheduled for a target when it is iterated over."""
    return stream_kernels(cut_kernels(optimised), target, finish_kernel)


def plan_variants(plan: Plan, part: AnalysedKernel, schedules: Sequence[Schedule]) -> Plan:
    """Returns one kernel of a plan that is not scheduled yet, once by each of some schedules."""
    return map_steps(schedule_variants(plan, part, schedules), finish_kernel)


def finish_kernel(step: Step, nodes: NodeInfos) -> StepReplacement:
    """Returns a scheduled step as phases that threads share, its large buffers outside."""
    phases = parallelise_step(step, nodes)
    found = [allocate_workspace_of(each, nodes) for each in phases.steps]
    steps = tuple(each for every in found for each in every.steps)
    return StepReplacement(
        steps, (*phases.scratch, *(node for each in found for node in each.scratch))
    )


def cut_kernels(optimised: LoopProgram) -> Plan:
    """Returns the kernels of a program before anything is scheduled."""
    return sink_fills(split_kernels(optimised))
