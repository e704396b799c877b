"""Give the kernels of a plan their schedules, each by the rule for its target."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from itertools import islice
from typing import assert_never

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, NestStep, RepeatedNests, RowGroup
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.deduplicate import KernelMemo, ScheduledKernel, new_memo
from ocannl_core.passes.kernels.row_fusion.apply import fuse_group
from ocannl_core.passes.kernels.row_fusion.on_blocks import fuse_on_blocks
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.amx_schedules import decide_on_processor
from ocannl_core.schedule.rules.block_rules import decide_on_blocks
from ocannl_core.schedule.rules.decision import ScheduleDecision
from ocannl_core.schedule.rules.pointwise import pointwise_schedule
from ocannl_core.schedule.tuning.tuning_cache import CachedRule, Rule, tuning_cache


def has_schedules(target: Target) -> bool:
    """Return True if kernels for a target get schedules with the settings in force."""
    has_parallelism = target.vector_registers > 0 or target.thread_blocks is not None
    return has_parallelism and settings.current().schedule != "none"


def rule_for(target: Target) -> Rule:
    """Return the rule that chooses schedules for a target with the settings in force."""

    def default(nest: KernelNest, nodes: kernel_ir.NodeInfos) -> ScheduleDecision:
        if target.thread_blocks is not None:
            return decide_on_blocks(nest, nodes, target)
        if nest.reduction is None:
            return ScheduleDecision(pointwise_schedule(nest, nodes, target))
        return decide_on_processor(nest, nodes, target)

    return (
        default if settings.current().tune == "off" else CachedRule(tuning_cache(target), default)
    )


def schedule_kernels(
    plan: NestPlan, rule: Rule, finish: kernel_ir.StepRule = kernel_ir.unchanged
) -> Generator[kernel_ir.FinishedStep, None, kernel_ir.Plan]:
    """Yield the steps of a plan, in which every nest has a schedule; return the whole plan.

    Kernels that are equal but for names are scheduled once.
    """
    scheduler = _Scheduler(rule, finish, dict(plan.nodes), plan.folded, new_memo())
    steps, scratch = yield from scheduler.run(plan.steps, plan.scratch)
    return kernel_ir.Plan(plan.name, steps, plan.params, scratch, plan.indices, scheduler.nodes)


@dataclass(slots=True)
class _Scheduler:
    """The scheduling of one plan."""

    rule: Rule
    finish: kernel_ir.StepRule
    nodes: dict[TensorNode, NodeInfo]
    folded: frozenset[TensorNode]
    memo: KernelMemo

    def run(
        self, before: Sequence[NestStep], own: Sequence[TensorNode]
    ) -> Generator[kernel_ir.FinishedStep, None, kernel_ir.Rewritten]:
        """Yield the scheduled steps; return them with the nodes that belong to them."""
        nodes = self.nodes
        scratch = [node for node in own if node not in self.folded]
        steps: list[kernel_ir.Step] = []
        for step in before:
            if isinstance(step, RepeatedNests):
                inside, private = yield from self.run(step.steps, step.scratch)
                order = step.index, step.count, step.is_reversed
                steps.append(kernel_ir.RepeatedSteps(*order, inside, private, step.title))
                continue
            made = self._made(step)
            steps += made.steps
            scratch += made.scratch
            nodes.update(made.nodes)
            for finished in made.steps:
                yield finished, nodes
        left = frozenset(node for each in steps for node in kernel_ir.nodes_of_step(each))
        return tuple(steps), tuple(dict.fromkeys(node for node in scratch if node in left))

    def _made(self, step: NestKernel | RowGroup | kernel_ir.LeafStep) -> ScheduledKernel:
        nodes = self.nodes
        make = partial(_schedule_step, step, self.rule, nodes, self.finish)
        match step:
            case RowGroup(kernels, fusion):
                key = tuple(each.nest for each in kernels), fusion
                return self.memo.made(key, [each.title for each in kernels], nodes, make)
            case NestKernel(nest, title, body):
                return self.memo.made((nest, body is None), [title], nodes, make)
            case kernel_ir.Kernel(body, title=title, schedule=schedule) if schedule:
                made = self.memo.made((body, schedule), [title], nodes, make)
                # results that the kernel does not mention would be its original's
                kernel, *others = made.steps
                assert isinstance(kernel, kernel_ir.Kernel)
                if kernel.products == step.products:
                    return made
                own = replace(kernel, products=step.products)
                return replace(made, steps=(own, *others))
            case kernel_ir.Kernel() | kernel_ir.HostCall():
                return make()
            case _:
                assert_never(step)


def _schedule_step(
    step: NestKernel | RowGroup | kernel_ir.LeafStep,
    rule: Rule,
    nodes: kernel_ir.NodeInfos,
    finish: kernel_ir.StepRule,
) -> ScheduledKernel:
    known = dict(nodes)
    scratch: list[TensorNode] = []
    scheduled: list[kernel_ir.LeafStep]
    match step:
        case RowGroup():
            is_on_device = step.fusion.threads > 0
            fused = fuse_on_blocks(step, known) if is_on_device else fuse_group(step, rule, known)
            known.update(fused.nodes)
            scratch += fused.partial
            scheduled = [fused.kernel, *(_schedule_nest(each, rule, known) for each in fused.sums)]
        case NestKernel():
            scheduled = [_schedule_nest(step, rule, known)]
        case kernel_ir.Kernel() | kernel_ir.HostCall():
            scheduled = [step]
        case _:
            assert_never(step)
    steps: list[kernel_ir.LeafStep] = []
    for each in scheduled:
        found = finish(each, known)
        steps += found.steps
        scratch += found.scratch
    return ScheduledKernel(
        tuple(steps), tuple(scratch), dict(islice(known.items(), len(nodes), None))
    )


def _schedule_nest(
    kernel: NestKernel, rule: Rule, nodes: dict[TensorNode, NodeInfo]
) -> kernel_ir.Kernel:
    nest = kernel.nest
    decision = rule(nest, nodes)
    schedule = decision.schedule or ()
    body = kernel.body
    if schedule or body is None:
        result = apply_schedule(nest, schedule, nodes)
        nodes.update(result.nodes)
        body = result.body
    return replace(
        kernel_ir.kernel_of(body, kernel.title),
        schedule=schedule,
        measured=decision.measured,
        products=decision.products(nest),
    )


def schedule_variants(
    plan: NestPlan, kernel: NestKernel, schedules: Sequence[Schedule]
) -> kernel_ir.Plan:
    """Return a plan that computes one nest by each of some schedules, one after the other.

    Args:
        kernel: The nest; all nodes that it mentions become parameters.
        schedules: The schedules; an empty one stands for plain loops.
    """
    nodes = dict(plan.nodes)
    steps = [
        _schedule_nest(kernel, lambda *_, chosen=each: ScheduleDecision(chosen), nodes)
        for each in schedules
    ]
    params = tuple(dict.fromkeys(node for step in steps for node in step.arguments))
    around = dict.fromkeys(index for step in steps for index in step.indices)
    indices = tuple(dict.fromkeys((*plan.indices, *around)))
    return kernel_ir.Plan(plan.name, tuple(steps), params, (), indices, nodes)
