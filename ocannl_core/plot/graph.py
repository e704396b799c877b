"""Graphs with the formats that they are written in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.origin import caller_location
from ocannl_core.plot.dot import to_dot
from ocannl_core.plot.mermaid import to_mermaid
from ocannl_core.plot.nodes import Drawing
from ocannl_core.plot.svg_graph import to_svg


@dataclass(frozen=True, slots=True)
class Graph(Drawing):
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

    def __repr__(self) -> str:
        return str(self)

    def dot(self) -> str:
        """Return the graph in the language of Graphviz."""
        return to_dot(self)

    def mermaid(self) -> str:
        """Return the graph as a flowchart of Mermaid."""
        return to_mermaid(self)

    def svg(self) -> str:
        """Return a picture; its layout needs no other program."""
        return to_svg(self)

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file in the format of the ending of its name: `.svg`, `.dot`, `.gv`, `.mmd` or
        `.txt`.

        Raises:
            UsageError: for another ending.
        """
        formats = {".svg": self.svg, ".dot": self.dot, ".gv": self.dot, ".mmd": self.mermaid}
        write_picture(path, {**formats, ".txt": self.__str__})


def write_picture(path: str | os.PathLike[str], formats: Mapping[str, Callable[[], str]]) -> None:
    """Write a text in the format of the ending of a file's name.

    Raises:
        UsageError: for another ending.
    """
    found = Path(path)
    if found.suffix not in formats:
        raise UsageError(
            f"The ending of a picture's name is one of {', '.join(formats)}.",
            found=str(found),
            where=str(caller_location() or ""),
            fix=str(found.with_suffix(".svg")),
        )
    found.write_text(formats[found.suffix]() + "\n", encoding="utf-8")
