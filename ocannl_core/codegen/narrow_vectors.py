"""Narrow floats in vectors: cells of 8 or 16 bits on the way to and from vectors of float32.

A helper is called `float32x16_load_bfloat16`: it takes so many cells from memory and widens them.
`splat` widens one cell for all lanes; `store` rounds once, to nearest and to even; `stream` does so past the caches; `round` leaves numbers
of the narrow format in a vector of float32. Nothing branches, and the numbers are those that the
functions for single cells give. Where a processor converts float16 itself, it does so in the same
way.
"""

from __future__ import annotations

import re

from ocannl_core.codegen.helper import Helper
from ocannl_core.dtypes import NARROW

CELLS = {dtype.name: f"uint{8 * dtype.nbytes}" for dtype in NARROW}
"""The integers that cells of narrow formats are stored as."""

_VERBS = frozenset({"value", "bits", "round", "load", "splat", "store", "stream"})

# in the texts below V is a vector of float32, U one of uint32, and C one of cells

_BFLOAT16_VALUE = "  return (V)(__builtin_convertvector(bits, U) << 16);"

_BFLOAT16_BITS = """\
  const U u = (U)x, is_nan = (U)(x != x);
  const U number = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
  return __builtin_convertvector((is_nan & quiet) | (~is_nan & number), C);"""

_BFLOAT16_ROUND = """\
  const U u = (U)x, is_nan = (U)(x != x);
  const U number = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000;
  return (V)(((is_nan & quiet) | (~is_nan & number)) & 0xffff0000);"""

_HALF_VALUE = """\
  const U wide = __builtin_convertvector(bits, U) << SHIFT;
  const U sign = (wide & 0x8000) << 16, rest = (wide & 0x7fff) << 13;
  const U number = (U)((V)rest * 0x1p112f), special = rest | 0x70000000;
  const U is_special = (U)(rest >= 0x0f800000);
  return (V)(sign | (is_special & special) | (~is_special & number));"""

_HALF_BITS = """\
  const U u = (U)x, size = u & 0x7fffffff, sign = u >> 31 << SIGN;
  const U small = (U)((V)size + UNIT) - UNIT_BITS;
  const U number = (size - 0x38000000 + LESS + (size >> DROPPED & 1)) >> DROPPED;
  const U is_small = (U)(size < 0x38800000), is_large = (U)(size >= 0x47800000);
  const U is_nan = (U)(x != x);
  U found = (is_small & small) | (~is_small & number);
  found = (is_large & INFINITE) | (~is_large & found);
  found = (is_nan & QUIET) | (~is_nan & found);
  return __builtin_convertvector(sign | found, C);"""

_E4M3FN_VALUE = """\
  const U wide = __builtin_convertvector(bits, U);
  const U sign = (wide & 0x80) << 24, rest = (wide & 0x7f) << 20;
  const U number = (U)((V)rest * 0x1p120f), is_nan = (U)(rest == 0x07f00000);
  return (V)(sign | (is_nan & 0x7fc00000) | (~is_nan & number));"""

_E4M3FN_BITS = """\
  const U u = (U)x, size = u & 0x7fffffff, sign = u >> 24 & 0x80;
  const U small = (U)((V)size + 0x1p14f) - 0x46800000;
  const U number = (size - 0x3c000000 + 0x7ffff + (size >> 20 & 1)) >> 20;
  const U is_small = (U)(size < 0x3c800000), is_large = (U)(size > 0x43e80000);
  const U found = (is_small & small) | (~is_small & number);
  return __builtin_convertvector(sign | (is_large & 0x7f) | (~is_large & found), C);"""

_FLOAT16 = {
    "SHIFT": "0",
    "SIGN": "15",
    "DROPPED": "13",
    "UNIT": "0x1p-1f",
    "UNIT_BITS": "0x3f000000",
    "LESS": "0xfff",
    "INFINITE": "0x7c00",
    "QUIET": "0x7e00",
}
_FLOAT8_E5M2 = {
    "SHIFT": "8",
    "SIGN": "7",
    "DROPPED": "21",
    "UNIT": "0x1p7f",
    "UNIT_BITS": "0x43000000",
    "LESS": "0xfffff",
    "INFINITE": "0x7c",
    "QUIET": "0x7e",
}
_CONVERSIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    "bfloat16": (_BFLOAT16_VALUE, _BFLOAT16_BITS, {}),
    "float16": (_HALF_VALUE, _HALF_BITS, _FLOAT16),
    "float8_e5m2": (_HALF_VALUE, _HALF_BITS, _FLOAT8_E5M2),
    "float8_e4m3fn": (_E4M3FN_VALUE, _E4M3FN_BITS, {}),
}

_ALL = "(unsigned short)-1"
_INSTRUCTIONS = {
    16: (
        "__AVX512F__",
        f"__builtin_ia32_vcvtph2ps512_mask((int16x16)bits, (V){{0}}, {_ALL}, 4)",
        f"(C)__builtin_ia32_vcvtps2ph512_mask(x, 0, (int16x16){{0}}, {_ALL})",
    ),
    8: (
        "__F16C__",
        "__builtin_ia32_vcvtph2ps256((int16x8)bits)",
        "(C)__builtin_ia32_vcvtps2ph256(x, 0)",
    ),
}
"""What converts float16: where it is there, from cells, and to cells."""


def narrow_helper(lanes: int, function: str) -> Helper | None:
    """Returns a function between cells of a narrow format and vectors of float32; None if there is
    no such function.

    Args:
        lanes: How many numbers a vector has.
        function: What the function is called after the type of vectors, such as `load_bfloat16`.
    """
    verb, _, dtype = function.partition("_")
    if verb not in _VERBS or dtype not in CELLS:
        return None
    vector, element = f"float32x{lanes}", f"{CELLS[dtype]}_t"
    cells = f"{CELLS[dtype]}x{lanes}"
    words = {"V": vector, "U": f"uint32x{lanes}", "C": cells}
    value, bits, constants = _CONVERSIONS[dtype]
    kinds: tuple[str, ...] = (*words.values(), f"int16x{lanes}")
    match verb:
        case "value":
            head = f"V {vector}_{function}(C bits)"
            body = _chosen(dtype, lanes, 1, value)
        case "bits":
            head = f"C {vector}_{function}(V x)"
            body = _chosen(dtype, lanes, 2, bits)
        case "round":
            head = f"V {vector}_{function}(V x)"
            both = f"{vector}_value_{dtype}", f"{vector}_bits_{dtype}"
            is_short = dtype == "bfloat16"
            body = _BFLOAT16_ROUND if is_short else f"  return {both[0]}({both[1]}(x));"
            kinds = kinds if is_short else (*kinds, *both)
        case "load":
            head = f"V {vector}_{function}(const {element} *p, int n)"
            body = f"  return {vector}_value_{dtype}({cells}_load(p, n));"
            kinds = (*kinds, f"{cells}_load", f"{vector}_value_{dtype}")
        case "splat":
            head = f"V {vector}_{function}({element} bits)"
            spread = ", ".join(["bits"] * lanes)
            body = f"  return {vector}_value_{dtype}((C){{{spread}}});"
            if dtype == "bfloat16":  # the lower half of each lane is shifted out
                both = ", ".join(["bits"] * (2 * lanes))
                words["D"] = f"{CELLS[dtype]}x{2 * lanes}"
                body = f"  return (V)((U)(D){{{both}}} << 16);"
            kinds = (*kinds, *filter(None, [words.get("D")]), f"{vector}_value_{dtype}")
        case "store":
            head = f"void {vector}_{function}({element} *p, V x, int n)"
            body = f"  {cells}_store(p, {vector}_bits_{dtype}(x), n);"
            kinds = (*kinds, f"{cells}_store", f"{vector}_bits_{dtype}")
        case _:
            head = f"void {vector}_{function}({element} *p, V x)"
            body = f"  {cells}_stream(p, {vector}_bits_{dtype}(x));"
            kinds = (*kinds, f"{cells}_stream", f"{vector}_bits_{dtype}")
    words |= constants
    text = re.sub(r"\w+", lambda found: words.get(found[0], found[0]), f"{head} {{\n{body}\n}}")
    return Helper(f"INLINE {text}", kinds)


def _chosen(dtype: str, lanes: int, direction: int, plain: str) -> str:
    """Returns a conversion by an instruction where there is one."""
    if dtype != "float16" or lanes not in _INSTRUCTIONS:
        return plain
    macro, call = _INSTRUCTIONS[lanes][0], _INSTRUCTIONS[lanes][direction]
    condition = f"defined({macro}) && defined(__GNUC__) && !defined(__clang__)"
    return f"#if {condition}\n  return {call};\n#else\n{plain}\n#endif"
