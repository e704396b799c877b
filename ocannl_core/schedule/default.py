"""Scheduling a plan: every kernel that a rule knows runs by its rule's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ocannl_core import settings
from ocannl_core.loopir.nodes import Allocate, Scope, Stmt
from ocannl_core.loopir.traverse import Replacement, allocated, map_stmts
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply import apply
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.contraction import contraction_schedule
from ocannl_core.schedule.forward import forwarded
from ocannl_core.schedule.fuse import Part, fused, plain, rebuilt
from ocannl_core.schedule.model import Infos
from ocannl_core.schedule.plan import Nest, Plan, Step
from ocannl_core.schedule.remembered import memory_of
from ocannl_core.schedule.remembering import Remembering, Rule
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target

_STACK_BYTES = 1 << 15
"""Larger buffers of a kernel are in the routine's memory."""


def scheduled(plan: Plan, target: Target) -> Plan:
    """Returns a plan whose kernels run as suits a processor.

    Targets without registers to plan for get the plan as it is, and so does everybody with the
    setting `schedule = "none"`. Large buffers of kernels are memory of the routine. Schedules that
    a search has found are used, unless the setting `tune` is `off`.
    """
    if not is_scheduled(target):
        return plan
    return scheduled_by(plan, rule_for(target))


def is_scheduled(target: Target) -> bool:
    """True if kernels for a target have schedules with the settings in force."""
    return target.vector_registers > 0 and settings.current().schedule != "none"


def rule_for(target: Target) -> Rule:
    """Returns what chooses schedules for a target with the settings in force."""

    def default(nest: CellNest, nodes: Infos) -> Schedule | None:
        return contraction_schedule(nest, nodes, target)

    return default if settings.current().tune == "off" else Remembering(memory_of(target), default)


def scheduled_by(plan: Plan, rule: Rule) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says."""
    nodes = dict(plan.nodes)
    steps = [_step(part, rule, nodes) for part in parts_of(plan)]
    workspace = _Workspace(nodes)
    steps = [workspace.moved(step) if isinstance(step, Nest) else step for step in steps]
    return replace(
        plan,
        steps=tuple(steps),
        scratch=(*plan.scratch, *workspace.buffers),
        nodes=nodes,
    )


def parts_of(plan: Plan) -> tuple[Part, ...]:
    """Returns the kernels of a plan as they are scheduled: joined, and without needless stores."""
    return forwarded(fused(plan.steps, plan.nodes), plan.scratch)


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
    workspace = _Workspace(nodes)
    steps = [workspace.moved(step) if isinstance(step, Nest) else step for step in steps]
    params = tuple(dict.fromkeys(given))
    return replace(
        plan, steps=tuple(steps), params=params, scratch=tuple(workspace.buffers), nodes=nodes
    )


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


class _Workspace:
    """Memory of the routine in the place of large buffers of its kernels."""

    def __init__(self, nodes: dict[TensorNode, NodeInfo]) -> None:
        self._nodes = nodes
        self.buffers: list[TensorNode] = []

    def moved(self, nest: Nest) -> Nest:
        """Returns a nest that is given its large buffers."""
        large = [node for node in allocated(nest.body) if self._nodes[node].nbytes > _STACK_BYTES]
        if not large:
            return nest
        self.buffers += large

        def without(stmt: Stmt) -> Replacement:
            match stmt:
                case Allocate(node, Scope.KERNEL) if node in large:
                    return ()
                case _:
                    return stmt

        return replace(
            nest, body=map_stmts(nest.body, without), arguments=(*nest.arguments, *large)
        )
