"""A process beside a group, which names the process that ended in the middle of the work.

Launchers kill the others when one ends without leaving MPI; if it ended with status 0, some do so
without a word and with status 0, so that none of the group can report it. The watcher of a machine
is outside of the group. It needs Linux.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

_SOON = 0.05
"""Seconds for the ends of others that a launcher kills."""
_KILLED = ", by signal 9"
_PATIENCE = 5000
"""Milliseconds for the other processes to leave the group, too, after one of them has ended."""


class Watcher:
    """The watcher of the processes of one machine.

    Args:
        processes: The numbers of the processes by rank.
        size: The number of processes of the group, for messages.
        machine: The name of the machine, for messages.
    """

    def __init__(self, processes: Mapping[int, int], size: int, machine: str) -> None:
        each = [f"{rank}:{process}" for rank, process in processes.items()]
        command = [sys.executable, "-I", "-S", __file__, str(size), machine, *each]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # launchers signal the group of this process
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # "ready": from now on it misses none

    def finish(self, *, is_complete: bool) -> None:
        """End it: from now on the processes may end.

        Args:
            is_complete: False if this process was interrupted, as by a launcher after the end of
                another one, which is then reported.
        """
        with suppress(OSError):
            self._process.communicate(b"done" if is_complete else b"stop")


def _main(size: str, machine: str, *processes: str) -> None:
    """Wait for the first end of a process; report it unless the group is done."""
    poll = select.epoll()
    poll.register(0, select.EPOLLIN)
    opened: dict[int, tuple[str, int]] = {}
    for each in processes:
        rank, _, process = each.partition(":")
        try:
            descriptor = os.pidfd_open(int(process))
        except OSError:  # of another container, or a kernel that refuses
            return
        poll.register(descriptor, select.EPOLLIN)
        opened[descriptor] = rank, int(process)
    print("ready", flush=True)
    ended: dict[str, str] = {}
    patience: float | None = None
    while found := poll.poll(patience):
        for descriptor, _ in found:
            poll.unregister(descriptor)
            if descriptor:
                rank, number = opened[descriptor]
                place = f"rank {rank} of {size} on {machine}, process {number}"
                ended[place] = _status(number)
                patience = _SOON
            else:
                message = os.read(0, 4)
                if message == b"done" or (message == b"stop" and not ended):
                    return
    if not _is_done():
        # the launcher has killed the others, some of which may end before
        place = min(ended, key=lambda each: _KILLED in ended[each])
        print(
            f"ocannl_mpi: {place}, ended in the middle of the work{ended[place]}", file=sys.stderr
        )


def _is_done() -> bool:
    """Return True if process 0 of the machine leaves the group soon."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(_PATIENCE)) and os.read(0, 4) == b"done"


def _status(process: int) -> str:
    """Return how a process ended, as far as it can still be seen."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            status = int(file.read().rpartition(")")[2].split()[49])
    except (OSError, ValueError, IndexError):
        return ""
    return f", by signal {status & 127}" if status & 127 else f", with status {status >> 8}"


if __name__ == "__main__":
    _main(*sys.argv[1:])
