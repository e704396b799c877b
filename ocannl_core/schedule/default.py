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
from ocannl_core.schedule.partial_sums import divided
from ocannl_core.schedule.plan import Plan, Step
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target


def scheduled(plan: Plan, target: Target) -> Plan:
    """Returns a plan whose kernels run as suits a processor.

    Targets without registers to plan for get the plan as it is, and so does everybody with the
    setting `schedule = "none"`.
    """
    if target.vector_registers == 0 or settings.current().schedule == "none":
        return plan
    return scheduled_by(plan, lambda nest, nodes: contraction_schedule(nest, nodes, target))


Rule = Callable[[CellNest, Mapping[TensorNode, NodeInfo]], Schedule | None]
"""Returns the schedule of a nest, or None if its loops stay as they are."""


def scheduled_by(plan: Plan, rule: Rule) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says."""
    nodes = dict(plan.nodes)
    parts, partial = divided(fused(plan.steps, nodes), nodes)
    nodes.update(partial)
    steps = tuple(_step(part, rule, nodes) for part in parts)
    return replace(plan, steps=steps, scratch=(*plan.scratch, *partial), nodes=nodes)


def _step(part: Part, rule: Rule, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns a step by the schedule that a rule chooses; adds the arrays of the schedule."""
    schedule = rule(part.cells, nodes) if part.cells is not None else None
    if part.cells is None or schedule is None:
        return plain(part, nodes)
    result = apply(part.cells, schedule)
    nodes.update(result.nodes)
    return replace(rebuilt(part, result.body), schedule=schedule)
