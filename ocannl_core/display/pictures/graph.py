"""Graphs with the formats that they are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display.pictures.dot import to_dot
from ocannl_core.display.pictures.mermaid import to_mermaid
from ocannl_core.display.pictures.nodes import Drawing
from ocannl_core.display.pictures.picture_formats import Picture
from ocannl_core.display.pictures.svg_graph import to_svg


@dataclass(frozen=True, slots=True, repr=False)
class Graph(Picture, Drawing):
    """A directed graph; `str` gives its nodes as text, notebooks show a picture."""

    def __str__(self) -> str:
        sources: dict[int, list[str]] = {}
        for edge in self.edges:
            sources.setdefault(edge.target, []).append(f"[{edge.source + 1}]")
        lines = [self.title]
        for number, node in enumerate(self.nodes):
            operands = f" <- {', '.join(sources[number])}" if number in sources else ""
            lines.append(f"[{number + 1}] {', '.join(node.lines)}{operands}")
        return "\n".join(lines)

    def dot(self) -> str:
        """Return the graph in the language of Graphviz."""
        return to_dot(self)

    def mermaid(self) -> str:
        """Return the graph as a flowchart of Mermaid."""
        return to_mermaid(self)

    def svg(self) -> str:
        return to_svg(self)

    def formats(self) -> Mapping[str, Callable[[], str]]:
        graphs = {".dot": self.dot, ".gv": self.dot, ".mmd": self.mermaid}
        return {".svg": self.svg, **graphs, ".txt": self.__str__}
