"""The virtual machine: one linear memory, the modules in it, and calls of their functions."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import wasmtime

from ocannl_core.backend_api import LinkError
from ocannl_core.backend_api.memory import Arena, DeviceMemory
from ocannl_core.backend_api.queues import process_lock
from ocannl_wasm import DEVICE

PAGE = 1 << 16
STACK = 1 << 20
"""The bytes of the stack, which begins at address 0 and ends below the arena."""


class Machine:
    """A store of Wasmtime with one memory.

    A store serves one thread at a time, so accesses and calls hold a lock.

    Attributes:
        memory: The allocator over the linear memory.
    """

    def __init__(self) -> None:
        config = wasmtime.Config()
        config.parallel_compilation = False  # the child of a fork has no threads of a compiler
        engine = wasmtime.Engine(config)
        self._store = wasmtime.Store(engine)
        self._linker = wasmtime.Linker(engine)
        self._lock = process_lock()
        limits = wasmtime.Limits(STACK // PAGE, PAGE)  # at most 4 GiB
        self._linear = wasmtime.Memory(self._store, wasmtime.MemoryType(limits))
        functions = wasmtime.TableType(wasmtime.ValType.funcref(), wasmtime.Limits(64, None))
        self._globals = {
            "memory": self._linear,
            "__stack_pointer": self._global(STACK, is_mutable=True),
            "__table_base": self._global(0),
            "__indirect_function_table": wasmtime.Table(self._store, functions, None),
        }
        self.memory = DeviceMemory(DEVICE, self, Arena(STACK, 0, extend=self._extend))

    def read(self, address: int, nbytes: int) -> bytes:
        with self._lock:
            return ctypes.string_at(self._at(address), nbytes)

    def write(self, address: int, data: Any) -> None:
        with self._lock:
            source = (ctypes.c_char * len(data)).from_buffer_copy(data)
            ctypes.memmove(self._at(address), source, len(data))

    def load(self, module: bytes) -> Library:
        """Return the functions of a module, with its data in the memory."""
        nbytes, alignment = _data_segment(module)
        data = self.memory.reserve(nbytes, alignment)
        with self._lock:
            self.write(data.address, bytes(nbytes))
            compiled = wasmtime.Module(self._store.engine, module)
            imports = {**self._globals, "__memory_base": self._global(data.address)}
            given = [imports[each.name or ""] for each in compiled.imports]
            instance = wasmtime.Instance(self._store, compiled, given)
            exports = instance.exports(self._store)
            for name in ("__wasm_apply_data_relocs", "_initialize"):
                if name in exports:
                    exports[name](self._store)
        return Library(self, exports, data)

    def call(self, function: Any, argument: int) -> None:
        """Call a function with one address."""
        with self._lock:
            function(self._store, argument)

    def _at(self, address: int) -> int:
        return ctypes.addressof(self._linear.data_ptr(self._store).contents) + address

    def _global(self, value: int, *, is_mutable: bool = False) -> wasmtime.Global:
        kind = wasmtime.GlobalType(wasmtime.ValType.i32(), is_mutable)
        return wasmtime.Global(self._store, kind, wasmtime.Val.i32(value))

    def _extend(self, nbytes: int) -> int:
        """Grow the memory by so many bytes at least, in steps that grow with it."""
        with self._lock:
            pages = -(-nbytes // PAGE)
            for more in (max(pages, self._linear.size(self._store) // 4), pages):
                try:
                    self._linear.grow(self._store, more)
                except wasmtime.WasmtimeError:
                    continue
                return more * PAGE
        return 0


class Library:
    """The functions of one module; its data stays as long as this object."""

    def __init__(self, machine: Machine, exports: Any, data: object) -> None:
        self._machine = machine
        self._exports = exports
        self._data = data

    def function(self, symbol: str, addresses: tuple[int, ...]) -> Callable[[], None]:
        """Return a function that calls a kernel with the addresses of its arguments."""
        table = self._machine.memory.store(struct.pack(f"<{len(addresses)}I", *addresses))
        kernel = self._exports[symbol]

        def run(keep: object = self) -> None:
            self._machine.call(kernel, table.address)

        return run


@cache
def machine() -> Machine:
    """Return the device, which starts with its first use."""
    return Machine()


def _data_segment(module: bytes) -> tuple[int, int]:
    """Return the size and the alignment of a module's data, from its section `dylink.0`."""
    position = 8

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = module[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    section, _, length = number(), number(), number()
    name = module[position : position + length]
    position += length
    if section != 0 or name != b"dylink.0" or number() != 1:
        raise LinkError("A module begins with its needs of memory.", found=f"section {name!r}")
    number()  # the size of the subsection
    return number(), 1 << number()
