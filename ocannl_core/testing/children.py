"""Children of forks, as they find the state of threads that they lack."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable

SECONDS = 60
"""The time after which a child that hangs is ended."""


def succeeds_in_child(action: Callable[[], object]) -> bool:
    """Return True if a function returns in the child of a fork; print its error there."""
    # posix: callers look for os.fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        signal.alarm(SECONDS)
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
