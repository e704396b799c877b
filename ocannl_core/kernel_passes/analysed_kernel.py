"""A step of a plan, with what schedules can see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import HostCall, Kernel, Step
from ocannl_core.loopir.nodes import Block
from ocannl_core.loopir.traverse import allocated_nodes, nodes_of, static_indices, writes
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply.apply_schedule import apply_schedule


@dataclass(frozen=True, slots=True)
class AnalysedKernel:
    """A step and what schedules can see of it.

    Attributes:
        step: The step.
        cells: The nest, if it is one of independent cells.
        is_changed: True if `cells` is no longer what the step's body says.
    """

    step: Step
    cells: KernelNest | None
    is_changed: bool = False

    @property
    def mentioned(self) -> frozenset[TensorNode]:
        """The nodes that it reads or writes."""
        if self.cells is not None:
            return self.cells.mentioned
        match self.step:
            case Kernel(body):
                return frozenset(nodes_of(body))
            case HostCall(call):
                return frozenset((*call.inputs, *call.outputs))
            case _:
                assert_never(self.step)

    @property
    def written(self) -> frozenset[TensorNode]:
        """The nodes that it writes."""
        if self.cells is not None:
            return frozenset(store.node for store in self.cells.finish)
        match self.step:
            case Kernel(body):
                return frozenset(writes(body))
            case HostCall(call):
                return frozenset(call.outputs)
            case _:
                assert_never(self.step)


def fuse_analyses(parts: Sequence[AnalysedKernel]) -> AnalysedKernel:
    """Returns what several kernels as one are for readers."""
    titles = [part.step.title for part in parts if part.step.title]
    return AnalysedKernel(replace(parts[0].step, title="; ".join(titles)), None, is_changed=True)


def unscheduled(part: AnalysedKernel, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns the step of a part without a schedule."""
    if not part.is_changed or part.cells is None:
        return part.step
    result = apply_schedule(part.cells, ())
    nodes.update(result.nodes)
    return rebuild_nest(part, result.body)


def rebuild_nest(part: AnalysedKernel, body: Block) -> Kernel:
    """Returns the nest of a part with another body, which may mention other nodes."""
    assert isinstance(part.step, Kernel)
    own = set(allocated_nodes(body))
    arguments = tuple(node for node in nodes_of(body) if node not in own)
    return replace(part.step, body=body, arguments=arguments, indices=static_indices(body))
