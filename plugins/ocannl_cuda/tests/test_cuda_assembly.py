"""Gates on compiled kernels: no number of a thread leaves its registers, and loads are wide.

`assembly.txt` is the table of all kernels of the benchmarks' networks; `make cuda-assembly` checks it,
and `make cuda-assembly ARGS=--inline-snapshot=fix` writes it anew. It holds for one version of the
compiler. The gates hold for every version.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from inline_snapshot import external_file

from ocannl_cuda import compilers
from ocannl_cuda.compilers import Missing
from plugins.ocannl_cuda.tests.assembled_networks import ALL, DEVICES, FEW, HEAD, Network
from plugins.ocannl_cuda.tests.assembly import assemble, find_disassembler, sections

COMPILER = compilers.search()
DISASSEMBLER = find_disassembler()
TABLE = Path(__file__).parent / "assembly.txt"
FAST = "sm_90a"
MOST_REGISTERS = 128
"""Of blocks of 256 threads, so that two run at the same time; threads of smaller blocks have more."""

needs_tools = pytest.mark.skipif(
    isinstance(COMPILER, Missing) or DISASSEMBLER is None,
    reason="needs a compiler of CUDA C++, and nvdisasm: pip install nvidia-cuda-nvdisasm",
)
needs_minutes = pytest.mark.skipif(
    "CUDA_ASSEMBLY_ALL" not in os.environ, reason="minutes: run by `make cuda-assembly`"
)


@cache
def assembled(name: str, architecture: str) -> Network:
    assert not isinstance(COMPILER, Missing)
    assert DISASSEMBLER is not None
    return Network(ALL[name](), architecture, COMPILER, DISASSEMBLER)


def check(network: Network) -> None:
    """Assert that all numbers of a thread are in registers, of which enough blocks have some."""
    for threads, kernel in network.kernels:
        found = kernel.resources
        assert (found.spill_bytes, found.stack_bytes, kernel.local_accesses) == (0, 0, 0)
        assert not found.notes
        assert found.registers * threads <= MOST_REGISTERS * 256


def widest(network: Network, number: int = 0) -> dict[str, int]:
    """Return the bits of the widest access by each instruction of a kernel."""
    widths = network.kernels[number][1].widths
    return {name: max(bits for each, bits in widths if each == name) for name, _ in widths}


@needs_tools
@pytest.mark.parametrize("name", FEW)
def test_numbers_of_threads_stay_in_registers(name: str) -> None:
    check(assembled(name, FAST))


@needs_tools
@pytest.mark.parametrize("name", ["softmax", "layer norm"])
def test_rows_are_loaded_in_vectors_and_summed_by_shuffles(name: str) -> None:
    network = assembled(name, FAST)
    (kernel,) = network.kernels
    assert {bits for name, bits in kernel[1].widths if name in ("LDG", "STG")} == {128}
    assert kernel[1].widths["LDG", 128] == (1 if name == "softmax" else 3)  # the row is read once
    assert kernel[1].instructions["SHFL"] == 10  # five steps of two sums
    assert kernel[1].instructions["BAR"] <= 5


@needs_tools
def test_an_update_of_an_optimizer_has_vector_accesses_only() -> None:
    kernels = [each for _, each in assembled("adam", FAST).kernels]
    (update,) = [each for each in kernels if each.widths.get(("STG", 128), 0) >= 3]
    assert {bits for name, bits in update.widths if name == "STG"} == {128}


@needs_tools
def test_a_tile_is_copied_ahead_and_stored_in_vectors() -> None:
    """Copies of 16 bytes go to shared memory past the registers, and results to memory."""
    assert widest(assembled("product 1024", FAST)) == {"LDGSTS": 128, "STG": 128, "LDS": 128}


@needs_tools
def test_most_instructions_of_a_large_tile_are_multiply_adds() -> None:
    """The others load shared memory, one for 16 of these, and compute addresses."""
    ((_, kernel),) = assembled("product 4096", FAST).kernels
    products = kernel.instructions["FFMA"]
    assert products == 16 * kernel.instructions["LDS"] == 2048
    assert products > 0.82 * sum(kernel.instructions.values())


@needs_tools
def test_a_layer_on_matrix_instructions_has_vector_accesses_only() -> None:
    """Its bias and its residual operand are loaded, and its results stored, 16 bytes at a time."""
    ((_, kernel),) = assembled("layer bfloat16", FAST).kernels
    assert kernel.matrix_instructions
    found = {bits for name, bits in kernel.widths if name in ("LDG", "STG", "LDGSTS")}
    assert found == {128}


@needs_tools
@pytest.mark.parametrize("name", ["layer bfloat16", "attention bfloat16 of 128"])
def test_numbers_are_rounded_in_pairs_by_an_instruction(name: str) -> None:
    ((_, kernel),) = assembled(name, FAST).kernels
    assert kernel.instructions["F2FP"] >= 128
    assert kernel.instructions["F2F"] == 0  # of a single number, at a fraction of the rate
    # no rounding by operations on bits
    assert kernel.instructions["LOP3"] < kernel.instructions["F2FP"]


@needs_tools
def test_attention_has_few_instructions_for_each_product_of_matrices() -> None:
    """Most of the others are exponentials, which have the bits of other backends."""
    ((_, kernel),) = assembled("attention bfloat16 of 128", FAST).kernels
    assert kernel.matrix_instructions == 128  # of a tile of 64 keys, in one loop
    assert sum(kernel.instructions.values()) < 28 * kernel.matrix_instructions


@needs_tools
def test_squares_are_transposed_in_shared_memory() -> None:
    ((_, kernel),) = assembled("transpose", FAST).kernels
    accesses = ("LDG", "STS", "LDS", "STG")
    assert [kernel.instructions[name] for name in accesses] == [4] * len(accesses)
    assert kernel.instructions["BAR"] == 1
    check(assembled("transpose", FAST))


@needs_tools
def test_products_and_sums_are_rounded_on_their_own() -> None:
    assert not isinstance(COMPILER, Missing)
    assert DISASSEMBLER is not None
    text = """
    extern "C" __global__ void k(const float *x, float *y) { *y = x[0] * x[1] + x[2]; }
    """
    found = assemble(COMPILER, DISASSEMBLER, text, FAST)["k"].instructions
    assert (found["FMUL"], found["FADD"], found.get("FFMA", 0)) == (1, 1, 0)


@needs_tools
@needs_minutes
@pytest.mark.parametrize("architecture", DEVICES)
@pytest.mark.parametrize("name", ALL)
def test_no_kernel_of_a_network_has_numbers_outside_of_registers(
    name: str, architecture: str
) -> None:
    check(assembled(name, architecture))


@needs_tools
@needs_minutes
def test_the_table_of_kernels_is_up_to_date() -> None:
    assert not isinstance(COMPILER, Missing)
    # the version alone: its path is that of this machine
    rows = [COMPILER.name.partition(" (")[0]]
    for name in ALL:
        rows += ["", f"{name}, {FAST}", HEAD, *assembled(name, FAST).rows()]
    text = "\n".join([*rows, ""])
    known = TABLE.read_text().partition("\n")[0] if TABLE.exists() else rows[0]
    if known != rows[0]:
        pytest.skip(f"the table is that of {known}, and this is {rows[0]}")
    assert text == external_file("assembly.txt")


def test_a_listing_has_a_part_for_each_kernel() -> None:
    listing = "head\n.text.k_1:\n  a\n.text.k_2:\n  b\n"
    assert sections(listing) == {"k_1": "\n  a\n", "k_2": "\n  b\n"}
