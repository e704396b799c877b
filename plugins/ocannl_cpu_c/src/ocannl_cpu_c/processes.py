"""Compiler processes, none of which outlives the process that started it.

A compiler and its subprocesses are a process group of their own, so that all of them can be
stopped. If this process is killed, a shell that waits for the end of a pipe stops them. It starts
in parallel with the first compiler.

The output of a compiler goes to a file in memory: a pipe would stay open as long as any subprocess
left behind, and a file on a full disk would lose messages.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from ocannl_core.backend_api.queues import process_lock

_SHELL = "/bin/sh"
_WATCH = """\
trap '' HUP INT QUIT TERM
groups=" "
while read -r change group; do
  case $change in
    +) groups="$groups$group ";;
    -) groups="${groups%% $group *} ${groups#* $group }";;
  esac
done
for group in $groups; do kill -s TERM -- "-$group"; left=yes; done
[ -z "$left" ] || sleep 0.5
for group in $groups; do kill -s KILL -- "-$group"; done
"""
"""The script of the shell: reads starts and ends of process groups; stops the rest at end of
file.
"""

_SOON = 0.1
"""Seconds that a compiler may run unwatched, for queries of its version and macros."""
_GRACE = 0.2
"""Seconds for a stopped compiler to remove its temporary files."""


class Process:
    """A running compiler in a process group of its own.

    Args:
        command: The program and its arguments.
        variables: Additions to the environment of this process.
        descriptors: Descriptors of this process that it inherits under the same numbers.
        is_watched: False for one that is watched only if it takes long.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        *,
        is_watched: bool = True,
    ) -> None:
        self._output = _memory()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                # untranslated messages
                env={**os.environ, "LC_ALL": "C", **(variables or {})},
                pass_fds=descriptors,
                process_group=0,
            )
        except BaseException:
            self._output.close()
            raise
        self._is_watched = is_watched
        try:
            with _lock:
                _running[self] = None
            if is_watched:
                _watch(self._process.pid)
        except BaseException:  # as of somebody who interrupts this
            self.stop()
            raise

    @property
    def is_running(self) -> bool:
        """Return True until it has ended."""
        return self._process.poll() is None

    def finish(self) -> tuple[int, str]:
        """Wait for its end; return the exit status and the output."""
        if not self._is_watched and not self._ends_soon():
            self._is_watched = True
            _watch(self._process.pid)
        status = self._process.wait()
        self._end()
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        self._output.close()
        return status, output

    def stop(self) -> None:
        """Stop it and its subprocesses, if it still runs."""
        if self._output.closed:
            return
        for number, seconds in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
            if self._process.poll() is not None:
                break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._end()
        self._output.close()

    def _ends_soon(self) -> bool:
        """Return True if it ends within the time that it may run unwatched."""
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            return not self.is_running
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(1000 * _SOON))
        finally:
            os.close(descriptor)

    def _end(self) -> None:
        with _lock:
            _running.pop(self, None)
        if self._is_watched:
            self._is_watched = False
            _forget(self._process.pid)


def _memory() -> IO[bytes]:
    """Return a file that needs no disk."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            return open(os.memfd_create("ocannl-compiler"), "w+b", buffering=0)
    import tempfile  # takes longer than this module

    return tempfile.TemporaryFile(buffering=0)


_lock = process_lock()
_running: dict[Process, None] = {}
_watched: set[int] = set()


class _Watcher:
    """The shell that stops process groups, and the pipe to it."""

    def __init__(self) -> None:
        reader, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(
                (_SHELL, "-c", _WATCH),
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # signals for the group of this process are not for it
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)

    def send(self, text: str) -> None:
        os.write(self._pipe, text.encode())

    def close(self) -> None:
        """Close the pipe, as the end of this process does."""
        os.close(self._pipe)

    def finish(self) -> None:
        self.close()
        self._shell.wait()


_watcher: list[_Watcher] = []


def _watch(group: int) -> None:
    """Register a process group to be stopped if this process is killed."""
    with _lock:
        _watched.add(group)
        if _watcher and _notify_watcher(f"+ {group}\n"):
            return
        with suppress(OSError):  # without a shell, nothing is watched
            _watcher[:] = [_Watcher()]
            _notify_watcher("".join(f"+ {each}\n" for each in _watched))


def _forget(group: int) -> None:
    """Unregister a process group that has ended; its number may be reused."""
    with _lock:
        _watched.discard(group)
        if _watcher:
            _notify_watcher(f"- {group}\n")


def _notify_watcher(text: str) -> bool:
    """Send a line to the shell; return False if it is gone."""
    try:
        _watcher[0].send(text)
    except OSError:
        _watcher.pop().close()
        return False
    return True


def _stop_all() -> None:
    with _lock:
        for each in list(_running):
            each.stop()
        if _watcher:
            _watcher.pop().finish()


def _let_go() -> None:
    """Drop the watcher in a forked process; it belongs to the parent."""
    _running.clear()
    _watched.clear()
    if _watcher:
        _watcher.pop().close()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
