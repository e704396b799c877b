"""Context variables with a value inside of a `with` statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def scoped(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a context variable a value for the duration of a `with` statement."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
