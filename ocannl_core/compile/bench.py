"""A kernel on memory of its own: verified on whole numbers, and timed under several schedules.

The numbers are small and whole, so that sums and products of them are exact in every order of
combination: a schedule that left a term out would show.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.dtypes import Kind
from ocannl_core.host_arrays import Array, cells_in, memory_of
from ocannl_core.indexing import StaticExtent, StaticIndex
from ocannl_core.kernel_passes.pipeline import plan_variants
from ocannl_core.kernels.nest_plan import NestKernel, NestPlan
from ocannl_core.kernels.nodes import Kernel
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.loopir.usage import Limit, usage_of
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.target import Buffer, HostBuffer, Launcher, Target

if TYPE_CHECKING:
    from ocannl_core.hooks.manager import Backend

_SAMPLE_SECONDS = 0.002
_MOST_REPETITIONS = 2000


class Bench:
    """A kernel, to be run with different schedules.

    Args:
        plan: The routine that it belongs to.
        kernel: The kernel.
        backend: Generates code and compiles it.
        target: The device.

    Attributes:
        plain: The kernel as plain loops.
        can_run: False if no values of its static indices keep every access inside its buffer.
    """

    def __init__(
        self, plan: NestPlan, kernel: NestKernel, backend: Backend, target: Target
    ) -> None:
        self._plan = plan
        self._kernel = kernel
        self._backend = backend
        self._target = target
        alone = plan_variants(plan, kernel, [()], target)
        (nest,) = alone.steps
        assert isinstance(nest, Kernel)
        self.plain = nest
        program = LoopProgram(plan.name, alone.params, nest.indices, alone.nodes, nest.body)
        usage = usage_of(program)
        self._written = sorted(usage.writes, key=lambda node: node.id)
        chosen = index_values(nest.indices, usage.limits)
        self.can_run = chosen is not None
        self._values = tuple((chosen or {}).get(index, 0) for index in alone.indices)
        random = np.random.default_rng(0)
        self._cells = {node: _whole_numbers(random, alone.nodes[node]) for node in alone.params}
        self._buffers: dict[TensorNode, Buffer] = {}
        if self.can_run:
            for node in alone.params:
                self._buffers[node] = backend.allocate(alone.nodes[node], target)
        self._infos = alone.nodes
        self._steps = _most_terms(kernel)

    def compile(self, schedules: Sequence[Schedule]) -> list[Launcher]:
        """Return launchers of the kernel for each of some schedules, compiled together."""
        together = plan_variants(self._plan, self._kernel, schedules, self._target)
        self._backend.compile(self._backend.generate(together, self._target), self._target)
        launchers = []
        for schedule in schedules:
            alone = plan_variants(self._plan, self._kernel, [schedule], self._target)
            executable = self._backend.compile(
                self._backend.generate(alone, self._target), self._target
            )
            buffers = {node: self._buffers[node] for node in alone.params}
            launchers.append(self._backend.link(executable, buffers))
        return launchers

    def results(self, launcher: Launcher) -> list[Array]:
        """Return the arrays that the kernel writes, computed from the same numbers each time."""
        self._reset()
        launcher(self._values)
        self._backend.synchronize(self._target)
        return [self._downloaded(node) for node in self._written]

    def agree(self, expected: Sequence[Array], found: Sequence[Array]) -> bool:
        """Return True if two results differ by no more than reordered sums may.

        The bound is that of a sum of as many terms, relative to the largest cell.
        """
        return all(_differ_little(a, b, self._steps) for a, b in zip(expected, found, strict=True))

    def least_times(self, launchers: Sequence[Launcher], rounds: int) -> list[float]:
        """Return the least seconds of one run of each, sampled in turn."""
        repetitions = [self._repetitions(launcher) for launcher in launchers]
        least = [float("inf")] * len(launchers)
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(rounds):
                for number, (launcher, count) in enumerate(
                    zip(launchers, repetitions, strict=True)
                ):
                    least[number] = min(least[number], self._sample(launcher, count) / count)
        finally:
            if was_collecting:
                gc.enable()
        return least

    def _repetitions(self, launcher: Launcher) -> int:
        self._reset()
        once = min(self._sample(launcher, 1) for _ in range(2))
        return max(1, min(_MOST_REPETITIONS, round(_SAMPLE_SECONDS / max(once, 1e-7))))

    def _sample(self, launcher: Launcher, count: int) -> float:
        values = self._values
        start = time.perf_counter()
        for _ in range(count):
            launcher(values)
        self._backend.synchronize(self._target)
        return time.perf_counter() - start

    def _reset(self) -> None:
        for node, cells in self._cells.items():
            host = HostBuffer(memory_of(cells, self._infos[node]), self._infos[node])
            self._backend.transfer(self._buffers[node], host).wait()

    def _downloaded(self, node: TensorNode) -> Array:
        info = self._infos[node]
        host = HostBuffer(np.empty(info.memory_dims, info.memory_numpy), info)
        self._backend.transfer(host, self._buffers[node]).wait()
        return cells_in(host.array, info)


def index_values(
    indices: Iterable[StaticIndex], limits: Iterable[Limit]
) -> dict[StaticIndex, int] | None:
    """Return values of static indices for which every access stays in its buffer.

    Return None if no values are found by choosing each index alone: as small as its range allows,
    or as large for an extent.
    """
    limits = list(limits)
    values: dict[StaticIndex, int] = {}
    for index in indices:
        own = [each.as_range() for each in limits if [var for _, var in each.terms] == [index]]
        own += [range(index.extent)] if index.extent is not None else []
        values[index] = max((each.start for each in own), default=0)
        if isinstance(index, StaticExtent):
            values[index] = min(each.stop for each in own) - 1
    for limit in limits:
        place = sum(factor * values.get(var, 0) for factor, var in limit.terms)
        if not limit.low <= place <= limit.high:
            return None
    return values


def _whole_numbers(random: np.random.Generator, info: NodeInfo) -> Array:
    low = -2 if info.dtype.kind in (Kind.FLOAT, Kind.SIGNED) else 0
    cells: Array = random.integers(low, 3, info.buffer_dims).astype(info.dtype.numpy)
    return cells


def _most_terms(kernel: NestKernel) -> int:
    """Return the approximate number of terms of a cell of a kernel."""
    return 8 * prod(max(1, axis.extent) for axis in kernel.nest.reduced)


def _differ_little(expected: Array, found: Array, terms: int) -> bool:
    if expected.dtype.kind in "iub":
        return bool(np.array_equal(expected, found))
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    if bool(same.all()):
        return True
    largest: Any = np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
    bound = terms * np.finfo(expected.dtype).eps * max(float(largest), 1.0)
    finite = np.isfinite(expected) & np.isfinite(found)
    apart = np.abs(np.where(finite, expected - found, np.inf))
    return bool((same | (apart <= bound)).all())
