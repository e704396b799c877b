"""Execution of a program assignment by assignment, each compiled alone, without optimization.

Every tensor has memory, so that its value can be seen, also of those that compiled code inlines or
never stores. The memory is the replay's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import numpy as np

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.protocols import Buffer, Launcher
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.ir.assignments.nodes import Assignment, AssignProgram, RepeatedAssignments
from ocannl_core.ir.assignments.printer import assignment_text
from ocannl_core.ir.assignments.traverse import Leaf, leaves, nodes_of, reads, targets
from ocannl_core.ir.host_arrays import Array, interior
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.ir.text import PrintedNames
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.lower import lower
from ocannl_core.runtime.values import download, upload


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """An assignment that a replay has executed."""

    number: int
    """Its number in the program, from 1; iterations have the same."""
    assignment: Leaf
    values: Mapping[StaticIndex, int]
    """The static indices, and the indices of the loops around it."""
    iterations: tuple[int, ...] = ()
    """The iterations of those loops, outermost first."""

    @property
    def targets(self) -> tuple[TensorNode, ...]:
        return tuple(dict.fromkeys(targets(self.assignment)))

    @property
    def operands(self) -> tuple[TensorNode, ...]:
        return tuple(dict.fromkeys(reads(self.assignment)))

    @property
    def origin(self) -> str:
        """The operation and the user's line."""
        origin = getattr(self.assignment, "origin", None)
        return "" if origin is None else str(origin)

    @property
    def text(self) -> str:
        """The assignment as text."""
        return str(assignment_text(self.assignment, PrintedNames()))


@dataclass(slots=True, eq=False)
class AssignmentReplay:
    """A run of a program on a device, one assignment at a time."""

    program: AssignProgram
    backend: Backend
    target: Target
    buffers: dict[TensorNode, Buffer] = field(default_factory=dict)
    """The memory of the nodes that have been accessed."""
    _launchers: IdentityMap[Leaf, tuple[tuple[StaticIndex, ...], Launcher]] = field(
        default_factory=IdentityMap, init=False
    )

    def load(self, cells: Mapping[TensorNode, Array]) -> None:
        """Copy cells, margins included, to nodes."""
        for node, array in cells.items():
            if node in self.program.nodes:
                upload(self.backend, self.buffer(node), np.ascontiguousarray(array)).wait()

    def buffer(self, node: TensorNode) -> Buffer:
        """Return the memory of a node, all zero at first."""
        if node not in self.buffers:
            self.buffers[node] = self.backend.allocate(self.program.nodes[node], self.target)
        return self.buffers[node]

    def whole(self, node: TensorNode) -> Array:
        """Return a copy of a node's cells, margins included."""
        return download(self.backend, self.buffer(node))

    def cells(self, node: TensorNode) -> Array:
        """Return a copy of a node's cells, without margins."""
        return interior(self.whole(node), self.program.nodes[node])

    def run(self, values: Mapping[StaticIndex, int]) -> Iterator[Executed]:
        """Execute the assignments in order; yield each one when its results are there.

        Args:
            values: The static indices; one that is missing, because compiled code does not use it,
                is 0, and an extent is its maximum.
        """
        for each in self.pending(values):
            self.execute(each)
            yield each

    def pending(self, values: Mapping[StaticIndex, int]) -> Iterator[Executed]:
        """Yield the assignments in the order of execution, for `execute`."""
        numbers: IdentityMap[Leaf, int] = IdentityMap()
        yield from _pending(self.program.body, dict(values), (), numbers)

    def execute(self, each: Executed) -> None:
        """Execute one assignment."""
        indices, launch = self._launcher(each.assignment)
        launch([each.values.get(index, _default(index)) for index in indices])
        self.backend.synchronize(self.target)

    def _launcher(self, leaf: Leaf) -> tuple[tuple[StaticIndex, ...], Launcher]:
        found = self._launchers.find(leaf)
        if found is None:
            nodes = {node: self.program.nodes[node] for node in nodes_of(leaf)}
            alone = replace(self.program, body=(leaf,), nodes=nodes)
            plan = split_kernels(lower(alone))
            code = self.backend.compile(self.backend.generate(plan, self.target), self.target)
            buffers = {node: self.buffer(node) for node in plan.params}
            found = plan.indices, self.backend.link(code, buffers)
            self._launchers[leaf] = found
        return found


def _pending(
    body: tuple[Assignment, ...],
    values: Mapping[StaticIndex, int],
    iterations: tuple[int, ...],
    numbers: IdentityMap[Leaf, int],
) -> Iterator[Executed]:
    """Yield the assignments of a body; a loop yields its own once for each iteration."""
    for leaf in leaves(body):
        if isinstance(leaf, RepeatedAssignments):
            every = range(leaf.count)
            for iteration in every[::-1] if leaf.is_reversed else every:
                inside = {**values, leaf.index: iteration}
                yield from _pending(leaf.body, inside, (*iterations, iteration), numbers)
        else:
            if leaf not in numbers:
                numbers[leaf] = len(numbers) + 1
            yield Executed(numbers[leaf], leaf, values, iterations)


def _default(index: StaticIndex) -> int:
    return index.maximum if isinstance(index, StaticExtent) else 0
