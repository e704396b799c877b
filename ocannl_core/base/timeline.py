"""Timelines in the format of Chrome's trace viewer: stages of compilation, kernels, copies.

The setting `timeline` names a file, which is written at the end of the process and by `write`;
`chrome://tracing` and Perfetto show it. Each compilation reads the setting, and `use` switches
recording on or off; while it is off, an event costs one comparison.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ocannl_core.base.errors import SettingsError
from ocannl_core.base.files.new_files import write_text
from ocannl_core.base.forks import process_lock

_path: str | None = None
_events: list[tuple[str, str, float, float, int]] = []
_paths: set[str] = set()
_lock = process_lock()


def use(path: str | None) -> None:
    """Record events for a file from now on; None records none."""
    global _path
    if path is not None and path not in _paths:
        with _lock:
            if not _paths:
                atexit.register(write)
            _paths.add(path)
    _path = path


def is_on() -> bool:
    """Return True if events are recorded."""
    return _path is not None


@contextmanager
def span(category: str, name: str) -> Iterator[None]:
    """Record the time of a `with` statement under a name."""
    start = perf_counter()
    try:
        yield
    finally:
        record(category, name, start, perf_counter())


def record(category: str, name: str, start: float, end: float) -> None:
    """Record an event between two times of `perf_counter`."""
    if _path is not None:
        with _lock:
            _events.append((category, name, start, end, threading.get_ident()))


def write() -> None:
    """Write the events so far to the files that the setting has named.

    Raises:
        SettingsError: if a file cannot be written.
    """
    with _lock:
        events = list(_events)
        paths = sorted(_paths)
    first = min((start for _, _, start, _, _ in events), default=0.0)
    rows = [
        {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": round(1e6 * (start - first), 3),
            "dur": round(1e6 * (end - start), 3),
            "pid": os.getpid(),
            "tid": thread,
        }
        for category, name, start, end, thread in events
    ]
    text = json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}, indent=1)
    for path in paths:
        try:
            write_text(path, text)
        except OSError as error:
            raise SettingsError(
                "The setting timeline names a file that can be written.",
                found=error.strerror or str(error),
                where=f"timeline = {str(path)!r}",
                fix="choose another file, or unset timeline",
            ) from error


def clear() -> None:
    """Forget the events so far, and record none."""
    use(None)
    with _lock:
        _events.clear()
        _paths.clear()
