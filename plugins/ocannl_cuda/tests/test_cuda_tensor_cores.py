"""Matrix instructions: kernels against exact products on the emulator, planted faults, and the code
of devices that this machine need not have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_cuda_emulator
from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.codegen.text.routine_source import RoutineSource
from ocannl_core.ir.kernels.product_status import ProductUnit
from ocannl_core.ir.matrix_units import Digit, MatrixInstruction
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32
from ocannl_core.ir.serialization.decode import decode
from ocannl_core.ir.serialization.encode import encode
from ocannl_core.ir.serialization.forms import Numbering
from ocannl_core.ir.serialization.schema import form_of
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_cuda import compilers, ptx
from ocannl_cuda.compilers import Missing
from ocannl_cuda.dialect import DIALECT, PREAMBLE, Cuda
from ocannl_cuda.matrix_instructions import (
    BFLOAT16,
    COPIES,
    FLOAT16,
    INSTRUCTIONS,
    TF32,
    copies_of,
    units_of,
)
from ocannl_cuda.nvcc import Nvcc
from ocannl_cuda.nvrtc import Nvrtc
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests.emulated_kernels import Array, launcher
from plugins.ocannl_cuda.tests.matrix_products import REGISTERS, Product, device, run
from plugins.ocannl_cuda.tests.resources import resources_of
from tests.support.slow import slow

ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")
COMPILER = compilers.search()
needs_emulator = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_compiler = pytest.mark.skipif(
    isinstance(COMPILER, Missing), reason="needs a compiler of CUDA C++: NVRTC or nvcc"
)


@cache
def every_product() -> tuple[dict[Product, KernelText], str]:
    """Return the kernels of all products of this file, and a text that has all of them."""
    found: dict[Product, KernelText] = {}
    for product in PRODUCTS:
        (found[product],), schedule = product.kernels()
        assert "tile" in schedule
        assert "multiply_add_" in found[product].text
    return found, DIALECT.unit(found.values())


def check(product: Product, spread: float = 0.0) -> None:
    kernels, text = every_product()
    operands = product.operands(product.terms, spread)
    assert run(kernels[product], operands, text) == (0, "")
    exact, magnitude = product.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    assert (errors <= product.bound(exact, magnitude)).all()


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda each: each.name)
def test_fragments_are_bijections_of_one_shape(instruction: MatrixInstruction) -> None:
    left, right, sums = instruction.left, instruction.right, instruction.sums
    assert (left.rows, right.columns) == (sums.rows, sums.columns) == (16, 8)
    assert left.columns == right.rows == instruction.terms
    for each in (left, right, sums):
        count = each.rows * each.columns // 32
        cells = {each.cell(thread, place) for thread in range(32) for place in range(count)}
        assert cells == {(i, j) for i in range(each.rows) for j in range(each.columns)}


def test_the_compute_capability_decides_which_instructions_there_are() -> None:
    assert units_of((7, 5)) == copies_of((7, 5)) == ()
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0)):
        assert units_of(capability)[-len(INSTRUCTIONS) :] == INSTRUCTIONS
        assert copies_of(capability) == COPIES


def words_of(cells: Array, dtype: DType) -> Array:
    """Return the registers that numbers of a thread lie in."""
    own = cells.astype(dtype.numpy)
    return own.view(np.uint32) if dtype.nbytes == 4 else own.view(np.uint16).view(np.uint32)


ONE_PRODUCT = """
extern "C" __global__ void one(const uint32_t *left, const uint32_t *right, float *sums) {
  const int lane = threadIdx.x;
  uint32_t a[4], b[2];
  for (int k = 0; k < 4; ++k) a[k] = left[4 * lane + k];
  for (int k = 0; k < 2; ++k) b[k] = right[2 * lane + k];
  float *s = sums + 4 * lane;
  multiply_add_NAME(s[0], s[1], s[2], s[3], a, b);
}
"""


@needs_emulator
@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda each: each.name)
def test_the_emulated_instruction_multiplies_the_fragments_of_the_description(
    instruction: MatrixInstruction,
) -> None:
    numbers = np.random.default_rng(7)
    a, b, c = (
        numbers.integers(-4, 5, shape).astype(np.float32)
        for shape in ((16, instruction.terms), (instruction.terms, 8), (16, 8))
    )
    fragments = [
        np.array(
            [
                [cells[each.cell(thread, place)] for place in range(cells.size // 32)]
                for thread in range(32)
            ],
            np.float32,
        )
        for each, cells in ((instruction.left, a), (instruction.right, b), (instruction.sums, c))
    ]
    registers = [words_of(each, instruction.dtype) for each in fragments[:2]]
    sums = fragments[2].copy()
    text = PREAMBLE + ONE_PRODUCT.replace("NAME", instruction.name)
    launch = launcher(text, "one")
    assert launch((1,), (32,), *(map(np.ascontiguousarray, registers)), sums) == (0, "")
    found = np.zeros((16, 8), np.float32)
    for thread in range(32):
        for place in range(4):
            found[instruction.sums.cell(thread, place)] = sums[thread, place]
    np.testing.assert_array_equal(found, a @ b + c)


@needs_emulator
def test_the_emulated_sum_truncates_to_the_digits_of_the_largest_addend() -> None:
    """Twelve digits less than rounding keeps, in the worst case: what the documented bound covers."""
    text = PREAMBLE + ONE_PRODUCT.replace("NAME", "bf16")
    left = np.zeros((32, 8), np.float32)
    right = np.zeros((32, 4), np.float32)
    sums = np.zeros((32, 4), np.float32)
    sums[0, 0] = 1.0
    left[0:4] = 1.0  # row 0 of all terms
    right[0:4] = 0.75 * 2.0**-23  # column 0
    words = [np.ascontiguousarray(words_of(each, bfloat16)) for each in (left, right)]
    assert launcher(text, "one")((1,), (32,), *words, sums) == (0, "")
    assert sums[0, 0] == 1.0  # 16 terms of three quarters of its last digit vanish
    exact = Fraction(1) + 16 * Fraction(3, 4) * Fraction(2) ** -23
    assert abs(Fraction(float(sums[0, 0])) - exact) <= 3 * 24 * Fraction(2) ** -24


PRODUCTS = (
    *(Product(100, 37, 61, dtype) for dtype in (bfloat16, float16, float32)),
    Product(16, 16, 16, float16),
    Product(33, 130, 49, float32),
    Product(64, 256, 72, bfloat16),
    *(Product(40, 72, 48, bfloat16, layout) for layout in ("ik jk ij", "ki kj ij", "ki jk ji")),
    *(Product(40, 72, 48, float32, layout) for layout in ("ik jk ij", "ki kj ij", "ki jk ji")),
    Product(24, 48, 32, bfloat16, "bik bkj bij"),
    Product(24, 48, 32, float16, "kbi bjk ibj"),
    *(Product(33, 37, 29, dtype, pitches=(3, 3)) for dtype in (bfloat16, float32)),
    Product(32, 96, 32, float32),
    Product(40, 200, 40),
)


@needs_emulator
@pytest.mark.parametrize("product", [*PRODUCTS[::2], *slow(PRODUCTS[1::2])], ids=str)
def test_products_of_all_sizes_and_layouts_are_within_the_bound(product: Product) -> None:
    check(product)


@needs_emulator
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_rows_that_end_inside_of_a_copy_are_filled_with_zeros(dtype: DType) -> None:
    (kernel,), schedule = Product(33, 37, 29, dtype, pitches=(3, 3)).kernels()
    assert f"stage 0 by {16 // dtype.nbytes}" in schedule
    assert f" < {16 // dtype.nbytes} ? " in kernel.text  # the other test checks the numbers


@needs_emulator
@pytest.mark.parametrize("columns", [64, 72, 61])
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_cells_of_several_instructions_are_stored_in_one_vector(
    dtype: DType, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 61 cells begin at no multiple of a vector, and are stored cell by cell."""
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")
    product = Product(50, 72, columns, dtype, "ik jk ij")
    (kernel,), schedule = product.kernels(device(processors=1))
    assert "stage 1 by 8 pitch 40 skip 16 after 8" in schedule
    assert "vectorize j1111;" in schedule
    assert ("copy_vector<uint4>" in kernel.text) == (columns % 8 == 0)
    operands = product.operands()
    assert run(kernel, operands) == (0, "")
    exact, magnitude = product.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    assert (errors <= product.bound(exact, magnitude)).all()


@needs_emulator
@pytest.mark.parametrize("spread", [2.0, 6.0])
def test_parts_of_float32_keep_the_bound_for_numbers_far_apart(spread: float) -> None:
    check(Product(32, 96, 32, float32), spread=spread)


@needs_emulator
def test_every_number_of_stages_that_fits_gives_the_same_bits() -> None:
    product = Product(32, 150, 32)
    results = []
    for local_bytes in (10 << 10, 15 << 10, 48 << 10):
        (kernel,), schedule = product.kernels(device(local_bytes=local_bytes))
        operands = product.operands()
        assert run(kernel, operands) == (0, "")
        results.append(operands[2].view(np.uint16))
        assert f"pipeline k0 in {min(4, local_bytes // 5120)}" in schedule
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@needs_emulator
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_threads_in_reverse_order_give_the_same_bits(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = Product(100, 37, 61, dtype)
    kernels, text = every_product()
    results = []
    for order in ("forward", "reverse"):
        monkeypatch.setenv("CUDA_EMULATOR_ORDER", order)
        operands = product.operands()
        assert run(kernels[product], operands, text) == (0, "")
        results.append(operands[2].tobytes())
    assert results[0] == results[1]


FAULTS = {
    "none": ("a0", "a0", "right"),
    "no wait": (r" await_copies_\d\(\);", "", "wrong"),
    "a wait for one stage too few": ("await_copies_2", "await_copies_3", "wrong"),
    "no barrier": (r"__syncthreads\(\);", "", "wrong"),
    "an unaligned copy": (
        r"copy_async_16\(&t0\[",
        "copy_async_16(&t0[1 + ",
        "a copy of 16 bytes in line N is not aligned",
    ),
    "an unaligned pitch": (r"% 8 \* 40", "% 8 * 36", "a row of matrices in line N is not aligned"),
    "another pitch": (r"% 8 \* 40", "% 8 * 48", "wrong"),
    "a fragment that is not transposed": ("2_twice_transposed", "2_twice", "wrong"),
    "sums of other cells": (
        r"multiply_add_bf16\(t2\[0\], t2\[1\]",
        "multiply_add_bf16(t2[1], t2[0]",
        "wrong",
    ),
}
"""Changes of the text of a kernel, and what becomes of its product. Without barriers a warp runs
ahead of the others as far as it can.
"""


@cache
def faulty_kernels() -> tuple[KernelText, str]:
    """Return a kernel, and a text with a copy of it for each fault."""
    (kernel,), _ = Product(40, 200, 40).kernels()
    copies = []
    for number, (old, new, _) in enumerate(FAULTS.values()):
        assert re.search(old, kernel.text)
        text = re.sub(old, new, kernel.text).replace(kernel.symbol, f"fault{number}")
        copies.append(replace(kernel, text=text))
    return kernel, DIALECT.unit(copies)


@needs_emulator
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    kernel, text = faulty_kernels()
    product = Product(40, 200, 40)
    operands = product.operands()
    own = replace(kernel, symbol=f"fault{list(FAULTS).index(fault)}")
    code, message = run(own, operands, text)
    exact, magnitude = product.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    is_right = (errors <= product.bound(exact, magnitude)).all()
    found = re.sub(r"line \d+", "line N", message) if code else "right" if is_right else "wrong"
    assert found == FAULTS[fault][2]


@needs_emulator
def test_a_product_of_parts_that_is_left_out_is_found() -> None:
    """Those of small parts are as large as they can be."""
    product = Product(32, 64, 32, float32)
    (kernel,), _ = product.kernels()
    lines = re.findall(r" multiply_add_tf32\(.*\);", kernel.text)
    faults = (range(0), range(0, len(lines), 3), range(1, len(lines), 3))
    copies = []
    for number, each in enumerate(faults):
        changed = kernel.text.replace(kernel.symbol, f"fault{number}")
        for line in each:
            changed = changed.replace(lines[line], "")
        copies.append(replace(kernel, text=changed, symbol=f"fault{number}"))
    text = DIALECT.unit(copies)
    for own, each in zip(copies, faults, strict=True):
        operands = product.operands()
        for operand in operands[:2]:
            operand[...] = 1 + 2.0**-12 - 2.0**-23
        assert run(own, operands, text) == (0, "")
        exact, magnitude = product.exact(*operands[:2])
        errors = np.abs(operands[2].astype(np.float64) - exact)
        assert (errors <= product.bound(exact, magnitude)).all() == (not each)


def test_a_wrong_map_of_a_fragment_is_refused_when_code_is_generated() -> None:
    (down, across) = BFLOAT16.sums.threads
    wrong = replace(BFLOAT16, sums=replace(BFLOAT16.sums, threads=(across, down)))

    class Wrong(Cuda):
        matrix_units = (wrong,)

        def for_positions(self, most: int) -> Cuda:
            return self

    stream = plan_kernels(Product(64, 64, 64).program(), device())
    plan = stream.plan()
    (kernel,) = plan.kernels
    assert "multiply_add_bf16(" in render_kernel(kernel, plan.nodes, DIALECT).text
    with pytest.raises(CodegenError) as caught:
        render_kernel(kernel, plan.nodes, Wrong())
    assert str(caught.value) == snapshot("""\
Only matrix instructions have tiles of warps.
  found  threads that are no digits of a fragment\
""")


@needs_emulator
def test_a_dialect_without_the_instructions_runs_the_same_loops() -> None:
    class Plain(Cuda):
        matrix_units = ()
        asynchronous_copies = ()

        def for_positions(self, most: int) -> Cuda:
            return self

    product = Product(24, 40, 33, bfloat16)
    plan = plan_kernels(product.program(), device()).plan()
    (step,) = plan.kernels
    kernel = render_kernel(step, plan.nodes, Plain())
    assert "multiply_add" not in kernel.text
    assert "copy_async" not in kernel.text
    assert "await_copies" not in kernel.text
    operands = product.operands()
    assert run(kernel, operands) == (0, "")
    exact, magnitude = product.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    assert (errors <= product.bound(exact, magnitude)).all()


def test_a_step_of_the_pipeline_is_a_wait_copies_fragments_and_products() -> None:
    (kernel,), _ = Product(64, 64, 64).kernels()
    lines = [line.strip() for line in kernel.text.splitlines()]
    start = lines.index("#pragma unroll", lines.index("__syncthreads();"))
    first = lines.index("__syncthreads();")
    assert "\n".join(lines[first - 3 : min(start, first + 14)]) == snapshot("""\
copy_async_16(&t0[40 * n + 320 * m + 640 * k + 8 * p], &a0[2048 * i + 64 * n + 512 * m + 1024 * k + 8 * p], 16);
copy_async_16(&t1[40 * n + 320 * m + 640 * k + 8 * p], &a1[64 * n + 512 * m + 1024 * k + 32 * j + 8 * p], 16);
await_copies_0();
__syncthreads();
copy_async_16(&t0[40 * n + 320 * m + 640 * k + 8 * p + 1280], &a0[2048 * i + 64 * n + 512 * m + 1024 * k + 8 * p] + 32, 16);
copy_async_16(&t1[40 * n + 320 * m + 640 * k + 8 * p + 1280], &a1[64 * n + 512 * m + 1024 * k + 32 * j + 8 * p] + 2048, 16);
uint32_t v0[4];
load_matrices_4(v0, &t0[640 * k + v1]);
uint32_t v2[2], v3[2];
load_matrices_2_twice_transposed(v2, v3, &t1[16 * m + v1]);
multiply_add_bf16(t2[0], t2[1], t2[2], t2[3], v0, v2);
multiply_add_bf16(t2[4], t2[5], t2[6], t2[7], v0, v3);
uint32_t v4[4];
load_matrices_4(v4, &t0[640 * k + 16 + v1]);
uint32_t v5[2], v6[2];
load_matrices_2_twice_transposed(v5, v6, &t1[16 * m + 640 + v1]);
multiply_add_bf16(t2[0], t2[1], t2[2], t2[3], v4, v5);\
""")


def test_code_with_tiles_is_kept_on_disk_under_a_key_with_the_instructions() -> None:
    program = Product(64, 64, 64).program()
    source = generate(plan_kernels(program, device()))
    form, numbering = form_of(RoutineSource), Numbering()
    assert decode(encode(source, form, numbering), form, numbering.things) == source
    own = device()
    plain = replace(own, matrix_units=())
    keys = [encode(each, form_of(Target), Numbering()) for each in (own, plain)]
    assert keys[0] != keys[1]


def test_each_instruction_is_written_in_one_place() -> None:
    """One `asm` for each function, whose twin the emulator defines under the same name."""
    helpers = [
        *(f"multiply_add_{each.name}" for each in INSTRUCTIONS),
        *(f"load_matrices_{n}{form}" for n in (2, 4, "2_twice") for form in ("", "_transposed")),
        *(f"copy_async_{n}" for n in COPIES),
        "await_copies_0",
    ]
    twins = (Path(ocannl_cuda_emulator.__file__).with_name("ptx_emulator.hpp")).read_text()
    for each in helpers:
        assert ptx.is_defined_here(each)
        assert len(re.findall(r"\basm\b", ptx.definitions([each]))) == 1
    loads = "load_matrices_##n##form", "load_matrices_2_twice##form"
    for each in ("multiply_add_##name", *loads, "copy_async_##n"):
        assert twins.count(f"{each}(") == 1
    assert not ptx.is_defined_here("await_copies")
    assert ptx.definitions([]) == ""


def disassembled(cubin: bytes, folder: Path) -> Counter[str]:
    """Return the instructions of a cubin, without their variants, with their counts."""
    text = disassembly(cubin, folder)
    return Counter(re.findall(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", text))


def disassembly(cubin: bytes, folder: Path) -> str:
    """Return the text of a cubin."""
    import nvidia.cu13  # type: ignore[import-not-found, unused-ignore]

    program = Path(nvidia.cu13.__path__[0]) / "bin" / "nvdisasm"
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    return subprocess.run([program, "-c", path], capture_output=True, text=True, check=True).stdout


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "architecture"),
    [
        *((bfloat16, each) for each in ARCHITECTURES),
        *((float32, each) for each in ARCHITECTURES),
        (float16, "sm_90a"),
    ],
    ids=str,
)
def test_kernels_compile_and_keep_their_numbers_in_registers(
    dtype: DType, architecture: str
) -> None:
    assert isinstance(COMPILER, Nvrtc | Nvcc)
    kernels, schedule = Product(1024, 1024, 1024, dtype).kernels(device(64))
    assert "tile" in schedule
    (found,) = resources_of(COMPILER, DIALECT.unit(kernels), architecture).values()
    assert (found.spill_bytes, found.stack_bytes) == (0, 0)
    assert found.registers <= REGISTERS


def has_disassembler() -> bool:
    try:
        import nvidia.cu13  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return False
    return (Path(nvidia.cu13.__path__[0]) / "bin" / "nvdisasm").is_file()


@needs_compiler
@pytest.mark.skipif(not has_disassembler(), reason="needs the wheel nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("instruction", [BFLOAT16, FLOAT16, TF32], ids=lambda each: each.name)
def test_devices_execute_as_many_matrix_instructions_as_the_schedule_has(
    instruction: MatrixInstruction, tmp_path: Path
) -> None:
    assert isinstance(COMPILER, Nvrtc | Nvcc)
    kernels, _ = Product(1024, 1024, 1024, instruction.dtype).kernels(device(64))
    text = DIALECT.unit(kernels)
    found = disassembled(COMPILER.compile(text, "sm_90a", "kernels.cu"), tmp_path)
    body = text[text.index("__global__") :]
    assert found["HMMA"] == body.count("multiply_add_")
    assert found["LDSM"] == body.count("load_matrices_")
    assert found["LDGSTS"] >= body.count("copy_async_16") > 0
    assert not found["LDL"] + found["STL"]


def test_digits_of_the_description_are_those_of_threads() -> None:
    assert BFLOAT16.sums.threads == (Digit(8, rows=1), Digit(4, columns=2))
    assert BFLOAT16.sums.cell(5, 3) == (9, 3)


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
@pytest.mark.parametrize("accumulation", ["exact", "float32", "fast"])
@pytest.mark.parametrize("sizes", [(8, 64, 64), (64, 20, 72), (64, 64, 64)])
def test_the_status_of_a_product_is_that_of_its_rendered_kernel(
    dtype: DType, accumulation: str, sizes: tuple[int, int, int]
) -> None:
    rows, terms, columns = sizes
    program = Product(rows, terms, columns, dtype).program()
    with settings.overrides(accumulation=accumulation):
        source = generate(plan_kernels(program, device()))
    (status,) = source.plan.products
    helpers = {helper for kernel in source.kernels for helper in kernel.helpers}
    multiplies = any(each.startswith("multiply_add_") for each in helpers)
    assert multiplies == (status.unit is ProductUnit.MATRIX_INSTRUCTIONS)
    assert multiplies == (status.obstacle is None)
    if status.unit is not ProductUnit.SCALAR:
        assert all(kernel.group_bytes for kernel in source.kernels)
