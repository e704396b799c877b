"""Vectors of integers of less than 32 bits: conversion between cells and lanes of int32.

A helper has a name such as `int32x16_load_int8`, made of one of these verbs:

- `load` widens n cells of memory; those of packed formats by an array and an offset;
- `low` returns the low bits of lanes as cells, `store` stores n of these, `stream` does so past the
  caches;
- `wrap` returns lanes modulo the width of the format.

Four adjacent bytes are a quad: a lane of a vector of uint32. A dot-product instruction adds the
products of a quad of uint8 and one of int8 to a lane of int32; those of equal formats are two.

- `quads` loads n quads, `quad` loads one for all lanes, `joined` makes them of four vectors;
- `interleave` stores the quads of four vectors;
- `mixed` adds the products of quads of uint8 and of int8 to a vector, `dot` those of one format.

A bool is 0 or 1 in a lane, and in the byte that is its cell.
"""

from __future__ import annotations

from ocannl_core.codegen.text.helper import Helper, instantiate, read_helpers
from ocannl_core.ir.numbers.dtypes import ALL, PACKED, DType, Kind

SHORT_INTEGERS = {dtype.name: dtype for dtype in (*ALL, *PACKED) if dtype.is_short_integer}


def short_integer_helper(lanes: int, function: str) -> Helper | None:
    """Return a conversion between cells and vectors of int32 by its name after the type."""
    verb, _, name = function.partition("_")
    dtype = SHORT_INTEGERS.get(name)
    if dtype is None or (dtype.is_packed and verb != "load"):
        return None
    template = read_helpers("short_integers.c.in").get("packed" if dtype.is_packed else verb)
    if template is None:
        return None
    cell = cell_format(dtype)
    key = f"{dtype if dtype.is_packed else cell}x{lanes}"
    words = {"LANES": str(lanes), "CELL": cell, "FORMAT": name, "WRAPPED": _wrapped(dtype)}
    is_signed = dtype.kind is Kind.SIGNED
    words |= {"MIDDLE": "middle, b" if is_signed else "a, middle"}
    words |= {"MOVED": "a ^ middle, b" if is_signed else "a, b ^ middle"}
    words |= {"PART": "char" if dtype.nbytes == 1 else "short"} | _packed_words(lanes, dtype)
    return instantiate(template, f"int32x{lanes}_{function}", words, lanes, key)


def _packed_words(lanes: int, dtype: DType) -> dict[str, str]:
    """Return the words of a load of cells of four bits: lanes shift their own bits out of a word
    with those of eight cells. Sixteen lanes have two words in turns, and change places.
    """
    shifts = [4 * (lane // 2 if lanes == 16 else lane) for lane in range(lanes)]
    order = [lane for first in (0, 1) for lane in range(first, lanes, 2)]
    if dtype.kind is Kind.SIGNED:
        above = ", ".join(str(28 - shift) for shift in shifts)
        shifted = f"(int32x{lanes})(words << (uint32x{lanes}){{{above}}}) >> 28"
    else:
        below = ", ".join(map(str, shifts))
        shifted = f"(int32x{lanes})(words >> (uint32x{lanes}){{{below}}} & 15)"
    return {
        "HALF": str(lanes // 2),
        "LAST": str(4 * lanes - 4),
        "SHIFTED": shifted,
        "ORDERED": ", ".join(map(str, order)),
    }


def cell_format(dtype: DType) -> str:
    """Return the name of the integers that store cells of a short format."""
    return f"{'' if dtype.kind is Kind.SIGNED else 'u'}int{8 * dtype.nbytes}"


def _wrapped(dtype: DType) -> str:
    match dtype.kind:
        case Kind.SIGNED:
            unused = 32 - dtype.bits
            return f"(x << {unused}) >> {unused}"
        case Kind.BOOL:
            return "(x != 0) & 1"
        case _:
            return f"x & {(1 << dtype.bits) - 1:#x}"
