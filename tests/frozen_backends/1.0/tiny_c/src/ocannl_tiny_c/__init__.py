"""The backend tiny_c: C, compiled by the compiler of the system and called through ctypes."""

import ctypes
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import which

import numpy as np

from ocannl_core.backend_api import (
    CallExternal,
    Capability,
    CompileError,
    Done,
    HostBuffer,
    NodeInfo,
    RepeatedSteps,
    Target,
    TargetReport,
    hookimpl,
    interior,
    make_exclusive,
)
from ocannl_core.backend_api.c_family import Dialect, render_step, render_steps
from ocannl_core.backend_api.host_calls import host_call
from ocannl_core.backend_api.launches import Launch, RoutineSource
from ocannl_core.backend_api.loops import check_positions

OCANNL_API = (1, 0)
OCANNL_SOURCE = RoutineSource
CPU = Target(
    "tiny_c",
    description="C through ctypes",
    capabilities=(
        Capability.EXTERNAL_CALLS,
        Capability.MERGE_BUFFERS,
        Capability.POSITION_CHECKS,
        Capability.REPETITIONS,
        Capability.SCATTERS,
    ),
)


@hookimpl
def ocannl_targets():
    if which("cc") is None:
        return TargetReport(reason="there is no C compiler", fix="install gcc or clang")
    return TargetReport((CPU,))




@dataclass(frozen=True)
class Memory:
    """Cells of one node on the device."""

    array: np.ndarray
    info: NodeInfo
    target: Target


@hookimpl
def ocannl_allocate(info, target):
    return Memory(np.zeros(info.memory_dims, info.memory_numpy), info, target)


@hookimpl
def ocannl_transfer(destination, source):
    if not isinstance(destination, (Memory, HostBuffer)) or not isinstance(
        source, (Memory, HostBuffer)
    ):
        return None
    np.copyto(destination.array, source.array)
    return Done()




class TinyDialect(Dialect):
    """The spelling of this backend's language, as differences from GNU C."""

    reports_failures = True


@hookimpl
def ocannl_generate(kernels, target):
    dialect = TinyDialect()
    rendered = list(render_steps(kernels, partial(render_step, dialect=dialect)))
    return RoutineSource.of(kernels.plan(), rendered, dialect)



COMPILER = ["cc", "-O2", "-ffp-contract=off", "-fPIC", "-shared"]


@hookimpl
def ocannl_compile(source, target):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code.c")
        path.write_text(source.text)
        command = [*COMPILER, "-o", "code.so", path.name, "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise CompileError(
                "The compiler accepts generated code.",
                found=done.stderr,
                where=f"{' '.join(command)}\n{source.text}",
            )
        return Compiled(source, ctypes.CDLL(str(Path(folder, "code.so"))))


class Compiled:
    """A routine in machine code, not bound to memory."""

    def __init__(self, code, library):
        self._code = code
        self._library = library

    def link(self, buffers, merge_buffers=None):
        plan = self._code.plan
        own = {node: ocannl_allocate(plan.nodes[node], CPU) for node in plan.own_nodes}
        linker = Linker(self._library, {**buffers, **own}, merge_buffers or {})
        values = [linker.index(each) for each in plan.indices]
        run = linker.sequence(self._code.steps)

        def launch(numbers):
            for value, number in zip(values, numbers, strict=True):
                value.value = number
            run()

        return make_exclusive(launch, plan.name)


class Linker:
    """The steps of one routine as functions over its memory."""

    def __init__(self, library, memory, merges):
        self._library = library
        self._memory = memory
        self._merges = merges
        self._indices = {}

    def index(self, index):
        """Return the variable of a static index."""
        return self._indices.setdefault(index, ctypes.c_int64())

    def sequence(self, steps):
        """Return a function that runs steps in order."""
        actions = [self.action(step) for step in steps]

        def run():
            for action in actions:
                action()

        return run

    def action(self, step):
        """Return a function that runs a step."""
        match step:
            case Launch():
                return self.kernel(step)
            case CallExternal():
                return host_call(step, self._memory, ocannl_transfer)
            case RepeatedSteps():
                value = self.index(step.index)
                run = self.sequence(step.steps)

                def repeat():
                    for iteration in step.iterations:
                        value.value = iteration
                        run()

                return repeat

    def kernel(self, launch):
        """Return a function that calls a kernel with the addresses of its arguments."""
        arrays = [self._memory[node].array for node in launch.arguments]
        arrays += [self._merges[node].array for node in launch.merges]
        scratch = [np.empty(nbytes, np.uint8) for nbytes in launch.text.private]
        failed = ctypes.c_int64()
        addresses = [array.ctypes.data for array in arrays]
        addresses += [ctypes.addressof(self.index(each)) for each in launch.indices]
        addresses += [array.ctypes.data for array in scratch]
        if launch.checks:
            addresses.append(ctypes.addressof(failed))
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        function = self._library[launch.text.symbol]

        def run(keep=(arrays, scratch)):
            function(table)
            if failed.value:
                failed.value = 0
                for check in launch.checks:
                    memory = self._memory[check.node]
                    cells = interior(memory.array, memory.info)
                    check_positions(check, cells, lambda extent: self.index(extent).value)

        return run
