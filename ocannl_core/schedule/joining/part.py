"""A step of a plan, with what schedules can see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ocannl_core.loopir.nodes import Block
from ocannl_core.loopir.traverse import allocated, nodes_of, static_indices, writes
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.records import dataclass, replace
from ocannl_core.schedule.applying.apply import apply
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.plan import External, Nest, Step


@dataclass(frozen=True, slots=True)
class Part:
    """A step and what schedules can see of it.

    Attributes:
        step: The step.
        cells: The nest, if it is one of independent cells.
        is_changed: True if `cells` is no longer what the step's body says.
    """

    step: Step
    cells: CellNest | None
    is_changed: bool = False

    @property
    def mentioned(self) -> frozenset[TensorNode]:
        """The nodes that it reads or writes."""
        if self.cells is not None:
            return self.cells.mentioned
        match self.step:
            case Nest(body):
                return frozenset(nodes_of(body))
            case External(call):
                return frozenset((*call.inputs, *call.outputs))
            case _:
                assert_never(self.step)

    @property
    def written(self) -> frozenset[TensorNode]:
        """The nodes that it writes."""
        if self.cells is not None:
            return frozenset(store.node for store in self.cells.finish)
        match self.step:
            case Nest(body):
                return frozenset(writes(body))
            case External(call):
                return frozenset(call.outputs)
            case _:
                assert_never(self.step)


def joined_part(parts: Sequence[Part]) -> Part:
    """Returns what several kernels as one are for readers."""
    titles = [part.step.title for part in parts if part.step.title]
    return Part(replace(parts[0].step, title="; ".join(titles)), None, is_changed=True)


def plain(part: Part, nodes: dict[TensorNode, NodeInfo]) -> Step:
    """Returns the step of a part without a schedule."""
    if not part.is_changed or part.cells is None:
        return part.step
    result = apply(part.cells, ())
    nodes.update(result.nodes)
    return rebuilt(part, result.body)


def rebuilt(part: Part, body: Block) -> Nest:
    """Returns the nest of a part with another body, which may mention other nodes."""
    assert isinstance(part.step, Nest)
    own = set(allocated(body))
    arguments = tuple(node for node in nodes_of(body) if node not in own)
    return replace(part.step, body=body, arguments=arguments, indices=static_indices(body))
