"""Checks of bounds: the compiled kernels run on the reference interpreter, which checks accesses.

Before each run, the plan that was compiled, with all schedules applied, is interpreted on copies of
its operands. An access outside of its array is an error before the device runs the code.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import Event, HostBuffer, Launcher
from ocannl_core.base.errors import VerifyError
from ocannl_core.ir.host_arrays import memory_of
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, read


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
                cells = read(build.backend, routine.buffers[node])
                backend.transfer(
                    buffer, HostBuffer(memory_of(cells, plan.nodes[node]), plan.nodes[node])
                ).wait()
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
