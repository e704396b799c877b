"""The rule that prefers what a search has found to what the default says."""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.errors import UsageError
from ocannl_core.records import replace
from ocannl_core.schedule.applying.apply import apply
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.plan import Infos, Measured
from ocannl_core.schedule.searching.remembered import Memory
from ocannl_core.schedule.transforms import Schedule

Rule = Callable[[CellNest, Infos], Schedule | None]
"""Returns the schedule of a nest, or None if its loops stay as they are."""


class Remembering:
    """A rule: the remembered schedule of a nest if there is one that fits, or else another rule's.

    Args:
        memory: What is remembered.
        otherwise: The other rule.
    """

    def __init__(self, memory: Memory, otherwise: Rule) -> None:
        self._memory = memory
        self._otherwise = otherwise
        self._last: tuple[CellNest, Measured | None] | None = None

    def __call__(self, nest: CellNest, nodes: Infos) -> Schedule | None:
        measured = self.measured(nest, nodes)
        if measured is None or measured.problem:
            return self._otherwise(nest, nodes)
        return measured.schedule

    def measured(self, nest: CellNest, nodes: Infos) -> Measured | None:
        """Returns what is remembered of a nest, and why it is not used if it is not."""
        if self._last is None or self._last[0] is not nest:
            self._last = nest, self._found(nest, nodes)
        return self._last[1]

    def _found(self, nest: CellNest, nodes: Infos) -> Measured | None:
        measured = self._memory.find(nest, nodes)
        if measured is None or not measured.schedule:
            return measured
        try:
            apply(nest, measured.schedule)
        except UsageError as error:
            return replace(measured, problem=error.rule)
        return measured
