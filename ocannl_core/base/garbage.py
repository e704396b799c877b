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
from typing import Any

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
    """

    __slots__ = ("alive", "kept", "lock", "made")

    def __init__(self) -> None:
        self.alive = self.kept = self.made = 0
        self.lock = threading.RLock()  # objects may be freed while it is held

    def make(self, nbytes: int) -> None:
        with self.lock:
            self.alive += nbytes
            self.made += nbytes

    def free(self, nbytes: int) -> None:
        with self.lock:
            self.alive -= nbytes


_counts = _Counts()


def note_memory(owner: Any, nbytes: int) -> None:
    """Count memory that is freed with its owner."""
    if nbytes >= _LARGE:
        _counts.make(nbytes)
        weakref.finalize(owner, _counts.free, nbytes).atexit = False


def collect_if_due() -> None:
    """Run the cyclic collector if much memory may be garbage, unless the program has disabled
    it.
    """
    if _counts.made > max(_LEAST, _counts.kept) and gc.isenabled():
        gc.collect()
        with _counts.lock:
            _counts.kept, _counts.made = _counts.alive, 0
