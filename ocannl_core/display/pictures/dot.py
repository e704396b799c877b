"""Graphs in the language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.display.pictures.nodes import Drawing, GroupTree, Kind, PictureNode, group_tree
from ocannl_core.display.pictures.palette import COLOURS

_SHAPES: dict[Kind, str] = {"input": "box", "parameter": "ellipse", "memory": "cylinder"}


def to_dot(drawing: Drawing) -> str:
    """Return the text of a digraph, with a cluster for each group."""
    lines = [
        f"digraph {_quoted(drawing.title)} {{",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=9];',
        *_lines(group_tree(drawing), drawing, "  ", [0]),
    ]
    for edge in drawing.edges:
        label = f" [label={_quoted(edge.label)}]" if edge.label else ""
        lines.append(f"  n{edge.source} -> n{edge.target}{label};")
    return "\n".join([*lines, "}"])


def _lines(tree: GroupTree, drawing: Drawing, indent: str, count: list[int]) -> Iterator[str]:
    for number in tree.nodes:
        yield f"{indent}n{number} [{_attributes(drawing.nodes[number])}];"
    for group in tree.groups:
        count[0] += 1
        yield f"{indent}subgraph cluster_{count[0]} {{"
        yield f'{indent}  label={_quoted(group.title)}; color="#999999"; style=rounded;'
        yield from _lines(group, drawing, f"{indent}  ", count)
        yield f"{indent}}}"


def _attributes(node: PictureNode) -> str:
    found = {"label": "\n".join(node.lines), "fillcolor": COLOURS[node.kind]}
    if node.kind in _SHAPES:
        found |= {"shape": _SHAPES[node.kind], "style": "filled"}
    if node.note:
        found["tooltip"] = node.note
    return ", ".join(f"{name}={_quoted(text)}" for name, text in found.items())


def _quoted(text: str) -> str:
    """Return a string of the language. Line breaks become the escape of a centred line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
