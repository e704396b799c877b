"""Memory apart from a context's, on which compiled code runs to be verified and timed.

Samples of the variants of one code are interleaved and compared by their minima, so that other load
on the machine affects all of them equally.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ocannl_core.backend.protocols import Buffer, Executable, HostBuffer, Launcher
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.host_arrays import Array, cells_in
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.loops.usage import IndexBound, accepted_range
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend

MARGIN = 0.03
"""The fraction of the default's time that another variant must save to be preferred."""
STEP = 0.01
"""The fraction of the fastest time that a variant must save for a search to go on from it."""
ROUNDS = 7
"""The number of samples of each variant in a comparison."""
LAST_ROUNDS = 21
"""The number of samples of each in the last comparison."""

SAMPLE_SECONDS = 0.002
"""The approximate duration of a sample of code that takes less; slower code runs once."""
_MOST_REPETITIONS = 2000


@dataclass(frozen=True, slots=True)
class Contents:
    """The memory that a code takes, and what is in it before a run."""

    infos: Mapping[TensorNode, NodeInfo]
    initial: Mapping[TensorNode, Buffer]
    written: Sequence[TensorNode]
    """The nodes that it writes, in a fixed order."""
    carried: Collection[TensorNode] = ()
    """The nodes that a run leaves changed for the next; each sample resets them."""
    merged: Collection[TensorNode] = ()
    """The nodes whose merge buffers it reads."""
    terms: int = 1
    """The number of terms that a reordered sum of a cell may have."""


class TrialMemory:
    """Memory for several variants of one code.

    Raises:
        MemoryError: if the device has too little.
    """

    def __init__(
        self,
        contents: Contents,
        values: Mapping[StaticIndex, int],
        backend: Backend,
        target: Target,
    ) -> None:
        self._contents = contents
        self._chosen = values
        self._backend = backend
        self._target = target
        self._buffers = {
            node: backend.allocate(contents.infos[node], target) for node in contents.initial
        }
        self._merge_buffers = {
            node: backend.allocate(contents.infos[node], target) for node in contents.merged
        }

    def link(
        self, executable: Executable, params: Iterable[TensorNode], indices: Iterable[StaticIndex]
    ) -> Trial:
        """Return code linked with this memory.

        Args:
            indices: Its static indices, in the order in which it takes them.
        """
        buffers = {node: self._buffers[node] for node in params}
        found = (buffers, self._merge_buffers) if self._merge_buffers else (buffers,)
        values = tuple(self._chosen.get(index, 0) for index in indices)
        return Trial(self._backend.link(executable, *found), values)

    def results(self, trial: Trial) -> list[Array]:
        """Return the arrays that code writes, computed from the same cells each time."""
        self.run(trial)
        return [self._downloaded(node) for node in self._contents.written]

    def run(self, trial: Trial) -> float:
        """Run code once on the initial cells; return the seconds."""
        self._restore(self._contents.initial)
        start = time.perf_counter()
        self._backend.launch(trial.launch, trial.values, self._target)
        self._backend.synchronize(self._target)
        return time.perf_counter() - start

    def agree(self, expected: Sequence[Array], found: Sequence[Array]) -> bool:
        """Return True if two results differ by no more than reordered sums may.

        The bound is that of a sum of as many terms, relative to the largest cell.
        """
        terms = self._contents.terms
        return all(_differ_little(a, b, terms) for a, b in zip(expected, found, strict=True))

    def least_times(self, trials: Sequence[Trial], rounds: int) -> list[float]:
        """Return the least seconds of one run of each, sampled in turn."""
        return [min(each) for each in self.samples(trials, rounds)]

    def samples(self, trials: Sequence[Trial], rounds: int) -> list[list[float]]:
        """Return the seconds of one run of each, sampled in turn."""
        repetitions = [self._repetitions(trial) for trial in trials]
        found: list[list[float]] = [[] for _ in trials]
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(rounds):
                for number, (trial, count) in enumerate(zip(trials, repetitions, strict=True)):
                    found[number].append(self._sample(trial, count) / count)
        finally:
            if was_collecting:
                gc.enable()
        return found

    def _repetitions(self, trial: Trial) -> int:
        self._restore(self._contents.initial)
        once = min(self._sample(trial, 1) for _ in range(2))
        return max(1, min(_MOST_REPETITIONS, round(SAMPLE_SECONDS / max(once, 1e-7))))

    def _sample(self, trial: Trial, count: int) -> float:
        self._restore(self._contents.carried)
        launch, values = trial.launch, trial.values
        start = time.perf_counter()
        for _ in range(count):
            launch(values)
        self._backend.synchronize(self._target)
        return time.perf_counter() - start

    def _restore(self, nodes: Iterable[TensorNode]) -> None:
        for node in nodes:
            self._backend.transfer(self._buffers[node], self._contents.initial[node]).wait()

    def _downloaded(self, node: TensorNode) -> Array:
        info = self._contents.infos[node]
        host = HostBuffer(np.empty(info.memory_dims, info.memory_numpy), info)
        self._backend.transfer(host, self._buffers[node]).wait()
        return cells_in(host.array, info)


@dataclass(frozen=True, slots=True)
class Trial:
    """Code linked with trial memory."""

    launch: Launcher
    values: tuple[int, ...]


def index_values(
    indices: Iterable[StaticIndex], limits: Iterable[IndexBound]
) -> dict[StaticIndex, int] | None:
    """Return values of static indices for which every access stays in its buffer.

    Return None if no values are found by choosing each index alone: as small as its range allows,
    or as large for an extent.
    """
    limits = list(limits)
    values: dict[StaticIndex, int] = {}
    for index in indices:
        own = accepted_range(index, limits) or range(1)
        values[index] = own.stop - 1 if isinstance(index, StaticExtent) else own.start
    for limit in limits:
        place = sum(factor * values.get(var, 0) for factor, var in limit.terms)
        if not limit.low <= place <= limit.high:
            return None
    return values


def _differ_little(expected: Array, found: Array, terms: int) -> bool:
    if expected.dtype.kind in "iub":
        return bool(np.array_equal(expected, found))
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    if bool(same.all()):
        return True
    unit = _unit(expected.dtype)
    wide, other = expected.astype(np.float64), found.astype(np.float64)
    largest: Any = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
    bound = terms * unit * max(float(largest), 1.0)
    finite = np.isfinite(wide) & np.isfinite(other)
    apart = np.abs(np.where(finite, wide, 0.0) - np.where(finite, other, 0.0))
    return bool((same | (finite & (apart <= bound))).all())


def _unit(dtype: np.dtype[Any]) -> float:
    """Return the distance from 1 to the next number of a format."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)
