"""The process that names a member of a group which ended in the middle of the work."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ocannl_mpi.watching import Watcher

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="the watcher needs process descriptors of Linux"
)


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
def test_an_interrupted_process_lets_the_end_of_another_be_named(
    capfd: pytest.CaptureFixture[str], *, has_ended: bool, is_complete: bool
) -> None:
    """As under launchers that interrupt the others when one ends with status 0."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watcher = Watcher({0: os.getpid(), 1: other.pid}, 2, "here")
    try:
        if has_ended:
            other.communicate(b"\n")
        watcher.finish(is_complete=is_complete)
    finally:
        other.communicate()
    named = f"rank 1 of 2 on here, process {other.pid}, ended in the middle of the work"
    assert (named in capfd.readouterr().err) is (has_ended and not is_complete)


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_process_that_ended_by_itself_is_named_before_one_that_was_killed(
    capfd: pytest.CaptureFixture[str], *, is_collected: bool
) -> None:
    """Launchers may kill and collect the others before the first has wholly ended."""
    killed, quitting = (subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2))
    watcher = Watcher({0: os.getpid(), 1: killed.pid, 2: quitting.pid}, 3, "here")
    try:
        killed.kill()
        if is_collected:
            killed.wait()
        assert quitting.stdin is not None
        quitting.stdin.close()
        os.waitid(os.P_PID, quitting.pid, os.WEXITED | os.WNOWAIT)  # it stays uncollected
        time.sleep(0.1)
        watcher.finish(is_complete=False)
    finally:
        killed.wait()
        quitting.wait()
    printed = capfd.readouterr().err
    assert f"rank 2 of 3 on here, process {quitting.pid}, ended in the middle" in printed
    assert printed.endswith(", with status 0\n")
    assert "rank 1" not in printed
