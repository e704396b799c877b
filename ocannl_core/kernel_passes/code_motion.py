"""Kernels that are no neighbours become one where one of them can move to the other.

    g[o, i] += d[b, o] * x[b, i]          e[b, i] += d[b, o] * w[o, i]
    e[b, i] += d[b, o] * w[o, i]    -->   g[o, i] += d[b, o] * x[b, i]; w[o, i] -= g[o, i]
    w[o, i] -= g[o, i]

A kernel moves over others that neither write what it mentions nor mention what it writes, so that
every cell still sees its operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ocannl_core.kernel_passes.analysed_kernel import AnalysedKernel

FusePair = Callable[[AnalysedKernel, AnalysedKernel], AnalysedKernel | None]


def fuse_distant_kernels(
    parts: Iterable[AnalysedKernel], joined: FusePair
) -> tuple[AnalysedKernel, ...]:
    """Returns the kernels with each one joined to an earlier one whose results it reads, where both
    run over one domain and one of them can move.

    Args:
        parts: The kernels.
        joined: Returns two as one; None if that is not possible.
    """
    result: list[AnalysedKernel] = []
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


def _partner(
    before: Sequence[AnalysedKernel], part: AnalysedKernel, joined: FusePair
) -> tuple[int, AnalysedKernel, bool] | None:
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


def _is_free(part: AnalysedKernel, others: Iterable[AnalysedKernel]) -> bool:
    """True if a kernel can move over others."""
    mentioned, written = part.mentioned, part.written
    return all(
        mentioned.isdisjoint(other.written) and written.isdisjoint(other.mentioned)
        for other in others
    )
