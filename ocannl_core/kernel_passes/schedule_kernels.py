"""Scheduling a plan: every kernel that a rule knows runs by its rule's schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from ocannl_core import settings
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.kernel_passes.analysed_kernel import AnalysedKernel, rebuild_nest, unscheduled
from ocannl_core.kernel_passes.deduplicate import KernelMemo, ScheduledKernel
from ocannl_core.kernel_passes.fission import split_inlined_reductions
from ocannl_core.kernel_passes.fusion import fuse_kernels
from ocannl_core.kernel_passes.reassociate_products import reassociate_products
from ocannl_core.kernel_passes.rematerialisation import rematerialise
from ocannl_core.kernel_passes.row_fusion.apply import fuse_group
from ocannl_core.kernel_passes.row_fusion.choose import choose_row_groups
from ocannl_core.kernel_passes.row_fusion.members import RowGroup
from ocannl_core.kernel_passes.split_reductions import split_reductions
from ocannl_core.kernel_passes.store_forwarding import forward_stores
from ocannl_core.kernel_passes.widen_accumulators import widen_accumulators
from ocannl_core.kernels.memory_plan import nodes_of_step
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import Kernel, NodeInfos, Plan, Step, StepRule, map_steps, unchanged
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.machine_model import MachineModel
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.heuristics.contraction import contraction_schedule
from ocannl_core.schedule.heuristics.matrix_tiles import tile_schedule
from ocannl_core.schedule.heuristics.pointwise import pointwise_schedule
from ocannl_core.schedule.tuning.tuning_cache import CachedRule, Rule, tuning_cache
from ocannl_core.target import Target


def schedule_kernels(plan: Plan, target: Target, finish: StepRule = unchanged) -> Plan:
    """Returns a plan whose kernels run as suits a processor.

    Targets without registers to plan for get the plan as it is, and so does everybody with the
    setting `schedule = "none"`. Schedules that a search has found are used, unless the setting
    `tune` is `off`.

    Args:
        plan: The plan.
        target: The processor.
        finish: What becomes of each step, as soon as it is scheduled.
    """
    if not is_scheduled(target):
        return map_steps(plan, finish)
    return apply_rule(plan, rule_for(target), target, finish)


def is_scheduled(target: Target) -> bool:
    """True if kernels for a target have schedules with the settings in force."""
    return target.vector_registers > 0 and settings.current().schedule != "none"


def rule_for(target: Target) -> Rule:
    """Returns what chooses schedules for a target with the settings in force."""

    def default(nest: KernelNest, nodes: NodeInfos) -> Schedule | None:
        if nest.reduction is None:
            return pointwise_schedule(nest, nodes, target)
        return tile_schedule(nest, nodes, target) or contraction_schedule(nest, nodes, target)

    return (
        default if settings.current().tune == "off" else CachedRule(tuning_cache(target), default)
    )


def apply_rule(
    plan: Plan, rule: Rule, target: Target | None = None, finish: StepRule = unchanged
) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says.

    Args:
        plan: The plan.
        rule: Chooses the schedules.
        target: The processor, for whose caches kernels run together row by row; None for no such
            kernels.
        finish: What becomes of each step, as soon as it is scheduled.
    """
    kernels = prepare_kernels(plan, target)
    nodes = {**plan.nodes, **kernels.partial}
    contracted = kernels.contracted
    scratch = [node for node in (*plan.scratch, *kernels.partial) if node not in contracted]
    steps: list[Step] = []
    alike = KernelMemo()
    for part in kernels.parts:
        make = partial(_made, part, rule, nodes, finish)
        if isinstance(part, RowGroup):
            cells = tuple(each.cells for each in part.parts)
            made = alike.made((cells, part.plan), _titles(part.parts), nodes, make)
        elif part.cells is not None:
            made = alike.made((part.cells, part.is_changed), _titles([part]), nodes, make)
        else:
            made = make()
        steps += made.steps
        scratch += made.scratch
        nodes.update(made.nodes)
    left = frozenset(node for step in steps for node in nodes_of_step(step))
    scratch = list(dict.fromkeys(node for node in scratch if node in left))
    return replace(plan, steps=tuple(steps), scratch=tuple(scratch), nodes=nodes)


def _titles(parts: Sequence[AnalysedKernel]) -> list[str]:
    return [part.step.title for part in parts]


def _made(
    part: AnalysedKernel | RowGroup, rule: Rule, nodes: NodeInfos, finish: StepRule
) -> ScheduledKernel:
    """Returns what becomes of a kernel, or of several that run together."""
    known = dict(nodes)
    scratch: list[TensorNode] = []
    if isinstance(part, AnalysedKernel):
        scheduled = [_step(part, rule, known)]
    else:
        run = fuse_group(part, rule, known)
        known.update(run.nodes)
        scratch += run.partial
        scheduled = [run.step, *(_step(each, rule, known) for each in run.sums)]
    steps: list[Step] = []
    for step in scheduled:
        found = finish(step, known)
        steps += found.steps
        scratch += found.scratch
    return ScheduledKernel(
        tuple(steps), tuple(scratch), dict(islice(known.items(), len(nodes), None))
    )


@dataclass(frozen=True, slots=True)
class UnscheduledPlan:
    """The kernels of a plan before their schedules are chosen.

    Attributes:
        parts: Kernels that run alone, and groups of them that run together, in order.
        partial: The nodes of partial results and of stages, which the program does not have.
    """

    parts: tuple[AnalysedKernel | RowGroup, ...]
    partial: Mapping[TensorNode, NodeInfo]

    @property
    def alone(self) -> tuple[AnalysedKernel, ...]:
        """The kernels that run alone."""
        return tuple(part for part in self.parts if isinstance(part, AnalysedKernel))

    @property
    def contracted(self) -> frozenset[TensorNode]:
        """The nodes of which kernels that run together need no more than a row."""
        plans = [part.plan for part in self.parts if isinstance(part, RowGroup)]
        return frozenset(node for each in plans for node in each.folded)


def prepare_kernels(plan: Plan, target: Target | None) -> UnscheduledPlan:
    """Returns the kernels of a plan as they are scheduled.

    In this order: several reductions of one store come apart, kernels are joined, needless stores
    go, sums of narrow floats widen, products of several factors are summed in stages, large nodes
    that are cheap are computed where they are read, kernels of the same rows become groups (these
    two for a processor with caches), long reductions to few cells are divided.
    """
    accumulation = settings.current().accumulation
    apart = split_inlined_reductions(plan.steps)
    nodes, scratch = {**plan.nodes, **apart.made}, (*plan.scratch, *apart.made)
    found = fuse_kernels(apart.steps, nodes, rounds_often=accumulation == "exact")
    wide, of_sums = widen_accumulators(
        forward_stores(found, scratch), nodes, may_pair=accumulation == "fast"
    )
    joined, of_stages = reassociate_products(wide, {**nodes, **of_sums})
    partial = {**apart.made, **of_sums, **of_stages}
    nodes = {**plan.nodes, **partial}
    plan = replace(plan, steps=apart.steps, scratch=(*plan.scratch, *partial), nodes=nodes)
    parts: list[AnalysedKernel | RowGroup] = []
    if target is not None:
        joined = rematerialise(joined, nodes, plan.scratch, MachineModel.of(target).l2_bytes)
    for part in joined if target is None else choose_row_groups(joined, plan, nodes, target):
        if isinstance(part, RowGroup):
            parts.append(part)
            continue
        pieces, made = split_reductions([part], nodes)
        parts += pieces
        partial.update(made)
    return UnscheduledPlan(tuple(parts), partial)


def schedule_variants(plan: Plan, part: AnalysedKernel, schedules: Sequence[Schedule]) -> Plan:
    """Returns a plan that computes one nest by each of some schedules, one after the other.

    Args:
        plan: Where the nest comes from.
        part: The nest; all nodes that it mentions become parameters.
        schedules: The schedules; an empty one stands for plain loops.
    """
    nodes = dict(plan.nodes)
    steps = [_step(part, lambda *_, chosen=each: chosen, nodes) for each in schedules]
    given = [node for step in steps if isinstance(step, Kernel) for node in step.arguments]
    params = tuple(dict.fromkeys(given))
    return replace(plan, steps=tuple(steps), params=params, scratch=(), nodes=nodes)


def _step(part: AnalysedKernel, rule: Rule, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns a step by the schedule that a rule chooses; adds the arrays of the schedule."""
    if part.cells is None:
        return unscheduled(part, nodes)
    schedule = rule(part.cells, nodes)
    measured = rule.measured(part.cells, nodes) if isinstance(rule, CachedRule) else None
    if schedule:
        result = apply_schedule(part.cells, schedule)
        nodes.update(result.nodes)
        return replace(rebuild_nest(part, result.body), schedule=schedule, measured=measured)
    step = unscheduled(part, nodes)
    return replace(step, measured=measured) if isinstance(step, Kernel) else step
