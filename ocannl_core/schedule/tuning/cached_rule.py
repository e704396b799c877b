"""The rule that prefers what a search has found to what the default says."""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import replace
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos, TuningResult
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.tuning.tuning_cache import TuningCache

Rule = Callable[[KernelNest, NodeInfos], Schedule | None]
"""Returns the schedule of a nest, or None if its loops stay as they are."""


class CachedRule:
    """A rule: the remembered schedule of a nest if there is one that fits, or else another rule's.

    Args:
        memory: What is remembered.
        otherwise: The other rule.
    """

    def __init__(self, memory: TuningCache, otherwise: Rule) -> None:
        self._memory = memory
        self._otherwise = otherwise
        self._last: tuple[KernelNest, TuningResult | None] | None = None

    def __call__(self, nest: KernelNest, nodes: NodeInfos) -> Schedule | None:
        measured = self.measured(nest, nodes)
        if measured is None or measured.problem:
            return self._otherwise(nest, nodes)
        return measured.schedule

    def measured(self, nest: KernelNest, nodes: NodeInfos) -> TuningResult | None:
        """Returns what is remembered of a nest, and why it is not used if it is not."""
        if self._last is None or self._last[0] is not nest:
            self._last = nest, self._found(nest, nodes)
        return self._last[1]

    def _found(self, nest: KernelNest, nodes: NodeInfos) -> TuningResult | None:
        measured = self._memory.find(nest, nodes)
        if measured is None or not measured.schedule:
            return measured
        try:
            apply_schedule(nest, measured.schedule)
        except UsageError as error:
            return replace(measured, problem=error.rule)
        return measured
