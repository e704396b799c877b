"""Horizontal reductions of vectors, and division of a vector by a number."""

from __future__ import annotations

from ocannl_core.codegen.prelude.vector_types import Vector, instruction
from ocannl_core.codegen.text.helper import Helper, select_by_macro
from ocannl_core.ir.numbers.primitives import BinaryOp

HORIZONTAL_REDUCTIONS = {
    BinaryOp.ADD: "sum",
    BinaryOp.MUL: "product",
    BinaryOp.MAX: "largest",
    BinaryOp.MIN: "smallest",
}
"""Operations of horizontal reductions, with the names of the helpers."""

_REDUCERS = {
    "sum": "x + y",
    "product": "x * y",
    "largest": "{vector}_max(x, y)",
    "smallest": "{vector}_min(x, y)",
}
_LIMITS = {"largest": "max", "smallest": "min"}


def reduce_lanes(vector: Vector, function: str) -> Helper:
    """Return a function that reduces all lanes: neighbours, then pairs of neighbours, and so on.

    It is a butterfly: every lane is combined with the lane at a distance of 1, 2, 4, and so on.
    """
    lines = [f"  {vector.name} y;"]
    for stage in range(vector.lanes.bit_length() - 1):
        order = ", ".join(str(lane ^ 1 << stage) for lane in range(vector.lanes))
        lines.append(f"  y = SHUFFLE(x, {order});")
        lines.append(f"  x = {_REDUCERS[function].format(vector=vector.name)};")
    head = f"INLINE {vector.element} {vector.name}_{function}({vector.name} x) {{"
    gnu = f"#define SHUFFLE(a, ...) __builtin_shuffle(a, ({vector.mask}){{__VA_ARGS__}})"
    clang = "#define SHUFFLE(a, ...) __builtin_shufflevector(a, a, __VA_ARGS__)"
    shuffle = select_by_macro([("defined(__clang__)", clang)], gnu)
    text = "\n".join([shuffle, head, *lines, "  return x[0];", "}", "#undef SHUFFLE"])
    limit = (f"{vector.name}_{_LIMITS[function]}",) if function in _LIMITS else ()
    return Helper(text, (*dict.fromkeys((vector.name, vector.mask)), *limit))


def divide_by_number(vector: Vector) -> Helper:
    """Return a function that divides a vector by a number, given the reciprocal.

    A division takes several times as long as a multiplication. If neither operand is so large or
    small that a product overflows or loses bits, a multiplication by the reciprocal and a
    correction by the remainder give the same bits (Markstein, IBM Journal of Research and
    Development 34, 1990).
    """
    name = vector.name
    element = vector.element
    special = [(_CONDITION, _CORRECTED)] if _has_fast_division(vector) else []
    body = select_by_macro(special, f"  return x / {name}_splat(y);")
    corrects = (f"{name}_fma",) if special else ()
    own = (f"{name}_splat", *corrects, f"{name}_factor")
    needs = ("has_builtin", *dict.fromkeys((name, vector.mask)), *own)
    head = f"INLINE {name} {name}_over({name} x, {element} y, {element} factor)"
    return Helper(f"{head} {{\n{body}\n}}", needs)


def compute_reciprocal(vector: Vector) -> Helper:
    """Return the reciprocal of a divisor, or 0 if out of range, as a function."""
    name = vector.name
    special = [(_CONDITION, _RECIPROCAL)] if _has_fast_division(vector) else []
    head = f"INLINE {vector.element} {name}_factor({vector.element} y)"
    return Helper(
        f"{head} {{\n{select_by_macro(special, '  return 0;')}\n}}", ("has_builtin", name)
    )


def _has_fast_division(vector: Vector) -> bool:
    return (vector.dtype, vector.lanes) == ("float32", 16)


_CONDITION = instruction("__AVX512F__", "ia32_ucmpd512_mask")
_ALL = "(unsigned short)-1"
_RECIPROCAL = """\
  /* from 2^-60 to 2^60 */
  const float size = y < 0 ? -y : y;
  return size >= 0x1p-60f && size <= 0x1p60f ? 1 / y : 0;"""
_CORRECTED = f"""\
  /* all from 2^-60 to 2^60 */
  const int32x16 above = ((int32x16)x & INT32_MAX) - 0x21800000;
  const int32x16 most = (int32x16){{0}} + 0x3c000000;
  if (factor == 0 || __builtin_ia32_ucmpd512_mask(above, most, 2, {_ALL}) != {_ALL})
    return x / float32x16_splat(y);
  const float32x16 quotient = x * float32x16_splat(factor);
  const float32x16 rest = float32x16_fma(-quotient, float32x16_splat(y), x);
  return float32x16_fma(rest, float32x16_splat(factor), quotient);"""
