"""The backend llvm: kernels as LLVM IR, compiled in this process.

- `kernels`: statements and indices of the loop language as IR;
- `numbers`: primitives, conversions and words as IR;
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
    HostCall,
    IdentityMap,
    Kernel,
    KernelStream,
    Launcher,
    NodeInfo,
    Target,
    TargetReport,
    TensorNode,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    hookimpl,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint4,
    uint4x32,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.backend_api.launches import KernelText, Launch, RoutineSource

OCANNL_API = (1, 1)
OCANNL_SOURCE = RoutineSource
INTEGERS = (bool_, int4, uint4, int8, uint8, int16, uint16, int32, uint32, int64, uint64, uint4x32)
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
    formats=(*INTEGERS, float16, bfloat16, float32, float64),
)


@hookimpl
def ocannl_targets() -> TargetReport:
    if find_spec("llvmlite") is None:
        return TargetReport(reason="llvmlite is not installed", fix="pip install llvmlite")
    return TargetReport((DEVICE,))


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> RoutineSource:
    from ocannl_llvm.kernels import kernel_text

    plan = kernels.plan()
    known: IdentityMap[Kernel, KernelText] = IdentityMap()
    launches: list[Any] = []
    for step, nodes in kernels:
        if isinstance(step, HostCall):
            launches.append(step.call)
            continue
        first = step.like or step
        if first not in known:
            known[first] = kernel_text(f"k{len(launches)}", first, nodes)
        launches.append(Launch.of(step, known[first], nodes))
    texts = {each.text.symbol: each.text.text for each in launches if isinstance(each, Launch)}
    return RoutineSource(plan, tuple(launches), "\n".join([HEAD, *texts.values()]), "llvm")


HEAD = "; LLVM IR of a routine"


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
