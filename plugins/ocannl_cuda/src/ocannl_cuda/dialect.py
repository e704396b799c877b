"""CUDA C++ as a dialect of the shared renderer.

The text is plain enough for three compilers: NVRTC, which has no headers, nvcc, and the host's, on
which the emulation of devices runs it. Functions of float32 are the C backend's, in the same
elementary operations, so their results are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ocannl_core.backend_api import DType, Kernel, MatrixUnit
from ocannl_core.backend_api.c_family import (
    AddressSpace,
    BlockDialect,
    KernelParameter,
    PreludeWords,
    group_offsets,
)
from ocannl_core.backend_api.launches import KernelText
from ocannl_core.backend_api.loops import AxisKind, Scope
from ocannl_core.backend_api.rendering import RenderState
from ocannl_cuda import ptx
from ocannl_cuda.matrix_instructions import COPIES, UNITS
from ocannl_cuda.rendering.cuda_loops import CudaLoops

PREAMBLE = """\
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define NAN __int_as_float(0x7fc00000)
#define INFINITY __int_as_float(0x7f800000)
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#endif
#ifndef FP_FAST_FMAF
#define FP_FAST_FMAF 1
#endif
#ifndef CUDA_EMULATOR  // which checks sizes and alignments
#define DYNAMIC_SHARED(name, bytes) extern __shared__ __align__(128) char name[]
template <class Vector>
static __device__ __forceinline__ void copy_vector(void *to, const void *from) {
  *(Vector *)to = *(const Vector *)from;
}
#endif
"""
"""Types and constants that NVRTC has no headers for."""

STATIC_SHARED_BYTES = 48 << 10
"""The shared memory of a block that a kernel declares; launches state more than that."""
WARP = 32
"""The threads that exchange values without memory."""
_VECTORS = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}
"""A type for each width of an access."""


class Cuda(BlockDialect):
    """CUDA C++, one kernel per launch."""

    language: ClassVar[str] = "cuda"
    words: ClassVar[PreludeWords] = PreludeWords(
        inline="static __device__ __forceinline__",
        table="static __device__ const",
        own=ptx.conversions(),
    )
    restrict: ClassVar[str] = "__restrict__"
    index_type: ClassVar[str] = "int32_t"
    preamble: ClassVar[str] = PREAMBLE
    vector_bytes: ClassVar[int] = 16
    matrix_units: ClassVar[tuple[MatrixUnit, ...]] = UNITS
    """The units that are rendered; a target states its device's."""
    asynchronous_copies: ClassVar[tuple[int, ...]] = COPIES
    """The bytes that one instruction copies asynchronously."""
    block_number: ClassVar[str] = "blockIdx.x"
    """The number of the block of the grid that a thread block runs."""

    def definitions(self, helpers: Iterable[str]) -> str:
        own, others = _own_helpers(helpers)
        return super().definitions(others) + ptx.definitions(own)

    def prelude(self, helpers: Iterable[str]) -> str:
        own, others = _own_helpers(helpers)
        text = super().prelude(others)
        return f"{text}\n{ptx.definitions(own)}" if own else text

    def for_positions(self, most: int) -> Cuda:
        # each operation on a position of 64 bits is several instructions
        return self if most < self.far else self.varied(index_type="int64_t")

    @property
    def folded_block_number(self) -> str:
        kind = self.index_type
        return f"(({kind})blockIdx.x + ({kind})gridDim.x * ({kind})blockIdx.y)"

    def launch_shape(self, kernel: KernelText) -> str:
        grid, block = (" x ".join(map(str, each or (1,))) for each in (kernel.grid, kernel.block))
        return f"<<<{grid}, {block}>>>"

    def opening(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return self.function_head(f'extern "C" __global__ void {symbol}', parameters)

    def parameter(self, parameter: KernelParameter) -> str:
        # 64 bits for every type of positions: parameters have one layout
        if parameter.is_tensor_map:
            return f"const __grid_constant__ TensorMap {parameter.name}"
        return (
            f"int64_t {parameter.name}" if parameter.dtype is None else super().parameter(parameter)
        )

    def loop_pragma(self, kind: AxisKind, extent: int) -> str:
        return "#pragma unroll" if kind in (AxisKind.UNROLLED, AxisKind.VECTOR) else ""

    def device_index(self, kind: AxisKind) -> str:
        return f"({self.index_type})" + (
            self.block_number if kind is AxisKind.GRID else "threadIdx.x"
        )

    def device_loops(self, kernel: Kernel, state: RenderState) -> CudaLoops:
        # blocks that run some of a grid each: grids have any number of blocks
        persistent = self.varied(block_number="block", max_blocks=None)
        return CudaLoops(
            kernel, state, self, persistent, self.matrix_units, self.asynchronous_copies
        )

    def barrier(self, inside_block_axis: bool) -> list[str]:
        return ["__syncthreads();"]

    def shuffle_xor(self, value: str, apart: int, threads: int) -> str | None:
        if apart >= WARP:
            return None
        # the mask names the lanes that exist, all of which take part
        whole, rest = threads - threads % WARP, (1 << threads % WARP) - 1
        mask = "0xffffffffu" if not rest else f"{rest:#x}u"
        if rest and whole:
            mask = f"threadIdx.x < {whole} ? 0xffffffffu : {mask}"
        return f"__shfl_xor_sync({mask}, {value}, {apart})"

    def vector_copy(
        self, destination: tuple[str, AddressSpace], source: tuple[str, AddressSpace], nbytes: int
    ) -> str:
        return f"copy_vector<{_VECTORS[nbytes]}>({destination[0]}, {source[0]});"

    def group_arrays(self, arrays: Sequence[tuple[str, DType, int]]) -> list[str]:
        *offsets, nbytes = group_offsets(arrays)
        if nbytes <= STATIC_SHARED_BYTES:
            return super().group_arrays(arrays)
        declared = [f"DYNAMIC_SHARED(group_memory, {nbytes});"]
        for (name, dtype, _), offset in zip(arrays, offsets, strict=True):
            pointer = f"{self.storage_type(dtype)} *"
            declared.append(f"{pointer}const {name} = ({pointer})(group_memory + {offset});")
        return declared

    def array(self, name: str, dtype: DType, size: int, scope: Scope) -> str:
        shared = "__shared__ " if scope is Scope.GROUP else ""
        return f"{shared}__align__(16) {self.storage_type(dtype)} {name}[{max(size, 1)}];"


def _own_helpers(helpers: Iterable[str]) -> tuple[list[str], list[str]]:
    """Divide helpers into this backend's and the core's."""
    names = list(helpers)
    own = [name for name in names if ptx.is_defined_here(name)]
    return own, [name for name in names if name not in own]


DIALECT = Cuda()
