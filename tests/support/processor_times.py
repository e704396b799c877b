"""Processor time of tests and folders: of the test's process and the children that it waited for.

Unlike the time on the clock, it says the same on a busy machine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator

import pytest

_DEEPEST = 3
"""The number of folders in the names of folders that are summed up."""


class ProcessorTimes:
    """A plugin of pytest that lists the tests and folders with the longest processor times.

    Args:
        count: The number of tests in the list; 0 for no list.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._last = _seconds()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self) -> None:
        """Leave out the time of collection, and of other work between tests."""
        self._last = _seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a report the processor time since the last one."""
        report = yield
        now = _seconds()
        report.processor_seconds, self._last = now - self._last, now  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a setup, a call or a teardown, also from a worker."""
        self._seconds[report.nodeid] += getattr(report, "processor_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._count:
            terminalreporter.section("processor time")
            for line in self.lines():
                terminalreporter.write_line(line)

    def lines(self) -> Iterator[str]:
        """Yield the slowest tests, then all folders with their numbers of tests."""
        slowest = sorted(self._seconds.items(), key=lambda each: -each[1])[: self._count]
        for name, seconds in slowest:
            yield f"{seconds:7.2f} s  {name}"
        folders: defaultdict[str, list[float]] = defaultdict(list)
        for name, seconds in self._seconds.items():
            path = name.partition("::")[0].split("/")[:-1]
            folders["/".join(path[:_DEEPEST])].append(seconds)
        for name, several in sorted(folders.items(), key=lambda each: -sum(each[1])):
            yield f"{sum(several):7.1f} s  {name or '.'} ({len(several)} tests)"
        yield f"{sum(self._seconds.values()):7.1f} s  all"


def _seconds() -> float:
    return sum(os.times()[:4])
