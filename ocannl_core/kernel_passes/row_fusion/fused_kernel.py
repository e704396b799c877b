"""The kernel of a group of nests that run together, and what runs after it."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.kernel_passes.analysed_kernel import AnalysedKernel, fuse_analyses, rebuild_nest
from ocannl_core.kernel_passes.row_fusion.apply import FusedLoops, Rule
from ocannl_core.kernel_passes.row_fusion.choose import RowGroup
from ocannl_core.kernels.nodes import Kernel
from ocannl_core.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """What a group becomes.

    Attributes:
        step: The kernel of all its nests.
        sums: Kernels that combine partial results of sums over rows, to be scheduled.
        partial: The nodes of those results: memory of the routine.
        nodes: What is known of nodes that the program does not have.
    """

    step: Kernel
    sums: tuple[AnalysedKernel, ...]
    partial: tuple[TensorNode, ...]
    nodes: Mapping[TensorNode, NodeInfo]


def fuse_group(
    group: RowGroup,
    rule: Rule,
    nodes: Mapping[TensorNode, NodeInfo],
) -> FusedKernel:
    """Returns the kernel of a group; each nest has the rule's schedule inside of shared loops."""
    frame = FusedLoops(group.plan, nodes)
    tails = frame.tails(rule)
    result = frame.joined(tails)
    step = rebuild_nest(fuse_analyses(group.parts), result.body)
    members = zip(group.parts, group.plan.members, strict=True)
    sums = [part for part, each in members if each.is_sum and not each.is_inner_sum]
    return FusedKernel(
        replace(step, schedule=group.plan.schedule(tails)),
        tuple(
            replace(part, cells=nest, is_changed=True)
            for part, nest in zip(sums, result.sums, strict=True)
        ),
        result.partial,
        result.nodes,
    )
