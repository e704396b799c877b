"""Elementary functions of sixteen float32 in one register, for what compilers do not make of loops.

They compute what the functions of one number compute, operation by operation, so all bits are the
same; a power of two is multiplied by in one instruction, and limits are one instruction each.
"""

from __future__ import annotations

from ocannl_core.codegen.float32_math import (
    EXP_COEFFICIENTS,
    TANH_COEFFICIENTS,
    TANH_SHIFT,
)
from ocannl_core.codegen.helper import Helper

_VECTOR = "float32x16"
_ALL = "(unsigned short)-1"


def _splat(number: str) -> str:
    return f"{_VECTOR}_splat({number})"


def _fma(a: str, b: str, c: str) -> str:
    return f"{_VECTOR}_fma({a}, {b}, {c})"


def _polynomial(variable: str, coefficients: str) -> str:
    """Returns the evaluation of a polynomial `p`, highest coefficient first (Horner)."""
    first, *others = coefficients.split()
    lines = [f"  {_VECTOR} p = {_splat(first)};"]
    lines += [f"  p = {_fma('p', variable, _splat(each))};" for each in others]
    return "\n".join(lines)


def _limited(function: str, number: str, x: str) -> str:
    """Returns the smaller or larger of a number and a vector, in which NaN stays."""
    return f"__builtin_ia32_{function}ps512_mask({_splat(number)}, {x}, {x}, {_ALL}, 4)"


_EXP = f"""\
INLINE {_VECTOR} {_VECTOR}_map_exp_float32({_VECTOR} x) {{
  {_VECTOR} c = {_limited("min", "89.0f", "x")};
  c = {_limited("max", "-105.0f", "c")};
  /* x = n * log 2 + r */
  const {_VECTOR} shift = {_splat("0x1.8p23f")};
  const {_VECTOR} n = {_fma("c", _splat("0x1.715476p+0f"), "shift")} - shift;
  {_VECTOR} r = {_fma("n", _splat("-0x1.62e430p-1f"), "c")};
  r = {_fma("n", _splat("0x1.05c610p-29f"), "r")};
{_polynomial("r", EXP_COEFFICIENTS)}
  return __builtin_ia32_scalefps512_mask(p, n, p, {_ALL}, 4);
}}"""

_TANH = f"""\
INLINE {_VECTOR} {_VECTOR}_map_tanh_float32({_VECTOR} x) {{
  const int32x16 sign = (int32x16)x & INT32_MIN;
  const {_VECTOR} a = ({_VECTOR})((int32x16)x & INT32_MAX);
  const {_VECTOR} c = {_limited("min", "10.0f", "a")};
  const {_VECTOR} one = {_splat("1.0f")};
  /* |x| = n * log(2) / 2 + r; tanh(n * log(2) / 2) = (s - 1) / (s + 1), s = 2^n */
  const {_VECTOR} shift = {_splat(TANH_SHIFT)};
  const {_VECTOR} shifted = {_fma("c", _splat("0x1.715476p+1f"), "shift")};
  const {_VECTOR} n = shifted - shift;
  const {_VECTOR} s = ({_VECTOR})((int32x16)shifted << 23);
  const {_VECTOR} r = {_fma("n", _splat("-0x1.62e430p-2f"), "c")};
  const {_VECTOR} z = r * r;
{_polynomial("z", TANH_COEFFICIENTS)}
  const {_VECTOR} t = {_fma("r * z", "p", "r")};
  /* by the addition formula; what is nearer to 1 than to 0 is 1 - y */
  const {_VECTOR} small = {_fma("s + one", "t", "s - one")};
  const {_VECTOR} large = {_splat("2.0f")} - (t + t);
  const unsigned short is_small =
      __builtin_ia32_cmpps512_mask(n, {_splat("2.5f")}, 1, {_ALL}, 4);
  const {_VECTOR} above = __builtin_ia32_blendmps_512_mask(large, small, is_small);
  {_VECTOR} y = above / {_fma("s - one", "t", "s + one")};
  y = __builtin_ia32_blendmps_512_mask(one - y, y, is_small);
  return ({_VECTOR})((int32x16)y | sign);
}}"""

FLOAT32X16_MATH: dict[str, Helper] = {
    "exp_float32": Helper(_EXP, ("splat", "fma")),
    "tanh_float32": Helper(_TANH, ("splat", "fma")),
}
"""The text of functions by the names of those of one number, for processors with AVX-512; and what
they need of the same type of vectors.
"""
