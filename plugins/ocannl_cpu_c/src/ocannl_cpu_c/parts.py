"""Dealing out a parallel kernel: which iterations are a part that one thread runs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from ocannl_core.schedule.memory import ALIGNMENT
from ocannl_core.schedule.parallel import LEAST_WORK, Run, Shares

_PER_THREAD = 4
"""There are more parts than threads, for threads do not progress alike where others use the
processor.
"""
_TOLERATED = 1.06
"""How much longer than the mean the busiest thread may work before finer parts are made."""

Bounds = tuple[int, ...]
"""The first iteration and the end, for the loops of a kernel and for those right inside."""


def parts(shares: Shares, threads: int) -> list[Bounds]:
    """Returns the parts of a kernel: all iterations, each in one part.

    None is too small to be worth waking a thread. Parts of loops right inside are made only where
    whole iterations of the outer ones cannot be dealt out evenly: they repeat what comes before.
    """
    most = min(_PER_THREAD * threads, shares.work // LEAST_WORK) if threads > 1 else 1
    outer, inner = _count(shares.outer), _count(shares.inner)
    levels = 2 if shares.inner else 1
    if most < 2:
        return [(0, outer, 0, inner)[: 2 * levels]]
    pieces = _pieces(shares, threads, most) if shares.inner else 1
    if pieces == 1:
        cuts = _cuts(shares.outer, _whole_parts(outer, threads, most))
        return [(*pair, 0, inner)[: 2 * levels] for pair in pairwise(cuts)]
    inside = list(pairwise(_cuts(shares.inner, pieces)))
    return [(each, each + 1, *pair) for each in range(outer) for pair in inside]


def _count(runs: Sequence[Run]) -> int:
    return sum(run.count for run in runs)


def _whole_parts(count: int, threads: int, most: int) -> int:
    """Returns how many parts of whole iterations there are: as many for each thread as can be."""
    if count >= 4 * most:
        return most
    if count <= most:
        return count
    even = [parts for parts in range(most, threads - 1, -1) if parts % threads == 0]
    return min(even, key=lambda parts: -(-count // parts) * parts, default=most)


def _pieces(shares: Shares, threads: int, most: int) -> int:
    """Returns into how many pieces the inner iterations of each outer one are cut."""
    outer, inner = _count(shares.outer), _count(shares.inner)
    if outer >= 2 * most:
        return 1
    limit = max(1, min(inner, -(-2 * most // outer)))

    def longest(pieces: int) -> float:
        """Returns how long the busiest thread works, as a multiple of an even share."""
        each = shares.work / outer + (pieces - 1) * shares.repeated
        slices = -(-inner // pieces) * pieces / inner
        turns = -(-outer * pieces // threads)
        return turns * slices * each / pieces * threads / shares.work

    enough = [
        pieces
        for pieces in range(1, limit + 1)
        if outer * pieces >= min(2 * threads, most) and longest(pieces) <= _TOLERATED
    ]
    return enough[0] if enough else min(range(1, limit + 1), key=longest)


def _cuts(runs: Sequence[Run], parts: int) -> list[int]:
    """Returns where parts of about the same work begin, and the end."""
    total = sum(run.count * run.work for run in runs)
    ends = list(accumulate(run.count for run in runs))
    cuts = [0, *(_position(runs, total * part / parts) for part in range(1, parts)), ends[-1]]
    return sorted(set(cuts))


def _position(runs: Sequence[Run], work: float) -> int:
    """Returns the number of iterations, counted through, that take so much work."""
    before = 0
    for run in runs:
        if run.work and work <= run.count * run.work:
            return before + round(work / run.work)
        work -= run.count * run.work
        before += run.count
    return before


def private_offsets(sizes: Sequence[int]) -> Iterator[int]:
    """Yields where buffers of these sizes begin in the memory of a thread, and then the end."""
    end = 0
    for nbytes in sizes:
        yield end
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    yield end
