"""The backend wasm: kernels in C, compiled to WebAssembly by Zig, and run by Wasmtime.

- `compiler`: C to modules, kept on disk;
- `machine`: the linear memory that all modules share, and calls of their functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar

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
from ocannl_core.backend_api.c_family import UNFUSED, Dialect, render_step, render_steps
from ocannl_core.backend_api.files import packaged_compiler
from ocannl_core.backend_api.launches import RoutineSource

OCANNL_API = (1, 1)
OCANNL_SOURCE = RoutineSource
DEVICE = Target(
    "wasm",
    description="WebAssembly with SIMD128",
    vector_bytes=16,
    vector_registers=16,
    compiler="zig cc wasm32",
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
    missing = [] if packaged_compiler() else ["ziglang"]
    missing += [] if find_spec("wasmtime") else ["wasmtime"]
    if missing:
        packages = " ".join(missing)
        return TargetReport(
            reason=f"not installed: {', '.join(missing)}", fix=f"pip install {packages}"
        )
    return TargetReport((DEVICE,))


class Wasm(Dialect):
    """C for a machine with pointers of 32 bits, without fused multiply-adds."""

    stack_limit: ClassVar[int] = 64 << 10
    reports_failures: ClassVar[bool] = True
    required_helpers: ClassVar[frozenset[str]] = frozenset({UNFUSED})

    def for_positions(self, most: int) -> Wasm:
        return self.varied(index_type="int32_t") if most < 1 << 31 else self


@hookimpl
def ocannl_generate(kernels: KernelStream, target: Target) -> RoutineSource:
    dialect = Wasm()
    rendered = list(render_steps(kernels, partial(render_step, dialect=dialect)))
    return RoutineSource.of(kernels.plan(), rendered, dialect)


@hookimpl
def ocannl_compile(source: RoutineSource, target: Target) -> Compiled:
    from ocannl_wasm.compiler import compile_module

    exports = [kernel.symbol for kernel in source.kernels]
    return Compiled(source, compile_module(source.text, exports) if exports else None)


class Compiled:
    """A routine as a module, not bound to memory."""

    def __init__(self, source: RoutineSource, module: bytes | None) -> None:
        from ocannl_wasm.machine import machine

        self._source = source
        self._machine = machine()
        self._library = None if module is None else self._machine.load(module)

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        from ocannl_core.backend_api.memory import RoutineMemory

        memory = self._machine.memory
        routine = RoutineMemory(memory, self._source.plan, buffers, merge_buffers)
        library = self._library
        return routine.launcher(
            self._source.steps,
            lambda launch, addresses: library.function(launch.text.symbol, addresses),
        )


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> Any:
    from ocannl_wasm.machine import machine

    return machine().memory.allocate(info)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Done | None:
    from ocannl_core.backend_api.memory import transfer

    return transfer(destination, source)
