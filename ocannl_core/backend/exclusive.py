"""Serialization of the calls of a routine, which share its memory.

    launch = make_exclusive(launch, "step")    # a call during another one raises UsageError

Backends whose launch is atomic up to the point where it marks itself as running check this
themselves, and raise `raise_overlap`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from ocannl_core.base.errors import UsageError

Launch = Callable[[Sequence[int]], None]


def raise_overlap(routine: str) -> NoReturn:
    """Raise UsageError for a call of a routine during another call of it."""
    raise UsageError.at_caller(
        "One call of a routine runs at a time: calls share its memory.",
        found=f"{routine} called while another call of it runs, in this thread or another one",
        fix="hold a lock from writing the inputs to reading the results; or compile the code once "
        "for every thread, each in a context of its own: compiled kernels are shared",
    )


def make_exclusive(launch: Launch, routine: str) -> Launch:
    """Return a function that runs a routine, and raises if a call of it is running."""
    running: dict[int, object] = {}  # the call of each process: calls of a parent are not a child's

    def launch_alone(values: Sequence[int]) -> None:
        process, call = os.getpid(), object()
        if running.setdefault(process, call) is not call:
            raise_overlap(routine)
        try:
            launch(values)
        finally:
            del running[process]

    return launch_alone
