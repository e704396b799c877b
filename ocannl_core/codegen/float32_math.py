"""Elementary functions of float32 in C, of one number and of vectors of any width alike.

Each function is written once, over types that stand for a number or for a vector: FLOAT, INT (32
bits), DOUBLE, WORD (64 bits); `FLOAT_below(x, y)` calls a function of such numbers. So numbers and
lanes get the same bits. There are no branches but one, for angles of a million turns, and nothing
is called, so that compilers vectorise loops over them, too.

Compared with exact results, for every number of the format, exp and exp2 are within 0.9 units in
the last place, log within 0.82, tanh within 1.09, log2 within 1.33, sin and cos within 0.504; pow
is within 0.51 on random pairs. Where the processor has no fused multiply-add, products are rounded
before something is added, and all are within 2 units. Signed zeros, infinities, NaN and subnormal
numbers are as in C.

The polynomials are minimax fits (Remez). tanh is one of sixteen, whose coefficients are looked up
in registers where the processor permutes lanes, and else in memory. sin, cos and pow compute with
doubles, in half as many lanes. Angles are reduced by as many quarter turns as there are, and large
ones in the manner of Payne and Hanek: for every exponent, 2/pi times that power of two, modulo
whole turns, is a sum of two doubles.
"""

from __future__ import annotations

from fractions import Fraction
from textwrap import fill

from ocannl_core.codegen.helper import Helper
from ocannl_core.codegen.type_templates import FunctionTemplate
from ocannl_core.codegen.vector_types import Vector


def _pi(bits: int) -> Fraction:
    """Returns pi to so many bits, by Machin's formula."""
    one = 1 << (bits + 16)

    def arctangent_of_reciprocal(n: int) -> int:
        total = term = one // n
        divisor, sign = 1, -1
        while term:
            term //= n * n
            divisor += 2
            total += sign * (term // divisor)
            sign = -sign
        return total

    return Fraction(16 * arctangent_of_reciprocal(5) - 4 * arctangent_of_reciprocal(239), one)


_LEAST_FAR = 22
"""Angles from this power of two on take the table."""


def _quarters_per_exponent() -> tuple[list[float], list[float]]:
    """Returns `2/pi * 2^(e - 23)` modulo 4 for every exponent e of a far angle, as sums of a number
    of 29 bits, whose products with the 24 bits of a float32 are exact, and of another one.
    """
    quarters = 2 / _pi(256)
    high, low = [], []
    for exponent in range(_LEAST_FAR, 128):
        rest = quarters * Fraction(2) ** (exponent - 23)
        rest -= 4 * ((rest + 2) // 4)
        high.append(float(Fraction(round(rest * 2**27), 2**27)))
        low.append(float(rest - Fraction(high[-1])))
    return high, low


def _tables() -> str:
    arrays = zip(("high", "low"), _quarters_per_exponent(), strict=True)
    return "\n".join(
        f"static const double quarters_{name}[{len(numbers)}] = {{\n"
        + fill(", ".join(map(float.hex, numbers)), 98, break_on_hyphens=False)
        + "};"
        for name, numbers in arrays
    )


def _table(name: str, rows: list[list[str]]) -> str:
    """Returns rows of sixteen numbers each, for lookups in one or two registers."""
    cells = ",\n".join(
        "  {" + fill(", ".join(row), 96, subsequent_indent="   ", break_on_hyphens=False) + "}"
        for row in rows
    )
    head = f"static const float {name}[{len(rows)}][16] __attribute__((aligned(64)))"
    return f"{head} = {{\n{cells}}};"


def _polynomial(name: str, variable: str, coefficients: str, kind: str = "FLOAT") -> str:
    """Returns the evaluation of a polynomial, highest coefficient first (Horner)."""
    first, *others = coefficients.split()
    lines = [f"  {kind} {name} = {kind}_splat({first});"]
    lines += [f"  {name} = {kind}_madd({name}, {variable}, {kind}_splat({c}));" for c in others]
    return "\n".join(lines)


# ----- with numbers of 32 bits --------------------------------------------------------------------

_EXP = f"""\
INLINE FLOAT FLOAT_exp(FLOAT x) {{
  const FLOAT c = FLOAT_above(FLOAT_below(x, FLOAT_splat(89.0f)), FLOAT_splat(-105.0f));
  /* x = n * log 2 + r; products of n with the first part of log 2 are exact */
  const FLOAT shift = FLOAT_splat(0x1.8p23f);
  const FLOAT shifted = FLOAT_madd(c, FLOAT_splat(0x1.715476p+0f), shift);
  const FLOAT n = shifted - shift;
  FLOAT r = FLOAT_madd(n, FLOAT_splat(-0x1.62e4p-1f), c);
  r = FLOAT_madd(n, FLOAT_splat(-0x1.7f7d1cp-20f), r);
{
    _polynomial(
        "p",
        "r",
        "0x1.6a50acp-10f 0x1.123978p-7f 0x1.5558acp-5f 0x1.555492p-3f 0x1.fffffcp-2f 1.0f 1.0f",
    )
}
  return FLOAT_scaled(p, shifted);
}}"""

_EXP2 = f"""\
INLINE FLOAT FLOAT_exp2(FLOAT x) {{
  const FLOAT c = FLOAT_above(FLOAT_below(x, FLOAT_splat(129.0f)), FLOAT_splat(-151.0f));
  const FLOAT shift = FLOAT_splat(0x1.8p23f);
  const FLOAT shifted = c + shift;
  const FLOAT r = c - (shifted - shift);
{
    _polynomial(
        "p",
        "r",
        "0x1.416b5ep-13f 0x1.5f082ep-10f 0x1.3b2dep-7f 0x1.c6af7cp-5f 0x1.ebfbdcp-3f "
        "0x1.62e43p-1f 1.0f",
    )
}
  return FLOAT_scaled(p, shifted);
}}"""

_SCALED = """\
/* x * 2^n for n from -252 to 254, given as 0x1.8p23 + n */
INLINE FLOAT FLOAT_scaled(FLOAT x, FLOAT shifted) {
  const INT n = FLOAT_bits(shifted) - 0x4b400000;
  const INT half = n >> 1;
  return x * INT_float((half + 127) << 23) * INT_float((n - half + 127) << 23);
}"""

_LOG_REST = f"""\
/* log(1 + f) - f for 1 + f from sqrt(1/2) to sqrt(2) */
INLINE FLOAT FLOAT_log_rest(FLOAT f) {{
{
    _polynomial(
        "q",
        "f",
        "0x1.1457c4p-4f -0x1.de3c1cp-4f 0x1.e6f062p-4f -0x1.fc2206p-4f 0x1.233768p-3f "
        "-0x1.555c4ep-3f 0x1.99a4b6p-3f -0x1.000006p-2f 0x1.555548p-2f",
    )
}
  const FLOAT square = f * f;
  return FLOAT_madd(square * f, q, FLOAT_splat(-0.5f) * square);
}}"""

_LOG_EDGE = """\
/* the logarithm of a positive finite x is y; of others it is this */
INLINE FLOAT FLOAT_log_edge(FLOAT x, FLOAT y) {
  const FLOAT zero = FLOAT_splat(0.0f);
  const FLOAT finite = FLOAT_select(x < FLOAT_splat(INFINITY), y, x);
  const FLOAT edge = FLOAT_select(x == zero, FLOAT_splat(-INFINITY), FLOAT_splat(NAN));
  return FLOAT_select(x > zero, finite, edge);
}"""

_LOG_SPLIT = """\
  /* x = 2^e * (1 + f) */
  const INT is_small = x < FLOAT_splat(0x1p-126f);
  const INT bits = FLOAT_bits(FLOAT_select(is_small, x * FLOAT_splat(0x1p23f), x));
  const INT exponent = (bits - 0x3f3504f3) >> 23;
  const FLOAT low = FLOAT_select(is_small, FLOAT_splat(-23.0f), FLOAT_splat(0.0f));
  const FLOAT e = FLOAT_of(exponent) + low;
  const FLOAT f = INT_float(bits - ((bits - 0x3f3504f3) & -0x800000)) - FLOAT_splat(1.0f);"""

_LOG = f"""\
INLINE FLOAT FLOAT_log(FLOAT x) {{
{_LOG_SPLIT}
  const FLOAT rest = FLOAT_madd(e, FLOAT_splat(0x1.7f7d1cp-20f), FLOAT_log_rest(f));
  return FLOAT_log_edge(x, FLOAT_madd(e, FLOAT_splat(0x1.62e4p-1f), f + rest));
}}"""

_LOG2 = f"""\
INLINE FLOAT FLOAT_log2(FLOAT x) {{
{_LOG_SPLIT}
  /* log2 e = 1 + 0x1.c551d9p-2 */
  const FLOAT factor = FLOAT_splat(0x1.c551d9p-2f);
  const FLOAT rest = FLOAT_log_rest(f);
  const FLOAT y = FLOAT_madd(f, factor, rest * factor);
  return FLOAT_log_edge(x, ((y + rest) + f) + e);
}}"""

_TANH_CELLS = """\
0x1.89cf46p-1 0x1.13bd86p+0 0x1.628162p+0 0x1.b14104p+0 0x1.13c04ap+1 0x1.626b5p+1
0x1.b135d2p+1 0x1.000cbep+2 0x1.3b1fd2p+2 0x1.89c0ep+2 0x1.d8707ap+2 0x1.154246p+3 0
0x1.d89f1ep-3 0x1.89d8a4p-2 0x1.13b636p-1

0x1.4afa3ep-1 0x1.95916ep-1 0x1.c397f2p-1 0x1.de707ep-1 0x1.f26864p-1 0x1.fbfc76p-1
0x1.fed328p-1 0x1.ffa83ap-1 0x1.fff224p-1 0x1.fffedp-1 0x1.ffffe6p-1 0x1.fffffep-1 0
0x1.d06814p-3 0x1.778292p-2 0x1.f7a7ep-2

0x1.2a0af2p-1 0x1.7d7a88p-2 0x1.c6be8cp-3 0x1.03af7p-3 0x1.ad2d72p-5 0x1.ffc18cp-7
0x1.2c7fb6p-8 0x1.5efa1p-10 0x1.bb8636p-13 0x1.30071p-16 0x1.a0094p-20 0x1.0014bp-23
0x1p+0 0x1.e5ac34p-1 0x1.bb2606p-1 0x1.84235cp-1

-0x1.815584p-2 -0x1.2e2ef6p-2 -0x1.911922p-3 -0x1.e55464p-4 -0x1.a1c406p-5
-0x1.fbad32p-7 -0x1.2bc2b2p-8 -0x1.5eae8p-10 -0x1.ba2a88p-13 -0x1.2f209ap-16
-0x1.9ecf66p-20 -0x1.0033p-23 0 -0x1.b88674p-3 -0x1.450328p-2 -0x1.7dcfdep-2

0x1.9323aap-5 0x1.c0d07ep-4 0x1.946552p-4 0x1.18653ap-4 0x1.07a76cp-5 0x1.4d260cp-7
0x1.8dd92ep-9 0x1.d2eeeap-11 0x1.26a132p-13 0x1.942cap-17 0x1.149a1cp-20
0x1.50a598p-24 -0x1.555a3ep-2 -0x1.11d56ep-2 -0x1.6079fap-3 -0x1.1bdefep-4

0x1.7fa3d6p-4 0x1.8f9468p-7 -0x1.5f62eap-6 -0x1.8f6a4p-6 -0x1.d813d6p-7 -0x1.473a24p-8
-0x1.90d3dcp-10 -0x1.d9e31cp-12 -0x1.3cc8dap-14 -0x1.b2aabap-18 -0x1.296cbep-21
-0x1.5206f8p-25 0x1.167086p-11 0x1.0e0d44p-3 0x1.58e0dcp-3 0x1.43af6p-3

-0x1.02e558p-4 -0x1.32bf2p-5 -0x1.26c4fcp-7 0x1.6acd0ap-9 0x1.1c4a6cp-8 0x1.e7a5b6p-10
0x1.3a3f8ep-11 0x1.7977e8p-13 0x1.fab11ap-16 0x1.5a6fd8p-19 0x1.d8ea16p-23
0x1.8651c4p-26 0x1.090f3ep-3 0x1.494b8ep-4 0x1.c7172ep-7 -0x1.2fd1d6p-5
"""
"""Sixteen intervals of sizes, by the last four bits of what `FLOAT_tanh` makes of a size: first a
number in the midst of each, then the coefficients of a polynomial in the distance from it, lowest
first. Where that is not 0, tanh is nearly a float32, so that the first coefficient is exact."""

_TANH_TABLE = _table("tanh_cells", [row.split() for row in _TANH_CELLS.split("\n\n")])

_TANH = """\
INLINE FLOAT FLOAT_tanh(FLOAT x) {
  const INT sign = FLOAT_bits(x) & INT32_MIN;
  /* from here on, tanh is 1 */
  const FLOAT a = FLOAT_below(INT_float(FLOAT_bits(x) & INT32_MAX), FLOAT_splat(9.02f));
  /* two bits of the significand, the others are of the exponent: wider intervals farther from 0 */
  const INT i = FLOAT_bits(FLOAT_madd(a, FLOAT_splat(1.625f), FLOAT_splat(1.0f))) >> 21;
  const FLOAT d = a - FLOAT_lookup(tanh_cells[0], i);
  FLOAT p = FLOAT_lookup(tanh_cells[6], i);
  p = FLOAT_madd(p, d, FLOAT_lookup(tanh_cells[5], i));
  p = FLOAT_madd(p, d, FLOAT_lookup(tanh_cells[4], i));
  p = FLOAT_madd(p, d, FLOAT_lookup(tanh_cells[3], i));
  p = FLOAT_madd(p, d, FLOAT_lookup(tanh_cells[2], i));
  p = FLOAT_madd(p, d, FLOAT_lookup(tanh_cells[1], i));
  return INT_float(FLOAT_bits(p) | sign);
}"""

# ----- with numbers of 64 bits --------------------------------------------------------------------

_FAR = f"""\
/* the quarter turns of a far angle as 0x1.8p52 + n, and what is left, at most half a quarter */
INLINE void far_float64(double a, double *angle, double *shifted) {{
  /* a = mantissa * 2^(exponent - 23); its quarter turns, without whole turns: */
  const uint64_t bits = float64_bits(a);
  const int exponent = bits >> 52 < 1023 + 127 ? (int)(bits >> 52) - 1023 : 127;
  const double mantissa = (double)(int64_t)((bits >> 29 & 0x7fffff) | 0x800000);
  const double product = mantissa * quarters_high[exponent - {_LEAST_FAR}];
  const double rest = mantissa * quarters_low[exponent - {_LEAST_FAR}];
  *shifted = product + 0x1.8p52;
  *angle = ((product - (*shifted - 0x1.8p52)) + rest) * 0x1.921fb54442d18p+0;
}}"""

_SINE = f"""\
/* sin(x) or, with one quarter turn more, cos(x) */
INLINE DOUBLE DOUBLE_sine(DOUBLE x, int quarters) {{
  const WORD sign = quarters ? WORD_splat(0) : DOUBLE_bits(x) & 0x8000000000000000;
  const DOUBLE a = WORD_double(DOUBLE_bits(x) & 0x7fffffffffffffff);
  /* products of numbers of 22 bits with the first part of a quarter turn are exact */
  const DOUBLE shift = DOUBLE_splat(0x1.8p52);
  DOUBLE shifted = DOUBLE_madd(a, DOUBLE_splat(0x1.45f306dc9c883p-1), shift);
  const DOUBLE n = shifted - shift;
  DOUBLE angle = DOUBLE_madd(n, DOUBLE_splat(-0x1.921fb544p+0), a);
  angle = DOUBLE_madd(n, DOUBLE_splat(-0x1.0b4611a626331p-34), angle);
  if (DOUBLE_any(a >= DOUBLE_splat(0x1p{_LEAST_FAR}))) {{
    double each[3][LANES];
    memcpy(each[0], &a, sizeof a);
    memcpy(each[1], &angle, sizeof a);
    memcpy(each[2], &shifted, sizeof a);
    for (int l = 0; l < LANES; ++l)
      if (each[0][l] >= 0x1p{_LEAST_FAR}) far_float64(each[0][l], &each[1][l], &each[2][l]);
    memcpy(&angle, each[1], sizeof a);
    memcpy(&shifted, each[2], sizeof a);
  }}
  const WORD quarter = DOUBLE_bits(shifted) + (uint64_t)quarters;
  const DOUBLE z = angle * angle, one = DOUBLE_splat(1.0);
{
    _polynomial(
        "s",
        "z",
        "0x1.6cd1b08f16a46p-19 -0x1.a00f7e148c41bp-13 0x1.111108690b81ap-7 -0x1.5555554c6ffbap-3",
        "DOUBLE",
    )
}
  s = DOUBLE_madd(s * z, angle, angle);
{
    _polynomial(
        "c",
        "z",
        "-0x1.241e6a92a3e99p-22 0x1.a010dddf84794p-16 -0x1.6c16b828a5e71p-10 0x1.5555554ed82ccp-5",
        "DOUBLE",
    )
}
  c = DOUBLE_madd(c * z, z, DOUBLE_madd(DOUBLE_splat(-0.5), z, one));
  const DOUBLE y = DOUBLE_select((quarter & 1) != 0, c, s);
  const DOUBLE signed_y = WORD_double(DOUBLE_bits(y) ^ sign ^ (quarter & 2) << 62);
  return DOUBLE_select(a < DOUBLE_splat(INFINITY), signed_y, DOUBLE_splat(NAN));
}}"""

_POWER = f"""\
INLINE DOUBLE DOUBLE_power(DOUBLE x, DOUBLE y) {{
  const DOUBLE zero = DOUBLE_splat(0.0), one = DOUBLE_splat(1.0), large = DOUBLE_splat(INFINITY);
  const WORD sign = DOUBLE_bits(x) & 0x8000000000000000;
  const DOUBLE a = WORD_double(DOUBLE_bits(x) ^ sign);
  /* a = 2^e * m, log2 m as a series in (m - 1) / (m + 1) */
  const WORD biased = DOUBLE_bits(a) - 0x3fe6a09e667f3bcd + 0x4000000000000000;
  const DOUBLE bias = DOUBLE_splat(0x1.00000000004p52);
  const DOUBLE e = WORD_double(biased >> 52 | 0x4330000000000000) - bias;
  const DOUBLE m = WORD_double(
      DOUBLE_bits(a) - (biased & 0xfff0000000000000) + 0x4000000000000000);
  const DOUBLE s = (m - one) / (m + one);
  const DOUBLE z = s * s;
{
    _polynomial(
        "q",
        "z",
        "0x1.b542542a3a0b0p-3 0x1.c4775cfa4602ep-3 0x1.0ca129ad129cdp-2 0x1.484afcc1f6a16p-2 "
        "0x1.a61762d27cbd2p-2 0x1.2776c50ee6f3ap-1 0x1.ec709dc3a0457p-1",
        "DOUBLE",
    )
}
  const DOUBLE finite =
      e + DOUBLE_madd(q * z, s, s * DOUBLE_splat(0x1.71547652b82fep+1));
  const DOUBLE logarithm =
      DOUBLE_select(a == zero, -large, DOUBLE_select(a < large, finite, a));
  const DOUBLE scaled = y * logarithm;
  const DOUBLE c =
      DOUBLE_below(DOUBLE_above(scaled, DOUBLE_splat(-200.0)), DOUBLE_splat(200.0));
  const DOUBLE shift = DOUBLE_splat(0x1.8p52);
  const DOUBLE shifted = c + shift;
  const DOUBLE r = c - (shifted - shift);
{
    _polynomial(
        "p",
        "r",
        "0x1.61c4ed436ca38p-20 0x1.00d85325e540fp-16 0x1.430aa88573f2ap-13 "
        "0x1.5d874d072e5b2p-10 0x1.3b2ab5ed6ed72p-7 0x1.c6b08dced329ap-5 "
        "0x1.ebfbdff8ede86p-3 0x1.62e42fef89d1fp-1 1.0",
        "DOUBLE",
    )
}
  const DOUBLE size = p * WORD_double((DOUBLE_bits(shifted) + 1023) << 52);
  /* negative numbers have powers for integers only; those for odd ones are negative */
  const DOUBLE b = WORD_double(DOUBLE_bits(y) & 0x7fffffffffffffff), half = DOUBLE_splat(0.5) * b;
  const DOUBLE unit = DOUBLE_splat(0x1p52);
  const DOUBLE odd = WORD_double(DOUBLE_bits(size) | sign);
  const DOUBLE whole = DOUBLE_select((half + unit) - unit == half, size, odd);
  const LONG is_undefined = (sign != 0) & (a > zero) & (a < large);
  const DOUBLE broken = DOUBLE_select(is_undefined, DOUBLE_splat(NAN), size);
  const DOUBLE power = DOUBLE_select((b + unit) - unit == b, whole, broken);
  const LONG is_one = (y == zero) | (x == one) | ((a == one) & (b == large));
  return DOUBLE_select(is_one, one, power);
}}"""

# ----- by name ------------------------------------------------------------------------------------

_GENERIC = (
    FunctionTemplate("FLOAT_scaled", _SCALED),
    FunctionTemplate("FLOAT_exp", _EXP),
    FunctionTemplate("FLOAT_exp2", _EXP2),
    FunctionTemplate("FLOAT_log_rest", _LOG_REST),
    FunctionTemplate("FLOAT_log_edge", _LOG_EDGE),
    FunctionTemplate("FLOAT_log", _LOG),
    FunctionTemplate("FLOAT_log2", _LOG2),
    FunctionTemplate("FLOAT_tanh", _TANH, ("tanh_cells",)),
    FunctionTemplate("DOUBLE_sine", _SINE, ("far_float64",)),
    FunctionTemplate("DOUBLE_power", _POWER),
)

_WITH_DOUBLES = {
    "sin": ("sine", ("x",), ("0",)),
    "cos": ("sine", ("x",), ("1",)),
    "pow": ("power", ("x", "y"), ()),
}
"""Functions that are computed with doubles: by which one, of what, and what else it is given."""

OWN_FUNCTIONS = frozenset({"exp", "exp2", "log", "log2", "tanh"} | _WITH_DOUBLES.keys())
"""Functions of the C library that code of our own computes for float32."""


def own_function(name: str) -> str | None:
    """Returns the helper that computes a function of the C library for float32, if there is one."""
    return f"{name}_float32" if name in OWN_FUNCTIONS else None


def float32_function(name: str, vector: Vector) -> Helper | None:
    """Returns a function of vectors, or a part of one, by the name that follows that of its type:
    an elementary function of float32, or what it is made of.
    """
    for generic in _GENERIC:
        if (generic.dtype, generic.function) == (vector.dtype, name):
            return generic.of_vectors(vector.lanes)
    if vector.dtype == "float32" and name in _WITH_DOUBLES and vector.lanes > 1:
        return _by_halves(name, vector)
    return None


def _by_halves(name: str, vector: Vector) -> Helper:
    """Returns a function that computes with doubles, half of the lanes at a time."""
    core, parameters, more = _WITH_DOUBLES[name]
    doubles = Vector("float64", vector.lanes // 2)
    function = f"{doubles.name}_{core}" if doubles.lanes > 1 else f"{core}_float64"
    needs = [function, *(f"{vector.name}_{part}" for part in ("low", "high", "joined"))]
    halves = []
    for part in ("low", "high"):
        given = [f"{vector.name}_{part}({each})" for each in parameters]
        halves.append(f"{function}({', '.join([*given, *more])})")
    head = f"{vector.name}_{name}({', '.join(f'{vector.name} {each}' for each in parameters)})"
    body = f"  return {vector.name}_joined(\n      {halves[0]},\n      {halves[1]});"
    return Helper(f"INLINE {vector.name} {head} {{\n{body}\n}}", (vector.name, *needs))


def _of_number(name: str) -> Helper:
    """Returns a function of one number that is computed with doubles."""
    core, parameters, more = _WITH_DOUBLES[name]
    given = ", ".join([*(f"(double){each}" for each in parameters), *more])
    head = f"float {name}_float32({', '.join(f'float {each}' for each in parameters)})"
    text = f"INLINE {head} {{\n  return (float){core}_float64({given});\n}}"
    return Helper(text, (f"{core}_float64",))


_OF = """\
INLINE float of_float32(int32_t x) {
  return (float)x;
}"""

_FLOAT64_OF = """\
INLINE double float64_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}"""

_LOOKUP = """\
/* the cell of sixteen whose number is the last four bits of i */
INLINE float lookup_float32(const float *cells, int32_t i) {
  return cells[i & 15];
}"""

FLOAT32_MATH: dict[str, Helper] = {
    "float64_of": Helper(_FLOAT64_OF),
    "quarters": Helper(_tables()),
    "tanh_cells": Helper(_TANH_TABLE),
    "lookup_float32": Helper(_LOOKUP),
    "far_float64": Helper(_FAR, ("float64_bits", "quarters")),
    "of_float32": Helper(_OF),
    **{f"{generic.function}_{generic.dtype}": generic.of_numbers() for generic in _GENERIC},
    **{f"{name}_float32": _of_number(name) for name in _WITH_DOUBLES},
}
"""The functions of one number, and what they need, by name."""
