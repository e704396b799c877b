"""Graphs with the formats that they are written in: as text, for Graphviz, for Mermaid, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display.pictures.nodes import (
    COLORS,
    GraphEdge,
    GroupTree,
    Kind,
    PictureNode,
    group_tree,
)
from ocannl_core.display.pictures.picture_formats import INK, Picture
from ocannl_core.display.pictures.svg_graph import to_svg


@dataclass(frozen=True, slots=True, repr=False)
class Graph(Picture):
    """A directed graph; `str` gives its nodes as text, notebooks show a picture."""

    title: str
    nodes: tuple[PictureNode, ...]
    edges: tuple[GraphEdge, ...]

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
        """Return the graph in the language of Graphviz, with a cluster for each group."""
        lines = [
            f"digraph {_dot_text(self.title)} {{",
            '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];',
            '  edge [fontname="sans-serif", fontsize=9];',
            *_dot_lines(self._groups, self.nodes, "  ", [0]),
        ]
        for edge in self.edges:
            label = f" [label={_dot_text(edge.label)}]" if edge.label else ""
            lines.append(f"  n{edge.source} -> n{edge.target}{label};")
        return "\n".join([*lines, "}"])

    def mermaid(self) -> str:
        """Return the graph as a flowchart of Mermaid, with a subgraph for each group."""
        lines = ["flowchart TB", *_mermaid_lines(self._groups, self.nodes, "  ", [0])]
        for edge in self.edges:
            label = f"|{_mermaid_text(edge.label)}|" if edge.label else ""
            lines.append(f"  n{edge.source} -->{label} n{edge.target}")
        kinds = dict.fromkeys(node.kind for node in self.nodes)
        for kind in kinds:
            lines.append(f"  classDef {kind} fill:{COLORS[kind]},stroke:{INK},color:{INK}")
            members = (f"n{n}" for n, node in enumerate(self.nodes) if node.kind == kind)
            lines.append(f"  class {','.join(members)} {kind}")
        return "\n".join(lines)

    @property
    def _groups(self) -> GroupTree:
        return group_tree(self.title, self.nodes, range(len(self.nodes)))

    def svg(self) -> str:
        return to_svg(self.title, self.nodes, self.edges)

    def formats(self) -> Mapping[str, Callable[[], str]]:
        graphs = {".dot": self.dot, ".gv": self.dot, ".mmd": self.mermaid}
        return {".svg": self.svg, **graphs, ".txt": self.__str__}


_DOT_SHAPES: dict[Kind, str] = {"input": "box", "parameter": "ellipse", "memory": "cylinder"}


def _dot_lines(
    tree: GroupTree, nodes: Sequence[PictureNode], indent: str, count: list[int]
) -> Iterator[str]:
    for number in tree.nodes:
        yield f"{indent}n{number} [{_dot_attributes(nodes[number])}];"
    for group in tree.groups:
        count[0] += 1
        yield f"{indent}subgraph cluster_{count[0]} {{"
        yield f'{indent}  label={_dot_text(group.title)}; color="#999999"; style=rounded;'
        yield from _dot_lines(group, nodes, f"{indent}  ", count)
        yield f"{indent}}}"


def _dot_attributes(node: PictureNode) -> str:
    found = {"label": "\n".join(node.lines), "fillcolor": COLORS[node.kind]}
    if node.kind in _DOT_SHAPES:
        found |= {"shape": _DOT_SHAPES[node.kind], "style": "filled"}
    if node.note:
        found["tooltip"] = node.note
    return ", ".join(f"{name}={_dot_text(text)}" for name, text in found.items())


def _dot_text(text: str) -> str:
    """Return a string of the language. Line breaks become the escape of a centered line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


_MERMAID_BRACKETS: dict[Kind, tuple[str, str]] = {
    "input": ("[/", "/]"),
    "parameter": ("([", "])"),
    "memory": ("[(", ")]"),
}


def _mermaid_lines(
    tree: GroupTree, nodes: Sequence[PictureNode], indent: str, count: list[int]
) -> Iterator[str]:
    for number in tree.nodes:
        node = nodes[number]
        left, right = _MERMAID_BRACKETS.get(node.kind, ("[", "]"))
        text = _mermaid_text("\n".join(node.lines))
        yield f"{indent}n{number}{left}{text}{right}"
    for group in tree.groups:
        count[0] += 1
        yield f"{indent}subgraph g{count[0]}[{_mermaid_text(group.title)}]"
        yield from _mermaid_lines(group, nodes, f"{indent}  ", count)
        yield f"{indent}end"


def _mermaid_text(text: str) -> str:
    """Return a text without characters that have a meaning in Mermaid."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return '"' + text.replace("\n", "<br/>") + '"'
