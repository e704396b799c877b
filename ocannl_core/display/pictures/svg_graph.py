"""Graphs as SVG: self-contained, without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocannl_core.display.pictures.layered_layout import Point, lay_out
from ocannl_core.display.pictures.nodes import COLORS, GraphEdge, PictureNode
from ocannl_core.display.pictures.picture_formats import FAINT, INK, svg_start, xml_text

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
