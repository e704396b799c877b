"""A kernel on memory of its own: verified on whole numbers, and timed under several schedules.

The numbers are small and whole, so that sums and products of them are exact in every order of
combination: a schedule that left a term out would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ocannl_core.backend.protocols import HostBuffer
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.compile.trial_memory import Contents, Trial, TrialMemory, index_values
from ocannl_core.ir.host_arrays import Array, memory_of
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.usage import usage_of
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.dtypes import Kind
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_variants

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend

_MOST_RUNS = 8
"""Runs of a kernel that a repetition repeats more often: copies ahead of it count for less."""


class Bench:
    """A kernel, to be run with different schedules."""

    def __init__(
        self, plan: NestPlan, kernel: NestKernel, backend: Backend, target: Target
    ) -> None:
        self._plan = plan
        self._kernel = kernel
        self._backend = backend
        self._target = target
        repetition = kernel.nest.repetition
        self.runs = 1 if repetition is None else min(repetition.count, _MOST_RUNS)
        """The runs of the kernel in a trial."""
        once = replace(kernel, nest=replace(kernel.nest, repetition=None))
        alone = plan_variants(plan, once, [()], target)
        (nest,) = alone.steps
        assert isinstance(nest, Kernel)
        self.plain = nest
        program = LoopProgram(plan.name, alone.params, nest.indices, alone.nodes, nest.body)
        usage = usage_of(program)
        chosen = index_values(nest.indices, usage.limits)
        self.memory: TrialMemory | None = None
        """Its memory; None if no values of its indices keep accesses inside of buffers."""
        if chosen is not None:
            random = np.random.default_rng(0)
            initial = {node: _whole_numbers(random, alone.nodes[node]) for node in alone.params}
            written = sorted(usage.writes, key=lambda node: node.id)
            terms = self.runs * _most_terms(kernel)
            contents = Contents(alone.nodes, initial, written, terms=terms)
            self.memory = TrialMemory(contents, chosen, backend, target)

    def compile(self, schedules: Sequence[Schedule]) -> list[Trial]:
        """Return the kernel with each of some schedules, compiled together."""
        assert self.memory is not None
        subject = self._plan, self._kernel
        together = plan_variants(*subject, schedules, self._target, self.runs)
        self._backend.compile(self._backend.generate(together, self._target), self._target)
        trials = []
        for schedule in schedules:
            alone = plan_variants(*subject, [schedule], self._target, self.runs)
            executable = self._backend.compile(
                self._backend.generate(alone, self._target), self._target
            )
            trials.append(self.memory.link(executable, alone.params, alone.indices))
        return trials


def _whole_numbers(random: np.random.Generator, info: NodeInfo) -> HostBuffer:
    low = -2 if info.dtype.kind in (Kind.FLOAT, Kind.SIGNED) else 0
    cells: Array = random.integers(low, 3, info.buffer_dims).astype(info.dtype.numpy)
    return HostBuffer(memory_of(cells, info), info)


def _most_terms(kernel: NestKernel) -> int:
    """Return the approximate number of terms of a cell of a kernel."""
    return 8 * prod(max(1, axis.extent) for axis in kernel.nest.reduced)
