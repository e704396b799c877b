"""Observers of routines, called at links and in place of launchers; the numbers that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ocannl_core.backend.protocols import Buffer, Launcher
from ocannl_core.base.context_variables import scoped
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.stages import Build
from ocannl_core.ir.assignments.traverse import leaves, nodes_of
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.runtime.values import download

FindBuffer = Callable[[TensorNode], Buffer | None]
"""A function that finds the memory of a node in a context."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkedRoutine:
    """A routine bound to memory."""

    build: Build
    buffers: Mapping[TensorNode, Buffer]
    find: FindBuffer

    @property
    def name(self) -> str:
        return self.build.plan.name

    def cells(self, nodes: Sequence[TensorNode]) -> dict[TensorNode, Array]:
        """Return copies of the cells of nodes that have memory, margins included."""
        found = {}
        for node in nodes:
            buffer = self.buffers.get(node) or self.find(node)
            if buffer is not None:
                found[node] = download(self.build.backend, buffer)
        return found

    def inputs(self) -> dict[TensorNode, Array]:
        """Return the cells of all nodes that the assignments mention and that have memory."""
        every = dict.fromkeys(
            n for each in leaves(self.build.assignments.body) for n in nodes_of(each)
        )
        return self.cells(tuple(every))

    def values(self, numbers: Sequence[int]) -> dict[StaticIndex, int]:
        """Return the static indices of a run by the arguments of the launcher."""
        return dict(zip(self.build.plan.indices, numbers, strict=True))


class RunObserver:
    """An observer; each method may be overridden."""

    def linked(self, routine: LinkedRoutine) -> None:
        """Observe that a routine has been compiled and linked."""

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher in the place of another one, which it may call."""
        return launch


_added: ContextVar[tuple[RunObserver, ...]] = ContextVar("ocannl observers", default=())


@contextmanager
def observing(*observers: RunObserver) -> Iterator[None]:
    """Observe the routines that are linked in the `with` statement."""
    with scoped(_added, (*_added.get(), *observers)):
        yield


def added() -> tuple[RunObserver, ...]:
    """Return the observers of the `with` statements around."""
    return _added.get()


def as_numbers(cells: Array) -> Array | None:
    """Return cells as float64; None for words, which are no numbers."""
    return None if cells.dtype.names is not None else np.asarray(cells, np.float64)


def summary(cells: Array, info: NodeInfo) -> str:
    """Return the format, the extents and the range of some cells, and the number of NaNs."""
    dims = " x ".join(map(str, cells.shape)) or "1 cell"
    numbers = as_numbers(cells)
    if numbers is None or numbers.size == 0:
        return f"{info.dtype} {dims}"
    finite = numbers[np.isfinite(numbers)]
    parts = [f"{info.dtype} {dims}"]
    if finite.size:
        parts.append(f"min {finite.min():.6g}, mean {finite.mean():.6g}, max {finite.max():.6g}")
    counts = {"NaN": np.isnan(numbers).sum(), "infinite": np.isinf(numbers).sum()}
    return ", ".join([*parts, *(f"{count} {name}" for name, count in counts.items() if count)])
