"""Vectors of integers of less than 32 bits: conversion between cells and lanes of int32.

A helper has a name such as `int32x16_load_int8`, made of one of these verbs:

- `load` widens n cells of memory; those of packed formats by an array and an offset;
- `low` returns the low bits of lanes as cells, `store` stores n of these, `stream` does so past the
  caches;
- `wrap` returns lanes modulo the width of the format.

A bool is 0 or 1 in a lane, and in the byte that is its cell.
"""

from __future__ import annotations

from ocannl_core.codegen.prelude.vector_types import Vector
from ocannl_core.codegen.text.helper import Helper, select_by_macro
from ocannl_core.codegen.text.precedence import CExpr, Precedence
from ocannl_core.ir.loops.nodes import Binary, Expr, IndexValue, Unary
from ocannl_core.ir.numbers.dtypes import ALL, PACKED, DType, Kind, bool_
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp

SHORT_INTEGERS = {dtype.name: dtype for dtype in (*ALL, *PACKED) if dtype.is_short_integer}

BIT_SYMBOLS = {BinaryOp.BIT_AND: "&", BinaryOp.BIT_OR: "|", BinaryOp.BIT_XOR: "^"}
"""Operations on the bits of integers, and their operators in C."""

_ALL = "(unsigned short)-1"
_GCC = "defined(__GNUC__) && !defined(__clang__)"


def exceeds_format(expr: Expr) -> bool:
    """Return True if computing a short integer in int32 may give bits beyond its width."""
    if expr.dtype is bool_:
        return isinstance(expr, IndexValue)
    match expr:
        case Unary(op):
            return op in (UnaryOp.IDENTITY, UnaryOp.NEG, UnaryOp.ABS, UnaryOp.BIT_NOT)
        case Binary(op):
            return op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL)
        case _:
            return isinstance(expr, IndexValue)


def short_integer_helper(lanes: int, function: str) -> Helper | None:
    """Return a conversion between cells and vectors of int32 by its name, if it is one.

    Args:
        lanes: The number of lanes of a vector.
        function: The name of the function after the vector type, such as `load_int8`.
    """
    verb, _, name = function.partition("_")
    dtype = SHORT_INTEGERS.get(name)
    if dtype is None:
        return None
    if dtype.is_packed:
        return _packed_load(lanes, dtype) if verb == "load" else None
    vector, cells = Vector("int32", lanes), Vector(cell_format(dtype), lanes)
    head = f"{vector.name}_{function}"
    needs = ("has_builtin", vector.name, cells.name)
    match verb:
        case "load":
            text = (
                f"INLINE {vector.name} {head}(const {cells.element} *p, int n) {{\n"
                f"{_widen_cells(vector, cells)}\n"
                f"  return __builtin_convertvector({cells.name}_load(p, n), {vector.name});\n}}"
            )
            return Helper(text, (*needs, f"{cells.name}_load"))
        case "low":
            text = (
                f"INLINE {cells.name} {head}({vector.name} x) {{\n"
                f"{_narrow_lanes(vector, cells)}\n}}"
            )
            return Helper(text, needs)
        case "store":
            low = f"{vector.name}_low_{name}"
            text = (
                f"INLINE void {head}({cells.element} *p, {vector.name} x, int n) {{\n"
                f"  if (n == {lanes}) *({cells.cells} *)p = {low}(x);\n"
                f"  else {cells.name}_store(p, {low}(x), n);\n}}"
            )
            return Helper(text, (*needs, low, f"{cells.name}_store"))
        case "stream":
            low = f"{vector.name}_low_{name}"
            text = (
                f"INLINE void {head}({cells.element} *p, {vector.name} x) {{\n"
                f"  {cells.name}_stream(p, {low}(x));\n}}"
            )
            return Helper(text, (*needs, low, f"{cells.name}_stream"))
        case "wrap":
            text = (
                f"INLINE {vector.name} {head}({vector.name} x) {{\n  return {_wrapped(dtype)};\n}}"
            )
            return Helper(text, needs)
        case _:
            return None


def place_of(cell: str) -> tuple[CExpr, CExpr]:
    """Return the array and the offset of a cell of a packed format: `a[2 * i]` --> `a`, `2 * i`."""
    array, _, offset = cell.partition("[")
    offset = offset.removesuffix("]")
    return CExpr(array), CExpr(offset, Precedence.PRIMARY if offset.isdigit() else Precedence.OR)


def load_arguments(cell: str, dtype: DType) -> tuple[CExpr, ...]:
    """Return the place of the cells that a helper loads."""
    return place_of(cell) if dtype.is_packed else (CExpr(f"&{cell}"),)


def _packed_load(lanes: int, dtype: DType) -> Helper:
    """Return a load of n cells of four bits, from any cell on: lanes shift their own bits out of a
    word with those of eight cells. Sixteen lanes have two words in turns, and change places.
    """
    vector, words = Vector("int32", lanes), Vector("uint32", lanes)
    wide = Vector("uint64", lanes // 2) if lanes == 16 else words
    shifts = [4 * (lane // 2 if lanes == 16 else lane) for lane in range(lanes)]
    if dtype.kind is Kind.SIGNED:
        above = ", ".join(str(28 - shift) for shift in shifts)
        found = f"({vector.name})(words << ({words.name}){{{above}}}) >> 28"
    else:
        below = ", ".join(map(str, shifts))
        found = f"({vector.name})(words >> ({words.name}){{{below}}} & 15)"
    if lanes == 16:
        order = ", ".join(str(lane) for first in (0, 1) for lane in range(first, 16, 2))
        gnu = f"  return __builtin_shuffle(x, ({vector.name}){{{order}}});"
        clang = f"  return __builtin_shufflevector(x, x, {order});"
        last = select_by_macro([("defined(__clang__)", clang)], gnu)
    else:
        last = "  return x;"
    text = f"""\
INLINE {vector.name} {vector.name}_load_{dtype}(const uint8_t *p, int64_t at, int n) {{
  uint64_t bits = 0;
  if (n == {lanes}) {{
    __builtin_memcpy(&bits, p + (at >> 1), {lanes // 2});
    if (at & 1) bits = bits >> 4 | (uint64_t)p[(at >> 1) + {lanes // 2}] << {4 * lanes - 4};
  }} else {{
    for (int k = 0; k < n; ++k)
      bits |= (uint64_t)(p[(at + k) >> 1] >> 4 * ((at + k) & 1) & 15) << 4 * k;
  }}
  const {words.name} words = ({words.name})(({wide.element})bits - ({wide.name}){{0}});
  const {vector.name} x = {found};
{last}
}}"""
    return Helper(text, tuple(dict.fromkeys((vector.name, words.name, wide.name))))


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


def _widen_cells(vector: Vector, cells: Vector) -> str:
    """Return the lines that load a whole vector. GCC converts vectors of bytes cell by cell, so
    that its builtins stand for the instructions.
    """
    lanes, size = vector.lanes, cells.nbytes // cells.lanes
    plain = f"  if (n == {lanes})\n    return {_plain(vector, cells)};"
    kind = f"{'s' if cells.dtype.startswith('i') else 'z'}x{'b' if size == 1 else 'w'}d"
    if lanes == 16:
        given = f"{_register(16 * size, size)}*(const {cells.cells} *)p"
        found = f"__builtin_ia32_pmov{kind}512_mask({given}, ({vector.name}){{0}}, {_ALL})"
        text = f"  if (n == {lanes})\n    return ({vector.name}){found};"
        return select_by_macro([(f"defined(__AVX512F__) && {_GCC}", text)], plain)
    if lanes not in (4, 8):
        return plain
    macro, bits = ("__AVX2__", 256) if lanes == 8 else ("__SSE4_1__", 128)
    lane, count = {16: ("", 0), 8: ("long long", 2), 4: ("int", 4)}[cells.nbytes]
    lines, given = "", f"{_register(16, size)}*(const {cells.cells} *)p"
    if lane:
        whole = f"{lane} __attribute__((vector_size(16)))"
        given = f"{_register(16, size)}({whole}){{low{', 0' * (count - 1)}}}"
        lines = f"    {lane} low;\n    __builtin_memcpy(&low, p, sizeof low);\n"
    found = f"({vector.name})__builtin_ia32_pmov{kind}{bits}({given})"
    text = f"  if (n == {lanes}) {{\n{lines}    return {found};\n  }}"
    return select_by_macro([(f"defined({macro}) && {_GCC}", text)], plain)


def _narrow_lanes(vector: Vector, cells: Vector) -> str:
    """Return the lines that narrow lanes, for GCC by builtins. The result stays in a register: the
    instruction that narrows a vector into memory takes ten times as long on some processors.
    """
    lanes, size = vector.lanes, cells.nbytes // cells.lanes
    plain = f"  return __builtin_convertvector(x, {cells.name});"
    kind = "b" if size == 1 else "w"
    if lanes == 16:
        given = f"x, {_register(16 * size, size)}({cells.name}){{0}}, {_ALL}"
        text = (
            f"  {cells.name} low = ({cells.name})__builtin_ia32_pmovd{kind}512_mask({given});\n"
            '  __asm__("" : "+v"(low));\n'
            "  return low;"
        )
        return select_by_macro([(f"defined(__AVX512F__) && {_GCC}", text)], plain)
    if lanes != 8:
        return plain
    halves = "int __attribute__((vector_size(16)))"
    words = "__builtin_ia32_packusdw128(half[0], half[1])"
    text = (
        f"  {halves} half[2];\n"
        f"  x &= {(1 << 8 * size) - 1:#x};\n"
        "  __builtin_memcpy(half, &x, sizeof half);\n"
    )
    if size == 2:
        text += f"  return ({cells.name}){words};"
    else:
        text += (
            f"  const short __attribute__((vector_size(16))) words = {words};\n"
            f"  const char __attribute__((vector_size(16))) bytes = "
            "__builtin_ia32_packuswb128(words, words);\n"
            f"  {cells.name} low;\n"
            "  __builtin_memcpy(&low, &bytes, sizeof low);\n"
            "  return low;"
        )
    return select_by_macro([(f"defined(__SSE4_1__) && {_GCC}", text)], plain)


def _plain(vector: Vector, cells: Vector) -> str:
    return f"__builtin_convertvector(*(const {cells.cells} *)p, {vector.name})"


def _register(nbytes: int, size: int) -> str:
    """Return the conversion to the type of vectors that builtins take."""
    return f"({'char' if size == 1 else 'short'} __attribute__((vector_size({nbytes}))))"
