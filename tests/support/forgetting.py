"""Environments that forget unreachable variables all the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ocannl_core.shape.environment import Environment


@contextmanager
def forgetting() -> Iterator[None]:
    """Let every transaction look for unreachable variables."""
    forget_if_due = Environment.forget_unreachable

    def forget(environment: Environment) -> None:
        environment._next_cleaning = 0
        forget_if_due(environment)

    gc.collect()
    gc.freeze()  # a run traverses only what is made from here on
    try:
        with patch.object(Environment, "forget_unreachable", forget):
            yield
    finally:
        gc.unfreeze()
