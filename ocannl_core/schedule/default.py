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
from ocannl_core.schedule.partial_sums import Divided, in_parts
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
    return scheduled_by(
        plan, lambda nest, nodes: contraction_schedule(nest, nodes, target), divide=in_parts
    )


Rule = Callable[[CellNest, Mapping[TensorNode, NodeInfo]], Schedule | None]
"""Returns the schedule of a nest, or None if its loops stay as they are."""
Divide = Callable[[CellNest], Divided | None]
"""Returns nests that do what one does, one after the other, or None."""


def scheduled_by(plan: Plan, rule: Rule, divide: Divide = lambda nest: None) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says.

    Args:
        plan: The plan.
        rule: Chooses the schedules.
        divide: Divides nests that have a schedule.
    """
    nodes = dict(plan.nodes)
    steps: list[Step] = []
    scratch = [*plan.scratch]
    for part in fused(plan.steps, nodes):
        schedule = rule(part.cells, nodes) if part.cells is not None else None
        divided = divide(part.cells) if part.cells is not None and schedule is not None else None
        if divided is None:
            steps.append(_step(part, schedule, nodes))
            continue
        nodes[divided.node] = divided.info
        scratch.append(divided.node)
        for nest in divided.nests:
            step = part.step
            if nest is not divided.nests[-1]:
                step = replace(step, title=f"partial results for {step.title}")
            each = replace(part, step=step, cells=nest, is_changed=True)
            steps.append(_step(each, rule(nest, nodes), nodes))
    return replace(plan, steps=tuple(steps), scratch=tuple(scratch), nodes=nodes)


def _step(part: Part, schedule: Schedule | None, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns a step by a schedule, if there is one; adds the arrays of the schedule."""
    if part.cells is None or schedule is None:
        return plain(part, nodes)
    result = apply(part.cells, schedule)
    nodes.update(result.nodes)
    return replace(rebuilt(part, result.body), schedule=schedule)
