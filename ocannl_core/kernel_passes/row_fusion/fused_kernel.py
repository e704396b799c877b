"""The kernel of a row group, and the kernels that run after it."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.kernel_passes.row_fusion.apply import FusedLoops, Rule
from ocannl_core.kernels.nest_plan import NestKernel, RowGroup
from ocannl_core.kernels.nodes import Kernel, kernel_of
from ocannl_core.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A row group with schedules.

    Attributes:
        kernel: The kernel of all its nests.
        sums: Kernels that combine partial results of sums over rows, without schedules.
        partial: The nodes of those results: memory of the routine.
        nodes: Extents and formats of nodes that the program does not have.
    """

    kernel: Kernel
    sums: tuple[NestKernel, ...]
    partial: tuple[TensorNode, ...]
    nodes: Mapping[TensorNode, NodeInfo]


def fuse_group(
    group: RowGroup,
    rule: Rule,
    nodes: Mapping[TensorNode, NodeInfo],
) -> FusedKernel:
    """Return the kernel of a group; each nest has the rule's schedule inside the shared loops."""
    frame = FusedLoops(group.fusion, nodes)
    tails = frame.tails(rule)
    result = frame.joined(tails)
    members = zip(group.kernels, group.fusion.members, strict=True)
    sums = [kernel for kernel, each in members if each.is_sum and not each.is_inner_sum]
    return FusedKernel(
        replace(kernel_of(result.body, group.title), schedule=group.fusion.schedule(tails)),
        tuple(kernel.rewritten(nest) for kernel, nest in zip(sums, result.sums, strict=True)),
        result.partial,
        result.nodes,
    )
