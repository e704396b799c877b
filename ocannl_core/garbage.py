"""Large memory that only the collector of cycles can free.

Tensors, their gradients and compiled code refer to each other. What a program drops is freed when
the collector runs, which counts objects and not bytes: a few dropped literals of 100 MB would stay
for a long time. So it runs, too, when as much large memory has been made as was alive after its
last run.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

_LARGE = 1 << 20
"""Smaller memory is not counted."""
_LEAST = 1 << 26
"""Less garbage than this is left to the collector's own count."""


class _Counts:
    """Bytes of large memory.

    Attributes:
        alive: All that has not been freed.
        kept: What was alive after the last run of the collector.
        made: What has been made since.
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
    """Run the collector of cycles if much may have become garbage. Nothing happens where the
    program has switched it off.
    """
    if _counts.made > max(_LEAST, _counts.kept) and gc.isenabled():
        gc.collect()
        with _counts.lock:
            _counts.kept, _counts.made = _counts.alive, 0
