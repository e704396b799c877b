"""A time limit for code of plugins that may hang: its import, and its search for devices.

In the main thread a timer signal interrupts the code, also in system calls. In other threads, and
where the program has a timer of its own, a helper thread runs the code and is left behind when the
time is over.
"""

from __future__ import annotations

import contextvars
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TypeVar

from ocannl_core.base.interruptions import Overdue

T = TypeVar("T")

_AGAIN = 1.0
"""Seconds until the next interruption of code that has caught the previous one."""


def call_within(seconds: float, action: Callable[[], T]) -> T:
    """Return the result of a function that takes no longer than a limit.

    Raises:
        TimeoutError: if it takes longer. Errors of the function propagate.
    """
    seconds = min(seconds, threading.TIMEOUT_MAX)  # clocks overflow beyond
    if (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        and signal.getsignal(signal.SIGALRM) is not None
    ):
        return _interrupt_after(seconds, action)
    return _abandon_after(seconds, action)


def _interrupt_after(seconds: float, action: Callable[[], T]) -> T:
    # posix: elsewhere no timer is free
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return action()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    except Overdue as error:  # its traceback has the place
        raise TimeoutError(_text(seconds)) from error


def _abandon_after(seconds: float, action: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    context = contextvars.copy_context()  # for the settings in force here
    thread = threading.Thread(target=context.run, args=(run,), daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise overdue(seconds, thread)
    return results[0]


def overdue(seconds: float, thread: threading.Thread) -> TimeoutError:
    """Return the error of a thread that takes longer than a limit; the place is in its cause."""
    error = TimeoutError(_text(seconds))
    error.__cause__ = Overdue().with_traceback(_place_of(thread))
    return error


def _place_of(thread: threading.Thread) -> TracebackType | None:
    """Return the place at which a thread is now, as the traceback of an error there."""
    frame = sys._current_frames().get(thread.ident or 0)
    place: TracebackType | None = None
    while frame is not None:
        place = TracebackType(place, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return place


def _text(seconds: float) -> str:
    return f"not finished after {seconds:g} s"
