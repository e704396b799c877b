"""Comparison of two backends, assignment by assignment.

Each run of a routine is replayed on both. Every assignment starts from the cells of the reference,
so that one difference does not cause others. At the end, the results of the compiled code are
compared with the reference's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.protocols import Launcher
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.host_arrays import Array, interior
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.target import Target
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, as_numbers
from ocannl_core.runtime.observers.replay import AssignmentReplay


@dataclass(frozen=True, slots=True)
class Divergence:
    """A tensor that differs between two backends."""

    routine: str
    run: int
    """The number of the run, from 1."""
    node: str
    difference: float
    """The greatest difference, relative to the greatest magnitude."""
    assignment: str = ""
    """The assignment as text; empty if the compiled code as a whole differs."""
    origin: str = ""

    def __str__(self) -> str:
        text = f"{self.routine}, run {self.run}: {self.node} differs by {self.difference:.3g}"
        if self.assignment:
            text += f"\n    {self.assignment}"
        else:
            text += ", although every assignment alone agrees: the optimized code differs"
        return text + (f"\n    {self.origin}" if self.origin else "")


class Comparison(RunObserver):
    """An observer that compares runs on two backends.

    Args:
        backend: The other backend, whose results count as right.
        tolerance: The accepted relative difference; by default the square root of the precision.
        most_runs: The number of runs of each routine to compare.
    """

    def __init__(
        self, backend: Backend, target: Target, tolerance: float | None, most_runs: int
    ) -> None:
        self._backend = backend
        self._target = target
        self._tolerance = tolerance
        self._most_runs = most_runs
        self.found: list[Divergence] = []
        self.compared = 0
        self.assignments = 0

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that compares the first runs."""
        runs = 0

        def run(numbers: Sequence[int]) -> None:
            nonlocal runs
            runs += 1
            if runs > self._most_runs:
                launch(numbers)
                return
            inputs = routine.inputs()
            launch(numbers)
            routine.build.backend.synchronize(routine.build.target)
            self.compared += 1
            self.found += self._compare(routine, runs, inputs, routine.values(numbers))

        return run

    def _compare(
        self,
        routine: LinkedRoutine,
        run: int,
        inputs: Mapping[TensorNode, Array],
        values: Mapping[StaticIndex, int],
    ) -> Iterator[Divergence]:
        build = routine.build
        reference = AssignmentReplay(build.assignments, self._backend, self._target)
        examined = AssignmentReplay(build.assignments, build.backend, build.target)
        reference.load(inputs)
        nodes, count = build.assignments.nodes, 0
        for each in reference.pending(values):
            involved = dict.fromkeys((*each.operands, *each.targets))
            examined.load({node: reference.whole(node) for node in involved})
            reference.execute(each)
            examined.execute(each)
            self.assignments += 1
            for node in each.targets:
                found, expected = examined.cells(node), reference.cells(node)
                if difference := self._difference(found, expected, nodes[node].dtype):
                    count += 1
                    yield Divergence(
                        routine.name, run, node.name, difference, each.text, each.origin
                    )
        if count:
            return
        for node, cells in routine.cells(build.plan.params).items():
            if node not in nodes:
                continue
            whole = interior(cells, build.plan.nodes[node]), reference.cells(node)
            if difference := self._difference(*whole, nodes[node].dtype):
                yield Divergence(routine.name, run, node.name, difference)

    def _difference(self, found: Array, expected: Array, dtype: DType) -> float:
        """Return the greatest difference relative to the greatest magnitude; 0 if accepted."""
        left, right = as_numbers(found), as_numbers(expected)
        if left is None or right is None or not dtype.is_float:
            return 0.0 if np.array_equal(found, expected) else float("inf")
        if not np.array_equal(np.isnan(left), np.isnan(right)):
            return float("inf")
        is_infinite = np.isinf(left) | np.isinf(right)
        if not np.array_equal(left[is_infinite], right[is_infinite]):
            return float("inf")
        with np.errstate(invalid="ignore"):
            apart = np.nan_to_num(np.abs(left - right), nan=0.0)
        scale = float(np.max(np.abs(right[np.isfinite(right)]), initial=0.0)) or 1.0
        difference = float(np.max(apart, initial=0.0)) / scale
        accepted = self._tolerance
        if accepted is None:
            accepted = float(np.sqrt(2.0 ** -_MANTISSA_BITS.get(dtype.nbytes, 3)))
        return difference if difference > accepted else 0.0


_MANTISSA_BITS = {8: 52, 4: 23, 2: 8, 1: 3}
"""Bits of the narrowest mantissa of each size."""
