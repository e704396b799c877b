"""The resources that kernels take on a device, as the assembler reports them; needs no device.

A kernel with more numbers than its threads have registers keeps some of them in memory (spills),
which costs more than most other defects of a schedule.
"""

from __future__ import annotations

import re

from ocannl_core.backend_api import dataclass
from ocannl_cuda.nvcc import Nvcc
from ocannl_cuda.nvrtc import Nvrtc

_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_NOTE = re.compile(r"\((C7\d+)\) (.* in (?:the )?function '(\w+)'.*)")
OPTION = "--ptxas-options=-v"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a kernel.

    Attributes:
        registers: The registers of a thread.
        stack_bytes: The bytes of arrays of a thread that are in memory.
        spill_bytes: The bytes that a thread stores to and loads from memory for lack of registers.
        shared_bytes: The bytes of memory that the threads of a block share.
        notes: Remarks of the assembler, as of products that it lets wait for each other.
    """

    registers: int
    stack_bytes: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    notes: tuple[str, ...] = ()


def resources_of(compiler: Nvrtc | Nvcc, text: str, architecture: str) -> dict[str, Resources]:
    """Return the resources of the kernels of a translation unit by symbol.

    Raises:
        RejectedError: if the compiler rejects the text.
    """
    _, log = compiler.compile_and_report(text, architecture, "kernels.cu", OPTION)
    return parse(log)


def parse(log: str) -> dict[str, Resources]:
    """Return the resources of kernels from a report of the assembler."""
    _, *parts = _KERNEL.split(log)
    found: dict[str, Resources] = {}
    notes: dict[str, list[str]] = {}
    for number, note, symbol in _NOTE.findall(log):
        notes.setdefault(symbol, []).append(f"{number}: {note}")
    for symbol, report in zip(parts[::2], parts[1::2], strict=True):
        stack, registers, shared = (
            pattern.search(report) for pattern in (_STACK, _REGISTERS, _SHARED)
        )
        assert registers is not None
        stack_bytes, *spilled = map(int, stack.groups()) if stack is not None else (0, 0)
        shared_bytes = 0 if shared is None else int(shared[1])
        own = tuple(notes.get(symbol, ()))
        found[symbol] = Resources(int(registers[1]), stack_bytes, sum(spilled), shared_bytes, own)
    return found
