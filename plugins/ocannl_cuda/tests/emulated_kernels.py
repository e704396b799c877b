"""Kernels of a text, launched on the emulator without a driver."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ocannl_cuda.emulation import host_compiler
from ocannl_cuda.emulation.host_compiler import HostCompiler

Array = np.ndarray[Any, Any]
Launch = Callable[..., tuple[int, str]]
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


def launcher(text: str, kernel: str) -> Launch:
    """Return a function that launches a kernel of a text on arrays: extents of the grid and of a
    block, then the arguments.
    """
    run = getattr(load_kernels(text), f"cuda_emulator_run_{kernel}")
    message = (ctypes.c_char * 512).in_dll(load_kernels(text), "cuda_emulator_message")

    def launch(grid: Sequence[int], block: Sequence[int], *given: Array) -> tuple[int, str]:
        cells = (ctypes.c_int64 * len(given))(*(each.ctypes.data for each in given))
        extents = [(ctypes.c_uint * 3)(*shape, *[1] * (3 - len(shape))) for shape in (grid, block)]
        return run(cells, ctypes.c_size_t(8 * len(given)), *extents), message.value.decode()

    return launch
