"""A progress bar, drawn only on terminals."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24


class ProgressBar:
    """A line that is redrawn on a terminal; elsewhere a plain line at every quarter.

    Args:
        title: The text in front.
        total: The number of calls of `advance`.
        quiet: True to write nothing.
        stream: The output; by default standard error, so that results can be piped.
    """

    def __init__(
        self, title: str, total: int, *, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._title = title
        self._total = total
        self._quiet = quiet
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty()
        self._done = 0
        self._start = time.perf_counter()

    def advance(self, note: str) -> None:
        """Count one step and show the note beside the bar."""
        self._done += 1
        if self._quiet:
            return
        filled = _WIDTH * self._done // self._total
        bar = "█" * filled + "░" * (_WIDTH - filled)
        seconds = time.perf_counter() - self._start
        line = f"{self._title} {bar} {self._done}/{self._total}  {note}  {seconds:.1f} s"
        if self._is_terminal:
            end = "\n" if self._done == self._total else ""
            self._stream.write(f"\r\x1b[K{line}{end}")
        elif self._done * 4 // self._total > (self._done - 1) * 4 // self._total:
            self._stream.write(line + "\n")
        self._stream.flush()

    def interrupt(self) -> None:
        """Leave the unfinished line, so that other output starts on a new one."""
        if self._is_terminal and not self._quiet and 0 < self._done < self._total:
            self._stream.write("\n")
