"""Errors of one process, printed once and with its rank."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from typing import TypeVar

E = TypeVar("E", bound=Exception)

_COMMON = "_ocannl_is_raised_by_all_processes"


def on_all_processes(error: E) -> E:
    """Mark an error that all processes raise; process 0 prints it."""
    setattr(error, _COMMON, True)
    return error


def is_success(error: BaseException) -> bool:
    """Return True if an exception ends a program without a failure, as `sys.exit()` does."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def report(error: BaseException, rank: int, size: int) -> None:
    """Print an error with the process that raised it."""
    if getattr(error, _COMMON, False) and rank != 0:
        return
    text = "".join(traceback.format_exception(error))
    place = f"rank {rank} of {size} on {platform.node()}, process {os.getpid()}"
    if getattr(error, _COMMON, False):
        place = f"all {size} processes"
    kind = type(error).__name__
    print(f"{text}\n{place}: {kind}; all processes of the group stop", file=sys.stderr, flush=True)
