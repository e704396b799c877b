"""Environments that forget unreachable variables all the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ocannl_core.shape.environment import Environment


def freeze_heap() -> None:
    """Let the garbage collector traverse only objects that are made later, as after the collection
    of tests; to unfreeze the heap would slow down all later tests of the process.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def forgetting() -> Iterator[None]:
    """Let every transaction look for unreachable variables."""
    forget_if_due = Environment.forget_unreachable

    def forget(environment: Environment) -> None:
        environment._next_cleaning = 0
        forget_if_due(environment)

    freeze_heap()
    with patch.object(Environment, "forget_unreachable", forget):
        yield
