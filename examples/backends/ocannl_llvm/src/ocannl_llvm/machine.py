"""Memory of this process by address, and machine code in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes.util import find_library
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from ocannl_core.backend_api import CompileError
from ocannl_core.backend_api.memory import DeviceMemory
from ocannl_llvm import DEVICE


class ProcessMemory:
    """Arrays of this process as blocks, and access to their bytes."""

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray[Any, Any]] = {}

    def allocate(self, nbytes: int, alignment: int | None = None) -> int:
        aligned_to = max(alignment or 0, 64)
        array = np.empty(nbytes + aligned_to, np.uint8)
        address = -(-array.ctypes.data // aligned_to) * aligned_to
        self._arrays[address] = array
        return address

    def free(self, address: int) -> None:
        del self._arrays[address]

    def read(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def write(self, address: int, data: Any) -> None:
        array = np.frombuffer(data, np.uint8)
        ctypes.memmove(address, array.ctypes.data, array.size)


_process = ProcessMemory()
MEMORY = DeviceMemory(DEVICE, _process, _process)


@cache
def _start() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    mathematics = find_library("m")
    if mathematics is not None:  # where the C library has none of its own
        llvm.load_library_permanently(mathematics)


class Library:
    """The functions of some modules."""

    def __init__(self, texts: list[str]) -> None:
        _start()
        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=3,
            jit=True,
        )
        module = llvm.parse_assembly("")
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        try:
            for text in texts:
                part = llvm.parse_assembly(text)
                part.triple, part.data_layout = module.triple, module.data_layout
                part.verify()
                module.link_in(part)
        except RuntimeError as error:
            raise CompileError(
                "LLVM accepts generated code.", found=str(error), where="\n".join(texts)
            ) from error
        tuning = llvm.create_pipeline_tuning_options(speed_level=2)
        tuning.loop_vectorization = tuning.slp_vectorization = True
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def function(self, symbol: str, addresses: tuple[int, ...]) -> Callable[[], None]:
        """Return a function that calls a kernel with the addresses of its arguments."""
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._engine.get_function_address(symbol))
        pointer = ctypes.addressof(table)

        def run(keep: object = (self, table)) -> None:
            kernel(pointer)

        return run
