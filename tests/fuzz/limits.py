"""Time limits of examined code."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Hang(BaseException):
    """The time is up."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Interrupt a block after some seconds, if the platform has timers and this is the main
    thread.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Hang

    try:
        before = signal.signal(signal.SIGALRM, stop)
    except (AttributeError, ValueError):
        yield
        return
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
