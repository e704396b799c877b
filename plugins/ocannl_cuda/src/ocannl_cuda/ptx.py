"""Functions for single PTX instructions, each written in one place.

The host's compiler, which runs kernels on emulated devices, skips them: the header of the emulator
defines a function of the same name for each, which does the same on the processor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from math import prod

from ocannl_core.backend_api import MatrixInstruction
from ocannl_cuda import warpgroup_ptx
from ocannl_cuda.matrix_instructions import COPIES, INSTRUCTIONS, TF32
from ocannl_cuda.warpgroup_ptx import ptx_function

_REGISTERS = (2, 4)
_LOADS = {
    "load_matrices_2": (("words",), 2),
    "load_matrices_4": (("words",), 4),
    "load_matrices_2_twice": (("words", "others"), 2),
}
"""Functions that load small matrices: the arrays that they fill, and the registers of each."""
_AWAIT = re.compile(r"await_copies_(\d+)")
_SHARED = "(uint32_t)__cvta_generic_to_shared({})"


def is_defined_here(helper: str) -> bool:
    """Return True for the functions of this module."""
    return helper in _functions() or _AWAIT.fullmatch(helper) is not None


def definitions(helpers: Iterable[str]) -> str:
    """Return the definitions of some functions, as text that the emulator's compiler skips."""
    names = sorted(set(helpers))
    if not names:
        return ""
    texts = "\n\n".join(_definition(name) for name in names)
    return f"#ifndef CUDA_EMULATOR\n{texts}\n#endif\n"


_CONVERSIONS = {
    "uint16_t bfloat16_bits(float x)": ("bf16", "0.0f", "x", "(uint16_t)pair"),
    "float bfloat16_round(float x)": ("bf16", "x", "0.0f", "float_of(pair)"),
    "uint16_t float16_bits(float x)": ("f16", "0.0f", "x", "(uint16_t)pair"),
}
"""Functions that round a number: the format, both numbers of a pair, and the result.

One instruction converts two numbers, the first to the upper half of a word; that for a single
number is several times slower.
"""
_HALF = """\
INLINE float float16_value(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}"""


@cache
def conversions() -> tuple[tuple[str, str], ...]:
    """Return definitions of helpers that convert numbers by an instruction, by name.

    They round as the definitions in C do, which older devices and the emulator use: to the nearest,
    ties to even. A NaN loses its payload.
    """
    found = {"float16_value": _HALF}
    for head, (format_, high, low, result) in _CONVERSIONS.items():
        code = f"cvt.rn.{format_}x2.f32 %0, %1, %2;"
        found[head.split()[1].partition("(")[0]] = (
            f"INLINE {head} {{\n  uint32_t pair;\n"
            f'  asm("{code}" : "=r"(pair) : "f"({high}), "f"({low}));\n'
            f"  return {result};\n}}"
        )
    is_older = "#if defined(CUDA_EMULATOR) || __CUDA_ARCH__ < 800"
    return tuple(
        (name, f"{is_older}\nORIGINAL\n#else\n{text}\n#endif") for name, text in found.items()
    )


def _definition(name: str) -> str:
    found = _AWAIT.fullmatch(name)
    if found is None:
        return _functions()[name]
    return ptx_function(
        name,
        "",
        rf'asm volatile("cp.async.commit_group;\n cp.async.wait_group {found[1]};" ::: "memory");',
    )


@cache
def _functions() -> dict[str, str]:
    found = dict(warpgroup_ptx.functions())
    for each in INSTRUCTIONS:
        found[f"multiply_add_{each.name}"] = _multiply_add(each)
    for name, (names, count) in _LOADS.items():
        found[name] = _load_matrices(name, names, count, is_transposed=False)
        name = f"{name}_transposed"
        found[name] = _load_matrices(name, names, count, is_transposed=True)
    for count in _REGISTERS:
        found[f"split_{TF32.name}_{count}"] = _split(count)
    for nbytes in COPIES:
        found[f"copy_async_{nbytes}"] = _copy(nbytes)
    found["word_of_float32"] = (
        "static __device__ __forceinline__ uint32_t word_of_float32(float x) {\n"
        "  return __float_as_uint(x);\n}"
    )
    return found


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + at}" for at in range(count)) + "}"


def _multiply_add(instruction: MatrixInstruction) -> str:
    """Return the function for `mma.sync`: a function of its operands, which needs no order."""
    name, sums = instruction.name, instruction.sums
    left, right = (
        prod(each.count for each in fragment.places) * instruction.dtype.nbytes // 4
        for fragment in (instruction.left, instruction.right)
    )
    shape = f"m{sums.rows}n{sums.columns}k{instruction.terms}"
    code = (
        f"mma.sync.aligned.{shape}.row.col.f32.{name}.{name}.f32 "
        f"{_registers(0, 4)}, {_registers(4, left)}, {_registers(4 + left, right)}, "
        f"{_registers(0, 4)};"
    )
    results = ", ".join(f'"+f"(s{at})' for at in range(4))
    factors = ", ".join(
        [*(f'"r"(left[{at}])' for at in range(left)), *(f'"r"(right[{at}])' for at in range(right))]
    )
    return ptx_function(
        f"multiply_add_{name}",
        "float &s0, float &s1, float &s2, float &s3, "
        f"const uint32_t (&left)[{left}], const uint32_t (&right)[{right}]",
        f'asm("{code}"',
        f"    : {results} : {factors});",
    )


def _load_matrices(name: str, arrays: Sequence[str], count: int, *, is_transposed: bool) -> str:
    form = ".trans" if is_transposed else ""
    every = [f"{array}[{at}]" for array in arrays for at in range(count)]
    code = (
        f"ldmatrix.sync.aligned.m8n8.x{len(every)}{form}.shared.b16 "
        f"{_registers(0, len(every))}, [%{len(every)}];"
    )
    results = ", ".join(f'"=r"({each})' for each in every)
    return ptx_function(
        name,
        ", ".join([*(f"uint32_t (&{array})[{count}]" for array in arrays), "const void *row"]),
        f"const uint32_t place = {_SHARED.format('row')};",
        f'asm volatile("{code}"',
        f'    : {results} : "r"(place) : "memory");',
    )


def _split(count: int) -> str:
    """Return the function that cuts numbers of float32 into a part of 11 digits and one of the
    rest.
    """
    round_to_nearest = 'asm("cvt.rna.tf32.f32 %0, %1;" : "=r"({}) : "f"({}));'
    return ptx_function(
        f"split_{TF32.name}_{count}",
        f"uint32_t (&words)[{count}], uint32_t (&rests)[{count}]",
        f"for (int at = 0; at < {count}; ++at) {{",
        "  const float x = __uint_as_float(words[at]);",
        "  " + round_to_nearest.format("words[at]", "x"),
        "  const float rest = x - __uint_as_float(words[at]);",
        "  " + round_to_nearest.format("rests[at]", "rest"),
        "}",
    )


def _copy(nbytes: int) -> str:
    """Return the function for `cp.async`; the largest copies bypass the nearest cache."""
    cache_level = "cg" if nbytes == 16 else "ca"
    code = f"cp.async.{cache_level}.shared.global [%0], [%1], {nbytes}, %2;"
    return ptx_function(
        f"copy_async_{nbytes}",
        "void *to, const void *from, int valid",
        f"const uint32_t place = {_SHARED.format('to')};",
        f'asm volatile("{code}"',
        '    :: "r"(place), "l"(from), "r"(valid) : "memory");',
    )
