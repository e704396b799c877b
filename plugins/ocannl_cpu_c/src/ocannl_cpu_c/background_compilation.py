"""Compiling ahead: a compiler works on the first kernels while the others are still made.

What runs is known to the whole process. Whoever loads kernels waits for the files that define them;
files that nobody asks for are forgotten when the process ends.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from ocannl_core.codegen.kernel_text import CompilerVectorisation, KernelText
from ocannl_cpu_c.cache import Building, DiskCache, TranslationUnit
from ocannl_cpu_c.translation_units import file_of, key, seconds, units

_LEAST_SECONDS = 0.02
"""What is worth a compiler of its own before everything is there: starting one takes as long."""

_MOST = 200
"""So many files wait for somebody who loads them; each is a process and a pipe."""

_lock = threading.Lock()
_running: dict[DiskCache, list[Building]] = {}


class Ahead:
    """The kernels of one routine, given to compilers as they come.

    Args:
        cache: Where they go.
        processors: How many there are; one makes kernels until all are there.
        is_there: Tells whether a kernel needs no compiler.
    """

    def __init__(
        self,
        cache: DiskCache,
        processors: int,
        is_there: Callable[[KernelText], bool],
    ) -> None:
        self._cache = cache
        self._processors = processors
        self._is_there = is_there
        self._known: set[str] = set()
        self._waiting: dict[CompilerVectorisation, list[KernelText]] = {
            loops: [] for loops in CompilerVectorisation
        }

    def add(self, kernel: KernelText) -> None:
        """Takes a kernel; starts a compiler if that is worth it and a processor is free."""
        identity = key(kernel)
        if identity in self._known or self._is_there(kernel):
            return
        self._known.add(identity)
        alike = self._waiting[kernel.vectorisation]
        alike.append(kernel)
        if sum(map(seconds, alike)) >= _LEAST_SECONDS and _count() < self._processors - 1:
            self._waiting[kernel.vectorisation] = []
            start(self._cache, [file_of(alike)])

    def close(self) -> None:
        """Starts to compile all that waits."""
        left = [kernel for alike in self._waiting.values() for kernel in alike]
        self._waiting = {loops: [] for loops in CompilerVectorisation}
        if left:
            start(self._cache, units(left, self._processors))


def start(cache: DiskCache, files: Sequence[TranslationUnit]) -> None:
    """Starts to compile files that are not being compiled."""
    with _lock, suppress(OSError):  # who loads what they define tries again, and says what is wrong
        started = _started(cache)
        for each in files:
            if not any(each.keys == other.unit.keys for other in started):
                started.append(cache.start(each))
        while len(started) > _MOST:  # of routines that were generated and never compiled
            started.pop(0).stop()


def taken(cache: DiskCache, keys: Collection[str]) -> list[Building]:
    """Returns the files being compiled that define some of these kernels, for the caller to wait
    for.
    """
    with _lock:
        started = _started(cache)
        found = [each for each in started if not set(keys).isdisjoint(each.unit.keys)]
        for each in found:
            started.remove(each)
        return found


def _started(cache: DiskCache) -> list[Building]:
    return _running.setdefault(cache, [])


def _count() -> int:
    """Returns how many compilers are at work."""
    with _lock:
        started = [each for several in _running.values() for each in several]
        return sum(each.compilation.process.is_running for each in started)


def stop() -> None:
    """Ends all compilers that work ahead."""
    with _lock:
        every = [each for several in _running.values() for each in several]
        _running.clear()
    for each in every:
        with suppress(OSError):
            each.stop()


atexit.register(stop)
os.register_at_fork(after_in_child=_running.clear)  # a forked process must not stop them
