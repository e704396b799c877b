"""The colours of pictures: legible on white, also in shades of grey."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.display.pictures.nodes import Kind

COLOURS: Mapping[Kind, str] = {
    "input": "#cfe3f7",
    "parameter": "#fde7b3",
    "operation": "#f4f4f4",
    "block": "#d9f0d3",
    "memory": "#e6dcf2",
    "kernel": "#f4f4f4",
    "call": "#f7d4cf",
}
"""The fill of each kind of node."""

LINES = ("#1f5fa8", "#d1601f", "#2b8a3e", "#8b3fa8", "#8a6d00", "#0b7a75")
"""The colours of curves, in order."""

INK, FAINT, PAPER = "#222222", "#999999", "#ffffff"


def _ramp(*stops: tuple[int, int, int], count: int) -> tuple[str, ...]:
    """Return colours at equal distances along a line through some."""
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
