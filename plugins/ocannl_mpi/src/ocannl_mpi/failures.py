"""Errors of one process, printed once and with its rank."""

from __future__ import annotations

import os
import platform
import sys
import traceback


def is_success(error: BaseException) -> bool:
    """Return True if an exception ends a program without a failure, as `sys.exit()` does."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def report(error: BaseException, rank: int, size: int) -> bool:
    """Print an error with the process that raised it, and return True; where process 0 prints an
    error of all processes, return False.
    """
    is_common = getattr(error, "is_common", False)
    if is_common and rank != 0:
        return False
    text = "".join(traceback.format_exception(error))
    place = f"rank {rank} of {size} on {platform.node()}, process {os.getpid()}"
    if is_common:
        place = f"all {size} processes"
    kind = type(error).__name__
    print(f"{text}\n{place}: {kind}; all processes of the group stop", file=sys.stderr, flush=True)
    return True
