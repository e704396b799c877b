"""The kernel of a group of nests that run together, and what runs after it."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.records import dataclass, replace
from ocannl_core.schedule.grouping.frame import Frame, Rule
from ocannl_core.schedule.grouping.group import Group
from ocannl_core.schedule.joining.part import Part, joined_part, rebuilt
from ocannl_core.schedule.plan import Nest


@dataclass(frozen=True, slots=True)
class Run:
    """What a group becomes.

    Attributes:
        step: The kernel of all its nests.
        sums: Kernels that combine partial results of sums over rows, to be scheduled.
        partial: The nodes of those results: memory of the routine.
        nodes: What is known of nodes that the program does not have.
    """

    step: Nest
    sums: tuple[Part, ...]
    partial: tuple[TensorNode, ...]
    nodes: Mapping[TensorNode, NodeInfo]


def run_together(
    group: Group,
    rule: Rule,
    nodes: Mapping[TensorNode, NodeInfo],
) -> Run:
    """Returns the kernel of a group; each nest has the rule's schedule inside of shared loops."""
    frame = Frame(group.plan, nodes)
    tails = frame.tails(rule)
    result = frame.joined(tails)
    step = rebuilt(joined_part(group.parts), result.body)
    members = zip(group.parts, group.plan.members, strict=True)
    sums = [part for part, each in members if each.is_sum and not each.is_inner_sum]
    return Run(
        replace(step, schedule=group.plan.schedule(tails)),
        tuple(
            replace(part, cells=nest, is_changed=True)
            for part, nest in zip(sums, result.sums, strict=True)
        ),
        result.partial,
        result.nodes,
    )
