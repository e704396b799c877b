"""The phases of a data parallel step: the activities of the process, with their times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from ocannl_core.base import timeline
from ocannl_core.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step."""

    name: str
    """Its name, as `slot 3`, `bucket 0: rows` or `update`."""
    start: float
    """Its start in seconds, on the clock of `time.perf_counter`."""
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Phases:
    """A record of phases, kept only while something reads it."""

    def __init__(self) -> None:
        self.found: list[Phase] | None = None

    def record(self, name: str, start: float, end: float) -> None:
        """Record a phase between two times."""
        if self.found is not None:
            self.found.append(Phase(name, start, end))
        if timeline.is_on():
            timeline.record("data parallel", name, start, end)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the time of a `with` statement."""
        start = perf_counter()
        try:
            yield
        finally:
            self.record(name, start, perf_counter())
