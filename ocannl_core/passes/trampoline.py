"""Recursive walks that no program is too deep for: generators that yield the calls they make.

A walk is written as a function that yields another walk where it would call itself, and gets back
what that returns.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")
Steps = Generator["Steps[Any]", Any, Result]


def run_trampoline(walk: Steps[Result]) -> Result:
    """Returns what a walk returns, having run all the walks that it waits for."""
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
