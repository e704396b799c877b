"""Logs of runs: every assignment with the values that it computes.

Level 1 has a line for each assignment, with the range of its results; level 2 also has the
assignment and the ranges of its operands; level 3 all cells. The logged values are those of a
replay on the same device, assignment by assignment; the results of the run are those of the
compiled code. The logger is `ocannl.runs`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from ocannl_core.backend.protocols import Event, Launcher
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, summary
from ocannl_core.runtime.observers.replay import AssignmentReplay, Executed

LOGGER = logging.getLogger("ocannl.runs")


class RunLog(RunObserver):
    """An observer that logs assignments with values."""

    def __init__(self, level: int) -> None:
        self._level = level

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that logs a replay before each run."""
        build = routine.build

        def run(numbers: Sequence[int]) -> Event | None:
            logger = _logger()
            values = routine.values(numbers)
            given = "".join(f", {index.name} = {value}" for index, value in values.items())
            logger.info("run %s on %s%s", routine.name, build.target, given)
            replay = AssignmentReplay(build.assignments, build.backend, build.target)
            replay.load(routine.inputs())
            for each in replay.run(values):
                for line in self._lines(each, replay):
                    logger.info("%s", line)
            return launch(numbers)

        return run

    def _lines(self, each: Executed, replay: AssignmentReplay) -> Iterator[str]:
        nodes = replay.program.nodes
        loops = "".join(f"[{iteration}]" for iteration in each.iterations)
        for node in each.targets:
            cells = replay.cells(node)
            where = f" ({each.origin})" if each.origin else ""
            yield f"{each.number:>4}{loops} {node.name}: {summary(cells, nodes[node])}{where}"
            if self._level >= 3:
                yield from (f"       {line}" for line in np.array2string(cells).splitlines())
        if self._level >= 2:
            yield f"       {each.text}"
            for node in each.operands:
                yield f"       with {node.name}: {summary(replay.cells(node), nodes[node])}"


def _logger() -> logging.Logger:
    """Return the logger; without a handler it writes to standard error."""
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOGGER.addHandler(handler)
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    return LOGGER
