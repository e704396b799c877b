"""The colours of pictures: legible on white, also in shades of grey."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.plot.nodes import Kind

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
