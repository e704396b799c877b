"""Vectors of narrow floats: conversion between cells of 8 or 16 bits and vectors of float32.

A helper has a name such as `float32x16_load_bfloat16`, made of one of these verbs:

- `load` widens n cells of memory, `splat` widens one cell for all lanes;
- `round` rounds to nearest even in the narrow format, and returns float32;
- `nearest` does so for the results of operations on numbers of the narrow format, whose NaN have
  no bits beyond the format;
- `store` rounds and stores n cells, `stream` does so past the caches;
- `put` stores numbers that are exact in the format.

Two adjacent cells are a pair: a lane of a vector of uint32. A dot-product instruction adds the
products of two pairs to a float32 number, first that of the second cells.

- `pairs` loads n pairs, `pair` loads one for all lanes, `joined` makes them of two vectors;
- `interleave` stores the pairs of two vectors;
- `dot` adds the products of pairs to a vector.

There are no branches on data, and the results are those of the functions on single cells, also
where the processor converts float16 itself.
"""

from __future__ import annotations

import re

from ocannl_core.codegen.helper import Helper
from ocannl_core.dtypes import NARROW

CELLS = {dtype.name: f"uint{8 * dtype.nbytes}" for dtype in NARROW}
"""The integers that store cells of narrow formats."""

_VERBS = frozenset(
    {"value", "bits", "cut", "round", "nearest", "load", "splat", "store", "put", "stream"}
)
_PAIR_VERBS = frozenset({"pairs", "pair", "joined", "interleave", "dot"})

# In the texts below V is a vector of float32, U one of uint32, I one of int32, and C one of cells.
# Comparisons of numbers below 2**31 are the sign of their difference, spread over a lane: GCC
# compiles comparisons of vectors of sixteen lanes badly.

_ALL = "(unsigned short)-1"
_AVX512 = "defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)"

_IS_NAN = "(U)((I)(0x7f800000 - (u & 0x7fffffff)) >> 31)"

_BFLOAT16_ROUND = f"""\
  const U u = (U)x, is_nan = {_IS_NAN};
  const U number = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000;
  return (V)(((is_nan & quiet) | (~is_nan & number)) & 0xffff0000);"""
_BFLOAT16_NEAREST = """\
  const U u = (U)x;
  return (V)((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000);"""

_HALF_VALUE = """\
  const U wide = __builtin_convertvector(bits, U) << SHIFT;
  const U sign = (wide & 0x8000) << 16, rest = (wide & 0x7fff) << 13;
  const U number = (U)((V)rest * 0x1p112f), special = rest | 0x70000000;
  const U is_special = (U)((I)(0x0f7fffff - rest) >> 31);
  return (V)(sign | (is_special & special) | (~is_special & number));"""

_HALF_BITS = f"""\
  const U u = (U)x, size = u & 0x7fffffff, sign = u >> 31 << SIGN;
  const U small = (U)((V)size + UNIT) - UNIT_BITS;
  const U number = (size - 0x38000000 + LESS + (size >> DROPPED & 1)) >> DROPPED;
  const U is_small = (U)((I)(size - 0x38800000) >> 31);
  const U is_large = (U)((I)(0x477fffff - size) >> 31), is_nan = {_IS_NAN};
  U found = (is_small & small) | (~is_small & number);
  found = (is_large & INFINITE) | (~is_large & found);
  found = (is_nan & QUIET) | (~is_nan & found);
  return __builtin_convertvector(sign | found, C);"""

_E4M3FN_VALUE = """\
  const U wide = __builtin_convertvector(bits, U);
  const U sign = (wide & 0x80) << 24, rest = (wide & 0x7f) << 20;
  const U number = (U)((V)rest * 0x1p120f), is_nan = (U)((I)(0x07efffff - rest) >> 31);
  return (V)(sign | (is_nan & 0x7fc00000) | (~is_nan & number));"""

_E4M3FN_BITS = """\
  const U u = (U)x, size = u & 0x7fffffff, sign = u >> 24 & 0x80;
  const U small = (U)((V)size + 0x1p14f) - 0x46800000;
  const U number = (size - 0x3c000000 + 0x7ffff + (size >> 20 & 1)) >> 20;
  const U is_small = (U)((I)(size - 0x3c800000) >> 31);
  const U is_large = (U)((I)(0x43e80000 - size) >> 31);
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
    "bfloat16": ("", "", {}),
    "float16": (_HALF_VALUE, _HALF_BITS, _FLOAT16),
    "float8_e5m2": (_HALF_VALUE, _HALF_BITS, _FLOAT8_E5M2),
    "float8_e4m3fn": (_E4M3FN_VALUE, _E4M3FN_BITS, {}),
}

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
"""Conversions of float16 by instructions: the condition, from cells, and to cells."""


def narrow_helper(lanes: int, function: str) -> Helper | None:
    """Return a conversion between cells and vectors of float32 by its name, if it is one.

    Args:
        lanes: The number of lanes of a vector.
        function: The name of the function after the vector type, such as `load_bfloat16`.
    """
    verb, _, dtype = function.partition("_")
    if dtype == "bfloat16" and verb in _PAIR_VERBS:
        return _pair_helper(lanes, verb)
    if verb not in _VERBS or dtype not in CELLS:
        return None
    vector, element = f"float32x{lanes}", f"{CELLS[dtype]}_t"
    cells = f"{CELLS[dtype]}x{lanes}"
    head, body, used = _definition(verb, dtype, lanes)
    words = {"V": vector, "U": f"uint32x{lanes}", "I": f"int32x{lanes}", "C": cells}
    kinds = (*words.values(), f"int16x{lanes}")
    if "(D)" in body:
        words["D"] = f"{CELLS[dtype]}x{2 * lanes}"
        kinds = (*kinds, words["D"])
    if "HALF_VALUE" in body:
        words |= {"H": f"uint16x{lanes}", "HALF_VALUE": f"{vector}_value_float16"}
        kinds = (*kinds, words["H"], words["HALF_VALUE"])
    names = {f"{each}_OF": f"{vector}_{each}_{dtype}" for each in used}
    names |= {f"{each}_CELLS": f"{cells}_{each}" for each in ("load", "store", "stream")}
    words |= names | _CONVERSIONS[dtype][2] | {"E": element, "NAME": f"{vector}_{function}"}
    words["WHOLE"] = f"{cells}_cells"
    text = re.sub(r"\w+", lambda found: words.get(found[0], found[0]), f"{head} {{\n{body}\n}}")
    needs = [name for name in names.values() if re.search(rf"\b{name}\(", text)]
    return Helper(f"INLINE {text}", (*kinds, *needs))


def _definition(verb: str, dtype: str, lanes: int) -> tuple[str, str, tuple[str, ...]]:
    """Return the head and body of a function, and the verbs of the functions that it uses."""
    value, bits, _ = _CONVERSIONS[dtype]
    is_short = dtype == "bfloat16"
    match verb:
        case "value" if dtype == "float8_e5m2":  # the upper half of float16
            body = "  return HALF_VALUE(__builtin_convertvector(bits, H) << 8);"
            return "V NAME(C bits)", body, ()
        case "value":
            return "V NAME(C bits)", _widening(dtype, lanes, value), ()
        case "bits" if is_short:
            return "C NAME(V x)", "  return cut_OF(round_OF(x));", ("cut", "round")
        case "bits":
            return "C NAME(V x)", _chosen(dtype, lanes, 2, bits), ()
        case "cut" if is_short:
            return "C NAME(V x)", _shortening(lanes), ()
        case "cut":
            return "C NAME(V x)", "  return bits_OF(x);", ("bits",)
        case "round" if is_short:
            return "V NAME(V x)", _BFLOAT16_ROUND, ()
        case "nearest" if is_short:
            return "V NAME(V x)", _BFLOAT16_NEAREST, ()
        case "round" | "nearest":
            return "V NAME(V x)", "  return value_OF(bits_OF(x));", ("value", "bits")
        case "load":
            whole = f"  if (n == {lanes}) return value_OF(*(const WHOLE *)p);"
            body = f"{whole}\n  return value_OF(load_CELLS(p, n));"
            return "V NAME(const E *p, int n)", body, ("value",)
        case "splat":
            if is_short:  # the lower half of each lane is shifted out
                spread = ", ".join(["bits"] * (2 * lanes))
                return "V NAME(E bits)", f"  return (V)((U)(D){{{spread}}} << 16);", ()
            spread = ", ".join(["bits"] * lanes)
            return "V NAME(E bits)", f"  return value_OF((C){{{spread}}});", ("value",)
        case "store":
            return "void NAME(E *p, V x, int n)", _storing("bits_OF", lanes), ("bits",)
        case "put":
            return "void NAME(E *p, V x, int n)", _storing("cut_OF", lanes), ("cut",)
        case _:
            return "void NAME(E *p, V x)", "  stream_CELLS(p, bits_OF(x));", ("bits",)


def _storing(function: str, lanes: int) -> str:
    """Return the body of a function that stores n cells."""
    whole = f"  if (n == {lanes}) *(WHOLE *)p = {function}(x);"
    return f"{whole}\n  else store_CELLS(p, {function}(x), n);"


def _widening(dtype: str, lanes: int, plain: str) -> str:
    """Return the body of a function from cells to numbers."""
    if dtype != "bfloat16":
        return _chosen(dtype, lanes, 1, plain)
    plain = "  return (V)(__builtin_convertvector(bits, U) << 16);"
    if lanes != 16:
        return plain
    call = f"__builtin_ia32_pmovzxwd512_mask((int16x16)bits, (I){{0}}, {_ALL})"
    return f"#if {_AVX512}\n  return (V)((U){call} << 16);\n#else\n{plain}\n#endif"


def _shortening(lanes: int) -> str:
    """Return the body of a function from numbers of bfloat16 to cells."""
    plain = "  return __builtin_convertvector((U)x >> 16, C);"
    if lanes != 16:
        return plain
    call = f"__builtin_ia32_pmovdw512_mask((I)((U)x >> 16), (int16x16){{0}}, {_ALL})"
    return f"#if {_AVX512}\n  return (C){call};\n#else\n{plain}\n#endif"


def _chosen(dtype: str, lanes: int, direction: int, plain: str) -> str:
    """Use an instruction for a conversion if the target has one."""
    if dtype != "float16" or lanes not in _INSTRUCTIONS:
        return plain
    macro, call = _INSTRUCTIONS[lanes][0], _INSTRUCTIONS[lanes][direction]
    condition = f"defined({macro}) && defined(__GNUC__) && !defined(__clang__)"
    return f"#if {condition}\n  return {call};\n#else\n{plain}\n#endif"


# ----- pairs --------------------------------------------------------------------------------------

_PAIRS = {
    "pairs": """\
INLINE U NAME(const uint16_t *p, int n) {
  if (n == LANES) return *(const WORD_CELLS *)p;
  return (U)LOAD((const float *)p, n);
}""",
    "pair": """\
INLINE U NAME(const uint16_t *p) {
  uint32_t both;
  memcpy(&both, p, sizeof both);
  return SPLAT(both);
}""",
    "joined": """\
INLINE U NAME(V first, V second) {
  return (U)first >> 16 | ((U)second & 0xffff0000);
}""",
    "interleave": """\
INLINE void NAME(uint16_t *p, V first, V second, int n) {
  const U both = (U)first >> 16 | ((U)second & 0xffff0000);
  if (n == LANES) *(WORD_CELLS *)p = both;
  else STORE((float *)p, (V)both, n);
}""",
}
_DOT = """\
  x = FMA((V)(a & 0xffff0000), (V)(b & 0xffff0000), x);
  return FMA((V)(a << 16), (V)(b << 16), x);"""
_DOTS = (16, 8, 4)
"""The numbers of lanes for which AVX-512 has a dot-product instruction."""


def _pair_helper(lanes: int, verb: str) -> Helper:
    """Return a function on pairs of bfloat16."""
    vector, word = f"float32x{lanes}", f"uint32x{lanes}"
    text = _dot(lanes) if verb == "dot" else _PAIRS[verb]
    words = {
        "V": vector,
        "U": word,
        "WORD_CELLS": f"{word}_cells",
        "LANES": str(lanes),
        "PAIR_CELLS": f"{vector}_pair_cells",
        "NAME": f"{vector}_{verb}_bfloat16",
    }
    used = {"LOAD": f"{vector}_load", "STORE": f"{vector}_store", "SPLAT": f"{word}_splat"}
    used["FMA"] = f"{vector}_fma"
    needs = [name for key, name in used.items() if re.search(rf"\b{key}\b", text)]
    words |= used
    text = re.sub(r"\w+", lambda found: words.get(found[0], found[0]), text)
    return Helper(text, (vector, word, *needs))


def _dot(lanes: int) -> str:
    """Return the dot product of pairs, by an instruction if the target has one."""
    head = "INLINE V NAME(V x, U a, U b) {"
    if lanes not in _DOTS:
        return f"{head}\n{_DOT}\n}}"
    # since GCC 13 these are vectors of a type of their own
    size = f"__attribute__((vector_size({4 * lanes})))"
    cells = "PAIR_CELLS"
    condition = "defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__GNUC__)"
    call = f"__builtin_ia32_dpbf16ps_v{lanes}sf(x, ({cells})a, ({cells})b)"
    return (
        f"#if {condition} && !defined(__clang__)\n"
        f"#if __GNUC__ >= 13\ntypedef __bf16 {cells} {size};\n"
        f"#else\ntypedef short {cells} {size};\n#endif\n"
        f"{head}\n  return {call};\n}}\n#else\n{head}\n{_DOT}\n}}\n#endif"
    )
