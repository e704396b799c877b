"""Plans of kernels without schedules: the data of most kernel passes.

    Plan -- recognise_nests --> NestPlan -- kernel passes --> NestPlan -- schedule_kernels --> Plan

A step is a nest of independent cells, a group of nests that run together row by row, a kernel of
other statements, or a host call. Passes rewrite nests; kernels of other statements stay as they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import StaticIndex
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import HostCall, Kernel, NodeInfos, nodes_of_step, nodes_written
from ocannl_core.kernels.row_fusion import RowFusion
from ocannl_core.loopir.nodes import Block
from ocannl_core.node import NodeInfo, TensorNode


@dataclass(frozen=True, slots=True)
class NestKernel:
    """A nest of independent cells that becomes one kernel.

    Attributes:
        nest: The nest.
        title: A description for readers.
        body: The statements that the nest was read from; None once a pass has rewritten the nest.
    """

    nest: KernelNest
    title: str = ""
    body: Block | None = None

    def with_nest(self, nest: KernelNest) -> NestKernel:
        """Return the kernel with another nest; itself if the nest is the same one."""
        return self if nest is self.nest else NestKernel(nest, self.title)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Nests that run together, row by row.

    Attributes:
        kernels: The nests, in the order of the program.
        fusion: The shared loops.
    """

    kernels: tuple[NestKernel, ...]
    fusion: RowFusion

    @property
    def title(self) -> str:
        """The titles of the nests."""
        return joint_title(each.title for each in self.kernels)


NestStep = NestKernel | RowGroup | Kernel | HostCall


@dataclass(frozen=True, slots=True)
class NestPlan:
    """A routine as steps that run one after the other, before they have schedules.

    Attributes:
        name: The routine's name.
        steps: The steps in the order of execution.
        params: Nodes whose memory comes from the context.
        scratch: Nodes whose memory belongs to the routine.
        indices: Static indices, in the order in which the routine takes their values.
        nodes: The extents and formats of every node.
    """

    name: str
    steps: tuple[NestStep, ...]
    params: tuple[TensorNode, ...]
    scratch: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    nodes: NodeInfos

    @property
    def kernels(self) -> tuple[NestKernel, ...]:
        """The nests that run alone."""
        return tuple(step for step in self.steps if isinstance(step, NestKernel))

    @property
    def folded(self) -> frozenset[TensorNode]:
        """The nodes of which row groups store one row at a time."""
        groups = [step.fusion for step in self.steps if isinstance(step, RowGroup)]
        return frozenset(node for each in groups for node in each.folded)

    def with_steps(
        self, steps: Sequence[NestStep], scratch: Mapping[TensorNode, NodeInfo] | None = None
    ) -> NestPlan:
        """Return the plan with other steps, and with further nodes of the routine.

        Nodes of the routine that no step mentions any more are removed from it.
        """
        more = scratch or {}
        used = frozenset[TensorNode]().union(*map(mentioned, steps))
        kept = tuple(node for node in (*self.scratch, *more) if node in used)
        nodes = {**self.nodes, **more} if more else self.nodes
        return replace(self, steps=tuple(steps), scratch=kept, nodes=nodes)


NestPass = Callable[[NestPlan], NestPlan]


def joint_title(titles: Iterable[str]) -> str:
    """Return the title of several kernels as one."""
    return "; ".join(filter(None, titles))


def mentioned(step: NestStep) -> frozenset[TensorNode]:
    """Return the nodes that a step reads or writes."""
    match step:
        case NestKernel(nest):
            return nest.mentioned
        case RowGroup(kernels):
            return frozenset().union(*map(mentioned, kernels))
        case Kernel() | HostCall():
            return frozenset(nodes_of_step(step))
        case _:
            assert_never(step)


def written(step: NestStep) -> frozenset[TensorNode]:
    """Return the nodes that a step writes."""
    match step:
        case NestKernel(nest):
            return frozenset(store.node for store in nest.epilogue)
        case RowGroup(kernels):
            return frozenset().union(*map(written, kernels))
        case Kernel() | HostCall():
            return frozenset(nodes_written(step))
        case _:
            assert_never(step)
