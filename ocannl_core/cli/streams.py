"""The standard output of a command, kept free of the output of plugins."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error all that is printed, by libraries in C as well."""
    sys.stdout.flush()
    saved = -1
    with suppress(OSError):
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)
