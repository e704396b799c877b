"""Trampoline for recursive walks over programs of any depth.

A walk is a generator that yields another walk at each recursive call, and receives its result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")
Steps = Generator["Steps[Any]", Any, Result]


def run_trampoline(walk: Steps[Result]) -> Result:
    """Run a walk and the walks that it yields, and return its result."""
    waiting: list[Steps[Any]] = [walk]
    answer: Any = None
    while True:
        try:
            waiting.append(waiting[-1].send(answer))
            answer = None
        except StopIteration as finished:
            waiting.pop()
            answer = finished.value
            if not waiting:
                result: Result = answer
                return result
