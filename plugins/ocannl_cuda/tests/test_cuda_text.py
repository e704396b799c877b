"""CUDA C++ of kernels, as text, and the resources that it takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from inline_snapshot import external_file, snapshot

import ocannl_core as oc
from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.prelude.prelude import helper_names
from ocannl_core.codegen.text.routine_source import RoutineSource
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing import group_programs, number_programs, programs
from ocannl_core.testing.parser.loops import parse
from ocannl_cuda import compilers, ptx
from ocannl_cuda.compilers import Missing
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.nvcc import Nvcc
from ocannl_cuda.nvrtc import Nvrtc
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests.resources import resources_of

ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")
REGISTERS = 128
TARGET = Target("cuda", thread_blocks=ThreadBlocks(1024, 256, 48 << 10, REGISTERS, 32, 132))
COMPILER = compilers.search()

needs_compiler = pytest.mark.skipif(
    isinstance(COMPILER, Missing), reason="needs a compiler of CUDA C++: NVRTC or nvcc"
)


def kernels_of(program: LoopProgram) -> str:
    """Return the kernels of a program as it is written, without schedules."""
    source = generate(KernelStream.of(split_kernels(program)))
    texts = (
        each.text.replace(each.symbol, f"kernel{number}")
        for number, each in enumerate(source.kernels)
    )
    return "\n".join(texts)


def test_threads_of_a_block_share_memory_and_meet() -> None:
    assert kernels_of(group_programs.WITH_BARRIERS[0]().program) == snapshot("""\
extern "C" __global__ void __launch_bounds__(4) kernel0(
    const float *__restrict__ a0,
    float *__restrict__ a1) {
  __shared__ __align__(16) float t0[4];
  {
    const int32_t i = (int32_t)blockIdx.x;
    {
      const int32_t j = (int32_t)threadIdx.x;
      t0[j] = a0[4 * i + j];
      __syncthreads();
      a1[4 * i + j] = t0[-j + 3];
    }
  }
}
""")


def test_a_check_of_positions_sets_a_flag() -> None:
    first, *_ = kernels_of(programs.checked_positions().program).split("\n\n")
    assert first == snapshot("""\
extern "C" __global__ void __launch_bounds__(128) kernel0(
    const uint8_t *__restrict__ a0,
    int64_t *__restrict__ failed) {
  uint8_t bad = 0;
  for (int32_t n0 = (int32_t)blockIdx.x * 128 + (int32_t)threadIdx.x; n0 < 3; n0 += 2048)
    bad |= (uint8_t)a0[(n0 + 1) * 1] >= (uint8_t)5u;
  if (bad) *failed = 1;
}\
""")


def test_narrow_floats_are_integers_in_memory() -> None:
    assert kernels_of(number_programs.rounds_each_operation().program) == snapshot("""\
extern "C" __global__ void __launch_bounds__(1) kernel0(
    const double *__restrict__ a0,
    double *__restrict__ a1,
    const float *__restrict__ a2,
    float *__restrict__ a3,
    const uint16_t *__restrict__ a4,
    uint16_t *__restrict__ a5,
    const uint16_t *__restrict__ a6,
    uint16_t *__restrict__ a7,
    const uint8_t *__restrict__ a8,
    uint8_t *__restrict__ a9,
    const uint8_t *__restrict__ a10,
    uint8_t *__restrict__ a11) {
  a1[0] = a0[0] * a0[0] - (a0[0] + a0[0] - 1.0);
  a3[0] = a2[0] * a2[0] - (a2[0] + a2[0] - 1.0f);
  a5[0] = float16_bits(float16_round(float16_value(a4[0]) * float16_value(a4[0])) - float16_round(float16_round(float16_value(a4[0]) + float16_value(a4[0])) - 1.0f));
  a7[0] = bfloat16_bits(bfloat16_round(bfloat16_value(a6[0]) * bfloat16_value(a6[0])) - bfloat16_round(bfloat16_round(bfloat16_value(a6[0]) + bfloat16_value(a6[0])) - 1.0f));
  a9[0] = float8_e4m3fn_bits(float8_e4m3fn_round(float8_e4m3fn_value(a8[0]) * float8_e4m3fn_value(a8[0])) - float8_e4m3fn_round(float8_e4m3fn_round(float8_e4m3fn_value(a8[0]) + float8_e4m3fn_value(a8[0])) - 1.0f));
  a11[0] = float8_e5m2_bits(float8_e5m2_round(float8_e5m2_value(a10[0]) * float8_e5m2_value(a10[0])) - float8_e5m2_round(float8_e5m2_round(float8_e5m2_value(a10[0]) + float8_e5m2_value(a10[0])) - 1.0f));
}
""")


def test_static_indices_are_parameters_of_64_bits() -> None:
    program, _, _ = programs.row_of()
    assert kernels_of(program) == snapshot("""\
extern "C" __global__ void __launch_bounds__(1) kernel0(
    const float *__restrict__ a0,
    float *__restrict__ a1,
    int64_t s0,
    int64_t s1) {
  for (int32_t i = 0; i < 3; ++i) {
    a1[i] = a0[4 * s0 + i + s1];
  }
}

extern "C" __global__ void __launch_bounds__(1) kernel1(float *__restrict__ a0, int64_t s0, int64_t s1) {
  a0[3] = (float)(10 * s0 + s1);
}
""")


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_helper_compiles(architecture: str) -> None:
    assert isinstance(COMPILER, Nvrtc | Nvcc)
    text = DIALECT.prelude(helper_names())
    assert COMPILER.compile(text, architecture, "helpers.cu")


def source_of(result: oc.Tensor) -> RoutineSource:
    """Return the code that computes a tensor on a large device, which this machine need not have."""
    routine = oc.Context("interp").compile(oc.train.forward(result))
    return generate(plan_kernels(routine._build.program.loops, TARGET))


def product() -> oc.Tensor:
    a, b = (np.ones((512, 512), np.float32) for _ in range(2))
    return oc.tensor(a, input_axes=1) @ oc.tensor(b, batch_axes=1)


def softmax() -> oc.Tensor:
    x = oc.tensor(np.ones((256, 512), np.float32), batch_axes=1)
    exponents = oc.exp(x - oc.einsum("b|o => b|0", x))
    return exponents / oc.einsum("b|o => b|0", exponents)


def gelu() -> oc.Tensor:
    x = oc.tensor(np.ones((256, 512), np.float32), batch_axes=1)
    return 0.5 * x * (1.0 + oc.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


@needs_compiler
@pytest.mark.parametrize("make", [product, softmax, gelu])
def test_kernels_keep_all_their_numbers_in_registers(make: Callable[[], oc.Tensor]) -> None:
    assert isinstance(COMPILER, Nvrtc | Nvcc)
    source = source_of(make())
    found = resources_of(COMPILER, DIALECT.unit(source.kernels), "sm_90a")
    assert found.keys() == {each.symbol for each in source.kernels}
    for each in found.values():
        assert (each.spill_bytes, each.stack_bytes) == (0, 0)
        assert each.registers <= REGISTERS


def test_the_instructions_of_ptx_are_the_known_ones() -> None:
    """The emulator has functions of its own in their place: this text is the only check of each."""
    names = [*ptx._functions(), *(f"await_copies_{count}" for count in range(4))]
    conversions = "\n".join(text for _, text in ptx.conversions())
    assert f"{ptx.definitions(names)}\n{conversions}\n" == external_file("ptx.txt")


def test_arrays_of_a_thread_have_a_limit_that_a_device_can_reserve() -> None:
    program = parse("""\
routine reversed(a: float32[4, 5000], b: float32[4, 5000]):
    for i in range(4):
        kernel t: float32[5000]
        for j in range(5000):
            t[j] = a[i, j]
        for j in range(5000):
            b[i, j] = t[4999 - j]""")
    with pytest.raises(CodegenError, match="at most 16384 bytes"):
        kernels_of(program)
