"""Graphs with the formats that they are written in: as text, for Graphviz, for Mermaid, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display.pictures.layered_layout import Point, lay_out
from ocannl_core.display.pictures.nodes import (
    COLORS,
    GraphEdge,
    GroupTree,
    Kind,
    PictureNode,
    group_tree,
)
from ocannl_core.display.pictures.picture_formats import FAINT, INK, Picture, svg_start, xml_text


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


_LINE, _MARGIN = 15.0, 9.0
"""The height of a line and the margin of a node, in pixels."""
_NARROW, _WIDE = frozenset("ijltfr.,:;'|!()[] "), frozenset("mwMWGOQ@%…")
_LETTER, _NARROW_LETTER, _WIDE_LETTER = 6.6, 4.2, 10.0
"""The widths of characters, in pixels: bounds for the fonts that browsers take, in bold."""


def to_svg(title: str, nodes: Sequence[PictureNode], edges: Sequence[GraphEdge]) -> str:
    """Return a picture of a graph, in which edges point down."""
    sizes = [_size(node) for node in nodes]
    layout = lay_out(sizes, [(edge.source, edge.target) for edge in edges])
    parts = [
        *svg_start(round(layout.width), round(layout.height), title),
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{FAINT}"/></marker>'
        "</defs>",
    ]
    for edge, route in zip(edges, layout.routes, strict=True):
        parts.append(
            f'<path d="{_curve(route)}" fill="none" stroke="{FAINT}" marker-end="url(#arrow)"/>'
        )
        if edge.label:
            (x, y), (x2, y2) = route[0], route[1]
            parts.append(
                f'<text x="{(x + x2) / 2:.1f}" y="{(y + y2) / 2:.1f}" font-size="9" '
                f'fill="{INK}">{xml_text(edge.label)}</text>'
            )
    for node, size, center in zip(nodes, sizes, layout.centers, strict=True):
        parts += _node(node, size, center)
    return "\n".join([*parts, "</svg>"])


def _size(node: PictureNode) -> Point:
    return max(map(_width, node.lines)) + 2 * _MARGIN, len(node.lines) * _LINE + _MARGIN


def _width(text: str) -> float:
    return sum(
        _NARROW_LETTER if each in _NARROW else _WIDE_LETTER if each in _WIDE else _LETTER
        for each in text
    )


def _node(node: PictureNode, size: Point, center: Point) -> Iterator[str]:
    (width, height), (x, y) = size, center
    radius = {"parameter": height / 2, "input": 0.0, "memory": 0.0}.get(node.kind, 5.0)
    note = " / ".join([*(title for title, _ in node.group), *([node.note] if node.note else [])])
    yield "<g>" + (f"<title>{xml_text(note)}</title>" if note else "")
    yield (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{radius:.1f}" fill="{COLORS[node.kind]}" stroke="{FAINT}"/>'
    )
    first = y - (len(node.lines) - 1) * _LINE / 2 + 4
    for number, line in enumerate(node.lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        yield (
            f'<text x="{x:.1f}" y="{first + number * _LINE:.1f}" text-anchor="middle" '
            f'fill="{INK}"{weight}>{xml_text(line)}</text>'
        )
    yield "</g>"


def _curve(route: Sequence[Point]) -> str:
    """Return a path through points, vertical at each of them."""
    x, y = route[0]
    parts = [f"M{x:.1f},{y:.1f}"]
    for x2, y2 in route[1:]:
        middle = (y + y2) / 2
        parts.append(f"C{x:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}")
        x, y = x2, y2
    return " ".join(parts)
