"""Live ranges of the nodes of a routine, as positions of its kernels and calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate
from typing import Any

from ocannl_core.ir.kernels.nodes import Plan, RepeatedSteps, nodes_of_step
from ocannl_core.ir.node import TensorNode

NodesOf = Callable[[Any], Iterable[TensorNode]]


def live_ranges(plan: Plan[Any], nodes_of: NodesOf = nodes_of_step) -> dict[TensorNode, range]:
    """Return the positions at which each node of the routine is live: from the first step that
    mentions it to the last one, both included.

    A node that other iterations of repeated steps access is live during all of them.
    """
    lives = {node: range(0) for node in plan.own_nodes}
    _extend(lives, plan.steps, 0, nodes_of)
    return {node: life or range(1) for node, life in lives.items()}


def live_bytes(
    plan: Plan[Any], nodes_of: NodesOf = nodes_of_step, apart: Collection[TensorNode] = ()
) -> list[int]:
    """Return the live bytes of the routine's own nodes at each position, without `apart`."""
    changes = [0] * (len(plan.kernels) + 2)
    for node, life in live_ranges(plan, nodes_of).items():
        if node not in apart:
            changes[life.start] += plan.nodes[node].nbytes
            changes[life.stop] -= plan.nodes[node].nbytes
    return list(accumulate(changes))[: len(plan.kernels)]


def _extend(
    lives: dict[TensorNode, range], steps: Iterable[Any], position: int, nodes_of: NodesOf
) -> int:
    """Extend live ranges by steps; return the position after them."""
    for step in steps:
        start, end = position, position + 1
        if isinstance(step, RepeatedSteps):
            end = max(end, _extend(lives, step.steps, position, nodes_of))
        for node in nodes_of(step):
            if node in lives:
                first = lives[node].start if lives[node] else start
                lives[node] = range(min(first, start), end)
        position = end
    return position
