"""A parallel loop over ranges of iterations, for backends whose kernels release the GIL."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from ocannl_core.base.forks import note_threads, process_lock

Part = Callable[[int, int], object]
"""A function of a first iteration and an end."""


class ThreadTeam:
    """Threads that share the iterations of PARALLEL loops.

    The iterations are cut into contiguous parts, one for each thread, of sizes that differ by one
    at most; so results do not depend on the number of threads. The calling thread works, too.

    Args:
        threads: The number of threads; 1 runs everything in the calling thread.
        name: The device, for the names of the threads.
    """

    def __init__(self, threads: int, name: str = "device") -> None:
        self.threads = max(1, threads)
        self._name = name
        self._work: SimpleQueue[_Share | None] = SimpleQueue()
        self._started = False
        self._lock = process_lock()
        note_threads(self)

    def parallel_for(self, count: int, function: Part) -> None:
        """Call `function(first, end)` for parts that make up `range(count)`, at the same time.

        Raises:
            BaseException: the error of the first part that failed, after all parts have ended.
        """
        parts = min(self.threads, count)
        if parts < 2:
            if count > 0:
                function(0, count)
            return
        self._start()
        ends = [count * (k + 1) // parts for k in range(parts)]
        own, *others = [
            _Share(function, first, end) for first, end in zip([0, *ends], ends, strict=False)
        ]
        for each in others:
            self._work.put(each)
        own.run()
        for each in others:
            each.finished.wait()
        for each in (own, *others):
            if each.error is not None:
                raise each.error

    def _after_fork(self) -> None:
        """Start other threads at the next loop."""
        self._work, self._started = SimpleQueue(), False

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            self._started = True
            for number in range(1, self.threads):
                name = f"{self._name}, thread {number}"
                thread = threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True)
                thread.start()
            weakref.finalize(self, _stop, self._work, self.threads - 1)


class _Share:
    """A part of the iterations of one loop."""

    __slots__ = ("_end", "_first", "_function", "error", "finished")

    def __init__(self, function: Part, first: int, end: int) -> None:
        self._function, self._first, self._end = function, first, end
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._function(self._first, self._end)
        except BaseException as error:
            self.error = error
        finally:
            self.finished.set()


def _serve(work: SimpleQueue[_Share | None]) -> None:
    while (share := work.get()) is not None:
        share.run()


def _stop(work: SimpleQueue[_Share | None], threads: int) -> None:
    for _ in range(threads):
        work.put(None)
