"""Graphs of the kernels of a routine, connected by the memory that they hand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ocannl_core.display.pictures.graph import Graph
from ocannl_core.display.pictures.nodes import GraphEdge, Group, Kind, PictureNode
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.node import TensorNode

_LINE, _LINES = 26, 2
"""The greatest length of a line of a kernel's title, and number of lines that are shown."""


_NEAR = 8
"""Kernels that read memory so many kernels later have another node of it."""


class _Builder:
    """The nodes and edges of a picture so far, and the last writer of each tensor node."""

    def __init__(self, plan: kernel_ir.Plan) -> None:
        self.plan = plan
        self.nodes: list[PictureNode] = []
        self.edges: dict[tuple[int, int, str], None] = {}
        self.writers: dict[TensorNode, int] = {}
        self.shown: dict[TensorNode, int] = {}
        self.kernels = 0
        self.repetitions = 0

    def add_steps(self, steps: Sequence[kernel_ir.Step], group: Group) -> None:
        for step in steps:
            match step:
                case kernel_ir.RepeatedSteps(count=count, title=title):
                    self.repetitions += 1
                    text = f"{count} times" + (f": {title}" if title else "")
                    self.add_steps(step.steps, (*group, (text, self.repetitions)))
                case kernel_ir.Kernel(title=title, is_parallel=is_parallel):
                    details = ("parallel",) if is_parallel else ()
                    self._add_leaf(step, "kernel", title, details, group)
                case kernel_ir.HostCall(title=title):
                    self._add_leaf(step, "call", title, (), group)
                case _:
                    assert_never(step)

    def add_results(self) -> None:
        """Add the memory of the context that is written: one node for each last writer."""
        results: dict[int, list[TensorNode]] = {}
        for node in self.plan.params:
            writer = self.writers.get(node)
            if writer is not None and self.nodes[writer].kind != "memory":
                results.setdefault(writer, []).append(node)
        for writer, nodes in results.items():
            self.edges[writer, self._add_memory(nodes), ""] = None

    def _add_memory(self, nodes: Sequence[TensorNode]) -> int:
        first, *rest = (line for node in nodes for line in self._memory_lines(node))
        self.nodes.append(PictureNode(first, tuple(rest), "memory"))
        return len(self.nodes) - 1

    def _needs_memory(self, node: TensorNode) -> bool:
        """True of memory that is not drawn yet, or so far above that an edge would be long."""
        writer = self.writers.get(node)
        return writer is None or (
            self.nodes[writer].kind == "memory" and self.kernels - self.shown[node] > _NEAR
        )

    def _memory_lines(self, node: TensorNode) -> tuple[str, str]:
        info = self.plan.nodes[node]
        sizes = ", ".join(map(str, info.dims))
        return node.name, f"{info.dtype}[{sizes}], {bytes_text(info.nbytes)}"

    def _add_leaf(
        self,
        step: kernel_ir.Kernel | kernel_ir.HostCall,
        kind: Kind,
        title: str,
        details: tuple[str, ...],
        group: Group,
    ) -> None:
        outputs = kernel_ir.nodes_written(step)
        for node in kernel_ir.nodes_of_step(step):
            if node in self.plan.params and node not in outputs and self._needs_memory(node):
                self.writers[node] = self._add_memory([node])
                self.shown[node] = self.kernels
        self.kernels += 1
        number = len(self.nodes)
        text = f"{self.kernels}. {title}"
        first, *rest = _lines(text)
        self.nodes.append(PictureNode(first, (*rest, *details), kind, group, title))
        for node in kernel_ir.nodes_of_step(step):
            source = self.writers.get(node)
            if source is not None:
                label = "" if self.nodes[source].kind == "memory" else node.name
                self.edges[source, number, label] = None
        self.writers.update(dict.fromkeys(outputs, number))


def kernel_graph(plan: kernel_ir.Plan) -> Graph:
    """Return the graph of the kernels and calls of a routine.

    Memory of the context is a node where the routine reads it first, another one for readers far
    below, and one where the routine writes it last.
    """
    builder = _Builder(plan)
    builder.add_steps(plan.steps, ())
    builder.add_results()
    edges = (GraphEdge(*edge) for edge in builder.edges)
    return Graph(f"routine {plan.name}", tuple(builder.nodes), tuple(edges))


def _lines(text: str) -> list[str]:
    """Return a title as short lines, broken behind spaces and underscores where there are some."""
    lines: list[str] = []
    while text and len(lines) < _LINES:
        end = max(text.rfind(" ", 0, _LINE), text.rfind("_", 0, _LINE)) + 1
        cut = len(text) if len(text) <= _LINE else end if end > _LINE // 2 else _LINE
        lines.append(text[:cut].strip())
        text = text[cut:]
    return [*lines[:-1], lines[-1] + "…"] if text else lines


def bytes_text(count: int) -> str:
    """Return a number of bytes with a unit, in four digits."""
    size, unit = float(count), "B"
    for following in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, following
    return f"{size:.4g} {unit}"
