"""A queue of work for one device, done in order by a thread of its own, with events.

queue = HostQueue("cpu_c:1")
event = queue.submit(work, "step")     # returns at once
event.wait()                           # returns when the work is done, or raises its error
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ocannl_core.backend.protocols import Event
from ocannl_core.base.errors import UsageError
from ocannl_core.base.forks import note_threads, process_lock

Work = Callable[[], object]


class QueueEvent:
    """The end of one piece of work in a queue.

    Attributes:
        label: The work, for messages.
        is_done: True once it has been done, or has failed.
        error: Its error; None while it is not done, and if it succeeded.
    """

    __slots__ = ("_lock", "error", "is_done", "label", "queue")

    def __init__(self, label: str, queue: HostQueue) -> None:
        self.label = label
        self.queue = queue
        self.is_done = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        """Return when the work is done.

        Raises:
            Exception: the error of the work, or of earlier work, for which it was left out.
        """
        self.join()
        if self.error is not None:
            self.queue.forgive()
            raise self.error

    def join(self) -> None:
        """Return when the work is done or has failed; raise nothing."""
        if not self.is_done:
            with self._lock:
                pass

    def finish(self, error: BaseException | None = None) -> None:
        """Record the end of the work."""
        self.error = error
        self.is_done = True
        self._lock.release()


class HostQueue:
    """Work in the order of submission, on one thread.

    When work fails, the work submitted behind it is left out, and its events raise the same error,
    until a wait or a later submission has raised it. So does work that is not over when the process
    forks, in the child.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._items: SimpleQueue[tuple[Work, QueueEvent] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = process_lock()
        self._failure: BaseException | None = None
        self._last: QueueEvent | None = None
        self._begun: QueueEvent | None = None
        note_threads(self)
        atexit.register(_drain, weakref.ref(self))

    def submit(self, work: Work, label: str) -> QueueEvent:
        """Append work; return the event of its end.

        Raises:
            Exception: the error of earlier work, if nothing has raised it yet.
        """
        if self._failure is not None:
            failure = self._failure
            self.forgive()
            raise failure
        event = QueueEvent(label, self)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_serve, args=(weakref.ref(self), self._items), daemon=True
                )
                self._thread.name = f"queue of {self.name}"
                self._thread.start()
            self._last = event
            self._items.put((work, event))
        return event

    def wait_for(self, event: Event) -> None:
        """Let the work submitted from now on begin after an event of another queue.

        An error of that event is an error of this queue, too.
        """
        if isinstance(event, QueueEvent):
            if event.queue is self or (event.is_done and event.error is None):
                return
            self.submit(event.wait, event.label)
        else:
            self.submit(event.wait, "an event of another device")

    @property
    def last(self) -> QueueEvent | None:
        """The end of the work submitted last; None without any."""
        return self._last

    def synchronize(self) -> None:
        """Return when all work submitted so far is done.

        Raises:
            Exception: the error of work that failed, if nothing has raised it yet.
        """
        last = self._last
        if last is not None:
            last.join()
        if self._failure is not None:
            failure = self._failure
            self.forgive()
            raise failure

    def forgive(self) -> None:
        """Forget the failure, which somebody has raised: later work is done again."""
        self._failure = None

    def run(self, work: Work) -> BaseException | None:
        """Do one piece of work, unless earlier work failed; return the error."""
        if self._failure is None:
            try:
                work()
            except BaseException as error:
                self._failure = error
        return self._failure

    def _after_fork(self) -> None:
        """Fail the work that is not over: the thread that does it is another process's."""
        if self._thread is threading.current_thread():  # its work has forked
            return
        begun = self._begun
        left = [] if begun is None or begun.is_done else [begun]
        with suppress(Empty):
            while True:
                item = self._items.get_nowait()
                left += [] if item is None else [item[1]]
        self._items, self._thread, self._begun = SimpleQueue(), None, None
        for event in left:
            self._failure = UsageError(
                "The child of a fork has the results of work that was over before.",
                found=f"{event.label}: not over when the process forked",
                where=f"the queue of {self.name}",
                fix="ctx.synchronize() before the fork",
            )
            event.finish(self._failure)

    def close(self) -> None:
        """End the thread after the work submitted so far."""
        self._items.put(None)

    def __del__(self) -> None:
        self.close()


def _serve(
    owner: weakref.ref[HostQueue], items: SimpleQueue[tuple[Work, QueueEvent] | None]
) -> None:
    """Do work until the queue is closed or gone."""
    while True:
        item = items.get()
        queue = owner()
        if item is None or queue is None:
            return
        work, event = item
        queue._begun = event
        error = queue.run(work)
        del item, work, queue  # before anybody waits for its memory to be free
        event.finish(error)
        del event, error


def _drain(owner: weakref.ref[HostQueue]) -> None:
    """Finish the work of a queue at the end of the process."""
    queue = owner()
    if queue is not None and queue._thread is not None and queue._thread.is_alive():
        last = queue._last
        if last is not None:
            last.join()
