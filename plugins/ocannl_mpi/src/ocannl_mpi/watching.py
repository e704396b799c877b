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
_PATIENCE = 5000
"""Milliseconds for the other processes to leave the group, too, after one of them has ended."""


_IS_EXITING, _IS_SIGNALED = 0x4, 0x400
"""Flags of a process in Linux: it ends; a signal ends it."""


class _Member:
    """A process of the group, and its end as far as it has been seen.

    A process that ends closes its files, which its launcher notices and answers by killing the
    others, before its descriptor reports the end: the order of ends tells nothing. How each has
    ended does, unless its launcher has collected the status before.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name
        self.end: str | None = None
        self._is_signaled = False

    def look(self) -> None:
        """Note how the process ends, if it does."""
        if self.end is not None:
            return
        try:
            with open(f"/proc/{self._number}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            flags, status = int(fields[6]), int(fields[49])
        except (OSError, ValueError, IndexError):
            return
        if flags & _IS_EXITING:
            self._is_signaled = bool(flags & _IS_SIGNALED or status & 127)
            signal = f", by signal {status & 127}"
            self.end = signal if self._is_signaled else f", with status {status >> 8}"

    @property
    def innocence(self) -> int:
        """0 if it ended by itself, 1 if its status was not seen, 2 if a signal ended it.

        A launcher kills the others, so that the least innocent has ended first.
        """
        return 1 if self.end is None else 2 * self._is_signaled

    @property
    def place(self) -> str:
        return f"{self._name}, process {self._number}"


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
    members: dict[int, _Member] = {}
    for each in processes:
        rank, _, process = each.partition(":")
        try:
            descriptor = os.pidfd_open(int(process))
        except OSError:  # of another container, or a kernel that refuses
            return
        poll.register(descriptor, select.EPOLLIN)
        members[descriptor] = _Member(int(process), f"rank {rank} of {size} on {machine}")
    print("ready", flush=True)
    ended: list[_Member] = []
    patience: float | None = None
    while found := poll.poll(patience):
        for descriptor, _ in found:
            poll.unregister(descriptor)
            if descriptor:
                ended.append(members[descriptor])
                patience = _SOON
            else:
                message = os.read(0, 4)
                if message == b"done" or (message == b"stop" and not ended):
                    return
        for member in members.values():
            member.look()
    if not _is_done():
        ended += [each for each in members.values() if each.end and each not in ended]
        least = min(each.innocence for each in ended)
        suspects = [each for each in ended if each.innocence == least]
        places = ", or ".join(each.place for each in suspects)
        ends = {each.end or "" for each in suspects}
        how = ends.pop() if len(ends) == 1 else ""
        print(f"ocannl_mpi: {places}, ended in the middle of the work{how}", file=sys.stderr)


def _is_done() -> bool:
    """Return True if process 0 of the machine leaves the group soon."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(_PATIENCE)) and os.read(0, 4) == b"done"


if __name__ == "__main__":
    _main(*sys.argv[1:])
