"""Graphs of the kernels of a routine, connected by the memory that they hand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ocannl_core.kernels.nodes import (
    HostCall,
    Kernel,
    Plan,
    RepeatedSteps,
    Step,
    nodes_of_step,
    nodes_written,
)
from ocannl_core.node import TensorNode
from ocannl_core.plot.graph import Graph
from ocannl_core.plot.nodes import GraphEdge, GraphNode, Group, Kind

_LONGEST = 44
"""The greatest number of characters of a kernel's title that are shown."""


class _Builder:
    """The nodes and edges of a picture so far, and the last writer of each tensor node."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes: list[GraphNode] = []
        self.edges: dict[tuple[int, int, str], None] = {}
        self.writers: dict[TensorNode, int] = {}
        self.kernels = 0
        self.repetitions = 0

    def add_steps(self, steps: Sequence[Step], group: Group) -> None:
        for step in steps:
            match step:
                case RepeatedSteps(count=count, title=title):
                    self.repetitions += 1
                    text = f"{count} times" + (f": {title}" if title else "")
                    self.add_steps(step.steps, (*group, (text, self.repetitions)))
                case Kernel(title=title, is_parallel=is_parallel):
                    details = ("parallel",) if is_parallel else ()
                    self._add_leaf(step, "kernel", title, details, group)
                case HostCall(title=title):
                    self._add_leaf(step, "call", title, (), group)
                case _:
                    assert_never(step)

    def add_results(self) -> None:
        """Add the memory of the context that the routine writes."""
        for node in self.plan.params:
            writer = self.writers.get(node)
            if writer is not None and self.nodes[writer].kind != "memory":
                self.edges[writer, self._add_memory(node), ""] = None

    def _add_memory(self, node: TensorNode) -> int:
        info = self.plan.nodes[node]
        sizes = ", ".join(map(str, info.dims))
        text = f"{info.dtype}[{sizes}], {bytes_text(info.nbytes)}"
        self.nodes.append(GraphNode(node.name, (text,), "memory"))
        return len(self.nodes) - 1

    def _add_leaf(
        self,
        step: Kernel | HostCall,
        kind: Kind,
        title: str,
        details: tuple[str, ...],
        group: Group,
    ) -> None:
        outputs = nodes_written(step)
        for node in nodes_of_step(step):
            if node in self.plan.params and node not in outputs and node not in self.writers:
                self.writers[node] = self._add_memory(node)
        self.kernels += 1
        number = len(self.nodes)
        short = title if len(title) <= _LONGEST else title[: _LONGEST - 1] + "…"
        self.nodes.append(GraphNode(f"{self.kernels}. {short}", details, kind, group, title))
        for node in nodes_of_step(step):
            source = self.writers.get(node)
            if source is not None:
                label = "" if self.nodes[source].kind == "memory" else node.name
                self.edges[source, number, label] = None
        self.writers.update(dict.fromkeys(outputs, number))


def kernel_graph(plan: Plan) -> Graph:
    """Return the graph of the kernels and calls of a routine.

    Memory of the context is a node where the routine reads it first, and another one where it
    writes it last.
    """
    builder = _Builder(plan)
    builder.add_steps(plan.steps, ())
    builder.add_results()
    edges = (GraphEdge(*edge) for edge in builder.edges)
    return Graph(f"routine {plan.name}", tuple(builder.nodes), tuple(edges))


def bytes_text(count: int) -> str:
    """Return a number of bytes with a unit, in four digits."""
    size, unit = float(count), "B"
    for following in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, following
    return f"{size:.4g} {unit}"
