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

There are no branches on data, and the results are equal to the functions on single cells, also
where the processor converts float16 itself.
"""

from __future__ import annotations

import re

from ocannl_core.codegen.text.helper import Helper, read_helpers
from ocannl_core.ir.numbers.dtypes import NARROW

CELLS = {dtype.name: f"uint{8 * dtype.nbytes}" for dtype in NARROW}
"""The integers that store cells of narrow formats."""

_VERBS = frozenset(
    {"value", "bits", "cut", "round", "nearest", "load", "splat", "store", "put", "stream"}
)
_PAIR_VERBS = frozenset({"pairs", "pair", "joined", "interleave", "dot"})

_ALL = "(unsigned short)-1"
_AVX512 = "defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)"

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
    "float16": ("half_value", "half_bits", _FLOAT16),
    "float8_e5m2": ("half_value", "half_bits", _FLOAT8_E5M2),
    "float8_e4m3fn": ("e4m3fn_value", "e4m3fn_bits", {}),
}
"""Conversions without instructions: the texts from cells and to cells, and their constants."""

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
    if "WHERE_NE" in body:
        words["WHERE_NE"] = f"{vector}_where_ne"
        kinds = (*kinds, words["WHERE_NE"])
    names = {f"{each}_OF": f"{vector}_{each}_{dtype}" for each in used}
    names |= {f"{each}_CELLS": f"{cells}_{each}" for each in ("load", "store", "stream")}
    words |= names | _CONVERSIONS[dtype][2] | {"E": element, "NAME": f"{vector}_{function}"}
    words["WHOLE"] = f"{cells}_cells"
    text = re.sub(r"\w+", lambda found: words.get(found[0], found[0]), f"{head} {{\n{body}\n}}")
    needs = [name for name in names.values() if re.search(rf"\b{name}\(", text)]
    return Helper(f"INLINE {text}", (*kinds, *needs))


def _text(name: str) -> str:
    return read_helpers("narrow_vectors.c.in")[name].text


def _definition(verb: str, dtype: str, lanes: int) -> tuple[str, str, tuple[str, ...]]:
    """Return the head and body of a function, and the verbs of the functions that it uses."""
    is_short = dtype == "bfloat16"
    match verb:
        case "value" if dtype == "float8_e5m2":  # the upper half of float16
            body = "  return HALF_VALUE(__builtin_convertvector(bits, H) << 8);"
            return "V NAME(C bits)", body, ()
        case "value":
            return "V NAME(C bits)", _widen(dtype, lanes), ()
        case "bits" if is_short:
            return "C NAME(V x)", "  return cut_OF(round_OF(x));", ("cut", "round")
        case "bits":
            return "C NAME(V x)", _select_instruction(dtype, lanes, 2), ()
        case "cut" if is_short:
            return "C NAME(V x)", _truncate(lanes), ()
        case "cut":
            return "C NAME(V x)", "  return bits_OF(x);", ("bits",)
        case "round" if is_short:
            return "V NAME(V x)", _text("bfloat16_round"), ()
        case "nearest" if is_short:
            return "V NAME(V x)", _text("bfloat16_nearest"), ()
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
            return "void NAME(E *p, V x, int n)", _store_cells("bits_OF", lanes), ("bits",)
        case "put":
            return "void NAME(E *p, V x, int n)", _store_cells("cut_OF", lanes), ("cut",)
        case _:
            return "void NAME(E *p, V x)", "  stream_CELLS(p, bits_OF(x));", ("bits",)


def _store_cells(function: str, lanes: int) -> str:
    """Return the body of a function that stores n cells."""
    whole = f"  if (n == {lanes}) *(WHOLE *)p = {function}(x);"
    return f"{whole}\n  else store_CELLS(p, {function}(x), n);"


def _widen(dtype: str, lanes: int) -> str:
    """Return the body of a function from cells to numbers."""
    if dtype != "bfloat16":
        return _select_instruction(dtype, lanes, 1)
    plain = "  return (V)(__builtin_convertvector(bits, U) << 16);"
    if lanes != 16:
        return plain
    call = f"__builtin_ia32_pmovzxwd512_mask((int16x16)bits, (I){{0}}, {_ALL})"
    return f"#if {_AVX512}\n  return (V)((U){call} << 16);\n#else\n{plain}\n#endif"


def _truncate(lanes: int) -> str:
    """Return the body of a function from numbers of bfloat16 to cells."""
    plain = "  return __builtin_convertvector((U)x >> 16, C);"
    if lanes != 16:
        return plain
    call = f"__builtin_ia32_pmovdw512_mask((I)((U)x >> 16), (int16x16){{0}}, {_ALL})"
    return f"#if {_AVX512}\n  return (C){call};\n#else\n{plain}\n#endif"


def _select_instruction(dtype: str, lanes: int, direction: int) -> str:
    """Return a conversion, from cells (1) or to cells (2), by an instruction if there is one."""
    from_cells, to_cells, _ = _CONVERSIONS[dtype]
    plain = _text(from_cells if direction == 1 else to_cells)
    if dtype != "float16" or lanes not in _INSTRUCTIONS:
        return plain
    macro, call = _INSTRUCTIONS[lanes][0], _INSTRUCTIONS[lanes][direction]
    condition = f"defined({macro}) && defined(__GNUC__) && !defined(__clang__)"
    return f"#if {condition}\n  return {call};\n#else\n{plain}\n#endif"


_DOTS = (16, 8, 4)
"""The numbers of lanes for which AVX-512 has a dot-product instruction."""


def _pair_helper(lanes: int, verb: str) -> Helper:
    """Return a function on pairs of bfloat16."""
    vector, word = f"float32x{lanes}", f"uint32x{lanes}"
    text = _dot(lanes) if verb == "dot" else _text(verb)
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
    plain = _text("dot")
    if lanes not in _DOTS:
        return plain
    head, _, _ = plain.partition("\n")
    # since GCC 13 these are vectors of a type of their own
    size = f"__attribute__((vector_size({4 * lanes})))"
    cells = "PAIR_CELLS"
    condition = "defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__GNUC__)"
    call = f"__builtin_ia32_dpbf16ps_v{lanes}sf(x, ({cells})a, ({cells})b)"
    return (
        f"#if {condition} && !defined(__clang__)\n"
        f"#if __GNUC__ >= 13\ntypedef __bf16 {cells} {size};\n"
        f"#else\ntypedef short {cells} {size};\n#endif\n"
        f"{head}\n  return {call};\n}}\n#else\n{plain}\n#endif"
    )
