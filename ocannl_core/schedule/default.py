"""Scheduling a plan: every kernel that a rule knows runs by its rule's schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ocannl_core import settings
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply import apply
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.contraction import contraction_schedule
from ocannl_core.schedule.fuse import Part, fused, plain, rebuilt
from ocannl_core.schedule.group import Group, grouped
from ocannl_core.schedule.partial_sums import divided
from ocannl_core.schedule.plan import Plan, Step
from ocannl_core.schedule.pointwise import pointwise_schedule
from ocannl_core.schedule.together import run_together
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target


def scheduled(plan: Plan, target: Target) -> Plan:
    """Returns a plan whose kernels run as suits a processor.

    Targets without registers to plan for get the plan as it is, and so does everybody with the
    setting `schedule = "none"`.
    """
    if target.vector_registers == 0 or settings.current().schedule == "none":
        return plan

    def rule(nest: CellNest, nodes: Mapping[TensorNode, NodeInfo]) -> Schedule | None:
        if nest.reduction is None:
            return pointwise_schedule(nest, nodes, target)
        return contraction_schedule(nest, nodes, target)

    return scheduled_by(plan, rule, target)


Rule = Callable[[CellNest, Mapping[TensorNode, NodeInfo]], Schedule | None]
"""Returns the schedule of a nest, or None if its loops stay as they are."""


def scheduled_by(plan: Plan, rule: Rule, target: Target | None = None) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says.

    Args:
        plan: The plan.
        rule: Chooses the schedules.
        target: The processor, for whose caches kernels run together row by row; None for no such
            kernels.
    """
    nodes = dict(plan.nodes)
    alone = fused(plan.steps, nodes)
    parts = alone if target is None else grouped(alone, plan, nodes, target)
    steps: list[Step] = []
    made: list[TensorNode] = []

    def run_alone(part: Part) -> None:
        pieces, partial = divided([part], nodes)
        nodes.update(partial)
        made.extend(partial)
        steps.extend(_step(each, rule, nodes) for each in pieces)

    for part in parts:
        if isinstance(part, Part):
            run_alone(part)
            continue
        run = run_together(part, rule, nodes)
        nodes.update(run.nodes)
        made += run.partial
        steps.append(run.step)
        for each in run.sums:
            run_alone(each)
    plans = [part.plan for part in parts if isinstance(part, Group)]
    contracted = {node for each in plans for node in each.contracted}
    scratch = (node for node in plan.scratch if node not in contracted)
    return replace(plan, steps=tuple(steps), scratch=(*scratch, *made), nodes=nodes)


def _step(part: Part, rule: Rule, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns a step by the schedule that a rule chooses; adds the arrays of the schedule."""
    schedule = rule(part.cells, nodes) if part.cells is not None else None
    if part.cells is None or schedule is None:
        return plain(part, nodes)
    result = apply(part.cells, schedule)
    nodes.update(result.nodes)
    return replace(rebuilt(part, result.body), schedule=schedule)
