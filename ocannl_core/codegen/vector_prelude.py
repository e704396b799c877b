"""Vector types and the functions on them that generated C uses, by the vector extensions of GCC and
Clang.

A type is called `float32x16`; a helper `float32x16_load`. Parts of vectors are loaded and stored
with masks where the processor has them, and with copies of constant size otherwise. A fused
multiply-add is the processor's instruction where there is one; nothing else computes it exactly.
"""

from __future__ import annotations

import re
from functools import cache

from ocannl_core.codegen.float32_math import FLOAT32_MATH
from ocannl_core.codegen.float32x16_math import FLOAT32X16_MATH
from ocannl_core.codegen.helper import Helper
from ocannl_core.codegen.narrow_vectors import CELLS, narrow_helper

ELEMENTS = {
    "float32": ("float", 4),
    "float64": ("double", 8),
    "int32": ("int32_t", 4),
    "uint32": ("uint32_t", 4),
    "int64": ("int64_t", 8),
    "uint64": ("uint64_t", 8),
}
"""Formats that vectors compute with: the type in C and its size."""

_TYPES = ELEMENTS | {
    "int8": ("int8_t", 1),
    "uint8": ("uint8_t", 1),
    "int16": ("int16_t", 2),
    "uint16": ("uint16_t", 2),
}
"""All that vectors are made of, cells that are only loaded and stored as well."""

_NAME = re.compile(r"(?P<dtype>[a-z]+\d+)x(?P<lanes>\d+)(_(?P<function>\w+))?")

_GNU_MASKS = "defined(__AVX512VL__) && defined(__GNUC__) && !defined(__clang__)"
_MASKED = {("float32", 16): "ps512", ("float32", 8): "ps256", ("float32", 4): "ps128"}
_MASKED |= {("float64", 8): "pd512", ("float64", 4): "pd256"}
_SHORT_MASKED = {("uint16", 16): "hi256", ("uint16", 8): "hi128"}
_FUSED = {
    ("float32", 16): (
        "__AVX512F__",
        "__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4)",
    ),
    ("float64", 8): (
        "__AVX512F__",
        "__builtin_ia32_vfmaddpd512_mask(a, b, c, (unsigned char)-1, 4)",
    ),
    ("float32", 8): ("__FMA__", "__builtin_ia32_vfmaddps256(a, b, c)"),
    ("float64", 4): ("__FMA__", "__builtin_ia32_vfmaddpd256(a, b, c)"),
    ("float32", 4): ("__FMA__", "__builtin_ia32_vfmaddps(a, b, c)"),
    ("float64", 2): ("__FMA__", "__builtin_ia32_vfmaddpd(a, b, c)"),
}


@cache
def vector_helper(name: str) -> Helper | None:
    """Returns the vector type or function of this name; None if it is the name of neither."""
    if name == "stream_end":
        return Helper(_STREAM_END)
    found = _NAME.fullmatch(name)
    if found is None or found["dtype"] not in _TYPES:
        return None
    dtype, lanes = found["dtype"], int(found["lanes"])
    vector = f"{dtype}x{lanes}"
    function = found["function"]
    if function is None:
        return Helper(_type(vector, dtype, lanes))
    mask = mask_type(dtype, lanes)
    needs = (vector,) if mask == vector else (vector, mask)
    match function:
        case "load":
            return Helper(_load(vector, dtype, lanes), needs)
        case "store":
            return Helper(_store(vector, dtype, lanes), needs)
        case "stream":
            return Helper(_stream(vector, dtype, lanes), needs)
        case "splat":
            cells = ", ".join(["x"] * lanes)
            head = f"INLINE {vector} {name}({_TYPES[dtype][0]} x)"
            return Helper(f"{head} {{\n  return ({vector}){{{cells}}};\n}}", needs)
        case "select":
            return Helper(_select(vector, mask), needs)
        case "transpose":
            return Helper(_transpose(vector, dtype, lanes), needs)
        case "fma":
            return Helper(_fma(vector, dtype, lanes), needs)
        case "max" | "min":
            return Helper(_limit(vector, dtype, lanes, function), (*needs, f"{vector}_select"))
        case _ if function.startswith("map_"):
            return _mapped(name, vector, dtype, lanes, function.removeprefix("map_"))
        case "transpose_pairs":
            return Helper(_transpose(vector, dtype, lanes, "pairs"), needs)
        case _ if dtype == "float32" and function.startswith("transpose_"):
            source = function.removeprefix("transpose_")
            return Helper(
                _transpose(vector, dtype, lanes, source), (*needs, f"{vector}_load_{source}")
            )
        case _ if dtype == "float32":
            return narrow_helper(lanes, function)
        case _:
            return None


def mask_type(dtype: str, lanes: int) -> str:
    """Returns the type of a comparison of vectors: all bits of a lane, or none."""
    return f"int{8 * _TYPES[dtype][1]}x{lanes}"


def _type(vector: str, dtype: str, lanes: int) -> str:
    element, nbytes = _TYPES[dtype]
    size = f"vector_size({nbytes * lanes})"
    return (
        f"typedef {element} {vector} __attribute__(({size}));\n"
        f"typedef {element} {vector}_cells __attribute__(({size}, aligned({nbytes}), may_alias));"
    )


def _load(vector: str, dtype: str, lanes: int) -> str:
    element = _TYPES[dtype][0]
    plain = f"  {vector} x = {{0}};\n  __builtin_memcpy(&x, p, n * sizeof *p);\n  return x;"
    masked = None
    if (dtype, lanes) in _MASKED:
        kind = _MASKED[dtype, lanes]
        call = f"__builtin_ia32_loadu{kind}_mask(p, ({vector}){{0}}, {_mask(lanes)})"
        masked = f"  return {call};"
    if (dtype, lanes) in _SHORT_MASKED:
        kind, signed = _SHORT_MASKED[dtype, lanes], mask_type(dtype, lanes)
        call = (
            f"__builtin_ia32_loaddqu{kind}_mask((const void *)p, ({signed}){{0}}, {_mask(lanes)})"
        )
        masked = f"  if (n < {lanes}) return ({vector}){call};\n{plain}"
    body = _either(_gnu_masks(dtype), masked, plain)
    return f"INLINE {vector} {vector}_load(const {element} *p, int n) {{\n{body}\n}}"


def _gnu_masks(dtype: str) -> str:
    """Returns where instructions load and store parts of vectors."""
    return f"defined(__AVX512BW__) && {_GNU_MASKS}" if dtype == "uint16" else _GNU_MASKS


def _store(vector: str, dtype: str, lanes: int) -> str:
    element = _TYPES[dtype][0]
    plain = "  __builtin_memcpy(p, &x, n * sizeof *p);"
    masked = None
    if (dtype, lanes) in _MASKED:
        kind = _MASKED[dtype, lanes]
        masked = f"  __builtin_ia32_storeu{kind}_mask(p, x, {_mask(lanes)});"
    if (dtype, lanes) in _SHORT_MASKED:
        kind, signed = _SHORT_MASKED[dtype, lanes], mask_type(dtype, lanes)
        call = f"__builtin_ia32_storedqu{kind}_mask((void *)p, ({signed})x, {_mask(lanes)})"
        masked = f"  if (n < {lanes}) {call};\n  else\n  {plain}"
    body = _either(_gnu_masks(dtype), masked, plain)
    return f"INLINE void {vector}_store({element} *p, {vector} x, int n) {{\n{body}\n}}"


_STREAM_END = """\
/* cells that went past the caches have arrived */
INLINE void stream_end(void) {
#ifdef __SSE__
  __builtin_ia32_sfence();
#endif
}"""
_STREAMED = {
    64: ("__AVX512F__", "__builtin_ia32_movntps512"),
    32: ("__AVX__", "__builtin_ia32_movntps256"),
    16: ("__SSE__", "__builtin_ia32_movntps"),
}


def _stream(vector: str, dtype: str, lanes: int) -> str:
    """Returns a function that stores a vector past the caches, where it is aligned."""
    element, nbytes = _TYPES[dtype]
    size = nbytes * lanes
    lines = [f"  *({vector}_cells *)p = x;"]
    if size in _STREAMED:
        macro, call = _STREAMED[size]
        floats = f"__attribute__((vector_size({size}))) float"
        lines = [
            f"#if defined({macro}) && defined(__GNUC__) && !defined(__clang__)",
            f"  if ((uintptr_t)p % {size} == 0)",
            f"    {call}((float *)p, ({floats})x);",
            "  else",
            "#endif",
            *(f"  {line}" for line in lines),
        ]
    body = "\n".join(lines)
    return f"INLINE void {vector}_stream({element} *p, {vector} x) {{\n{body}\n}}"


def _mask(lanes: int) -> str:
    return f"(unsigned {'short' if lanes > 8 else 'char'})((1u << n) - 1)"


def _fma(vector: str, dtype: str, lanes: int) -> str:
    scalar = "fmaf" if dtype == "float32" else "fma"
    plain = f"  {vector} x;\n  for (int l = 0; l < {lanes}; ++l) x[l] = {scalar}(a[l], b[l], c[l]);"
    plain += "\n  return x;"
    fused = None
    condition = ""
    if (dtype, lanes) in _FUSED:
        macro, call = _FUSED[dtype, lanes]
        condition = f"defined({macro}) && defined(__GNUC__) && !defined(__clang__)"
        fused = f"  return {call};"
    body = _either(condition, fused, plain)
    return f"INLINE {vector} {vector}_fma({vector} a, {vector} b, {vector} c) {{\n{body}\n}}"


def _transpose(vector: str, dtype: str, lanes: int, source: str = "") -> str:
    """Returns a function that copies a square of cells, rows becoming columns.

    The cells may be those of a narrow format, which are widened on the way, or pairs of cells.

    Interleaving the first half of the rows with the second one, as often as the number of rows can
    be halved, turns the square.
    """
    element, half = _TYPES[dtype][0], lanes // 2
    given, function = element, "transpose"
    if source:
        given, function = f"{CELLS.get(source, 'uint16')}_t", f"transpose_{source}"
    if source == "pairs":
        element = given
    low = ", ".join(f"{i}, {lanes + i}" for i in range(half))
    high = ", ".join(f"{half + i}, {lanes + half + i}" for i in range(half))
    mask = mask_type(dtype, lanes)
    rows = [f"x{row}" for row in range(lanes)]
    places = [f"p + {row} * stride" for row in range(lanes)]
    loads = [
        f"{vector}_load_{source}({place}, {lanes})"
        if source in CELLS
        else f"*(const {vector}_cells *)({place})"
        for place in places
    ]
    lines = [f"  {vector} {name} = {load};" for name, load in zip(rows, loads, strict=True)]
    for stage in range(lanes.bit_length() - 1):
        new = [f"{'yz'[stage % 2]}{stage}_{row}" for row in range(lanes)]
        for pair in range(half):
            for name, order in ((new[2 * pair], low), (new[2 * pair + 1], high)):
                a, b = rows[pair], rows[pair + half]
                lines.append(f"  const {vector} {name} = SHUFFLE({a}, {b}, {order});")
        rows = new
    lines += [f"  *({vector}_cells *)(q + {row} * step) = {name};" for row, name in enumerate(rows)]
    head = (
        f"INLINE void {vector}_{function}(\n"
        f"    const {given} *p, int64_t stride, {element} *q, int64_t step) {{"
    )
    gnu = f"#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ({mask}){{__VA_ARGS__}})"
    clang = "#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)"
    shuffle = _either("defined(__clang__)", clang, gnu)
    return "\n".join([shuffle, head, *lines, "}", "#undef SHUFFLE"])


def _either(condition: str, special: str | None, plain: str) -> str:
    if special is None:
        return plain
    return f"#if {condition}\n{special}\n#else\n{plain}\n#endif"


def _select(vector: str, mask: str) -> str:
    return (
        f"INLINE {vector} {vector}_select({mask} m, {vector} a, {vector} b) {{\n"
        f"  return ({vector})((m & ({mask})a) | (~m & ({mask})b));\n}}"
    )


_WHOLE = "defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)"
"""Where sixteen numbers have instructions that vectors of GCC do not express."""

_ALL = "(unsigned short)-1"
_LIMITS = {"max": ">=", "min": "<="}


def _limit(vector: str, dtype: str, lanes: int, function: str) -> str:
    """Returns the larger or smaller of two vectors; of numbers, NaN wins, the first one of two."""
    chosen = f"(a != a) | (a {_LIMITS[function]} b)" if dtype.startswith("float") else ""
    plain = f"  return {vector}_select({chosen or f'a {_LIMITS[function]} b'}, a, b);"
    whole = None
    if (dtype, lanes) == ("float32", 16):
        # the instruction returns its second operand if one is NaN
        whole = (
            f"  const {vector} x = __builtin_ia32_{function}ps512_mask(b, a, a, {_ALL}, 4);\n"
            f"  return __builtin_ia32_blendmps_512_mask(\n"
            f"      x, b, __builtin_ia32_cmpps512_mask(b, b, 3, {_ALL}, 4));"
        )
    body = _either(_WHOLE, whole, plain)
    return f"INLINE {vector} {vector}_{function}({vector} a, {vector} b) {{\n{body}\n}}"


def _mapped(name: str, vector: str, dtype: str, lanes: int, function: str) -> Helper:
    """Returns a function of each lane."""
    mask = mask_type(dtype, lanes)
    needs = (vector,) if mask == vector else (vector, mask)
    own = (function,) if function in FLOAT32_MATH else ()
    plain = _map(name, vector, dtype, lanes, function)
    if lanes != 16 or function not in FLOAT32X16_MATH:
        return Helper(plain, (*needs, *own))
    also = tuple(f"{vector}_{each}" for each in FLOAT32X16_MATH[function].needs)
    whole = FLOAT32X16_MATH[function].text
    return Helper(_either(_WHOLE, whole, plain), (*needs, *own, *also))


def _map(name: str, vector: str, dtype: str, lanes: int, function: str) -> str:
    """Returns a function that calls another one for each lane, in a loop that may be vectorised."""
    element = _TYPES[dtype][0]
    return (
        f"INLINE {vector} {name}({vector} x) {{\n"
        f"  {element} cells[{lanes}];\n"
        f"  __builtin_memcpy(cells, &x, sizeof x);\n"
        f"  for (int l = 0; l < {lanes}; ++l) cells[l] = {function}(cells[l]);\n"
        f"  __builtin_memcpy(&x, cells, sizeof x);\n"
        f"  return x;\n}}"
    )
