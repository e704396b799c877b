"""HTML for notebooks: self-contained, without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

_CELL = "text-align:right;padding:1px 8px"
_HEAD = "text-align:right;padding:1px 8px;font-weight:normal;opacity:0.6"
_KIND = "text-align:left;padding:1px 8px;font-weight:bold"

Heads = tuple[str, Sequence[str]]
"""The title of an axis and its positions."""


def tables(
    title: str,
    across: Heads | None,
    down: Heads | None,
    blocks: Sequence[tuple[str, Sequence[Sequence[str]]]],
) -> str:
    """Return tables under a title.

    Args:
        blocks: A caption and rows of cells for each table.
    """
    parts = ["<div>", f"<div><code>{escape(title)}</code></div>"]
    for caption, cells in blocks:
        if not cells or across is None:
            parts.append(f"<div>{escape(caption)}</div>")
            continue
        parts.append('<table style="border-collapse:collapse;font-family:monospace">')
        if caption:
            parts.append(f'<caption style="text-align:left">{escape(caption)}</caption>')
        parts += ["<thead>", *_head(across, down), "</thead>", "<tbody>"]
        parts += _rows(cells, down)
        parts += ["</tbody>", "</table>"]
    return "\n".join([*parts, "</div>"])


def _head(across: Heads, down: Heads | None) -> Iterator[str]:
    corner = "<th></th>" if down is not None else ""
    yield (
        f'<tr>{corner}<th colspan="{len(across[1])}" style="{_KIND}">{escape(across[0])}</th></tr>'
    )
    side = f'<th style="{_KIND}">{escape(down[0])}</th>' if down is not None else ""
    heads = "".join(f'<th style="{_HEAD}">{escape(text)}</th>' for text in across[1])
    yield f"<tr>{side}{heads}</tr>"


def _rows(cells: Sequence[Sequence[str]], down: Heads | None) -> Iterator[str]:
    for number, row in enumerate(cells):
        head = f'<th style="{_HEAD}">{escape(down[1][number])}</th>' if down is not None else ""
        texts = "".join(f'<td style="{_CELL}">{escape(text)}</td>' for text in row)
        yield f"<tr>{head}{texts}</tr>"


def outline(lines: Sequence[tuple[int, str, str]]) -> str:
    """Return nested lists of lines, each with a depth, a name and details; branches fold."""
    parts = ['<div style="font-family:monospace">']
    depths = [depth for depth, _, _ in lines]
    open_branches: list[int] = []
    for position, (depth, name, details) in enumerate(lines):
        while open_branches and open_branches[-1] >= depth:
            open_branches.pop()
            parts.append("</div></details>")
        text = f"<b>{escape(name)}</b>{escape(details)}"
        is_branch = position + 1 < len(lines) and depths[position + 1] > depth
        if is_branch:
            parts.append(f"<details open><summary>{text}</summary>")
            parts.append('<div style="margin-left:1.5em">')
            open_branches.append(depth)
        else:
            parts.append(f"<div>{text}</div>")
    parts += ["</div></details>"] * len(open_branches)
    return "\n".join([*parts, "</div>"])
