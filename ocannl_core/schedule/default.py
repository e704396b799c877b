"""Scheduling a plan: every kernel that a rule knows runs by its rule's schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from ocannl_core import settings
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.records import dataclass, replace
from ocannl_core.schedule.alike import Alike, Made
from ocannl_core.schedule.applying.apply import apply
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.choosing.contraction import contraction_schedule
from ocannl_core.schedule.choosing.partial_sums import divided
from ocannl_core.schedule.choosing.pointwise import pointwise_schedule
from ocannl_core.schedule.choosing.stages import staged
from ocannl_core.schedule.choosing.tiles import tile_schedule
from ocannl_core.schedule.choosing.widen import widened
from ocannl_core.schedule.grouping.group import Group, far_cache, grouped
from ocannl_core.schedule.grouping.repeated import repeated
from ocannl_core.schedule.grouping.together import run_together
from ocannl_core.schedule.joining.forward import forwarded
from ocannl_core.schedule.joining.fuse import fused
from ocannl_core.schedule.joining.part import Part, plain, rebuilt
from ocannl_core.schedule.joining.separate import separated
from ocannl_core.schedule.memory import mentioned
from ocannl_core.schedule.plan import Infos, Nest, Plan, Step, StepRule, as_is, step_by_step
from ocannl_core.schedule.searching.remembered import memory_of
from ocannl_core.schedule.searching.remembering import Remembering, Rule
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target


def scheduled(plan: Plan, target: Target, finish: StepRule = as_is) -> Plan:
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
        return step_by_step(plan, finish)
    return scheduled_by(plan, rule_for(target), target, finish)


def is_scheduled(target: Target) -> bool:
    """True if kernels for a target have schedules with the settings in force."""
    return target.vector_registers > 0 and settings.current().schedule != "none"


def rule_for(target: Target) -> Rule:
    """Returns what chooses schedules for a target with the settings in force."""

    def default(nest: CellNest, nodes: Infos) -> Schedule | None:
        if nest.reduction is None:
            return pointwise_schedule(nest, nodes, target)
        return tile_schedule(nest, nodes, target) or contraction_schedule(nest, nodes, target)

    return default if settings.current().tune == "off" else Remembering(memory_of(target), default)


def scheduled_by(
    plan: Plan, rule: Rule, target: Target | None = None, finish: StepRule = as_is
) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says.

    Args:
        plan: The plan.
        rule: Chooses the schedules.
        target: The processor, for whose caches kernels run together row by row; None for no such
            kernels.
        finish: What becomes of each step, as soon as it is scheduled.
    """
    kernels = kernels_of(plan, target)
    nodes = {**plan.nodes, **kernels.partial}
    contracted = kernels.contracted
    scratch = [node for node in (*plan.scratch, *kernels.partial) if node not in contracted]
    steps: list[Step] = []
    alike = Alike()
    for part in kernels.parts:
        make = partial(_made, part, rule, nodes, finish)
        if isinstance(part, Group):
            cells = tuple(each.cells for each in part.parts)
            made = alike.made((cells, part.plan), _titles(part.parts), nodes, make)
        elif part.cells is not None:
            made = alike.made((part.cells, part.is_changed), _titles([part]), nodes, make)
        else:
            made = make()
        steps += made.steps
        scratch += made.scratch
        nodes.update(made.nodes)
    left = frozenset(node for step in steps for node in mentioned(step))
    scratch = list(dict.fromkeys(node for node in scratch if node in left))
    return replace(plan, steps=tuple(steps), scratch=tuple(scratch), nodes=nodes)


def _titles(parts: Sequence[Part]) -> list[str]:
    return [part.step.title for part in parts]


def _made(part: Part | Group, rule: Rule, nodes: Infos, finish: StepRule) -> Made:
    """Returns what becomes of a kernel, or of several that run together."""
    known = dict(nodes)
    scratch: list[TensorNode] = []
    if isinstance(part, Part):
        scheduled = [_step(part, rule, known)]
    else:
        run = run_together(part, rule, known)
        known.update(run.nodes)
        scratch += run.partial
        scheduled = [run.step, *(_step(each, rule, known) for each in run.sums)]
    steps: list[Step] = []
    for step in scheduled:
        found = finish(step, known)
        steps += found.steps
        scratch += found.scratch
    return Made(tuple(steps), tuple(scratch), dict(islice(known.items(), len(nodes), None)))


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of a plan before their schedules are chosen.

    Attributes:
        parts: Kernels that run alone, and groups of them that run together, in order.
        partial: The nodes of partial results and of stages, which the program does not have.
    """

    parts: tuple[Part | Group, ...]
    partial: Mapping[TensorNode, NodeInfo]

    @property
    def alone(self) -> tuple[Part, ...]:
        """The kernels that run alone."""
        return tuple(part for part in self.parts if isinstance(part, Part))

    @property
    def contracted(self) -> frozenset[TensorNode]:
        """The nodes of which kernels that run together need no more than a row."""
        plans = [part.plan for part in self.parts if isinstance(part, Group)]
        return frozenset(node for each in plans for node in each.contracted)


def kernels_of(plan: Plan, target: Target | None) -> Kernels:
    """Returns the kernels of a plan as they are scheduled.

    In this order: several reductions of one store come apart, kernels are joined, needless stores
    go, sums of narrow floats widen, products of several factors are summed in stages, large nodes
    that are cheap are computed where they are read, kernels of the same rows become groups (these
    two for a processor with caches), long reductions to few cells are divided.
    """
    accumulation = settings.current().accumulation
    apart = separated(plan.steps)
    nodes, scratch = {**plan.nodes, **apart.made}, (*plan.scratch, *apart.made)
    found = fused(apart.steps, nodes, rounds_often=accumulation == "exact")
    wide, of_sums = widened(forwarded(found, scratch), nodes, may_pair=accumulation == "fast")
    joined, of_stages = staged(wide, {**nodes, **of_sums})
    partial = {**apart.made, **of_sums, **of_stages}
    nodes = {**plan.nodes, **partial}
    plan = replace(plan, steps=apart.steps, scratch=(*plan.scratch, *partial), nodes=nodes)
    parts: list[Part | Group] = []
    if target is not None:
        joined = repeated(joined, nodes, plan.scratch, far_cache(target))
    for part in joined if target is None else grouped(joined, plan, nodes, target):
        if isinstance(part, Group):
            parts.append(part)
            continue
        pieces, made = divided([part], nodes)
        parts += pieces
        partial.update(made)
    return Kernels(tuple(parts), partial)


def scheduled_alone(plan: Plan, part: Part, schedules: Sequence[Schedule]) -> Plan:
    """Returns a plan that computes one nest by each of some schedules, one after the other.

    Args:
        plan: Where the nest comes from.
        part: The nest; all nodes that it mentions become parameters.
        schedules: The schedules; an empty one stands for plain loops.
    """
    nodes = dict(plan.nodes)
    steps = [_step(part, lambda *_, chosen=each: chosen, nodes) for each in schedules]
    given = [node for step in steps if isinstance(step, Nest) for node in step.arguments]
    params = tuple(dict.fromkeys(given))
    return replace(plan, steps=tuple(steps), params=params, scratch=(), nodes=nodes)


def _step(part: Part, rule: Rule, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns a step by the schedule that a rule chooses; adds the arrays of the schedule."""
    if part.cells is None:
        return plain(part, nodes)
    schedule = rule(part.cells, nodes)
    measured = rule.measured(part.cells, nodes) if isinstance(rule, Remembering) else None
    if schedule:
        result = apply(part.cells, schedule)
        nodes.update(result.nodes)
        return replace(rebuilt(part, result.body), schedule=schedule, measured=measured)
    step = plain(part, nodes)
    return replace(step, measured=measured) if isinstance(step, Nest) else step
