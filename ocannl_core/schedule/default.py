"""Scheduling a plan: every kernel that a rule knows runs by its rule's schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ocannl_core import settings
from ocannl_core.errors import UsageError
from ocannl_core.loopir.nodes import Allocate, Scope, Stmt
from ocannl_core.loopir.traverse import Replacement, allocated, map_stmts
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply import apply
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.contraction import contraction_schedule
from ocannl_core.schedule.fuse import Part, fused, plain, rebuilt
from ocannl_core.schedule.plan import Nest, Plan, Step
from ocannl_core.schedule.remembered import Measured, Memory, memory_of
from ocannl_core.schedule.transforms import Schedule
from ocannl_core.target import Target

_STACK_BYTES = 1 << 15
"""Larger buffers of a kernel are in the routine's memory."""


Rule = Callable[[CellNest, Mapping[TensorNode, NodeInfo]], Schedule | None]
"""Returns the schedule of a nest, or None if its loops stay as they are."""


def scheduled(plan: Plan, target: Target) -> Plan:
    """Returns a plan whose kernels run as suits a processor.

    Targets without registers to plan for get the plan as it is, and so does everybody with the
    setting `schedule = "none"`. Large buffers of kernels are memory of the routine. Schedules that
    a search has found are used, unless the setting `tune` is `off`.
    """
    if not is_scheduled(target):
        return plan
    memory = memory_of(target) if settings.current().tune != "off" else None
    return scheduled_by(plan, default_rule(target), memory)


def is_scheduled(target: Target) -> bool:
    """True if kernels for a target have schedules with the settings in force."""
    return target.vector_registers > 0 and settings.current().schedule != "none"


def default_rule(target: Target) -> Rule:
    """Returns the rule that needs no search."""
    return lambda nest, nodes: contraction_schedule(nest, nodes, target)


def scheduled_by(plan: Plan, rule: Rule, memory: Memory | None = None) -> Plan:
    """Returns a plan in which every nest of independent cells runs as a rule says.

    Args:
        plan: The plan.
        rule: Chooses the schedules.
        memory: What a search has found takes the place of what the rule says.
    """
    nodes = dict(plan.nodes)
    steps = [_step(part, rule, nodes, memory) for part in fused(plan.steps, nodes)]
    return _assembled(plan, steps, nodes)


def scheduled_alone(plan: Plan, part: Part, schedules: Sequence[Schedule]) -> Plan:
    """Returns a plan that computes one nest by each of some schedules, one after the other.

    Args:
        plan: Where the nest comes from.
        part: The nest; all nodes that it mentions become parameters.
        schedules: The schedules; an empty one stands for plain loops.
    """
    nodes = dict(plan.nodes)
    steps = [_by_schedule(part, schedule, nodes) for schedule in schedules]
    given = [node for step in steps if isinstance(step, Nest) for node in step.arguments]
    alone = replace(plan, params=tuple(dict.fromkeys(given)), scratch=())
    return _assembled(alone, steps, nodes)


def _assembled(plan: Plan, steps: Sequence[Step], nodes: dict[TensorNode, NodeInfo]) -> Plan:
    """Returns a plan with other steps, whose large buffers are memory of the routine."""
    workspace = _Workspace(nodes)
    steps = [workspace.moved(step) if isinstance(step, Nest) else step for step in steps]
    return replace(
        plan,
        steps=tuple(steps),
        scratch=(*plan.scratch, *workspace.buffers),
        nodes=nodes,
    )


def _step(part: Part, rule: Rule, nodes: dict[TensorNode, NodeInfo], memory: Memory | None) -> Step:
    """Returns a step by the schedule that is remembered, or that a rule chooses; adds the arrays of
    the schedule.
    """
    nest = part.cells
    if nest is None:
        return plain(part, nodes)
    measured = memory.find(nest, nodes) if memory is not None else None
    if measured is not None:
        try:
            return _measured(_by_schedule(part, measured.schedule, nodes), measured)
        except UsageError as error:
            measured = replace(measured, problem=error.rule)
    return _measured(_by_schedule(part, rule(nest, nodes) or (), nodes), measured)


def _measured(step: Step, measured: Measured | None) -> Step:
    return replace(step, measured=measured) if isinstance(step, Nest) else step


def _by_schedule(part: Part, schedule: Schedule, nodes: dict[TensorNode, NodeInfo]) -> Step:
    if part.cells is None or not schedule:
        return plain(part, nodes)
    result = apply(part.cells, schedule)
    nodes.update(result.nodes)
    return replace(rebuilt(part, result.body), schedule=schedule)


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
