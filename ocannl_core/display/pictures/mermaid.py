"""Graphs as flowcharts of Mermaid, which Markdown viewers draw."""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.display.pictures.nodes import Drawing, GroupTree, Kind, group_tree
from ocannl_core.display.pictures.palette import COLOURS, INK

_BRACKETS: dict[Kind, tuple[str, str]] = {
    "input": ("[/", "/]"),
    "parameter": ("([", "])"),
    "memory": ("[(", ")]"),
}


def to_mermaid(drawing: Drawing) -> str:
    """Return the text of a flowchart, with a subgraph for each group."""
    lines = ["flowchart TB", *_lines(group_tree(drawing), drawing, "  ", [0])]
    for edge in drawing.edges:
        label = f"|{_quoted(edge.label)}|" if edge.label else ""
        lines.append(f"  n{edge.source} -->{label} n{edge.target}")
    kinds = dict.fromkeys(node.kind for node in drawing.nodes)
    for kind in kinds:
        lines.append(f"  classDef {kind} fill:{COLOURS[kind]},stroke:{INK},color:{INK}")
        members = (f"n{n}" for n, node in enumerate(drawing.nodes) if node.kind == kind)
        lines.append(f"  class {','.join(members)} {kind}")
    return "\n".join(lines)


def _lines(tree: GroupTree, drawing: Drawing, indent: str, count: list[int]) -> Iterator[str]:
    for number in tree.nodes:
        node = drawing.nodes[number]
        left, right = _BRACKETS.get(node.kind, ("[", "]"))
        text = _quoted("\n".join(node.lines))
        yield f"{indent}n{number}{left}{text}{right}"
    for group in tree.groups:
        count[0] += 1
        yield f"{indent}subgraph g{count[0]}[{_quoted(group.title)}]"
        yield from _lines(group, drawing, f"{indent}  ", count)
        yield f"{indent}end"


def _quoted(text: str) -> str:
    """Return a text without characters that have a meaning in Mermaid."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return '"' + text.replace("\n", "<br/>") + '"'
