"""Advice in errors: lines of text, and names similar to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def similar_names(
    name: str, known: Iterable[str], most: int = 1, *, cutoff: float = 0.6
) -> list[str]:
    """Return the names that are most similar to one, at most `most`, the most similar first.

    Args:
        cutoff: The least similarity, as `difflib` counts it.
    """
    import difflib

    return difflib.get_close_matches(name, list(known), most, cutoff)


def did_you_mean(name: str, known: Iterable[str], most: int = 1, *, cutoff: float = 0.6) -> str:
    """Return a question with the names that are most similar to one; empty if none is.

    Args:
        most: The names in the question, at most.
        cutoff: The least similarity, as `difflib` counts it.
    """
    close = similar_names(name, known, most, cutoff=cutoff)
    return f"did you mean {' or '.join(close)}?" if close else ""


def join_lines(*lines: str) -> str:
    """Return a text of the lines that are not empty."""
    return "\n".join(filter(None, lines))
