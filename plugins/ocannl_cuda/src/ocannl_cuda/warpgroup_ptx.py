"""Functions for the PTX instructions of asynchronous products, each written in one place.

Hopper (`sm_90a`) has them: products of shared memory by warpgroups, copies of boxes by the
copy engine, and barriers with phases. Addresses of shared memory are numbers of 32 bits. As for
those of `ptx`, the emulator defines a function of the same name for each.
"""

from __future__ import annotations

from functools import cache

from ocannl_core.backend_api import AsynchronousProduct
from ocannl_cuda.matrix_descriptors import ADDRESS_MASK, ADDRESS_SHIFT
from ocannl_cuda.matrix_instructions import ASYNCHRONOUS

TENSOR_RANKS = (2, 3, 4, 5)
"""The numbers of axes of arrays whose boxes the copy engine copies."""
FORMS = ("along", "across")
"""Rows of a factor in shared memory run along the terms, or across them."""
PRODUCER_REGISTERS = 40
CONSUMER_REGISTERS = 232
"""Registers of a thread by its role: the warpgroup that copies gives some to two that multiply."""


@cache
def functions() -> dict[str, str]:
    """Return the definitions of all functions of this module by name."""
    found = {
        "TensorMap": "struct __align__(64) TensorMap {\n  uint64_t words[16];\n};",
        "shared_address": (
            "static __device__ __forceinline__ uint32_t shared_address(const void *place) {\n"
            "  return (uint32_t)__cvta_generic_to_shared(place);\n}"
        ),
        "described": (
            "static __device__ __forceinline__ uint64_t described("
            "uint64_t form, uint32_t address) {\n"
            f"  return form | (address & {ADDRESS_MASK:#x}u) >> {ADDRESS_SHIFT};\n}}"
        ),
        "start_phases": ptx_function(
            "start_phases",
            "uint32_t barrier, uint32_t arrivals",
            'asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"',
            '    :: "r"(barrier), "r"(arrivals) : "memory");',
        ),
        "publish_phases": ptx_function(
            "publish_phases", "", 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
        ),
        "arrive": ptx_function(
            "arrive",
            "uint32_t barrier",
            'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");',
        ),
        "arrive_expecting": ptx_function(
            "arrive_expecting",
            "uint32_t barrier, uint32_t bytes",
            'asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"',
            '    :: "r"(barrier), "r"(bytes) : "memory");',
        ),
        "await_phase": ptx_function(
            "await_phase",
            "uint32_t barrier, uint32_t parity",
            'asm volatile("{\\n .reg .pred done;\\n"',
            '    "again:\\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"',
            '    " @!done bra again;\\n}" :: "r"(barrier), "r"(parity) : "memory");',
        ),
        "commit_products": ptx_function(
            "commit_products", "", 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
        ),
        "await_earlier_products": ptx_function(
            "await_earlier_products",
            "",
            'asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");',
        ),
        "give_registers": ptx_function(
            "give_registers",
            "",
            f'asm volatile("setmaxnreg.dec.sync.aligned.u32 {PRODUCER_REGISTERS};");',
        ),
        "take_registers": ptx_function(
            "take_registers",
            "",
            f'asm volatile("setmaxnreg.inc.sync.aligned.u32 {CONSUMER_REGISTERS};");',
        ),
    }
    for rank in TENSOR_RANKS:
        found[f"copy_box_{rank}"] = _copy_box(rank)
    for each in ASYNCHRONOUS:
        for columns in each.columns:
            for verb, instruction in (("start", "fence"), ("await", "wait_group")):
                name = f"{verb}_products_{columns}"
                found[name] = _ordering(name, instruction, columns)
            for left in FORMS:
                for right in FORMS:
                    name = f"multiply_async_{each.name}_{columns}_{left}_{right}"
                    found[name] = _multiply(name, each, columns, left, right)
    return found


def ptx_function(name: str, parameters: str, *lines: str) -> str:
    """Return the definition of a function, which the compiler inlines."""
    head = f"static __device__ __forceinline__ void {name}({parameters}) {{"
    return "\n".join([head, *(f"  {line}" for line in lines), "}"])


def _copy_box(rank: int) -> str:
    """Return the function for a copy of a box, whose bytes arrive at a barrier."""
    places = ", ".join(f"%{3 + at}" for at in range(rank))
    code = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[%0], [%1, {{{places}}}], [%2];"
    )
    given = ", ".join(f'"r"(x{at})' for at in range(rank))
    return ptx_function(
        f"copy_box_{rank}",
        "uint32_t to, const TensorMap &map, uint32_t barrier, "
        + ", ".join(f"int32_t x{at}" for at in range(rank)),
        f'asm volatile("{code}"',
        f'    :: "r"(to), "l"(&map), "r"(barrier), {given} : "memory");',
    )


def _sums(count: int) -> str:
    return ", ".join(f'"+f"(sums[{at}])' for at in range(count))


def _ordering(name: str, instruction: str, columns: int) -> str:
    """Return the function for an instruction before or after all products.

    It states the sums as its own: no number of theirs is written or read on the other side of it.
    """
    count = columns // 2
    operand = " 0" if instruction == "wait_group" else ""
    return ptx_function(
        name,
        f"float (&sums)[{count}]",
        f'asm volatile("wgmma.{instruction}.sync.aligned{operand};"',
        f'    : {_sums(count)} :: "memory");',
    )


def _multiply(name: str, product: AsynchronousProduct, columns: int, left: str, right: str) -> str:
    """Return the function for one product of rows of a warpgroup with columns.

    It takes the descriptors of the factors.
    """
    count = columns // 2
    sums = ", ".join(f"%{at}" for at in range(count))
    major = [int(form == "across") for form in (left, right)]
    code = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k{product.terms}.f32.{product.name}."
        f"{product.name} {{{sums}}}, %{count}, %{count + 1}, adds, 1, 1, {major[0]}, {major[1]};"
    )
    return ptx_function(
        name,
        f"float (&sums)[{count}], uint64_t left, uint64_t right",
        'asm volatile("{\\n .reg .pred adds;\\n setp.ne.b32 adds, 1, 0;\\n"',
        f'    "{code}\\n}}"',
        f'    : {_sums(count)} : "l"(left), "l"(right) : "memory");',
    )
