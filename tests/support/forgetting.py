"""Environments that forget unreachable variables all the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ocannl_core.shape.environment import Environment


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Let the garbage collector traverse only what is made inside."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def forgetting() -> Iterator[None]:
    """Let every transaction look for unreachable variables."""
    forget_if_due = Environment.forget_unreachable

    def forget(environment: Environment) -> None:
        environment._next_cleaning = 0
        forget_if_due(environment)

    with frozen_heap(), patch.object(Environment, "forget_unreachable", forget):
        yield
