"""Matrices as shaded cells: in a terminal, as SVG, in notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display.pictures import picture_formats
from ocannl_core.ir.host_arrays import Array


def _ramp(*stops: tuple[int, int, int], count: int) -> tuple[str, ...]:
    """Return colors at equal distances along a line through some."""
    found = []
    for k in range(count):
        place = k / (count - 1) * (len(stops) - 1)
        first = min(int(place), len(stops) - 2)
        part = place - first
        mixed = (a + (b - a) * part for a, b in zip(stops[first], stops[first + 1], strict=True))
        found.append("#" + "".join(f"{round(each):02x}" for each in mixed))
    return tuple(found)


_WHITE, _BLUE, _NAVY, _RED = (255, 255, 255), (66, 135, 198), (8, 38, 84), (178, 24, 43)

SHADES = _ramp(_WHITE, _BLUE, _NAVY, count=65)
"""The shades of numbers that are not negative, lightest first."""

SIGNED = _ramp(_NAVY, _BLUE, _WHITE, (244, 140, 100), _RED, count=65)
"""The shades of numbers of both signs; 0 is in the middle."""


_MARKS = " .:-=+*#%@"
_PANEL, _LARGEST_CELL, _GAP, _LABEL = 220.0, 24.0, 14.0, 14.0
"""Sizes in a picture: about the width of a panel, the greatest width of a cell, and margins."""
_MOST_LABELS = 32
"""The greatest number of labels along a side of a panel; with more cells, they are left out."""


@dataclass(frozen=True, slots=True, repr=False)
class Heatmap(picture_formats.Picture):
    """Matrices of the same shape, shaded on one scale; `str` draws them with characters, notebooks
    show a picture.
    """

    cells: Array
    """The matrices along the first axis."""
    low: float
    """The number of the lightest shade; with negative numbers, of the darkest blue."""
    high: float
    """The number of the darkest shade."""
    rows: tuple[str, ...] = ()
    """Labels of rows, or none."""
    columns: tuple[str, ...] = ()
    """Labels of columns, or none."""
    names: tuple[str, ...] = ()
    """A name for each matrix, or none."""
    title: str = ""
    across: int = 4

    def __str__(self) -> str:
        return "\n".join(_characters(self))

    def svg(self) -> str:
        return "\n".join(_svg(self))

    def shade(self, value: float) -> float:
        """Return the place of a number between `low` and `high`, from 0 to 1; NaN is NaN."""
        if not math.isfinite(value):
            return 1.0 if value > 0 else 0.0 if value < 0 else math.nan
        span = self.high - self.low
        return min(max((value - self.low) / span, 0.0), 1.0) if span else 0.0


def heatmap(
    cells: Any,
    *,
    rows: Sequence[object] = (),
    columns: Sequence[object] = (),
    names: Sequence[object] = (),
    title: str = "",
    low: float | None = None,
    high: float | None = None,
    across: int = 4,
) -> Heatmap:
    """Return matrices as shaded cells, to print, to show in a notebook, or to save as a picture.

        oc.heatmap(ctx[weights][0, 0], rows=tokens, columns=tokens).save("attention.svg")

    Args:
        cells: A matrix, or several ones along the first axis, such as the attention weights of
            several heads, or images. Numbers that are not finite are shown as the ends of the
            scale, NaN as a gap.
        rows: A label for each row.
        columns: A label for each column.
        names: A name for each matrix.
        low: The number of the lightest shade; by default the least one. Where there are negative
            numbers, the scale is symmetric, from blue over white to red.
        high: The number of the darkest shade; by default the greatest one.
        across: The number of matrices side by side.

    Raises:
        UsageError: if there are no cells, or labels do not fit.
    """
    try:
        found = np.asarray(cells, np.float64)
    except (TypeError, ValueError):
        raise _refusal(f"{type(cells).__name__}: {cells!r}") from None
    found = found[None] if found.ndim == 2 else found
    if found.ndim != 3 or not found.size:
        raise _refusal(f"an array of shape {np.shape(cells)}")
    for what, labels, count in zip(
        ("names", "rows", "columns"), (names, rows, columns), found.shape, strict=True
    ):
        if len(labels) not in (0, count):
            raise _refusal(f"{len(labels)} {what} for {count}")
    if isinstance(across, bool) or not isinstance(across, int) or across < 1:
        raise _refusal(f"across={across!r}")
    finite = found[np.isfinite(found)]
    least, greatest = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    if low is None and high is None and least < 0:
        least = -max(-least, greatest)
        greatest = -least
    return Heatmap(
        found,
        low=float(least if low is None else low),
        high=float(greatest if high is None else high),
        rows=tuple(map(str, rows)),
        columns=tuple(map(str, columns)),
        names=tuple(map(str, names)),
        title=title,
        across=across,
    )


def _refusal(found: str) -> UsageError:
    return UsageError.at_caller(
        "A heat map has a matrix of numbers, or several along the first axis, and no label or one "
        "for each row, column and matrix.",
        found=found,
        fix="oc.heatmap(ctx[x], rows=['a', 'b'], columns=['c', 'd', 'e']) for 2 rows of 3 cells",
    )


def _bands(shown: Heatmap) -> Iterator[range]:
    """Yield the positions of the matrices that are side by side."""
    count = len(shown.cells)
    for start in range(0, count, shown.across):
        yield range(start, min(start + shown.across, count))


def _characters(shown: Heatmap) -> Iterator[str]:
    """Yield the lines of a drawing, two characters for a cell."""
    if shown.title:
        yield shown.title
    left = max(map(len, shown.rows), default=0)
    height = shown.cells.shape[1]
    width = max(2 * shown.cells.shape[2], *map(len, shown.names or ("",)))
    for number, band in enumerate(_bands(shown)):
        if number:
            yield ""
        if shown.names:
            heads = (shown.names[k].ljust(width) for k in band)
            yield (" " * left + "  " * bool(left) + "   ".join(heads)).rstrip()
        for row in range(height):
            label = shown.rows[row].rjust(left) + "  " if shown.rows else ""
            parts = ("".join(_mark(shown, value) for value in shown.cells[k, row]) for k in band)
            yield (label + "   ".join(part.ljust(width) for part in parts)).rstrip()


def _mark(shown: Heatmap, value: float) -> str:
    """Return two characters: darker for a number that is greater, or farther from 0."""
    place = shown.shade(value)
    if math.isnan(place):
        return "??"
    if shown.low < 0:
        sign = "-" if place < 0.5 else "+"
        mark = _MARKS[round(abs(place - 0.5) * 2 * (len(_MARKS) - 1))]
        return (sign + mark) if mark != " " else "  "
    return 2 * _MARKS[round(place * (len(_MARKS) - 1))]


def _svg(shown: Heatmap) -> Iterator[str]:
    _, height, width = shown.cells.shape
    cell = min(_LARGEST_CELL, _PANEL / max(height, width))
    has_rows, has_columns = (0 < len(x) <= _MOST_LABELS for x in (shown.rows, shown.columns))
    left = 7.0 * max(map(len, shown.rows), default=0) + 6 if has_rows else 0.0
    longest = max(map(len, shown.columns), default=0)
    below = 0.0 if not has_columns else _LABEL + 2 if longest == 1 else 7.0 * longest + 8
    above = _LABEL + 4 if shown.names else 0.0
    top = 22.0 if shown.title else 0.0
    panel_width, panel_height = width * cell, height * cell + above + below
    bands = list(_bands(shown))
    total_width = left + len(bands[0]) * (panel_width + _GAP) + _GAP
    total_height = top + len(bands) * (panel_height + _GAP) + _GAP
    yield from picture_formats.svg_start(total_width, total_height)
    if shown.title:
        yield picture_formats.svg_text(_GAP + left, 18, shown.title, "start")
    for number, band in enumerate(bands):
        y = top + _GAP + number * (panel_height + _GAP) + above
        for place, k in enumerate(band):
            x = _GAP + left + place * (panel_width + _GAP)
            if shown.names:
                yield picture_formats.svg_text(x, y - 5, shown.names[k], "start")
            yield from _panel(shown, shown.cells[k], x, y, cell)
            if has_columns:
                for j, label in enumerate(shown.columns):
                    if longest == 1:
                        yield picture_formats.svg_text(
                            x + (j + 0.5) * cell, y + height * cell + 13, label, "middle"
                        )
                        continue
                    at = f"{x + (j + 0.5) * cell + 4:.1f},{y + height * cell + 6:.1f}"
                    yield (
                        f'<text transform="translate({at}) rotate(-90)" text-anchor="end" '
                        f'fill="{picture_formats.INK}">{picture_formats.xml_text(label)}</text>'
                    )
        if has_rows:
            for i, label in enumerate(shown.rows):
                yield picture_formats.svg_text(
                    _GAP + left - 6, y + (i + 0.5) * cell + 4, label, "end"
                )
    yield "</svg>"


def _panel(shown: Heatmap, cells: Array, x: float, y: float, size: float) -> Iterator[str]:
    """Yield a matrix: a rectangle for each run of equal shades, and the frame."""
    height, width = cells.shape
    yield '<g shape-rendering="crispEdges">'
    for i, row in enumerate(cells):
        colors = [_color(shown, value) for value in row]
        start = 0
        for j in range(1, width + 1):
            if j == width or colors[j] != colors[start]:
                if colors[start] != picture_formats.PAPER:
                    yield (
                        f'<rect x="{x + start * size:.2f}" y="{y + i * size:.2f}" '
                        f'width="{(j - start) * size:.2f}" height="{size:.2f}" '
                        f'fill="{colors[start]}"/>'
                    )
                start = j
    yield "</g>"
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * size:.1f}" height="{height * size:.1f}" '
        f'fill="none" stroke="{picture_formats.FAINT}" stroke-width="0.6"/>'
    )


def _color(shown: Heatmap, value: float) -> str:
    place = shown.shade(value)
    if math.isnan(place):
        return picture_formats.FAINT
    ramp = SIGNED if shown.low < 0 else SHADES
    return ramp[round(place * (len(ramp) - 1))]
