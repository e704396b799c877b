"""Plans in which a rule of the test chooses every schedule."""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos, Plan
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import nest_plan
from ocannl_core.passes.kernels.schedule_kernels import schedule_kernels
from ocannl_core.schedule.rules.decision import ScheduleDecision
from ocannl_core.schedule.rules.vector_reductions import find_vector_schedule

Rule = Callable[[Nest, NodeInfos], Schedule | None]
"""Return the schedule of a nest; None for plain loops."""


def schedule_by_rule(plan: Plan, rule: Rule, target: Target | None = None) -> Plan:
    """Return a plan in which every nest has the schedule that a rule chooses.

    Args:
        plan: The kernels as the program states them.
        rule: Chooses the schedules.
        target: The processor; None for passes that need no cache sizes.
    """

    def decide(nest: Nest, nodes: NodeInfos) -> ScheduleDecision:
        return ScheduleDecision(rule(nest, nodes))

    return KernelStream(schedule_kernels(nest_plan(plan, target), decide)).plan()


def contraction_schedule(nest: Nest, nodes: NodeInfos, target: Target) -> Schedule | None:
    """Return the schedule of a reduction, or None if plain loops are as fast."""
    found = find_vector_schedule(nest, nodes, target)
    return None if isinstance(found, Obstacle) else found
