"""Reports of searches while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[object], None]
"""Called with the printable result for a kernel, or for the placements of a routine."""

_listener: ContextVar[Listener | None] = ContextVar("listener to searches", default=None)


@contextmanager
def report_searches(listener: Listener) -> Iterator[None]:
    """Pass every result of searches inside to a function."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(found: object) -> None:
    """Pass a result to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(found)
