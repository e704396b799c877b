"""Partition of a parallel kernel into parts, each of which one thread runs at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from ocannl_core.backend_api import ALIGNMENT, dataclass
from ocannl_core.backend_api.parallel import (
    MIN_THREAD_CYCLES,
    ParallelIterations,
    UniformIterations,
)

_PER_THREAD = 4
"""The number of parts for each thread: threads do not progress alike where other processes use the
processor.
"""
_MOST = 1 << 12
"""The greatest number of parts: a bound for the counters of the pool."""

_TOLERATED = 1.03
"""The least gain in the time of the busiest thread for which a costlier partition is chosen."""
_COARSE = 1.05
"""The penalty of one part for each thread: a thread that starts late delays the kernel."""

Bounds = tuple[int, ...]
"""The first iteration and the end, for the loops of a kernel and for the loops right inside."""


def partition(shares: ParallelIterations, threads: int) -> list[Bounds]:
    """Return the parts of a kernel: all iterations, each in one part.

    No part is too small to be worth waking a thread. The loops right inside are cut only where
    whole iterations of the outer ones cannot be distributed evenly: such parts repeat the code in
    front of the inner loops.
    """
    most = min(_PER_THREAD * threads, shares.work // MIN_THREAD_CYCLES, _MOST) if threads > 1 else 1
    inner = _count(shares.inner)
    levels = 2 if shares.inner else 1
    best: list[_Part] = []
    least = float("inf")
    for found in _candidates(shares, most):
        busiest = _busiest([part.work for part in found], threads)
        if len(found) < 2 * threads:
            busiest *= _COARSE
        if not best or busiest < least / _TOLERATED:
            best, least = found, busiest
    return [(part.first, part.end, *(part.inner or (0, inner)))[: 2 * levels] for part in best]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some iterations: of the outer loops, and of the inner ones if not all of them."""

    first: int
    end: int
    work: float
    inner: tuple[int, int] | None = None


def _candidates(shares: ParallelIterations, most: int) -> Iterator[list[_Part]]:
    """Yield partitions of a kernel, the cheapest first."""
    count = _count(shares.outer)
    yield _whole(shares.outer, max(1, min(most, count)))
    if most < 2 or count >= 4 * most:
        return
    # fewer parts can be more even: 9 iterations for 2 threads as 4 and 5, not as 8 parts
    yield from (_whole(shares.outer, fewer) for fewer in range(min(most, count) - 1, 1, -1))
    inner = _count(shares.inner)
    for pieces in range(2, min(inner, -(-2 * most // count)) + 1):
        yield _pieces(shares, pieces)


def _whole(runs: Sequence[UniformIterations], count: int) -> list[_Part]:
    """Return parts of whole iterations of the outer loops."""
    return [
        _Part(first, end, _work_before(runs, end) - _work_before(runs, first))
        for first, end in pairwise(_cuts(runs, count))
    ]


def _pieces(shares: ParallelIterations, pieces: int) -> list[_Part]:
    """Return parts of the inner loops, for every iteration of the outer ones."""
    works = [run.work for run in shares.outer for _ in range(run.count)]
    cuts = list(pairwise(_cuts(shares.inner, pieces)))
    whole = _work_before(shares.inner, _count(shares.inner)) or 1.0
    portions = [
        (_work_before(shares.inner, end) - _work_before(shares.inner, first)) / whole
        for first, end in cuts
    ]
    repeated = shares.repeated
    return [
        _Part(number, number + 1, repeated + (work - repeated) * portion, pair)
        for number, work in enumerate(works)
        for pair, portion in zip(cuts, portions, strict=True)
    ]


def _busiest(works: Iterable[float], threads: int) -> float:
    """Return the finishing time of the last thread, if threads take the parts in order."""
    ready = [0.0] * threads
    for work in works:
        heapq.heapreplace(ready, ready[0] + work)
    return max(ready)


def _count(runs: Sequence[UniformIterations]) -> int:
    return sum(run.count for run in runs)


def _cuts(runs: Sequence[UniformIterations], parts: int) -> list[int]:
    """Return the starts of parts of about equal work, and the end."""
    total = sum(run.count * run.work for run in runs)
    ends = list(accumulate(run.count for run in runs))
    cuts = [0, *(_position(runs, total * part / parts) for part in range(1, parts)), ends[-1]]
    return sorted(set(cuts))


def _work_before(runs: Sequence[UniformIterations], position: int) -> float:
    """Return the work of the first iterations, numbered through all runs."""
    work = 0.0
    for run in runs:
        work += min(position, run.count) * run.work
        position = max(0, position - run.count)
    return work


def _position(runs: Sequence[UniformIterations], work: float) -> int:
    """Return the number of iterations, numbered through all runs, with this much work."""
    before = 0
    for run in runs:
        if run.work and work <= run.count * run.work:
            return before + round(work / run.work)
        work -= run.count * run.work
        before += run.count
    return before


def private_offsets(sizes: Sequence[int]) -> Iterator[int]:
    """Yield the offsets of buffers of these sizes in the memory of a thread, and then the end."""
    end = 0
    for nbytes in sizes:
        yield end
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    yield end
