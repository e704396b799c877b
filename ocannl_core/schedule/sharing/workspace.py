"""Large buffers of kernels: too large for a stack, they are memory of the routine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ocannl_core.loopir.nodes import Allocate, Scope, Stmt
from ocannl_core.loopir.traverse import Replacement, allocated, map_stmts
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.plan import Nest, Plan, Step

STACK_BYTES = 1 << 15
"""Larger buffers of a kernel are not on the stack of the thread that runs it."""


def buffers_moved(plan: Plan) -> Plan:
    """Returns the plan with large buffers of kernels in the routine's memory.

    The buffers of parallel kernels stay where they are: every thread needs its own, and gets it
    from the backend.
    """
    steps: list[Step] = []
    moved: list[TensorNode] = []
    for step in plan.steps:
        large = _large(step, plan.nodes) if isinstance(step, Nest) and not step.is_parallel else []
        steps.append(_without(step, large) if isinstance(step, Nest) and large else step)
        moved += large
    return replace(plan, steps=tuple(steps), scratch=(*plan.scratch, *moved))


def _large(nest: Nest, nodes: Mapping[TensorNode, NodeInfo]) -> list[TensorNode]:
    return [node for node in allocated(nest.body) if nodes[node].nbytes > STACK_BYTES]


def _without(nest: Nest, large: list[TensorNode]) -> Nest:
    """Returns a nest that is given some buffers."""

    def without(stmt: Stmt) -> Replacement:
        match stmt:
            case Allocate(node, Scope.KERNEL) if node in large:
                return ()
            case _:
                return stmt

    return replace(nest, body=map_stmts(nest.body, without), arguments=(*nest.arguments, *large))
