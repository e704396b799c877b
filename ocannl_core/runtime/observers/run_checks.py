"""Checks of runs: a guard against NaN, and checks of bounds.

After each run, the guard looks at the results. If one is NaN, it replays the run on the reference
interpreter from the same operands, assignment by assignment, and stops at the first bad value.

With checks of bounds, the plan that was compiled, with all schedules applied, is interpreted on
copies of its operands before each run. An access outside of its array is an error before the device
runs the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import Event, Launcher
from ocannl_core.base.errors import ValueGuardError, VerifyError
from ocannl_core.ir.host_arrays import Array, interior
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, as_numbers, summary
from ocannl_core.runtime.observers.replay import AssignmentReplay, Executed
from ocannl_core.runtime.values import download, upload


class ValueGuard(RunObserver):
    """An observer that raises an error for NaN.

    Args:
        infinite: Also raises one for infinities. Masks contain them, and so do the first values of
            a maximum, so that these are ignored while a replay runs.
    """

    def __init__(self, *, infinite: bool) -> None:
        self._infinite = infinite
        self._word = "NaN or infinite" if infinite else "NaN"

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that checks the results of each run."""
        build = routine.build
        written = tuple(build.plan.params)

        def run(numbers: Sequence[int]) -> None:
            inputs = routine.inputs()
            launch(numbers)
            build.backend.synchronize(build.target)
            bad = [
                node
                for node, cells in routine.cells(written).items()
                if self._bad_cells(routine, node, cells)
                > (self._bad_cells(routine, node, inputs[node]) if node in inputs else 0)
            ]
            if bad:
                raise self._error(routine, bad, inputs, routine.values(numbers))

        return run

    def _bad_cells(self, routine: LinkedRoutine, node: TensorNode, cells: Array) -> int:
        return self._count(interior(cells, routine.build.plan.nodes[node]))

    def _is_bad(self, cells: Array) -> Array:
        numbers = as_numbers(cells)
        if numbers is None:
            return np.zeros(cells.shape, np.bool_)
        return ~np.isfinite(numbers) if self._infinite else np.isnan(numbers)

    def _count(self, cells: Array) -> int:
        return int(self._is_bad(cells).sum())

    def _error(
        self,
        routine: LinkedRoutine,
        bad: Sequence[TensorNode],
        inputs: Mapping[TensorNode, Array],
        values: Mapping[StaticIndex, int],
    ) -> ValueGuardError:
        names = ", ".join(node.name for node in bad)
        backend, target = manager.reference()
        replay = AssignmentReplay(routine.build.assignments, backend, target)
        replay.load(inputs)
        for each in replay.run(values):
            for node in each.targets:
                before = sum(self._count(replay.cells(operand)) for operand in each.operands)
                cells = replay.cells(node)
                if self._count(cells) and not self._is_start(each, cells):
                    return self._found(routine, each, node, replay, before)
        return ValueGuardError(
            f"A run computes no {self._word} values: the setting guard_values is on.",
            found=f"{names}: {self._word} on {routine.build.target}, and none on {target}",
            where=f"running {routine.name}",
            fix="compare the two backends, assignment by assignment: ocannl verify",
        )

    def _is_start(self, each: Executed, cells: Array) -> bool:
        """Return True of the value that an accumulation starts from, such as -inf for a maximum."""
        return self._infinite and not each.operands and not np.isnan(as_numbers(cells)).any()  # type: ignore[arg-type]

    def _found(
        self,
        routine: LinkedRoutine,
        each: Executed,
        node: TensorNode,
        replay: AssignmentReplay,
        before: int,
    ) -> ValueGuardError:
        nodes: Mapping[TensorNode, NodeInfo] = replay.program.nodes
        cells = replay.cells(node)
        is_bad = self._is_bad(cells)
        at = [int(axis) for axis in np.unravel_index(int(is_bad.argmax()), is_bad.shape)]
        lines = [f"{node.name}{at}: {cells[tuple(at)]}, one of {int(is_bad.sum())} such cells"]
        lines.append(f"computed by {each.text}")
        for operand in each.operands:
            lines.append(f"with {operand.name}: {summary(replay.cells(operand), nodes[operand])}")
        if each.iterations:
            lines.append(f"in iteration {', '.join(map(str, each.iterations))}")
        return ValueGuardError(
            f"A run computes no {self._word} values: the setting guard_values is on.",
            found="\n".join(lines),
            where=f"{each.origin or node.name}, running {routine.name}",
            fix="an operand has such values already: look at the data and the parameters"
            if before
            else "keep the operands in the domain of the operation, as with oc.clip",
        )


class BoundsCheck(RunObserver):
    """An observer that interprets kernels before they run."""

    def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
        """Return a launcher that checks all accesses of each run."""
        build, plan = routine.build, routine.build.plan
        backend, target = manager.reference()
        buffers = {node: backend.allocate(plan.nodes[node], target) for node in plan.params}
        code = backend.compile(backend.generate(plan, target), target)
        interpret = backend.link(code, buffers)

        def run(numbers: Sequence[int]) -> Event | None:
            for node, buffer in buffers.items():
                cells = download(build.backend, routine.buffers[node])
                upload(backend, buffer, cells).wait()
            try:
                interpret(numbers)
            except VerifyError as error:
                raise VerifyError(
                    error.rule,
                    found=error.found,
                    where=f"{error.where}, running {routine.name} on {target} in place of "
                    f"{build.target}",
                    fix="this is a defect of the compiler: report it with the program",
                ) from error
            return launch(numbers)

        return run
