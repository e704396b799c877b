"""Digests of the tensors that routines write, for a comparison of runs of one program."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ocannl_core.backend.protocols import Launcher
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.assignments.traverse import leaves, targets
from ocannl_core.ir.host_arrays import interior
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver


@dataclass(frozen=True, slots=True)
class Digest:
    """The cells of a tensor after a run of a routine."""

    routine: str
    run: int
    """The number of the run among all runs of the program, from 1."""
    node: str
    is_written: bool
    """False for a tensor that the routine only reads."""
    cells: bytes
    """A digest of shape, format and cells."""


class Digests(RunObserver):
    """An observer that takes digests of all tensors of each routine, before and after its runs:
    first of the tensors that it only reads.
    """

    def __init__(self) -> None:
        self.found: list[Digest] = []
        self._runs = 0

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that takes digests after each run."""
        plan, build = routine.build.plan, routine.build
        written = {node for each in leaves(build.assignments.body) for node in targets(each)}
        order = sorted(plan.params, key=lambda node: node in written)

        def run(numbers: Sequence[int]) -> None:
            launch(numbers)
            build.backend.synchronize(build.target)
            self._runs += 1
            for node, cells in routine.cells(order).items():
                inner = interior(cells, plan.nodes[node])
                content = hashlib.sha256(f"{inner.shape} {inner.dtype}".encode())
                content.update(inner.tobytes())
                is_written = node in written
                digest = content.digest()
                self.found.append(Digest(routine.name, self._runs, node.name, is_written, digest))

        return run
