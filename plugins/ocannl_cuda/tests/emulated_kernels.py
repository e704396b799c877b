"""Kernels of a text, launched on the emulator without a driver."""

from __future__ import annotations

import ctypes
import hashlib
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ocannl_core.codegen.text.kernel_text import TensorMap
from ocannl_cuda_emulator import host_compiler
from ocannl_cuda_emulator.host_compiler import HostCompiler

Array = np.ndarray[Any, Any]
Launch = Callable[..., tuple[int, str]]
MARK = 0x70616D726F736E65
FOLDER = tempfile.TemporaryDirectory()


def aligned(cells: Array) -> Array:
    """Return an array at an address that a device's allocator could give it."""
    content = np.empty(cells.nbytes + 256, np.uint8)
    start = -content.ctypes.data % 256
    found = content[start : start + cells.nbytes].view(cells.dtype).reshape(cells.shape)
    found[...] = cells
    return found


@cache
def load_kernels(text: str) -> ctypes.CDLL:
    """Compile the kernels of a text and load them; one text of many kernels takes less time than
    many of one.
    """
    compiler = host_compiler.find()
    assert isinstance(compiler, HostCompiler)
    content = compiler.compile(text, "sm_90a", "test.cu")
    path = Path(FOLDER.name) / f"{hashlib.sha256(content).hexdigest()}.so"
    path.write_bytes(content)
    return ctypes.CDLL(str(path))


def tensor_map(form: TensorMap, address: int) -> bytes:
    """Return the 128 bytes of a tensor map as the emulated driver encodes them."""
    nbytes = form.dtype.nbytes
    rank = len(form.extents)
    none = [0] * (5 - rank)
    strides = [nbytes * each for each in form.strides]
    return struct.pack(
        "=5Q14IQ",
        address + nbytes * form.offset,
        *strides,
        *none,
        *form.extents,
        *none,
        *form.box,
        *none,
        nbytes,
        rank,
        3,
        0,
        MARK,
    ).ljust(128, b"\0")


def launcher(text: str, kernel: str) -> Launch:
    """Return a function that launches a kernel of a text on arrays: extents of the grid and of a
    block, then the arguments.
    """
    run = getattr(load_kernels(text), f"cuda_emulator_run_{kernel}")
    message = (ctypes.c_char * 512).in_dll(load_kernels(text), "cuda_emulator_message")

    def launch(
        grid: Sequence[int], block: Sequence[int], *given: Array, maps: Sequence[TensorMap] = ()
    ) -> tuple[int, str]:
        content = b"".join(tensor_map(each, given[each.argument].ctypes.data) for each in maps)
        content += struct.pack(f"={len(given)}q", *(each.ctypes.data for each in given))
        extents = [(ctypes.c_uint * 3)(*shape, *[1] * (3 - len(shape))) for shape in (grid, block)]
        return run(content, ctypes.c_size_t(len(content)), *extents), message.value.decode()

    return launch
