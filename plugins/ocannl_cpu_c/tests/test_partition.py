"""Parts of a parallel kernel: every iteration once, and equal shares for all threads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.passes.kernels.parallel_loops import ParallelIterations, UniformIterations
from ocannl_core.schedule.machine_model import MIN_THREAD_CYCLES
from ocannl_cpu_c.partition import partition, private_offsets

RUNS = st.lists(
    st.builds(UniformIterations, st.integers(1, 60), st.floats(0, 4 * MIN_THREAD_CYCLES)),
    min_size=1,
    max_size=3,
).map(tuple)
THREADS = st.integers(1, 9)


def total(runs: tuple[UniformIterations, ...]) -> int:
    return sum(run.count for run in runs)


@given(RUNS, THREADS)
def test_every_iteration_is_in_one_part(outer: tuple[UniformIterations, ...], threads: int) -> None:
    bounds = partition(ParallelIterations(outer), threads)
    assert [each for first, end in bounds for each in range(first, end)] == list(
        range(total(outer))
    )


@given(RUNS, RUNS, st.integers(0, MIN_THREAD_CYCLES), THREADS)
def test_every_iteration_of_both_loops_is_in_one_part(
    outer: tuple[UniformIterations, ...],
    inner: tuple[UniformIterations, ...],
    repeated: int,
    threads: int,
) -> None:
    bounds = partition(ParallelIterations(outer, inner, repeated), threads)
    found = [
        (i, j)
        for first, end, start, stop in bounds
        for i in range(first, end)
        for j in range(start, stop)
    ]
    assert sorted(found) == [(i, j) for i in range(total(outer)) for j in range(total(inner))]


def test_one_thread_has_one_part() -> None:
    assert partition(ParallelIterations((UniformIterations(100, MIN_THREAD_CYCLES),)), 1) == [
        (0, 100)
    ]


def test_too_little_work_stays_on_one_thread() -> None:
    assert partition(ParallelIterations((UniformIterations(100, MIN_THREAD_CYCLES // 60),)), 8) == [
        (0, 100)
    ]


def busiest(shares: ParallelIterations, threads: int) -> float:
    """Return how long the busiest thread works, as a multiple of an equal share."""
    works = [run.work for run in shares.outer for _ in range(run.count)]
    inner = total(shares.inner)
    ready = [0.0] * threads
    for first, end, *inside in partition(shares, threads):
        start, stop = inside or (0, 1)
        share = (stop - start) / (inner or 1)
        ready[ready.index(min(ready))] += sum(works[first:end]) * share
    return max(ready) * threads / shares.work


ROWS = (UniformIterations(80, MIN_THREAD_CYCLES // 8),)
EVEN = {
    "as many as threads": ParallelIterations((UniformIterations(2, 1 << 22),), ROWS),
    "one more": ParallelIterations((UniformIterations(3, 1 << 22),), ROWS),
    "a short one at the end": ParallelIterations(
        (UniformIterations(5, 400_000), UniformIterations(1, 140_000)), ROWS
    ),
    "many rows": ParallelIterations((UniformIterations(4096, 1000),)),
    "blocks of columns": ParallelIterations((UniformIterations(16, 1 << 21),), ROWS),
    "one block": ParallelIterations((UniformIterations(1, 1 << 22),), ROWS),
}


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
@pytest.mark.parametrize("name", EVEN)
def test_threads_have_about_the_same_work(name: str, threads: int) -> None:
    assert busiest(EVEN[name], threads) <= 1.15


def test_millions_of_short_iterations_are_shared() -> None:
    assert partition(ParallelIterations((UniformIterations(10_000_000, 0.25),)), 2) == [
        (part * 1_250_000, (part + 1) * 1_250_000) for part in range(8)
    ]


def test_iterations_of_inner_loops_are_not_divided_without_need() -> None:
    outer, inner = (UniformIterations(16, 1 << 21),), (UniformIterations(40, 1 << 15),)
    assert all(
        part[2:] == (0, 40) for part in partition(ParallelIterations(outer, inner, 1 << 19), 2)
    )


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_private_buffers_do_not_overlap(sizes: list[int]) -> None:
    *offsets, end = private_offsets(sizes)
    for offset, nbytes, after in zip(offsets, sizes, [*offsets[1:], end], strict=True):
        assert offset % 64 == 0
        assert offset + nbytes <= after
