"""Vectors, shuffles and shared memory of schedules, on emulated devices and on others."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.numbers.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from ocannl_cuda.dialect import DIALECT, PREAMBLE
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests import emulated_plans
from plugins.ocannl_cuda.tests.emulated import needs_emulation, run
from plugins.ocannl_cuda.tests.emulated_kernels import load_kernels
from plugins.ocannl_cuda.tests.emulated_plans import SMALL, FaultError, planned_for
from tests.support.example_count import example_count
from tests.support.reductions import random_reductions
from tests.support.rows import random_row_programs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FEW = settings(
    max_examples=example_count(3),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LONG = (1, 4, 8, 16, 33, 64, 70, 128)


def check(example: Example, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Small integers are exact in every order of addition."""
    arrays = example.arrays or {}
    expected = subject_named("interp").run(example.program, arrays, example.indices)
    found = emulated_plans.run(example.program, arrays)
    for node in example.program.params:
        np.testing.assert_array_equal(found[node].reshape(expected[node].shape), expected[node])


@FEW
@given(example=random_reductions(int32, LONG, 5000) | random_reductions(float32, LONG, 5000))
def test_reductions_are_right(example: Example) -> None:
    check(example)


@FEW
@given(example=random_row_programs())
def test_kernels_over_the_same_rows_are_right(example: Example) -> None:
    check(example)


def program(text: str, **arrays: np.ndarray) -> Example:  # type: ignore[type-arg]
    """Return a program with the cells of some of its parameters, by name."""
    parsed = parse(text)
    named = {node.label[0]: node for node in parsed.params}
    return Example(parsed, {named[name]: cells for name, cells in arrays.items()})


def copies_in(example: Example) -> list[str]:
    """Return the types of the vectors that the kernels for a device copy."""
    plan = planned_for(SMALL)(split_kernels(example.program), SMALL)
    texts = [kernel.text for kernel in generate(KernelStream.of(plan)).kernels]
    return [part.partition(">")[0] for text in texts for part in text.split("copy_vector<")[1:]]


def cells(dtype: DType, *dims: int) -> np.ndarray:  # type: ignore[type-arg]
    numbers = np.random.default_rng(len(dims)).integers(0, 7, dims)
    return numbers.astype(dtype.numpy)


@pytest.mark.parametrize(
    "dtype", [float64, float32, float16, bfloat16, int32, int8, uint8], ids=lambda dtype: dtype.name
)
def test_accesses_of_every_format_are_of_16_bytes(dtype: DType) -> None:
    example = program(
        f"""\
routine double(a: {dtype}[8, 256], b: {dtype}[8, 256]):
    for i in range(8):
        for j in range(256):
            b[i, j] = a[i, j] + a[i, j]""",
        a=cells(dtype, 8, 256),
    )
    assert copies_in(example) == ["uint4", "uint4"]
    check(example)


def test_narrow_cells_beside_wide_ones_are_parts_of_vectors() -> None:
    example = program(
        """\
routine scale(a: uint8[8, 256], b: float32[8, 256]):
    for i in range(8):
        for j in range(256):
            b[i, j] = float32(a[i, j]) * 2.0""",
        a=cells(uint8, 8, 256),
    )
    assert copies_in(example) == ["unsigned", "uint4"]
    check(example)


@pytest.mark.parametrize("count", [1003, 4097, 130])
def test_the_cells_after_the_last_vector_are_scalars(count: int) -> None:
    example = program(
        f"""\
routine double(a: float32[{count}], b: float32[{count}]):
    for i in range({count}):
        b[i] = a[i] + a[i]""",
        a=cells(float32, count),
    )
    assert copies_in(example) == ["uint4", "uint4"]
    check(example)


def test_random_numbers_with_a_key_for_all_are_made_by_all_threads() -> None:
    example = program(
        """\
routine dropout(a: float32[1000], b: float32[1000]):
    key: uint4x32
    key = threefry4x32(0x0, 0x2a)
    for i in range(1000):
        b[i] = uniform(threefry4x32(key, word(uint32(i)))) + a[i]""",
        a=cells(float32, 1000),
    )
    assert copies_in(example) == ["uint4", "uint4"]
    check(example)


@pytest.mark.parametrize(
    ("rows", "read"), [(61, "a[i, j]"), (64, "a[i, j + 1]"), (64, "a[j, i]")], ids=str
)
def test_accesses_without_alignment_are_scalars(rows: int, read: str) -> None:
    example = program(
        f"""\
routine move(a: float32[80, {rows}], b: float32[32, {rows}]):
    for i in range(32):
        for j in range({min(rows, 60)}):
            b[i, j] = {read} + 1.0""",
        a=cells(float32, 80, rows),
    )
    assert copies_in(example) == []
    check(example)


def test_a_load_that_may_be_left_out_is_a_vector_only_if_it_is_in_bounds() -> None:
    text = """\
routine masked(a: float32[{length}], b: float32[4, 1024]):
    for i in range(4):
        for j in range(1024):
            b[i, j] = where(int32(i) < 2, a[1024 * i + j], 3.0)"""
    inside = program(text.format(length=4096), a=cells(float32, 4096))
    assert copies_in(inside) == ["uint4", "uint4"]
    check(inside)
    outside = program(text.format(length=2048), a=cells(float32, 2048))
    assert copies_in(outside) == []
    check(outside)


def test_a_node_that_is_read_at_other_cells_is_not_written_in_vectors() -> None:
    example = program(
        """\
routine shift(a: float32[512], b: float32[512]):
    for i in range(512):
        b[i] = a[i] + b[i]""",
        a=cells(float32, 512),
        b=cells(float32, 512),
    )
    assert copies_in(example) == ["uint4", "uint4", "uint4"]
    check(example)


def test_tiles_are_copied_and_stored_in_vectors() -> None:
    """Of the operands one is transposed on its way to shared memory; results are loaded and stored."""
    example = program(
        """\
routine product(a: float32[64, 48], b: float32[48, 96], c: float32[64, 96]):
    for i in range(64):
        for j in range(96):
            for k in range(48):
                c[i, j] += a[i, k] * b[k, j]""",
        a=cells(float32, 64, 48),
        b=cells(float32, 48, 96),
    )
    assert copies_in(example) == ["uint4"] * 5
    check(example)


def test_a_vector_at_a_wrong_address_is_an_error() -> None:
    example = program(
        """\
routine double(a: float32[512], b: float32[512]):
    for i in range(512):
        b[i] = a[i] + a[i]""",
        a=cells(float32, 512),
    )
    emulated_plans.run(example.program, example.arrays, shift=16)
    with pytest.raises(FaultError, match=r"vector of 16 bytes in line .* is no multiple of that"):
        emulated_plans.run(example.program, example.arrays, shift=4)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
def test_numbers_half_way_between_narrow_ones_are_rounded_to_even(name: str) -> None:
    example = program(
        f"""\
routine rounded(a: float32[4096], b: {name}[4096]):
    for i in range(4096):
        b[i] = {name}(a[i])"""
    )
    a, b = example.program.params
    narrow = np.dtype(example.program.nodes[b].memory_numpy)
    neighbors = np.unique(np.linspace(1.0, 2.0, 4096).astype(narrow).astype(np.float32))
    halves = (neighbors[:-1] + neighbors[1:]) / 2
    numbers = np.resize(np.concatenate([halves, neighbors]), 4096).astype(np.float32)
    found = emulated_plans.run(example.program, {a: numbers})[b]
    assert found.tobytes() == numbers.astype(narrow).tobytes()


@pytest.mark.parametrize(
    ("threads", "mask"),
    [(64, "0xffffffffu"), (24, "0xffffffu"), (48, "threadIdx.x < 32 ? 0xffffffffu : 0xffffu")],
)
def test_a_shuffle_names_the_lanes_that_exist(threads: int, mask: str) -> None:
    assert DIALECT.shuffle_xor("x", 8, threads) == f"__shfl_xor_sync({mask}, x, 8)"


SUMS = {
    "rows": """\
routine rows(a: float32[6, 1000], c: float32[6]):
    for i in range(6):
        for k in range(1000):
            c[i] += a[i, k]""",
    "columns": """\
routine columns(a: float32[1000, 6], c: float32[6]):
    for j in range(6):
        for k in range(1000):
            c[j] += a[k, j]""",
    "all": """\
routine all(a: float32[40000], c: float32[1]):
    for k in range(40000):
        c[0] += a[k]""",
    "normalized": """\
routine normalized(a: float32[6, 500], c: float32[6, 500]):
    routine total: float32[6]
    total[:] = 0.0
    for i in range(6):
        for k in range(500):
            total[i] += a[i, k]
    for i in range(6):
        for k in range(500):
            c[i, k] = a[i, k] * total[i]""",
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("has_shuffles", [True, False])
def test_sums_have_the_same_bits_on_every_device_with_or_without_shuffles(
    name: str, has_shuffles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims = parse(SUMS[name])
    example = program(
        SUMS[name],
        a=np.random.default_rng(0).normal(size=dims.nodes[dims.params[0]].dims).astype(np.float32),
    )
    blocks = SMALL.thread_blocks
    assert blocks is not None
    target = replace(SMALL, thread_blocks=replace(blocks, has_shuffles=has_shuffles))
    found = emulated_plans.run(example.program, example.arrays, target)[example.program.params[1]]
    monkeypatch.setenv("CUDA_EMULATOR_ORDER", "reverse")
    reverse = emulated_plans.run(example.program, example.arrays, target)
    assert reverse[example.program.params[1]].tobytes() == found.tobytes()
    for device in ("interp", "opencl"):
        if device == "opencl":
            pytest.importorskip("pyopencl")
        cells_there = subject_named(device).run(
            example.program, example.arrays, (), planned_for(SMALL)
        )
        assert cells_there[example.program.params[1]].tobytes() == found.tobytes()


LONG_ROWS = """\
routine rows(a: float32[2, 16384], c: float32[2, 16384]):
    routine powers: float32[2, 16384]
    routine total: float32[2]
    total[:] = 0.0
    for i in range(2):
        for k in range(16384):
            powers[i, k] = exp(a[i, k])
    for i in range(2):
        for k in range(16384):
            total[i] += powers[i, k]
    for i in range(2):
        for k in range(16384):
            c[i, k] = powers[i, 16383 - k] / total[i]"""


def test_long_rows_are_in_shared_memory_that_the_launch_states() -> None:
    blocks = SMALL.thread_blocks
    assert blocks is not None
    large = replace(blocks, local_bytes=227 << 10, max_threads=1024, threads=256)
    target = replace(SMALL, thread_blocks=large)
    a = cells(float32, 2, 16384)
    example = program(LONG_ROWS, a=a)
    plan = planned_for(target)(split_kernels(example.program), target)
    (kernel,) = generate(KernelStream.of(plan)).kernels
    assert kernel.group_bytes > 64 << 10
    assert f"DYNAMIC_SHARED(group_memory, {kernel.group_bytes});" in kernel.text
    assert kernel.block == (512,)
    found = emulated_plans.run(example.program, example.arrays, target)
    powers = np.exp(a.astype(np.float64))
    np.testing.assert_allclose(
        found[example.program.params[1]], powers[:, ::-1] / powers.sum(1, keepdims=True), rtol=1e-4
    )


@needs_emulation
def test_a_launch_states_the_shared_memory_of_a_kernel(tmp_path: Path) -> None:
    outcome = run(
        """
        import numpy as np
        import ocannl_core as oc

        x = np.random.default_rng(0).normal(size=(3, 16384)).astype(np.float32)
        rows = oc.tensor(x, batch_axes=1)
        ctx = oc.Context("cuda")
        shares = oc.softmax(rows, logic="...|... => ...|0")[..., ::-1]
        routine = ctx.compile(oc.train.forward(shares))
        routine()
        powers = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(ctx[shares], (powers / powers.sum(1, keepdims=True))[:, ::-1], rtol=1e-4)
        print("DYNAMIC_SHARED(group" in routine.source)
        """,
        tmp_path,
    )
    assert outcome.code == 0, outcome.errors
    assert outcome.output == "True\n"


def test_a_launch_with_too_little_shared_memory_is_an_error() -> None:
    code = load_kernels(
        PREAMBLE
        + """
extern "C" __global__ void fill(float *y) {
  DYNAMIC_SHARED(memory, 64);
  ((float *)memory)[threadIdx.x] = 1;
  y[threadIdx.x] = ((float *)memory)[threadIdx.x];
}
"""
    )
    cells_there = np.zeros(4, np.float32)
    given = (ctypes.c_int64 * 1)(cells_there.ctypes.data)
    one = (ctypes.c_uint * 3)(1, 1, 1)
    shared = ctypes.c_uint.in_dll(code, "cuda_emulator_shared_bytes")
    for nbytes, expected in ((64, 0), (32, 719)):
        shared.value = nbytes
        assert code.cuda_emulator_run_fill(given, ctypes.c_size_t(8), one, one) == expected
    message = (ctypes.c_char * 512).in_dll(code, "cuda_emulator_message").value
    assert message == b"the kernel uses 64 bytes of shared memory, and is launched with 32"
    assert cells_there.tolist() == [1, 0, 0, 0]
