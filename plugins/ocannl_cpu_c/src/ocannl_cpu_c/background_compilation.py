"""Background compilation of the first kernels while the others are generated.

Running compilers are registered for the whole process. Loading kernels waits for the files that
define them; files that are never loaded are abandoned at the end of the process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from ocannl_core.backend_api.launches import CompilerVectorization, KernelText
from ocannl_core.backend_api.queues import process_lock
from ocannl_cpu_c.cache import Building, DiskCache, TranslationUnit
from ocannl_cpu_c.translation_units import checked_loops, estimated_seconds, file_of, key, units

_LEAST_SECONDS = 0.02
"""The least estimated compile time for an early file: starting a compiler takes as long."""

_MOST = 200
"""The greatest number of files that wait to be loaded; each has a process and a pipe."""

_lock = process_lock()
_running: dict[Path, list[Building]] = {}


class BackgroundCompilation:
    """The kernels of one routine, handed to compilers as they are generated.

    Args:
        cache: The cache for the compiled kernels.
        processors: The number of processors; one generates kernels until all are complete.
        is_compiled: A predicate for kernels that are already compiled.
        begin_check: Starts the check of the compiler for a kind of loops, unless it has passed.
    """

    def __init__(
        self,
        cache: DiskCache,
        processors: int,
        is_compiled: Callable[[KernelText], bool],
        begin_check: Callable[[CompilerVectorization], None],
    ) -> None:
        self._cache = cache
        self._processors = processors
        self._is_there = is_compiled
        self._begin_check = begin_check
        self._checked: set[CompilerVectorization] = set()
        self._known: set[str] = set()
        self._waiting: dict[CompilerVectorization, list[KernelText]] = {
            loops: [] for loops in CompilerVectorization
        }

    def add(self, kernel: KernelText) -> None:
        """Add a kernel; start a compiler if enough kernels wait and a processor is free."""
        identity = key(kernel)
        if identity in self._known or self._is_there(kernel):
            return
        self._known.add(identity)
        loops = checked_loops(kernel.vectorization)
        if loops not in self._checked:
            self._checked.add(loops)
            self._begin_check(loops)
        alike = self._waiting[kernel.vectorization]
        alike.append(kernel)
        is_worth_it = sum(map(estimated_seconds, alike)) >= _LEAST_SECONDS
        if is_worth_it and _count_running() < self._processors - 1:
            self._waiting[kernel.vectorization] = []
            start(self._cache, [file_of(alike)])

    def close(self) -> None:
        """Start to compile all waiting kernels."""
        left = [kernel for alike in self._waiting.values() for kernel in alike]
        self._waiting = {loops: [] for loops in CompilerVectorization}
        if left:
            start(self._cache, units(left, self._processors))


def start(cache: DiskCache, files: Sequence[TranslationUnit]) -> None:
    """Start to compile files that are not being compiled."""
    with _lock, suppress(OSError):  # loading the kernels compiles again, and reports the error
        started = _running_of(cache)
        for each in files:
            if not any(each.keys == other.unit.keys for other in started):
                started.append(cache.start(each))
        while len(started) > _MOST:  # of routines that were generated and never compiled
            started.pop(0).stop()


def take_running(cache: DiskCache, keys: Collection[str]) -> list[Building]:
    """Remove and return the files in compilation that define some of these kernels; the caller
    waits for them.
    """
    with _lock:
        started = _running_of(cache)
        found = [each for each in started if not set(keys).isdisjoint(each.unit.keys)]
        for each in found:
            started.remove(each)
        return found


def _running_of(cache: DiskCache) -> list[Building]:
    return _running.setdefault(cache.compiled.objects.path, [])


def _count_running() -> int:
    """Return the number of running compilers."""
    with _lock:
        started = [each for several in _running.values() for each in several]
        return sum(each.compilation.process.is_running for each in started)


def stop() -> None:
    """Stop all background compilers."""
    with _lock:
        every = [each for several in _running.values() for each in several]
        _running.clear()
    for each in every:
        with suppress(OSError):
            each.stop()


atexit.register(stop)
if hasattr(os, "register_at_fork"):  # a forked process must not stop them
    os.register_at_fork(after_in_child=_running.clear)
