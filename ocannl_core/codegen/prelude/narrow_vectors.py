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

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.text.helper import Helper, instantiate, read_helpers
from ocannl_core.ir.numbers.dtypes import NARROW, DType

CELLS = {dtype.name: f"uint{8 * dtype.nbytes}" for dtype in NARROW}
"""The integers that store cells of narrow formats."""

_PAIR_VERBS = frozenset({"pairs", "pair", "joined", "interleave", "dot"})

_CONSTANTS = {
    "float16": {
        "SIGN": "15",
        "DROPPED": "13",
        "UNIT": "0x1p-1f",
        "UNITBITS": "0x3f000000",
        "LESS": "0xfff",
        "INFINITE": "0x7c00",
        "QUIET": "0x7e00",
    },
    "float8_e5m2": {
        "SIGN": "7",
        "DROPPED": "21",
        "UNIT": "0x1p7f",
        "UNITBITS": "0x43000000",
        "LESS": "0xfffff",
        "INFINITE": "0x7c",
        "QUIET": "0x7e",
    },
}
"""The numbers in conversions to cells by one template."""


def has_pairs(dtype: DType) -> bool:
    """Return True for a format of which two cells are a pair."""
    return dtype.is_narrow and dtype.nbytes == 2


def narrow_helper(lanes: int, function: str) -> Helper | None:
    """Return a conversion between cells and vectors of float32 by its name after the type."""
    verb, _, dtype = function.partition("_")
    templates = read_helpers("narrow_vectors.c.in")
    template = templates.get(function) or templates.get(verb)
    if template is None or dtype not in CELLS:
        return None
    words = {"LANES": str(lanes), "TWICE": str(2 * lanes), "NBYTES": str(4 * lanes)}
    words |= {"CELL": CELLS[dtype], "FORMAT": dtype} | _CONSTANTS.get(dtype, {})
    name = f"float32x{lanes}_{function}"
    made = instantiate(template, name, words, lanes, f"{dtype}x{lanes}")
    types = [f"float32x{lanes}", f"uint32x{lanes}"]
    if verb not in _PAIR_VERBS or "CELLx" in template.text:
        types += [f"int32x{lanes}", f"{CELLS[dtype]}x{lanes}", f"int16x{lanes}"]
    return replace(made, needs=tuple(dict.fromkeys((*types, *made.needs))))
