"""State of threads that the child of a fork starts anew: of all threads it has the forking one."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class _Lock(Protocol):
    """A lock as the child of a fork finds it."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...

    def _at_fork_reinit(self) -> None: ...


class OfThreads(Protocol):
    """An object whose state includes threads, or locks that they hold."""

    def _after_fork(self) -> None:
        """Go on without other threads, in the child of a fork."""


_locks: weakref.WeakSet[_Lock] = weakref.WeakSet()
_objects: weakref.WeakSet[OfThreads] = weakref.WeakSet()


def process_lock() -> threading.RLock:
    """Return a reentrant lock that is free in the child of a fork, whichever thread of the parent
    held it.

    It guards changes of which each step leaves valid data, such as those of caches.
    """
    lock = threading.RLock()
    _locks.add(lock)  # type: ignore[arg-type]  # a method that only Python itself documents
    return lock


def note_threads(owner: OfThreads) -> None:
    """Let the child of a fork call `_after_fork` of an object, as long as it lives."""
    _objects.add(owner)


def _start_anew() -> None:
    for lock in list(_locks):
        if lock.acquire(blocking=False):  # free, or held by the thread that has forked
            lock.release()
        else:
            lock._at_fork_reinit()
    for owner in list(_objects):
        owner._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
