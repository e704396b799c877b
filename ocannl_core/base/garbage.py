"""Collection of reference cycles that hold large memory.

Tensors, their gradients and compiled code refer to each other, so only the cyclic collector frees
them. It counts objects and not bytes: a few dropped literals of 100 MB would stay for a long time.
So it also runs when the bytes of large memory allocated since its last run reach the bytes that
were alive after that run.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ocannl_core.base.forks import note_threads, process_lock

_LARGE = 1 << 20
"""Smaller memory is not counted, in bytes."""
_LEAST = 1 << 26
"""The least garbage that triggers a run, in bytes."""


class _Counts:
    """Bytes of large memory.

    Attributes:
        alive: All bytes that have not been freed.
        kept: The bytes alive after the last run of the collector.
        made: The bytes allocated since.
        disabled_by: The thread that has disabled the collector in `without_collections`, or None.
    """

    __slots__ = ("__weakref__", "alive", "disabled_by", "kept", "lock", "made")

    def __init__(self) -> None:
        self.alive = self.kept = self.made = 0
        self.disabled_by: int | None = None
        note_threads(self)
        self.lock = process_lock()  # objects may be freed while it is held

    def make(self, nbytes: int) -> None:
        with self.lock:
            self.alive += nbytes
            self.made += nbytes

    def free(self, nbytes: int) -> None:
        with self.lock:
            self.alive -= nbytes

    def _after_fork(self) -> None:
        """Enable the collector, if a thread that the child lacks has disabled it."""
        if self.disabled_by not in (None, threading.get_ident()):
            gc.enable()
            self.disabled_by = None


_counts = _Counts()


def note_memory(owner: Any, nbytes: int) -> None:
    """Count memory that is freed with its owner."""
    if nbytes >= _LARGE:
        _counts.make(nbytes)
        weakref.finalize(owner, _counts.free, nbytes).atexit = False


def collect_if_due() -> None:
    """Run the cyclic collector if much memory may be garbage and the program enables it."""
    if _counts.made > max(_LEAST, _counts.kept) and gc.isenabled():
        gc.collect()
        with _counts.lock:
            _counts.kept, _counts.made = _counts.alive, 0


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector, for code that allocates many objects and no cycles: each
    collection would traverse all objects of the process.
    """
    if not gc.isenabled():
        yield
        return
    try:
        _counts.disabled_by = threading.get_ident()
        gc.disable()
        yield
    finally:
        gc.enable()
        _counts.disabled_by = None
