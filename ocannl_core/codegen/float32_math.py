"""Elementary functions of float32 in C, such that compilers turn loops over them into vector code.

They have no branches and call nothing. Compared with correctly rounded results over all numbers of
the format, exp, exp2 and log are within 0.9 units in the last place, log2 within 1.4, tanh within
2.4, sin and cos (every third number) within 0.51; so is pow, on 10^8 random pairs. Signed zeros,
infinities, NaN and subnormal numbers are as in C. Where the hardware has no fused multiply-add, the
functions of the C library stand in.

The polynomials are minimax fits (Remez). sin and cos reduce their argument in the manner of Payne
and Hanek: for every exponent, 2/pi times that power of two, modulo whole turns, is a sum of two
doubles.
"""

from __future__ import annotations

from fractions import Fraction
from textwrap import fill

from ocannl_core.codegen.helper import Helper


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


def _quarters_per_exponent() -> tuple[list[float], list[float]]:
    """Returns `2/pi * 2^(e - 23)` modulo 4, as a sum of two numbers, for e from -1 to 127."""
    quarters = 2 / _pi(256)
    high, low = [], []
    for exponent in range(-1, 128):
        rest = quarters * Fraction(2) ** (exponent - 23)
        rest -= 4 * ((rest + 2) // 4)
        high.append(float(rest))
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


def _polynomial(name: str, variable: str, coefficients: str, function: str = "fmaf") -> str:
    """Returns the evaluation of a polynomial, highest coefficient first (Horner)."""
    first, *others = coefficients.split()
    kind = "float" if function == "fmaf" else "double"
    lines = [f"  {kind} {name} = {first};"]
    lines += [f"  {name} = {function}({name}, {variable}, {each});" for each in others]
    return "\n".join(lines)


EXP_COEFFICIENTS = (
    "0x1.6a4cb4p-10f 0x1.123986p-7f 0x1.5558b0p-5f 0x1.555492p-3f 0x1.fffffcp-2f 1.0f 1.0f"
)
"""Of exp(r) for |r| up to log(2) / 2, highest first."""

TANH_COEFFICIENTS = "-0x1.afd7cep-5f 0x1.110594p-3f -0x1.55554ep-2f"
"""Of (tanh(r) / r - 1) / r^2 in r^2, for |r| up to log(2) / 4."""

TANH_SHIFT = "12583039.0f"
"""1.5 * 2^23 + 127: of a whole number n added to it, the lowest bits are the exponent of 2^n."""

_EXP = f"""\
INLINE float exp_float32(float x) {{
  float c = x > 89.0f ? 89.0f : x;
  c = c < -105.0f ? -105.0f : c;
  /* x = n * log 2 + r */
  const float shifted = fmaf(c, 0x1.715476p+0f, 0x1.8p23f);
  const float n = shifted - 0x1.8p23f;
  const float r = fmaf(n, 0x1.05c610p-29f, fmaf(n, -0x1.62e430p-1f, c));
{_polynomial("p", "r", EXP_COEFFICIENTS)}
  return scaled_float32(p, (int32_t)bits_of(shifted) - 0x4b400000);
}}"""

_EXP2 = f"""\
INLINE float exp2_float32(float x) {{
  float c = x > 129.0f ? 129.0f : x;
  c = c < -151.0f ? -151.0f : c;
  const float shifted = c + 0x1.8p23f;
  const float r = c - (shifted - 0x1.8p23f);
{
    _polynomial(
        "p",
        "r",
        "0x1.fde602p-17f 0x1.445c84p-13f 0x1.5d8a86p-10f 0x1.3b29f4p-7f 0x1.c6b08ap-5f "
        "0x1.ebfbe0p-3f 0x1.62e430p-1f 1.0f",
    )
}
  return scaled_float32(p, (int32_t)bits_of(shifted) - 0x4b400000);
}}"""

_SCALED = """\
/* x * 2^n for n from -252 to 254 */
INLINE float scaled_float32(float x, int32_t n) {
  const int32_t half = n >> 1;
  const float one = float_of((uint32_t)(half + 127) << 23);
  return x * one * float_of((uint32_t)(n - half + 127) << 23);
}"""

_LOG_PARTS = f"""\
/* log(1 + f) - f for 1 + f from sqrt(1/2) to sqrt(2) */
INLINE float log_rest_float32(float f) {{
{
    _polynomial(
        "q",
        "f",
        "0x1.1457c4p-4f -0x1.de3c1cp-4f 0x1.e6f062p-4f -0x1.fc2206p-4f 0x1.233768p-3f "
        "-0x1.555c4ep-3f 0x1.99a4b6p-3f -0x1.000006p-2f 0x1.555548p-2f",
    )
}
  const float square = f * f;
  return fmaf(square * f, q, -0.5f * square);
}}

/* the logarithm of a positive finite x is y; of others it is this */
INLINE float log_edge_float32(float x, float y) {{
  const float edge = x == 0 ? -INFINITY : x < 0 ? NAN : x;
  return x > 0 && x < INFINITY ? y : edge;
}}"""

_LOG_SPLIT = """\
  /* x = 2^e * (1 + f) */
  const int is_small = x < 0x1p-126f;
  const int32_t bits = (int32_t)bits_of(is_small ? x * 0x1p23f : x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float e = (float)(exponent - (is_small ? 23 : 0));
  const float f = float_of((uint32_t)bits - ((uint32_t)exponent << 23)) - 1.0f;"""

_LOG = f"""\
INLINE float log_float32(float x) {{
{_LOG_SPLIT}
  const float rest = fmaf(e, -0x1.05c610p-29f, log_rest_float32(f));
  return log_edge_float32(x, fmaf(e, 0x1.62e430p-1f, f + rest));
}}"""

_LOG2 = f"""\
INLINE float log2_float32(float x) {{
{_LOG_SPLIT}
  /* log2 e = 1 + 0x1.c551d9p-2 */
  const float rest = log_rest_float32(f);
  const float y = fmaf(f, 0x1.c551d9p-2f, rest * 0x1.c551d9p-2f);
  return log_edge_float32(x, ((y + rest) + f) + e);
}}"""

_TANH = f"""\
INLINE float tanh_float32(float x) {{
  const float a = x < 0 ? -x : x;
  const float c = a > 10.0f ? 10.0f : a;
  /* |x| = n * log(2) / 2 + r; tanh(n * log(2) / 2) = (s - 1) / (s + 1), s = 2^n */
  const float shifted = fmaf(c, 0x1.715476p+1f, {TANH_SHIFT});
  const float n = shifted - {TANH_SHIFT};
  const float s = float_of(bits_of(shifted) << 23);
  const float r = fmaf(n, -0x1.62e430p-2f, c);
  const float z = r * r;
{_polynomial("p", "z", TANH_COEFFICIENTS)}
  const float t = fmaf(r * z, p, r);
  /* by the addition formula; what is nearer to 1 than to 0 is 1 - y */
  const float above = n < 2.5f ? fmaf(s + 1.0f, t, s - 1.0f) : 2.0f - (t + t);
  const float y = above / fmaf(s - 1.0f, t, s + 1.0f);
  return copysignf(n < 2.5f ? y : 1.0f - y, x);
}}"""

_SINE = f"""\
/* sin(x + quarters * pi/2) */
INLINE float sine_float32(float x, int32_t quarters) {{
  const int32_t bits = (int32_t)(bits_of(x) & 0x7fffffff);
  int32_t exponent = (bits >> 23) - 126;
  exponent = exponent < 0 ? 0 : exponent > 128 ? 128 : exponent;
  /* |x| = mantissa * 2^(exponent - 24); its quarter turns, without whole turns: */
  const double mantissa = (double)((bits & 0x7fffff) | 0x800000);
  const double high = quarters_high[exponent];
  const double product = mantissa * high;
  const double rest = fma(mantissa, high, -product) + mantissa * quarters_low[exponent];
  const double shifted = product + 0x1.8p52;
  const double turned = (product - (shifted - 0x1.8p52)) + rest;
  const int is_small = bits < 0x3f000000, is_negative = bits_of(x) >> 31;
  const double size = (double)float_of((uint32_t)bits);
  const double t = is_small ? size : turned * 0x1.921fb54442d18p+0;
  const int32_t turns = is_small ? 0 : (int32_t)(uint32_t)float64_bits(shifted);
  const int32_t quarter = (is_negative ? -turns : turns) + quarters;
  const double angle = is_negative ? -t : t;
  const double z = angle * angle;
{
    _polynomial(
        "s",
        "z",
        "0x1.6cd1b08f16a46p-19 -0x1.a00f7e148c41bp-13 0x1.111108690b81ap-7 -0x1.5555554c6ffbap-3",
        "fma",
    )
}
  s = fma(s * z, angle, angle);
{
    _polynomial(
        "c",
        "z",
        "-0x1.241e6a92a3e99p-22 0x1.a010dddf84794p-16 -0x1.6c16b828a5e71p-10 0x1.5555554ed82ccp-5",
        "fma",
    )
}
  c = fma(c * z, z, fma(-0.5, z, 1.0));
  const double y = quarter & 1 ? c : s;
  return bits < 0x7f800000 ? (float)(quarter & 2 ? -y : y) : NAN;
}}"""

_SIN = """\
INLINE float sin_float32(float x) {
  return x == 0 ? x : sine_float32(x, 0);
}"""

_COS = """\
INLINE float cos_float32(float x) {
  return sine_float32(x, 1);
}"""

_POW = f"""\
INLINE float power_float32(float x, float y) {{
  /* a = |x| = 2^e * m, log2 m as a series in (m - 1) / (m + 1) */
  const double a = (double)float_of(bits_of(x) & 0x7fffffff);
  const int64_t bits = (int64_t)float64_bits(a);
  const int64_t e = (bits - 0x3fe6a09e667f3bcd) >> 52;
  const double m = float64_of((uint64_t)bits - ((uint64_t)e << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
{
    _polynomial(
        "q",
        "z",
        "0x1.b542542a3a0b0p-3 0x1.c4775cfa4602ep-3 0x1.0ca129ad129cdp-2 0x1.484afcc1f6a16p-2 "
        "0x1.a61762d27cbd2p-2 0x1.2776c50ee6f3ap-1 0x1.ec709dc3a0457p-1",
        "fma",
    )
}
  const double finite = (double)e + fma(q * z, s, s * 0x1.71547652b82fep+1);
  const double logarithm = a == 0 ? -INFINITY : a < INFINITY ? finite : a;
  const double scaled = (double)y * logarithm;
  const double above = scaled < -200.0 ? -200.0 : scaled;
  const double c = above > 200.0 ? 200.0 : above;
  const double shifted = c + 0x1.8p52;
  const double r = c - (shifted - 0x1.8p52);
{
    _polynomial(
        "p",
        "r",
        "0x1.61c4ed436ca38p-20 0x1.00d85325e540fp-16 0x1.430aa88573f2ap-13 "
        "0x1.5d874d072e5b2p-10 0x1.3b2ab5ed6ed72p-7 0x1.c6b08dced329ap-5 "
        "0x1.ebfbdff8ede86p-3 0x1.62e42fef89d1fp-1 1.0",
        "fma",
    )
}
  const uint64_t n = float64_bits(shifted) - 0x4338000000000000;
  const float size = (float)(p * float64_of((n + 1023) << 52));
  const float half = y * 0.5f;
  const int is_whole = truncf(y) == y, is_negative = bits_of(x) >> 31;
  const int is_odd = is_whole && truncf(half) != half;
  const float sized = is_negative && is_odd ? -size : size;
  const int is_undefined = is_negative && !is_whole && a > 0 && a < INFINITY;
  const float defined = is_undefined || x != x || y != y ? NAN : sized;
  const int is_bounded = a == 1 && (y == INFINITY || y == -INFINITY);
  return y == 0 || x == 1 || is_bounded ? 1.0f : defined;
}}"""

_FLOAT64_OF = """\
INLINE double float64_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}"""


def _fused(text: str, function: str, library: str) -> str:
    """Returns a definition for hardware with fused multiply-adds, and the library's for others."""
    arguments = "x, y" if library == "powf" else "x"
    parameters = ", ".join(f"float {name}" for name in arguments.split(", "))
    return (
        f"#ifdef FP_FAST_FMAF\n{text}\n#else\n"
        f"INLINE float {function}({parameters}) {{\n  return {library}({arguments});\n}}\n#endif"
    )


FLOAT32_MATH: dict[str, Helper] = {
    "float64_of": Helper(_FLOAT64_OF),
    "scaled_float32": Helper(_SCALED, ("float_of",)),
    "exp_float32": Helper(_fused(_EXP, "exp_float32", "expf"), ("bits_of", "scaled_float32")),
    "exp2_float32": Helper(_fused(_EXP2, "exp2_float32", "exp2f"), ("bits_of", "scaled_float32")),
    "log_parts": Helper(_LOG_PARTS, ("bits_of", "float_of")),
    "log_float32": Helper(_fused(_LOG, "log_float32", "logf"), ("log_parts",)),
    "log2_float32": Helper(_fused(_LOG2, "log2_float32", "log2f"), ("log_parts",)),
    "tanh_float32": Helper(_fused(_TANH, "tanh_float32", "tanhf"), ("bits_of", "float_of")),
    "quarters": Helper(_tables()),
    "sine_float32": Helper(_SINE, ("bits_of", "float_of", "float64_bits", "quarters")),
    "sin_float32": Helper(_fused(_SIN, "sin_float32", "sinf"), ("sine_float32",)),
    "cos_float32": Helper(_fused(_COS, "cos_float32", "cosf"), ("sine_float32",)),
    "power_float32": Helper(
        _fused(_POW, "power_float32", "powf"), ("bits_of", "float_of", "float64_bits", "float64_of")
    ),
}
"""The functions, and what they need, by name."""

_SPELLED = {"pow": "power_float32"} | {
    name: f"{name}_float32" for name in ("exp", "exp2", "log", "log2", "tanh", "sin", "cos")
}


def own_function(name: str) -> str | None:
    """Returns the helper that computes a function of the C library for float32, if there is one."""
    return _SPELLED.get(name)
