"""The backend llvm: kernels as LLVM IR, compiled in this process.

- `kernels`: the instructions of kernels as IR;
- `machine`: memory of this process by address, and compiled code.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ocannl_core.backend_api import (
    Buffer,
    Capability,
    Done,
    KernelStream,
    Launcher,
    NodeInfo,
    Target,
    TargetReport,
    TensorNode,
    hookimpl,
)
from ocannl_core.backend_api.launches import RoutineSource

OCANNL_API = (1, 1)
OCANNL_SOURCE = RoutineSource
DEVICE = Target(
    "llvm",
    description="this processor, by LLVM",
    capabilities=(
        Capability.EXTERNAL_CALLS,
        Capability.MERGE_BUFFERS,
        Capability.POSITION_CHECKS,
        Capability.REPETITIONS,
        Capability.SCATTERS,
    ),
)


@hookimpl
def ocannl_targets() -> TargetReport:
    if find_spec("llvmlite") is None:
        return TargetReport(reason="llvmlite is not installed", fix="pip install llvmlite")
    return TargetReport((DEVICE,))


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> RoutineSource:
    from ocannl_core.backend_api.instructions import instruction_source
    from ocannl_llvm.kernels import kernel_text

    return instruction_source(kernels, kernel_text, "llvm", head="; LLVM IR of a routine")


@hookimpl
def ocannl_compile(source: RoutineSource, target: Target) -> Compiled:
    return Compiled(source)


class Compiled:
    """A routine in machine code, not bound to memory."""

    def __init__(self, source: RoutineSource) -> None:
        from ocannl_llvm.machine import Library

        self._source = source
        self._library = Library([kernel.text for kernel in source.kernels])

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        from ocannl_core.backend_api.memory import RoutineMemory
        from ocannl_llvm.machine import MEMORY

        routine = RoutineMemory(MEMORY, self._source.plan, buffers, merge_buffers)
        return routine.launcher(
            self._source.steps,
            lambda launch, addresses: self._library.function(launch.text.symbol, addresses),
        )


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> Any:
    from ocannl_llvm.machine import MEMORY

    return MEMORY.allocate(info)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Done | None:
    from ocannl_core.backend_api.memory import transfer

    return transfer(destination, source)
