"""Give the kernels of a plan their schedules, each by the rule for its target."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from itertools import islice
from typing import assert_never

from ocannl_core import settings
from ocannl_core.fast_dataclass import replace
from ocannl_core.kernel_passes.deduplicate import KernelMemo, ScheduledKernel
from ocannl_core.kernel_passes.row_fusion.apply import fuse_group
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan, NestStep, RowGroup
from ocannl_core.kernels.nodes import (
    FinishedStep,
    HostCall,
    Kernel,
    NodeInfos,
    Plan,
    Step,
    StepRule,
    kernel_of,
    nodes_of_step,
    unchanged,
)
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.heuristics.contraction import contraction_schedule
from ocannl_core.schedule.heuristics.matrix_tiles import tile_schedule
from ocannl_core.schedule.heuristics.pointwise import pointwise_schedule
from ocannl_core.schedule.tuning.tuning_cache import CachedRule, Rule, tuning_cache
from ocannl_core.target import Target


def has_schedules(target: Target) -> bool:
    """Return True if kernels for a target get schedules with the settings in force."""
    return target.vector_registers > 0 and settings.current().schedule != "none"


def rule_for(target: Target) -> Rule:
    """Return the rule that chooses schedules for a target with the settings in force."""

    def default(nest: KernelNest, nodes: NodeInfos) -> Schedule | None:
        if nest.reduction is None:
            return pointwise_schedule(nest, nodes, target)
        return tile_schedule(nest, nodes, target) or contraction_schedule(nest, nodes, target)

    return (
        default if settings.current().tune == "off" else CachedRule(tuning_cache(target), default)
    )


def schedule_kernels(
    plan: NestPlan, rule: Rule, finish: StepRule = unchanged
) -> Generator[FinishedStep, None, Plan]:
    """Yield the steps of a plan, in which every nest has a schedule; return the whole plan.

    Kernels that are equal but for names are scheduled once.

    Args:
        plan: The plan.
        rule: Chooses the schedules.
        finish: Applied to each scheduled step.
    """
    nodes = dict(plan.nodes)
    folded = plan.folded
    scratch = [node for node in plan.scratch if node not in folded]
    steps: list[Step] = []
    memo = KernelMemo()
    for step in plan.steps:
        make = partial(_schedule_step, step, rule, nodes, finish)
        match step:
            case RowGroup(kernels, fusion):
                key = tuple(each.nest for each in kernels), fusion
                made = memo.made(key, [each.title for each in kernels], nodes, make)
            case NestKernel(nest, title, body):
                made = memo.made((nest, body is None), [title], nodes, make)
            case Kernel() | HostCall():
                made = make()
            case _:
                assert_never(step)
        steps += made.steps
        scratch += made.scratch
        nodes.update(made.nodes)
        for finished in made.steps:
            yield finished, nodes
    left = frozenset(node for each in steps for node in nodes_of_step(each))
    scratch = list(dict.fromkeys(node for node in scratch if node in left))
    return Plan(plan.name, tuple(steps), plan.params, tuple(scratch), plan.indices, nodes)


def _schedule_step(
    step: NestStep, rule: Rule, nodes: NodeInfos, finish: StepRule
) -> ScheduledKernel:
    known = dict(nodes)
    scratch: list[TensorNode] = []
    scheduled: list[Step]
    match step:
        case RowGroup():
            fused = fuse_group(step, rule, known)
            known.update(fused.nodes)
            scratch += fused.partial
            scheduled = [fused.kernel, *(_schedule_nest(each, rule, known) for each in fused.sums)]
        case NestKernel():
            scheduled = [_schedule_nest(step, rule, known)]
        case Kernel() | HostCall():
            scheduled = [step]
        case _:
            assert_never(step)
    steps: list[Step] = []
    for each in scheduled:
        found = finish(each, known)
        steps += found.steps
        scratch += found.scratch
    return ScheduledKernel(
        tuple(steps), tuple(scratch), dict(islice(known.items(), len(nodes), None))
    )


def _schedule_nest(kernel: NestKernel, rule: Rule, nodes: dict[TensorNode, NodeInfo]) -> Kernel:
    """Return a kernel with the schedule that a rule chooses; add the arrays of the schedule."""
    nest = kernel.nest
    schedule = rule(nest, nodes) or ()
    measured = rule.measured(nest, nodes) if isinstance(rule, CachedRule) else None
    body = kernel.body
    if schedule or body is None:
        result = apply_schedule(nest, schedule)
        nodes.update(result.nodes)
        body = result.body
    return replace(kernel_of(body, kernel.title), schedule=schedule, measured=measured)


def schedule_variants(plan: NestPlan, kernel: NestKernel, schedules: Sequence[Schedule]) -> Plan:
    """Return a plan that computes one nest by each of some schedules, one after the other.

    Args:
        plan: The plan of the nest.
        kernel: The nest; all nodes that it mentions become parameters.
        schedules: The schedules; an empty one stands for plain loops.
    """
    nodes = dict(plan.nodes)
    steps = [_schedule_nest(kernel, lambda *_, chosen=each: chosen, nodes) for each in schedules]
    params = tuple(dict.fromkeys(node for step in steps for node in step.arguments))
    return Plan(plan.name, tuple(steps), params, (), plan.indices, nodes)
