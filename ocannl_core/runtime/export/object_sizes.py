"""Sizes of exported code, compiled for a processor that this machine need not be."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from ocannl_core.base import packaged_compiler
from ocannl_core.base.errors import CompileError
from ocannl_core.base.fast_dataclass import dataclass

PROCESSORS: Mapping[str, tuple[str, ...]] = {
    "aarch64": ("-target", "aarch64-freestanding-none"),
    "cortex-m0": ("-target", "thumb-freestanding-eabi", "-mcpu=cortex_m0"),
    "cortex-m4": ("-target", "thumb-freestanding-eabihf", "-mcpu=cortex_m4"),
    "x86-64": ("-target", "x86_64-freestanding-none"),
    "x86-64-v3": ("-target", "x86_64-freestanding-none", "-mcpu=x86_64_v3"),
    "x86-64-v4": ("-target", "x86_64-freestanding-none", "-mcpu=x86_64_v4"),
}
"""The options of the compiler in `ziglang` for the targets of exports."""

_FLAGS = ("-std=gnu11", "-Os", "-ffreestanding", "-w", "-c")
# functions of the C library are declared as the compiler knows them, without its headers
_LIBRARY = ("-fbuiltin", "-Wno-implicit-function-declaration")

_WRITE, _ALLOCATED, _EXECUTABLE = 1, 2, 4
_WITHOUT_CONTENT = 8


@dataclass(frozen=True, slots=True)
class ObjectSizes:
    """The bytes of an object file."""

    code: int
    """Instructions."""
    constants: int
    """Data that nothing changes, weights inside of the file included."""
    variables: int
    """Data that changes."""


def object_sizes(source: Path, processor: str) -> ObjectSizes | None:
    """Return the sizes of an exported C file for a processor, optimized for size, without those of
    functions of libraries; None without the package `ziglang`, or for another processor.

    Raises:
        CompileError: if the file does not compile.
    """
    compiler = packaged_compiler.find()
    if compiler is None or processor not in PROCESSORS:
        return None
    with TemporaryDirectory(prefix="ocannl-") as folder:
        made = Path(folder) / "model.o"
        flags = *PROCESSORS[processor], *_FLAGS, *_LIBRARY
        arguments = [*flags, "-o", str(made), str(source)]
        result = packaged_compiler.run(compiler, arguments, folder, keep_libraries=False)
        if result.returncode:
            raise CompileError(
                "Exported code compiles for a processor without an operating system.",
                found=result.stderr.strip()[-2000:],
                where=str(source),
            )
        return sizes_of(made.read_bytes())


def sizes_of(content: bytes) -> ObjectSizes:
    """Return the sizes of the sections of an object file in the format ELF."""
    is_wide = content[4] == 2
    start_at, counts_at = (0x28, 0x3A) if is_wide else (0x20, 0x2E)
    (start,) = struct.unpack_from("<Q" if is_wide else "<I", content, start_at)
    entry_bytes, count = struct.unpack_from("<HH", content, counts_at)
    code = constants = variables = 0
    for number in range(count):
        head = struct.unpack_from(
            "<IIQQQQ" if is_wide else "<IIIIII", content, start + number * entry_bytes
        )
        _, kind, flags, _, _, nbytes = head
        if not flags & _ALLOCATED:
            continue
        if flags & _EXECUTABLE:
            code += nbytes
        elif flags & _WRITE or kind == _WITHOUT_CONTENT:
            variables += nbytes
        else:
            constants += nbytes
    return ObjectSizes(code, constants, variables)
