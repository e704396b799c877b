"""Kernels that are no neighbours become one where one of them can move to the other.

    g[o, i] += d[b, o] * x[b, i]          e[b, i] += d[b, o] * w[o, i]
    e[b, i] += d[b, o] * w[o, i]    -->   g[o, i] += d[b, o] * x[b, i]; w[o, i] -= g[o, i]
    w[o, i] -= g[o, i]

A kernel moves over others that neither write what it mentions nor mention what it writes, so that
every cell still sees its operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ocannl_core.schedule.joining.part import Part

Join = Callable[[Part, Part], Part | None]


def moved_together(parts: Iterable[Part], joined: Join) -> tuple[Part, ...]:
    """Returns the kernels with each one joined to an earlier one whose results it reads, where both
    run over one domain and one of them can move.

    Args:
        parts: The kernels.
        joined: Returns two as one; None if that is not possible.
    """
    result: list[Part] = []
    for part in parts:
        found = _partner(result, part, joined)
        if found is None:
            result.append(part)
            continue
        at, both, to_the_end = found
        if to_the_end:
            del result[at]
            result.append(both)
        else:
            result[at] = both
    return tuple(result)


def _partner(before: Sequence[Part], part: Part, joined: Join) -> tuple[int, Part, bool] | None:
    """Returns the position of an earlier kernel, both as one, and whether that one moves later."""
    if part.cells is None or part.cells.reduction is not None:
        return None
    mentioned = part.mentioned
    for at in range(len(before) - 1, -1, -1):
        first = before[at]
        if first.cells is None or first.written.isdisjoint(mentioned):
            continue
        between = before[at + 1 :]
        moves_up = _is_free(part, between)
        if not moves_up and not _is_free(first, between):
            continue
        both = joined(first, part)
        if both is not None:
            return at, both, not moves_up
    return None


def _is_free(part: Part, others: Iterable[Part]) -> bool:
    """True if a kernel can move over others."""
    mentioned, written = part.mentioned, part.written
    return all(
        mentioned.isdisjoint(other.written) and written.isdisjoint(other.mentioned)
        for other in others
    )
