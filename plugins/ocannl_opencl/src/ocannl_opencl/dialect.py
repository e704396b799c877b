"""OpenCL C as a dialect of the shared renderer.

The text is OpenCL C 1.2, with doubles only in kernels that need them: a device may have none.
Functions of float32 have the same elementary operations as in the C backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ocannl_core.backend_api import DType
from ocannl_core.backend_api.c_family import (
    UNFUSED,
    AddressSpace,
    BlockDialect,
    KernelParameter,
    PreludeWords,
)
from ocannl_core.backend_api.loops import AxisKind, Scope

PREAMBLE = """\
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#pragma OPENCL FP_CONTRACT OFF
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define half half_  // a variable of helpers
#undef NAN
#define NAN as_float(0x7fc00000)
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#if defined(__clang__) && defined(__FMA__)
/* on processors, where the library's function is no instruction */
static inline float fma_float(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#ifdef cl_khr_fp64
static inline double fma_double(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif
#else
#define fma_float fma
#define fma_double fma
#endif
#define fmaf fma_float
#define fmodf fmod
#define sqrtf sqrt
#define copysignf copysign
static inline void copy_bytes(void *to, const void *from, size_t count) {
  for (size_t n = 0; n < count; ++n)
    ((uchar *)to)[n] = ((const uchar *)from)[n];
}
#define memcpy copy_bytes
"""
"""The types and functions of C that helpers mention, and no contraction of products and sums."""

_BITS = {
    "bits_of": "INLINE uint32_t bits_of(float x) {\n  return as_uint(x);\n}",
    "float_of": "INLINE float float_of(uint32_t bits) {\n  return as_float(bits);\n}",
    "float64_bits": "INLINE uint64_t float64_bits(double x) {\n  return as_ulong(x);\n}",
    "float64_of": "INLINE double float64_of(uint64_t bits) {\n  return as_double(bits);\n}",
}
"""The helpers that reinterpret bits, by functions of the language."""

_VECTORS = {16: "uint4", 8: "uint2", 4: "uint", 2: "ushort"}
"""A type for each width of an access."""
_SPACES = {
    AddressSpace.GLOBAL: "__global ",
    AddressSpace.GROUP: "__local ",
    AddressSpace.PRIVATE: "",
}


class OpenCL(BlockDialect):
    """OpenCL C 1.2, one kernel per launch."""

    language: ClassVar[str] = "opencl"
    words: ClassVar[PreludeWords] = PreludeWords(
        table="__constant const", cells="__constant const", own=tuple(_BITS.items())
    )
    preamble: ClassVar[str] = PREAMBLE
    vector_bytes: ClassVar[int] = 16

    def for_positions(self, most: int) -> OpenCL:
        # devices compute addresses of 32 bits faster
        return self.varied(index_type="int32_t") if most < self.far else self

    @property
    def folded_block_number(self) -> str:
        return "(get_group_id(0) + get_num_groups(0) * get_group_id(1))"

    def function(self, name: str, dtype: DType) -> str:
        """Return the name itself: functions are overloaded, except `fma`, which the preamble
        defines for each type.
        """
        return f"fma_{self.value_type(dtype)}" if name == "fma" else name

    def opening(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return self.function_head(f"__kernel void {symbol}", parameters)

    def parameter(self, parameter: KernelParameter) -> str:
        if parameter.dtype is None:
            return f"int64_t {parameter.name}"
        return f"__global {super().parameter(parameter)}"

    def loop_pragma(self, kind: AxisKind, extent: int) -> str:
        is_unrolled = kind in (AxisKind.UNROLLED, AxisKind.VECTOR)
        return f"#pragma unroll {extent}" if is_unrolled else ""

    def device_index(self, kind: AxisKind) -> str:
        return "get_group_id(0)" if kind is AxisKind.GRID else "get_local_id(0)"

    def barrier(self, inside_block_axis: bool) -> list[str]:
        return ["barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"]

    def vector_copy(
        self, destination: tuple[str, AddressSpace], source: tuple[str, AddressSpace], nbytes: int
    ) -> str:
        to, of = (f"{_SPACES[space]}{_VECTORS[nbytes]} *" for _, space in (destination, source))
        return f"*({to}){destination[0]} = *(const {of}){source[0]};"

    def array(self, name: str, dtype: DType, size: int, scope: Scope) -> str:
        space = "__local " if scope is Scope.GROUP else ""
        cells = f"{space}{self.storage_type(dtype)} {name}[{max(size, 1)}]"
        return f"{cells} __attribute__((aligned({self.vector_bytes})));"


DIALECT = OpenCL()
UNFUSED_DIALECT = DIALECT.varied(required_helpers=frozenset({UNFUSED}))
"""OpenCL C for devices without fused multiply-add."""
