"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned_rows(rows: Sequence[Sequence[str]], *, numbers: int = 0) -> list[str]:
    """Return the lines of a table, with a column as wide as its longest cell.

    Args:
        numbers: The number of last columns that are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = len(widths) - numbers
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row[:texts], widths, strict=False)]
        padded += map(str.rjust, row[texts:], widths[texts:])
        lines.append("  ".join(padded).rstrip())
    return lines
