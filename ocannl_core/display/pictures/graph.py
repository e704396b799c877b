"""Graphs with the formats that they are written in: as text, for Graphviz, for Mermaid, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display.pictures.nodes import (
    COLORS,
    Drawing,
    GroupTree,
    Kind,
    PictureNode,
    group_tree,
)
from ocannl_core.display.pictures.picture_formats import INK, Picture
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


_DOT_SHAPES: dict[Kind, str] = {"input": "box", "parameter": "ellipse", "memory": "cylinder"}


def to_dot(drawing: Drawing) -> str:
    """Return the text of a digraph, with a cluster for each group."""
    lines = [
        f"digraph {_dot_text(drawing.title)} {{",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=9];',
        *_dot_lines(group_tree(drawing), drawing, "  ", [0]),
    ]
    for edge in drawing.edges:
        label = f" [label={_dot_text(edge.label)}]" if edge.label else ""
        lines.append(f"  n{edge.source} -> n{edge.target}{label};")
    return "\n".join([*lines, "}"])


def _dot_lines(tree: GroupTree, drawing: Drawing, indent: str, count: list[int]) -> Iterator[str]:
    for number in tree.nodes:
        yield f"{indent}n{number} [{_dot_attributes(drawing.nodes[number])}];"
    for group in tree.groups:
        count[0] += 1
        yield f"{indent}subgraph cluster_{count[0]} {{"
        yield f'{indent}  label={_dot_text(group.title)}; color="#999999"; style=rounded;'
        yield from _dot_lines(group, drawing, f"{indent}  ", count)
        yield f"{indent}}}"


def _dot_attributes(node: PictureNode) -> str:
    found = {"label": "\n".join(node.lines), "fillcolor": COLORS[node.kind]}
    if node.kind in _DOT_SHAPES:
        found |= {"shape": _DOT_SHAPES[node.kind], "style": "filled"}
    if node.note:
        found["tooltip"] = node.note
    return ", ".join(f"{name}={_dot_text(text)}" for name, text in found.items())


def _dot_text(text: str) -> str:
    """Return a string of the language. Line breaks become the escape of a centred line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


_MERMAID_BRACKETS: dict[Kind, tuple[str, str]] = {
    "input": ("[/", "/]"),
    "parameter": ("([", "])"),
    "memory": ("[(", ")]"),
}


def to_mermaid(drawing: Drawing) -> str:
    """Return the text of a flowchart, with a subgraph for each group."""
    lines = ["flowchart TB", *_mermaid_lines(group_tree(drawing), drawing, "  ", [0])]
    for edge in drawing.edges:
        label = f"|{_mermaid_text(edge.label)}|" if edge.label else ""
        lines.append(f"  n{edge.source} -->{label} n{edge.target}")
    kinds = dict.fromkeys(node.kind for node in drawing.nodes)
    for kind in kinds:
        lines.append(f"  classDef {kind} fill:{COLORS[kind]},stroke:{INK},color:{INK}")
        members = (f"n{n}" for n, node in enumerate(drawing.nodes) if node.kind == kind)
        lines.append(f"  class {','.join(members)} {kind}")
    return "\n".join(lines)


def _mermaid_lines(
    tree: GroupTree, drawing: Drawing, indent: str, count: list[int]
) -> Iterator[str]:
    for number in tree.nodes:
        node = drawing.nodes[number]
        left, right = _MERMAID_BRACKETS.get(node.kind, ("[", "]"))
        text = _mermaid_text("\n".join(node.lines))
        yield f"{indent}n{number}{left}{text}{right}"
    for group in tree.groups:
        count[0] += 1
        yield f"{indent}subgraph g{count[0]}[{_mermaid_text(group.title)}]"
        yield from _mermaid_lines(group, drawing, f"{indent}  ", count)
        yield f"{indent}end"


def _mermaid_text(text: str) -> str:
    """Return a text without characters that have a meaning in Mermaid."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return '"' + text.replace("\n", "<br/>") + '"'
