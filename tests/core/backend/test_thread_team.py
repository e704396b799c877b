"""Parallel loops of the utilities for backends."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.backend.thread_team import ThreadTeam
from ocannl_core.testing.children import succeeds_in_child


@given(st.integers(0, 40), st.integers(1, 5))
def test_the_parts_make_up_the_iterations_in_nearly_equal_shares(count: int, threads: int) -> None:
    parts: list[tuple[int, int]] = []
    ThreadTeam(threads).parallel_for(count, lambda first, end: parts.append((first, end)))
    parts.sort()
    assert [i for first, end in parts for i in range(first, end)] == list(range(count))
    assert len(parts) == min(count, threads)
    sizes = [end - first for first, end in parts]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_the_parts_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)
    ThreadTeam(3).parallel_for(3, lambda first, end: meeting.wait())
    assert not meeting.broken


def test_an_error_of_a_part_is_raised_when_all_have_ended() -> None:
    finished: list[int] = []

    def part(first: int, end: int) -> None:
        if first == 1:
            raise ValueError("part 1")
        finished.append(first)

    team = ThreadTeam(3)
    for _ in range(2):  # the team goes on after an error
        with pytest.raises(ValueError, match="part 1"):
            team.parallel_for(3, part)
    assert sorted(finished) == [0, 0, 2, 2]


def test_a_team_of_one_runs_in_the_calling_thread() -> None:
    seen: list[threading.Thread] = []
    ThreadTeam(1).parallel_for(5, lambda first, end: seen.append(threading.current_thread()))
    assert seen == [threading.current_thread()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_starts_threads_of_its_own() -> None:
    team = ThreadTeam(3)

    def run() -> None:
        meeting = threading.Barrier(3, timeout=30)
        team.parallel_for(3, lambda first, end: meeting.wait())

    run()
    assert succeeds_in_child(run)
    run()
