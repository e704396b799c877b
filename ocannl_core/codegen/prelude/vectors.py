"""Vector types and functions of the prelude, by name.

A type has a name such as `float32x16`; a helper `float32x16_load`. Most are templates of
`c/vectors.c.in`. Machine instructions are used through compiler builtins where available; the
portable fallback gives the same bits.
"""

from __future__ import annotations

import re
from functools import cache

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.prelude.elementwise import vector_function
from ocannl_core.codegen.prelude.narrow_vectors import CELLS, narrow_helper
from ocannl_core.codegen.prelude.short_integers import (
    SHORT_INTEGERS,
    cell_format,
    short_integer_helper,
)
from ocannl_core.codegen.prelude.vector_types import TYPES, Vector
from ocannl_core.codegen.text.helper import Helper, instantiate, read_helpers
from ocannl_core.ir.numbers.primitives import BinaryOp

HORIZONTAL_REDUCTIONS = {
    BinaryOp.ADD: "sum",
    BinaryOp.MUL: "product",
    BinaryOp.MAX: "largest",
    BinaryOp.MIN: "smallest",
}
"""Operations of horizontal reductions, with the names of the helpers."""

_NAME = re.compile(r"(?P<dtype>[a-z]+\d+)x(?P<lanes>\d+)(_(?P<function>\w+))?")
_COMBINED = {"sum": "x + y", "product": "x * y", "largest": "_max(x, y)", "smallest": "_min(x, y)"}
_VARIANTS = {
    "max": ("EXTREMUM", {"EXTREMUM": "max", "SYMBOL": ">="}),
    "min": ("EXTREMUM", {"EXTREMUM": "min", "SYMBOL": "<="}),
    "below": ("CLAMP", {"CLAMP": "below", "EXTREMUM": "min", "SYMBOL": "<"}),
    "above": ("CLAMP", {"CLAMP": "above", "EXTREMUM": "max", "SYMBOL": ">"}),
    "low": ("SIDE", {"SIDE": "low", "PART": "LOWER"}),
    "high": ("SIDE", {"SIDE": "high", "PART": "UPPER"}),
    "rint": ("WHOLE", {"WHOLE": "rint", "DIRECTION": "8"}),
    "floor": ("WHOLE", {"WHOLE": "floor", "DIRECTION": "9"}),
    "ceil": ("WHOLE", {"WHOLE": "ceil", "DIRECTION": "10"}),
    "trunc": ("WHOLE", {"WHOLE": "trunc", "DIRECTION": "11"}),
}
"""Functions that share a template, and the words of each."""
FUNCTIONS_WITH_INSTRUCTIONS = frozenset({"fabs", "sqrt", "rint", "floor", "ceil", "trunc"})
"""Functions of the C library that are instructions on vectors of floats."""
_OF_FLOAT32 = frozenset({"low", "high", "joined", "lookup", "truncated"})
_COMPARISONS = {"eq": ("==", 0), "lt": ("<", 1), "le": ("<=", 2), "ne": ("!=", 4)}
"""Comparisons: the operator of C, and its code in instructions."""
_MASK_COMPARISONS = {
    "float32x16": ("ps", "(unsigned short)-1, 4"),
    "float64x8": ("pd", "(unsigned char)-1, 4"),
    "int32x16": ("d", "(unsigned short)-1"),
}
"""Vectors that AVX-512 compares into masks: the builtin's suffix and constant arguments."""


@cache
def vector_helper(name: str) -> Helper | None:
    """Return the vector type or function of this name; None if there is none."""
    found = _NAME.fullmatch(name)
    if found is None or found["dtype"] not in TYPES:
        return read_helpers("vectors.c.in").get(name)
    vector = Vector(found["dtype"], int(found["lanes"]))
    function = found["function"]
    if function is None:
        return vector.definition
    made = _function(vector, function)
    if made is None:
        return vector_function(function, vector)
    is_long = function.startswith(("transpose", "map_"))
    return made if is_long else replace(made, is_instruction=True)


def _function(vector: Vector, function: str) -> Helper | None:
    if function in HORIZONTAL_REDUCTIONS.values():
        return _from_template(vector, function, "REDUCTION", _reduction(vector, function))
    if function.startswith("where_"):
        return _where(vector, function)
    if function.startswith("map_"):
        called = {"CALLED": function.removeprefix("map_")}
        return _from_template(vector, function, "map", called)
    if function.startswith("transpose"):
        return _from_template(vector, function, "TRANSPOSE", _transpose(vector, function))
    if vector.dtype == "int32" and function.endswith(tuple(SHORT_INTEGERS)):
        return short_integer_helper(vector.lanes, function)
    if vector.dtype == "float32" and function.endswith(tuple(CELLS)):
        return narrow_helper(vector.lanes, function)
    if function in _OF_FLOAT32 and vector.dtype != "float32":
        return None
    return _from_template(vector, function, *_VARIANTS.get(function, (function, {})))


def _from_template(
    vector: Vector, function: str, template: str, words: dict[str, str], *keys: str
) -> Helper | None:
    """Return a function of vectors; None if there is no such template."""
    templates, name = read_helpers("vectors.c.in"), f"{vector.name}_{function}"
    found = templates.get(name) or templates.get(f"VECTOR_{template}")
    if found is None:
        return None
    symbol = words.get("SYMBOL", "")
    is_float = vector.dtype.startswith("float")
    cells = ["p[0]", *(f"n > {lane} ? p[{lane}] : 0" for lane in range(1, vector.lanes))]
    words = {
        "VECTOR": vector.name,
        "MASK": vector.mask,
        "ELEMENT": vector.element,
        "LANES": str(vector.lanes),
        "HALF": str(vector.lanes // 2),
        "NBYTES": str(vector.nbytes),
        "BITMASK": f"(unsigned {'short' if vector.lanes > 8 else 'char'})((1u << n) - 1)",
        # a copy to a part of a vector would stall on store forwarding
        "PARTIAL": ", ".join(cells),
        # the second vector begins at the last cell of the first one
        "SECONDS": ", ".join(
            str(2 * lane + (2 * lane >= vector.lanes)) for lane in range(vector.lanes)
        ),
        # the builtins take `long long`, another type than int64_t
        "INTEGER": "long long" if vector.nbytes == 8 * vector.lanes else "int",
        "DISJUNCTION": " | ".join(f"x[{lane}]" for lane in range(vector.lanes)),
        "SUFFIX": "f" if vector.dtype == "float32" else "",
        "NAMED": f"{function}f" if vector.dtype == "float32" else function,
        "LARGEST": f"INT{8 * vector.nbytes // vector.lanes}_MAX",
        "REVERSED": ", ".join(str(lane) for lane in reversed(range(vector.lanes))),
        "PREFERRED": f"(a != a) | (a {symbol} b)" if is_float else f"a {symbol} b",
    } | words
    return instantiate(
        found, name, words, vector.lanes, *(keys or (vector.name, str(vector.nbytes)))
    )


def _where(vector: Vector, function: str) -> Helper | None:
    """Return a selection by a comparison of numbers of the same size."""
    _, *kind, compared = function.split("_")
    of = Vector(kind[0] if kind else vector.dtype, vector.lanes)
    symbol, code = _COMPARISONS[compared]
    words = {"WHERE": function, "COMPARED": of.name, "SYMBOL": symbol}
    masked = _MASK_COMPARISONS.get(of.name)
    if masked is None:
        return _from_template(vector, function, "WHERE", words, "unmasked")
    words["INSTRUCTION"] = f"{masked[0]}512_mask(a, b, {code}, {masked[1]})"
    return _from_template(vector, function, "WHERE", words)


def _reduction(vector: Vector, function: str) -> dict[str, str]:
    """Return the words of a reduction of all lanes.

    It is a butterfly: every lane is combined with the lane at a distance of 1, 2, 4, and so on.
    """
    combined = _COMBINED[function]
    combined = f"{vector.name}{combined}" if combined.startswith("_") else combined
    lines = []
    for stage in range(vector.lanes.bit_length() - 1):
        order = ", ".join(str(lane ^ 1 << stage) for lane in range(vector.lanes))
        lines += [f"  y = SHUFFLE(x, {order});", f"  x = {combined};"]
    return {"REDUCTION": function, "STAGES": "\n".join(lines)}


def _transposed_row(vector: Vector, source: str, address: str) -> str:
    """Return the load of a row of a square that is transposed, in the format of the vector."""
    if source in CELLS:
        return f"{vector.name}_load_{source}({address}, {vector.lanes})"
    if source in SHORT_INTEGERS:
        load = f"int32x{vector.lanes}_load_{source}({address}, {vector.lanes})"
        is_same = vector.dtype == "int32"
        return load if is_same else f"__builtin_convertvector({load}, {vector.name})"
    return f"*(const {vector.cells} *)({address})"


def _transpose(vector: Vector, function: str) -> dict[str, str]:
    """Return the words of a function that transposes a square of cells.

    The cells may be of a narrow format or short integers, which are widened, or pairs of cells, or
    quads of bytes. Each stage interleaves the first half of the rows with the second one.

    The function is never inlined, since its constants take registers: a compiler would load them
    ahead of all loops, and spill the accumulators of an inner loop.
    """
    source = function.removeprefix("transpose").removeprefix("_")
    lanes, half = vector.lanes, vector.lanes // 2
    low = ", ".join(f"{i}, {lanes + i}" for i in range(half))
    high = ", ".join(f"{half + i}, {lanes + half + i}" for i in range(half))
    quads = source.removeprefix("quads_") if source.startswith("quads_") else ""
    if source in SHORT_INTEGERS:
        given = f"{cell_format(SHORT_INTEGERS[source])}_t"
    else:
        given = f"{quads or CELLS.get(source, 'uint16')}_t" if source else vector.element
    loads = [_transposed_row(vector, source, f"p + {row} * stride") for row in range(lanes)]
    lines = [f"  {vector.name} x{row} = {load};" for row, load in enumerate(loads)]
    rows = [f"x{row}" for row in range(lanes)]
    for stage in range(lanes.bit_length() - 1):
        new = [f"{'yz'[stage % 2]}{stage}_{row}" for row in range(lanes)]
        for pair in range(half):
            for name, order in ((new[2 * pair], low), (new[2 * pair + 1], high)):
                shuffled = f"SHUFFLE({rows[pair]}, {rows[pair + half]}, {order})"
                lines.append(f"  const {vector.name} {name} = {shuffled};")
        rows = new
    lines += [f"  *({vector.cells} *)(q + {row} * step) = {name};" for row, name in enumerate(rows)]
    taken = given if quads or source == "pairs" else vector.element
    return {"TRANSPOSE": function, "GIVEN": given, "TAKEN": taken, "STAGES": "\n".join(lines)}
