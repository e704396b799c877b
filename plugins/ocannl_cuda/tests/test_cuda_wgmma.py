"""WGMMA: kernels against exact products on the emulator, planted faults, layouts as
functions, and the code for Hopper.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_cuda_emulator
from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.codegen.text.routine_source import RoutineSource
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.kernels.transforms import parse_schedule, schedule_text
from ocannl_core.ir.numbers.dtypes import (
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    uint8,
)
from ocannl_core.ir.serialization.decode import decode
from ocannl_core.ir.serialization.encode import encode
from ocannl_core.ir.serialization.forms import Numbering
from ocannl_core.ir.serialization.schema import form_of
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_cuda import warpgroup_ptx
from ocannl_cuda.dialect import DIALECT, Cuda
from ocannl_cuda.matrix_descriptors import matrix_descriptor, place_of
from ocannl_cuda.matrix_instructions import ASYNCHRONOUS, INSTRUCTIONS, UNITS, units_of
from ocannl_cuda.nvcc import Nvcc
from ocannl_cuda.nvrtc import Nvrtc
from ocannl_cuda.source import generate
from ocannl_cuda.tensor_maps import numbers_of
from plugins.ocannl_cuda.tests.emulated import NOTHING_LEFT, left_of, needs_emulation
from plugins.ocannl_cuda.tests.emulated import run as run_program
from plugins.ocannl_cuda.tests.emulated_kernels import Array, launcher
from plugins.ocannl_cuda.tests.resources import resources_of
from plugins.ocannl_cuda.tests.test_cuda_tensor_cores import (
    COMPILER,
    Product,
    device,
    disassembled,
    disassembly,
    has_disassembler,
    needs_compiler,
    needs_emulator,
)

(BFLOAT16, FLOAT16) = ASYNCHRONOUS
NARROW = (float8_e4m3fn, float8_e5m2, int8, uint8, int16)
FLOATS = (float16, bfloat16, float32, float64)


def hopper(
    processors: int = 1, local_bytes: int = 227 << 10, cache_bytes: tuple[int, ...] = ()
) -> Target:
    return replace(device(processors, local_bytes), matrix_units=UNITS, cache_bytes=cache_bytes)


def kernel_of(product: Product, target: Target | None = None) -> KernelText:
    """Return the kernel of a product, which has a ring of stages."""
    with settings.overrides(asynchronous_products=True):
        (kernel,), schedule = product.kernels(target or hopper())
    assert "; ring " in schedule
    return kernel


def plan_of(product: Product, target: Target) -> Plan:
    with settings.overrides(asynchronous_products=True):
        return plan_kernels(product.program(), target).plan()


def run(
    kernel: KernelText, operands: list[Array], text: str | None = None, blocks: int = 2
) -> tuple[int, str]:
    """Launch a kernel with some persistent blocks."""
    launch = launcher(DIALECT.unit([kernel]) if text is None else text, kernel.symbol)
    grid = (min(prod(kernel.grid), blocks),)
    return launch(grid, kernel.block, *operands, maps=kernel.tensor_maps)


PRODUCTS = {
    "one block of one group": (Product(64, 128, 64), hopper(1, 60 << 10)),
    "several blocks": (Product(128, 256, 128), hopper(4)),
    "two groups": (Product(128, 192, 128), hopper(1)),
    "tails along all axes": (Product(100, 136, 72), hopper(2)),
    "tails of wide blocks": (Product(136, 200, 264), hopper(1)),
    "float16": (Product(100, 136, 72, float16), hopper(2)),
    "both along": (Product(72, 136, 104, bfloat16, "ik jk ij"), hopper(2)),
    "both across": (Product(72, 136, 104, bfloat16, "ki kj ij"), hopper(2)),
    "across and along": (Product(72, 136, 104, bfloat16, "ki jk ji"), hopper(2)),
    "a batch": (Product(72, 136, 72, bfloat16, "bik bkj bij"), hopper(2)),
    "a batch inside": (Product(72, 136, 72, float16, "kbi bjk ibj"), hopper(2)),
    "rows with a pitch": (Product(70, 132, 66, bfloat16, pitches=(4, 6)), hopper(2)),
    "supertiles": (Product(700, 136, 520), hopper(4, 60 << 10, (1 << 10,))),
}


@cache
def every_kernel() -> tuple[dict[str, KernelText], str]:
    found = {name: kernel_of(*each) for name, each in PRODUCTS.items()}
    return found, DIALECT.unit(found.values())


@needs_emulator
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_all_sizes_and_layouts_are_within_the_bound(name: str) -> None:
    product, _ = PRODUCTS[name]
    kernels, text = every_kernel()
    operands = product.operands(product.terms)
    assert run(kernels[name], operands, text) == (0, "")
    exact, magnitude = product.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    assert (errors <= product.bound(exact, magnitude)).all()


@needs_emulator
@pytest.mark.parametrize("name", ["tails along all axes", "both across", "a batch inside"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_sums_of_whole_numbers_are_exact_for_any_number_of_blocks(name: str, blocks: int) -> None:
    product, _ = PRODUCTS[name]
    kernels, text = every_kernel()
    operands = product.operands()
    for operand in operands[:2]:
        operand[...] = np.rint(2 * operand.astype(np.float64))
    exact, magnitude = product.exact(*operands[:2])
    assert magnitude.max() < 2**24
    assert run(kernels[name], operands, text, blocks) == (0, "")
    np.testing.assert_array_equal(operands[2], exact.astype(product.dtype.numpy))


@needs_emulator
def test_threads_in_reverse_order_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    product, _ = PRODUCTS["tails along all axes"]
    kernels, text = every_kernel()
    results = []
    for order in ("forward", "reverse"):
        monkeypatch.setenv("CUDA_EMULATOR_ORDER", order)
        operands = product.operands()
        assert run(kernels["tails along all axes"], operands, text) == (0, "")
        results.append(operands[2].tobytes())
    assert results[0] == results[1]


@needs_emulator
def test_a_dialect_without_the_instructions_runs_the_same_loops() -> None:
    class Plain(Cuda):
        matrix_units = ()
        asynchronous_copies = ()

        def for_positions(self, most: int) -> Cuda:
            return self

    product = Product(40, 130, 72)
    plan = plan_of(product, hopper(1, 40 << 10))
    (step,) = plan.kernels
    kernel = render_kernel(step, plan.nodes, Plain())
    assert kernel.tensor_maps == ()
    assert "await" not in kernel.text
    operands = product.operands()
    assert run(kernel, operands) == (0, "")
    exact, magnitude = product.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    assert (errors <= product.bound(exact, magnitude)).all()


COMPLETE = r"await_phase\(v1 \+ 8 \* p, v3 >> p & 1\);"
FAULTS = {
    "none": ("b0", "b0", "right"),
    "no wait for a complete stage": (
        COMPLETE,
        "",
        "the copy in line N fills memory that products under way read",
    ),
    "no wait for a free stage": (
        r"await_phase\(v1 \+ 8 \* p \+ 16, v2 >> p & 1\);",
        "",
        "more threads arrive at the barrier in line N than it has",
    ),
    "a wait for another stage": (
        COMPLETE,
        "await_phase(v1 + 8 * (p ^ 1), v3 >> p & 1);",
        "the product in line N reads memory that a copy under way fills",
    ),
    "the other phase of complete stages": (
        r"uint32_t v3 = 0u",
        "uint32_t v3 = ~0u",
        "thread 0 waits at a phase that nothing completes in line N",
    ),
    "the other phase of free stages": (
        r"uint32_t v2 = ~0u",
        "uint32_t v2 = 0u",
        "thread 0 waits at a phase that nothing completes in line N",
    ),
    "phases that do not alternate": (
        r"v3 \^= 1u << p;",
        "",
        "the copy in line N fills memory that products under way read",
    ),
    "too few bytes": (
        r"arrive_expecting\((.*), (\d+)\);",
        r"arrive_expecting(\1, \2 - 128);",
        "more bytes are copied in line N than the barrier expects",
    ),
    "too many bytes": (
        r"arrive_expecting\((.*), (\d+)\);",
        r"arrive_expecting(\1, \2 + 128);",
        "thread 0 waits at a phase that nothing completes in line N",
    ),
    "barriers that the copy engine does not see": (
        r"publish_phases\(\);",
        "",
        "the barrier in line N is not published to the copy engine",
    ),
    "too few arrivals": (
        r"(start_phases\(v1 \+ \d+), 4\)",
        r"\1, 3)",
        "thread 0 waits at a phase that nothing completes in line N",
    ),
    "no fence before products": (
        r"start_products_\d+\(\w+\);",
        "",
        "products in line N come without a fence before them",
    ),
    "no wait for earlier products": (
        r"await_earlier_products\(\);",
        "",
        "the copy in line N fills memory that products under way read",
    ),
    "no wait for the last products": (
        r"await_products_\d+\(\w+\);",
        "",
        "the copy in line N fills memory that products under way read",
    ),
    "products that are not committed": (
        r"commit_products\(\);",
        "",
        "the copy in line N fills memory that products under way read",
    ),
    "a free stage before its products are made": (
        r"(if \(.* && v4 != 0u\) {\s+arrive\(v4\);\s+})\s+(v4 = .*;)",
        r"\2 \1",
        "the copy in line N fills memory that products under way read",
    ),
    "rows without the exchange": (
        r"described\(0x4",
        "described(0x0",
        "the descriptor N in line N is not one of rows of 128 bytes",
    ),
    "another distance of rows": (
        r"described\(0x4000004",
        "described(0x4000008",
        "the copy in line N fills memory that products under way read",
    ),
    "another distance of blocks": (
        r"described\(0x400000400200",
        "described(0x400000400100",
        "wrong",
    ),
    "a product of other terms": (r"(\* p \+ \d+)\), described", r"\1 + 16), described", "wrong"),
    "a box elsewhere": (r"64 \* p, 0\)", "64 * p, 8)", "wrong"),
    "a box that is not aligned": (
        r"copy_box_2\(v0 \+",
        "copy_box_2(v0 + 128 +",
        "a box in line N is not copied to a multiple of 1024 bytes",
    ),
}
"""Changes of the text of a kernel, and what becomes of its product."""
FAULTY = Product(64, 512, 136)


@cache
def faulty_kernels() -> tuple[KernelText, str]:
    """Return a kernel, and a text with a copy of it for each fault."""
    kernel = kernel_of(FAULTY, hopper(2, 60 << 10))
    copies = []
    for number, (old, new, _) in enumerate(FAULTS.values()):
        assert re.search(old, kernel.text), old
        text = re.sub(old, new, kernel.text).replace(kernel.symbol, f"fault{number}")
        copies.append(replace(kernel, text=text))
    return kernel, DIALECT.unit(copies)


def outcome_of(kernel: KernelText, text: str) -> str:
    """Return what becomes of a product."""
    operands = FAULTY.operands()
    code, message = run(kernel, operands, text, blocks=1)
    exact, magnitude = FAULTY.exact(*operands[:2])
    errors = np.abs(operands[2].astype(np.float64) - exact)
    is_right = (errors <= FAULTY.bound(exact, magnitude)).all()
    message = re.sub(r"\b0x\w+", "N", re.sub(r"line \d+", "line N", message))
    return message if code else "right" if is_right else "wrong"


@needs_emulator
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    kernel, text = faulty_kernels()
    own = replace(kernel, symbol=f"fault{list(FAULTS).index(fault)}")
    assert outcome_of(own, text) == FAULTS[fault][2]


@needs_emulator
def test_an_array_that_seems_larger_is_found() -> None:
    """Cells beyond the array are no zeros then."""
    kernel, text = faulty_kernels()
    first, second = kernel.tensor_maps
    longer = replace(second, extents=(second.extents[0] + 8, second.extents[1] - 8))
    own = replace(kernel, symbol="fault0", tensor_maps=(first, longer))
    assert outcome_of(own, text) == "wrong"


@pytest.mark.parametrize("is_across", [False, True])
def test_each_number_of_a_stage_has_a_place_of_its_own(is_across: bool) -> None:
    cells = 128
    places = {
        place_of(BFLOAT16, cell, term, is_across=is_across)
        for cell in range(cells)
        for term in range(BFLOAT16.depth)
    }
    assert places == set(range(0, cells * BFLOAT16.row_bytes, 2))


@given(st.integers(0, 255), st.integers(0, 63), st.booleans())
def test_a_descriptor_leads_to_the_place_of_each_number(
    cell: int, term: int, is_across: bool
) -> None:
    """The bits of PTX: distances in units of 16 bytes, and the exchange by XOR."""
    word = matrix_descriptor(FLOAT16, is_across=is_across)
    leading, stride = (word >> 16 & 0x3FFF) << 4, (word >> 32 & 0x3FFF) << 4
    number, inside = divmod(term, FLOAT16.terms)
    if is_across:
        start = number * FLOAT16.terms * 128
        address = start + cell // 64 * leading + cell % 64 * 2 + inside // 8 * stride
        address += inside % 8 * 128
    else:
        address = number * FLOAT16.terms * 2 + cell // 8 * stride + cell % 8 * 128 + inside * 2
    exchanged = address ^ (address >> 7 & 7) << 4
    assert word >> 62 == 1
    assert exchanged == place_of(FLOAT16, cell, term, is_across=is_across)


@bounded(max_examples=15, deadline=None)
@given(
    st.sampled_from(
        ["ik kj ij", "ik jk ij", "ki kj ij", "bik bkj bij", "bki bjk bij", "ibk bkj ibj"]
    ),
    st.tuples(*[st.integers(2, 40)] * 3),
    st.tuples(*[st.integers(0, 2)] * 2),
)
def test_a_tensor_map_has_the_cells_of_its_array(
    layout: str, sizes: tuple[int, int, int], pitches: tuple[int, int]
) -> None:
    rows, terms, columns = (8 * each for each in sizes)
    product = Product(max(rows, 64), max(terms, 128), max(columns, 64), layout=layout)
    product = Product(
        product.rows,
        product.terms,
        product.columns,
        bfloat16,
        layout,
        (8 * pitches[0], 8 * pitches[1]),
    )
    kernel = kernel_of(product)
    names = layout.split()
    for form in kernel.tensor_maps:
        axes = names[form.argument]
        shape = [product.extents[name] for name in axes]
        shape[-1] += product.pitches[form.argument]
        steps = [prod(shape[at + 1 :]) for at in range(len(shape))]
        expected = Counter(zip((product.extents[name] for name in axes), steps, strict=True))
        assert Counter(zip(form.extents, (1, *form.strides), strict=True)) == expected
        assert (form.offset, form.box[0]) == (0, 64)
        assert list(form.strides) == sorted(form.strides)
        assert all(
            last % first == 0 for first, last in zip(form.strides, form.strides[1:], strict=False)
        )
        numbers = numbers_of(form, 4096)
        assert (numbers.address, numbers.dtype, numbers.swizzle) == (4096, 9, 3)
        assert all(each % 16 == 0 for each in numbers.strides)
        assert len(numbers.strides) == len(numbers.extents) - 1


def test_the_copy_engine_copies_every_number_format_of_units() -> None:
    (form, _) = kernel_of(Product(64, 128, 64)).tensor_maps
    formats = {dtype.nbytes: numbers_of(replace(form, dtype=dtype), 0).dtype for dtype in NARROW}
    assert formats == {1: 0, 2: 1}
    floats = [numbers_of(replace(form, dtype=dtype), 0).dtype for dtype in FLOATS]
    assert floats == [6, 9, 7, 8]


@pytest.mark.parametrize(
    "product",
    [
        Product(128, 256, 128, float32),
        Product(128, 60, 128),
        Product(128, 256, 100),
        Product(128, 256, 128, pitches=(4, 0)),
        Product(8, 256, 128),
    ],
    ids=["float32", "few terms", "rows that are not aligned", "a pitch", "few rows"],
)
def test_other_products_have_the_kernels_that_they_have_without_the_setting(
    product: Product,
) -> None:
    without, _ = product.kernels(device(1))
    with settings.overrides(asynchronous_products=True):
        found, _ = product.kernels(hopper(1, 48 << 10))
    assert [each.text for each in found] == [each.text for each in without]


def test_kernels_are_the_same_texts_without_the_setting() -> None:
    for product, _ in PRODUCTS.values():
        with_instructions, _ = product.kernels(hopper(2, 48 << 10))
        without, _ = product.kernels(device(2))
        assert with_instructions == without


def test_only_hopper_has_the_instructions() -> None:
    assert units_of((9, 0)) == UNITS
    for capability in ((8, 0), (8, 9), (10, 0), (12, 0)):
        assert units_of(capability) == INSTRUCTIONS


def test_code_is_kept_on_disk_under_a_key_with_the_instructions() -> None:
    with settings.overrides(asynchronous_products=True):
        source = generate(plan_kernels(Product(128, 256, 128).program(), hopper()))
    form, numbering = form_of(RoutineSource), Numbering()
    assert decode(encode(source, form, numbering), form, numbering.things) == source
    keys = {encode(each, form_of(Target), Numbering()) for each in (hopper(), device(1, 227 << 10))}
    assert len(keys) == 2


def test_kernels_that_differ_in_their_arrays_alone_are_two() -> None:
    """The text has no extents where all boxes are whole."""
    first, second = (kernel_of(Product(128, 256, 128, pitches=(8 * pitch, 0))) for pitch in (1, 2))
    assert first.text.replace(first.symbol, "") == second.text.replace(second.symbol, "")
    assert first.symbol != second.symbol


def test_the_schedule_has_a_notation() -> None:
    plan = plan_of(*PRODUCTS["supertiles"])
    (step,) = plan.kernels
    text = schedule_text(step.schedule)  # type: ignore[union-attr]
    assert schedule_text(parse_schedule(text)) == text
    assert text == snapshot(
        "split i 256; split i1 64; split i11 64; split i111 16; split i1111 8; split j 128; split j1 8; split j11 2; split k 128; split k1 64; grid i0 j0 i10; block i110 i1110 i11111 j110; order i0 j0 i10 i110 i1110 i11111 j110 k0 k10 j10 i11110 j111 k11; unroll j10; unroll i11110; unroll j111; vectorize j111; tile i11110 j111 k11; pack 0 inside k10 as i11 k11; pack 1 inside k10 as k11 j1; ring k10; accumulate over k0 fused"
    )


def test_a_wrong_map_of_a_fragment_is_refused_when_code_is_generated() -> None:
    (warps, rows, columns) = BFLOAT16.sums.threads
    wrong = replace(BFLOAT16, sums=replace(BFLOAT16.sums, threads=(rows, warps, columns)))

    class Wrong(Cuda):
        matrix_units = (wrong,)

        def for_positions(self, most: int) -> Cuda:
            return self

    plan = plan_of(Product(64, 128, 64), hopper(1))
    (step,) = plan.kernels
    assert "multiply_async_bf16_128_" in render_kernel(step, plan.nodes, DIALECT).text
    with pytest.raises(CodegenError) as caught:
        render_kernel(step, plan.nodes, Wrong())
    assert str(caught.value) == snapshot("""\
Only asynchronous products have the stages of a ring.
  found  threads that are no digits of a fragment\
""")


PROGRAM = """
import numpy as np
import ocannl_core as oc

def whole(*shape):
    return random.integers(-2, 3, shape).astype(np.float64)

def results(backend, runs):
    with oc.Session():
        a, b = (oc.tensor(whole(*shape), dtype="bfloat16") for shape in ((20, 72), (72, 24)))
        c = oc.tensor(whole(24), dtype="bfloat16")
        y = oc.relu(oc.einsum("m,k; k,n => m,n", a, b) + c)
        q, k = (oc.tensor(whole(2, 16, 72), dtype="float16") for _ in range(2))
        z = oc.einsum("h,s,d; h,t,d => h,s,t", q, k)
        context = oc.Context(backend)
        routine = context.compile(oc.train.forward(y) + oc.train.forward(z))
        for _ in range(runs):
            routine()
        rings = sum("ring" in each.schedule for each in oc.explain(routine).kernels)
        return rings, [np.asarray(context[each], np.float64) for each in (y, z)]

random = np.random.default_rng(0)
rings, found = results("cuda", 3)
random = np.random.default_rng(0)
_, expected = results("interp", 1)
print(rings, [bool((x == y).all()) for x, y in zip(found, expected)])
"""


@needs_emulation
@pytest.mark.parametrize(
    ("sanitize", "variables"),
    [
        (True, {}),
        (False, {"CUDA_EMULATOR_RACES": "1"}),
        (False, {"OCANNL_CUDA__GRAPHS": "true", "CUDA_EMULATOR_ORDER": "reverse"}),
    ],
    ids=["sanitizer", "races", "graphs"],
)
def test_programs_have_the_results_of_the_interpreter(
    sanitize: bool, variables: dict[str, str], tmp_path: Path
) -> None:
    own = {"OCANNL_ASYNCHRONOUS_PRODUCTS": "true", **variables}
    result = run_program(PROGRAM, tmp_path, sanitize=sanitize, **own)
    assert (result.code, result.errors) == (0, "")
    assert result.output == "2 [True, True]\n"
    assert left_of(result) == NOTHING_LEFT


COMPILED = {
    "one group": (Product(128, 256, 128), hopper(4)),
    "two groups": (Product(1024, 1024, 1024), hopper(8)),
    "both across": (Product(1024, 1024, 1024, float16, "ki kj ij"), hopper(64)),
    "a batch": (Product(1024, 1024, 1024, bfloat16, "bik bjk bij"), hopper(16)),
}


@needs_compiler
@pytest.mark.skipif(not has_disassembler(), reason="needs the wheel nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("name", COMPILED)
def test_hopper_multiplies_and_copies_by_its_own_instructions(name: str, tmp_path: Path) -> None:
    assert isinstance(COMPILER, Nvrtc | Nvcc)
    kernel = kernel_of(*COMPILED[name])
    text = DIALECT.unit([kernel])
    (used,) = resources_of(COMPILER, text, "sm_90a").values()
    assert (used.spill_bytes, used.stack_bytes, used.notes) == (0, 0, ())
    threads = prod(kernel.block)
    assert used.registers * threads <= 65536
    cubin = COMPILER.compile(text, "sm_90a", "kernels.cu")
    found, body = disassembled(cubin, tmp_path), kernel.text
    # the compiler writes the loop over stages out
    stages = found["HGMMA"] // body.count("multiply_async_")
    assert found["HGMMA"] == stages * body.count("multiply_async_") > 0
    # the products of a stage are under way while the next one is waited for
    waits = re.findall(r"WARPGROUP.DEPBAR.LE gsb0, (0x\d)", disassembly(cubin, tmp_path))
    assert Counter(waits) == {"0x1": stages, "0x0": 1}
    assert found["UTMALDG"] >= body.count("copy_box_")
    assert found["SYNCS"] >= 2 * stages
    assert (found["USETMAXREG"] == 2) == ("take_registers" in body) == (threads == 384)
    assert not found["LDL"] + found["STL"] + found["LDGSTS"] + found["HMMA"]


def test_each_instruction_is_written_in_one_place() -> None:
    """One `asm` for each function, whose twin the emulator defines under the same name."""
    twins = Path(ocannl_cuda_emulator.__file__).with_name("warpgroup_emulator.hpp").read_text()
    every = warpgroup_ptx.functions()
    plain = {"TensorMap", "shared_address", "described"}
    for name, text in every.items():
        assert len(re.findall(r"\basm\b", text)) == (name not in plain)
        form = re.sub(r"^(multiply_async_).*", r"\1##name##_##columns##_##left##_##right", name)
        form = re.sub(r"^(\w+_products_)\d+$", r"\1##columns", form)
        form = re.sub(r"^copy_box_\d$", "copy_box_##rank", form)
        assert (
            len(
                re.findall(
                    rf"\b{form.replace('TensorMap', 'struct alignas.64. TensorMap')}\b[ (]", twins
                )
            )
            >= 1
        )


def test_the_description_counts_all_cells_of_a_group() -> None:
    for each in ASYNCHRONOUS:
        cells = {each.sums.cell(thread, place) for thread in range(128) for place in range(4)}
        assert cells == {(i, j) for i in range(64) for j in range(8)}
        assert (each.threads, each.depth) == (128, 64)
