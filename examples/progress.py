"""A progress bar that stays quiet where nobody watches."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24


class ProgressBar:
    """One line, drawn over and over on a terminal; elsewhere a plain line at every quarter.

    Args:
        title: What is going on.
        total: How many times `advance` will be called.
        quiet: Nothing is written at all.
        stream: Where to write; standard error, so that results can be piped on.
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
        """Count one step and shows the note beside the bar."""
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
        """Leaves the unfinished line, so that what is printed next starts on its own."""
        if self._is_terminal and not self._quiet and 0 < self._done < self._total:
            self._stream.write("\n")
