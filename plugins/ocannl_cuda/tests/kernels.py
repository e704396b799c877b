"""Texts of kernels, run by the emulation without a driver."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ocannl_cuda.dialect import PREAMBLE
from ocannl_cuda_emulator import host_compiler
from ocannl_cuda_emulator.host_compiler import HostCompiler

Array = np.ndarray[Any, Any]
FOLDER = tempfile.TemporaryDirectory()
Launch = Callable[..., tuple[int, str]]

REDUCE = """
extern "C" __global__ void total(const float *x, float *y, int64_t count) {
  __shared__ float parts[8];
  float sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += x[blockIdx.x * count + i];
  for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < blockDim.x / 32; ++warp) sum += parts[warp];
    y[blockIdx.x] = sum;
  }
}
"""

REVERSE = """
extern "C" __global__ void reverse(const int *x, int *y) {
  __shared__ int cells[64];
  cells[threadIdx.x] = x[threadIdx.x];
  BARRIER
  y[threadIdx.x] = cells[63 - threadIdx.x];
}
"""


def compiled(text: str, name: str) -> Launch:
    """Return a function that launches the kernel of a text on arrays and integers."""
    compiler = host_compiler.find()
    assert isinstance(compiler, HostCompiler)
    content = compiler.compile(PREAMBLE + text, "sm_90a", "test.cu")
    # the sanitizer reads it for its report
    path = Path(FOLDER.name) / f"{hashlib.sha256(content).hexdigest()}.so"
    if not path.exists():
        path.write_bytes(content)
    library = ctypes.CDLL(str(path))
    run = getattr(library, f"cuda_emulator_run_{name}")
    message = (ctypes.c_char * 512).in_dll(library, "cuda_emulator_message")

    def launch(grid: int, block: int, *given: Array | int) -> tuple[int, str]:
        words = [each if isinstance(each, int) else each.ctypes.data for each in given]
        cells = (ctypes.c_int64 * len(words))(*words)
        extents = [(ctypes.c_uint * 3)(count, 1, 1) for count in (grid, block)]
        return run(cells, ctypes.c_size_t(8 * len(words)), *extents), message.value.decode()

    return launch
