"""Functions that generated C calls, for what no operator or library function of C does exactly.

A kernel names the helpers it uses; `prelude` gives their text in order of need, and nothing else.
In the templates, `INLINE` stands for how a dialect declares a small function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ocannl_core.codegen.float32_math import FLOAT32_MATH
from ocannl_core.codegen.helper import FUSES, Helper, chosen, headers_for
from ocannl_core.codegen.matrix_tile_prelude import TILE_HELPERS
from ocannl_core.codegen.vector_prelude import vector_helper
from ocannl_core.dtypes import NARROW

_FLOATS = {"float32": ("float", "f"), "float64": ("double", "")}
_INTEGERS = {
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
}

_RELU = """\
INLINE T relu_NAME(T x) {
  return x < 0 ? 0 : x;
}"""

_ANY_NUMBER = {
    "relu_gate": """\
INLINE T relu_gate_NAME(T a, T b) {
  return a > 0 ? b : 0;
}""",
}

_ANY_FLOAT = {
    # without a branch, which compilers may turn into loads with wrong masks
    "where": """\
INLINE T where_NAME(int condition, T a, T b) {
  union { T number; BITS bits; } x = {a}, y = {b};
  const BITS chosen = -(BITS)(condition != 0);
  x.bits = (x.bits & chosen) | (y.bits & ~chosen);
  return x.number;
}""",
    "relu": _RELU,
    "one_nan": """\
INLINE T one_nan_NAME(T x) {
  return x != x ? NAN : x;
}""",
    "square": """\
INLINE T square_NAME(T x) {
  return x * x;
}""",
    "sat01": """\
INLINE T sat01_NAME(T x) {
  return x <= 0 ? 0 : x >= 1 ? 1 : x;
}""",
    "sat01_gate": """\
INLINE T sat01_gate_NAME(T a, T b) {
  return 0 < a && a < 1 ? b : 0;
}""",
    "max": """\
INLINE T max_NAME(T a, T b) {
  return a != a || a >= b ? a : b;
}""",
    "min": """\
INLINE T min_NAME(T a, T b) {
  return a != a || a <= b ? a : b;
}""",
    "mod": """\
INLINE T mod_NAME(T a, T b) {
  const T rest = fmodSUFFIX(a, b);
  if (rest == 0) return copysignSUFFIX(0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}""",
}

_PARTS = {
    "below": """\
INLINE T below_NAME(T x, T limit) {
  return limit < x ? limit : x;
}""",
    "above": """\
INLINE T above_NAME(T x, T limit) {
  return limit > x ? limit : x;
}""",
    "select": """\
INLINE T select_NAME(int is_first, T a, T b) {
  return is_first ? a : b;
}""",
    "any": """\
INLINE int any_NAME(int x) {
  return x;
}""",
    "madd": f"""\
INLINE T madd_NAME(T a, T b, T c) {{
{chosen([(FUSES, "  return fmaSUFFIX(a, b, c);")], "  return a * b + c;")}
}}""",
}
"""What elementary functions are made of: of one number what vectors have instructions for."""

_ANY_INTEGER = {
    "where": """\
INLINE T where_NAME(int condition, T a, T b) {
  const T chosen = -(T)(condition != 0);
  return (a & chosen) | (b & ~chosen);
}""",
    "max": """\
INLINE T max_NAME(T a, T b) {
  return a >= b ? a : b;
}""",
    "min": """\
INLINE T min_NAME(T a, T b) {
  return a <= b ? a : b;
}""",
}

_POWER = """\
  uint64_t power = 1, factor = (uint64_t)a;
  for (uint64_t rest = (uint64_t)b; rest; rest >>= 1, factor *= factor)
    if (rest & 1) power *= factor;
  return (T)power;
}"""

_UNSIGNED = {
    "pow": """\
INLINE T pow_NAME(T a, T b) {
"""
    + _POWER,
    "div": """\
INLINE T div_NAME(T a, T b) {
  return b == 0 ? 0 : a / b;
}""",
    "mod": """\
INLINE T mod_NAME(T a, T b) {
  return b == 0 ? 0 : a % b;
}""",
}

_SIGNED = {
    "relu": _RELU,
    "pow": """\
INLINE T pow_NAME(T a, T b) {
  if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? 1 : a == -1 ? -1 : 0;
"""
    + _POWER,
    "div": """\
INLINE T div_NAME(T a, T b) {
  if (b == 0) return 0;
  return b == -1 ? (T)(0 - (UT)a) : a / b;
}""",
    "mod": """\
INLINE T mod_NAME(T a, T b) {
  if (b == 0 || b == -1) return 0;
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}""",
}

_CONVERSIONS = {
    "integer_of": Helper(
        """\
INLINE uint64_t integer_of(double x) {
  if (fabs(x) < 0x1p63) return (uint64_t)(int64_t)x;
  if (!(fabs(x) < INFINITY)) return 0;
  const double rest = fmod(trunc(x), 0x1p64);
  return rest < 0 ? 0 - (uint64_t)-rest : (uint64_t)rest;
}"""
    ),
    "bits_of": Helper(
        """\
INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}"""
    ),
    "float64_bits": Helper(
        """\
INLINE uint64_t float64_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}"""
    ),
    "float_of": Helper(
        """\
INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}"""
    ),
}

_NARROW = {
    "bfloat16_bits": Helper(
        """\
INLINE uint16_t bfloat16_bits(float x) {
  const uint32_t bits = bits_of(x);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}""",
        ("bits_of",),
    ),
    "bfloat16_value": Helper(
        """\
INLINE float bfloat16_value(uint16_t bits) {
  return float_of((uint32_t)bits << 16);
}""",
        ("float_of",),
    ),
    "half_bits": Helper(
        """\
INLINE uint16_t half_bits(float x, int dropped) {
  const uint32_t bits = bits_of(x), sign = bits >> 31 << 15, size = bits & 0x7fffffff;
  uint32_t rounded;
  if (x != x) {
    rounded = 0x7e00 << 13 >> dropped;
  } else if (size >= 0x47800000) {
    rounded = 0x7c00 << 13 >> dropped;
  } else if (size < 0x38800000) {
    const uint32_t unit = (uint32_t)(113 + dropped) << 23;
    rounded = bits_of(float_of(size) + float_of(unit)) - unit;
  } else {
    const uint32_t odd = size >> dropped & 1;
    rounded = (size - 0x38000000 + (1u << (dropped - 1)) - 1 + odd) >> dropped;
  }
  return (uint16_t)(sign >> (dropped - 13) | rounded);
}""",
        ("bits_of", "float_of"),
    ),
    "half_value": Helper(
        """\
INLINE float half_value(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
  if (rest >= 0x0f800000) return float_of(sign | 0x70000000 | rest);
  return float_of(sign | bits_of(float_of(rest) * 0x1p112f));
}""",
        ("bits_of", "float_of"),
    ),
    "float16_bits": Helper(
        """\
INLINE uint16_t float16_bits(float x) {
  return half_bits(x, 13);
}""",
        ("half_bits",),
    ),
    "float16_value": Helper(
        """\
INLINE float float16_value(uint16_t bits) {
  return half_value(bits);
}""",
        ("half_value",),
    ),
    "float8_e4m3fn_bits": Helper(
        """\
INLINE uint8_t float8_e4m3fn_bits(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size > 0x43e80000) return (uint8_t)(sign | 0x7f);
  if (size < 0x3c800000) return (uint8_t)(sign | (bits_of(float_of(size) + 0x1p14f) - 0x46800000));
  return (uint8_t)(sign | (size - 0x3c000000 + 0x7ffff + (size >> 20 & 1)) >> 20);
}""",
        ("bits_of", "float_of"),
    ),
    "float8_e4m3fn_value": Helper(
        """\
INLINE float float8_e4m3fn_value(uint8_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x80) << 24, rest = (uint32_t)(bits & 0x7f) << 20;
  if (rest == 0x07f00000) return float_of(sign | 0x7fc00000);
  return float_of(sign | bits_of(float_of(rest) * 0x1p120f));
}""",
        ("bits_of", "float_of"),
    ),
    "float8_e5m2_bits": Helper(
        """\
INLINE uint8_t float8_e5m2_bits(float x) {
  return (uint8_t)half_bits(x, 21);
}""",
        ("half_bits",),
    ),
    "float8_e5m2_value": Helper(
        """\
INLINE float float8_e5m2_value(uint8_t bits) {
  return half_value((uint16_t)(bits << 8));
}""",
        ("half_value",),
    ),
}
for _narrow in NARROW:
    _NARROW[f"{_narrow}_round"] = Helper(
        f"""\
INLINE float {_narrow}_round(float x) {{
  return {_narrow}_value({_narrow}_bits(x));
}}""",
        (f"{_narrow}_value", f"{_narrow}_bits"),
    )

_WORDS = {
    "uint4x32": Helper("typedef struct { uint32_t a, b, c, d; } uint4x32;"),
    "where_word": Helper(
        """\
INLINE uint4x32 where_word(int condition, uint4x32 a, uint4x32 b) {
  return condition ? a : b;
}""",
        ("uint4x32",),
    ),
    "word_of": Helper(
        """\
INLINE uint4x32 word_of(uint64_t x) {
  const uint4x32 word = {(uint32_t)x, (uint32_t)(x >> 32), 0, 0};
  return word;
}""",
        ("uint4x32",),
    ),
    "spread_word": Helper(
        """\
INLINE uint4x32 spread_word(uint32_t x) {
  const uint4x32 word = {x, x ^ 0x9E3779B9, x ^ 0x6C078965, x ^ (x << 16 | x >> 16)};
  return word;
}""",
        ("uint4x32",),
    ),
    "low_half_of": Helper(
        """\
INLINE uint64_t low_half_of(uint4x32 word) {
  return (uint64_t)word.b << 32 | word.a;
}""",
        ("uint4x32",),
    ),
    "uniform_of": Helper(
        """\
INLINE float uniform_of(uint32_t lane) {
  return (float)(lane >> 8) * 0x1p-24f;
}"""
    ),
    "threefry_rounds": Helper(
        """\
INLINE uint4x32 threefry_mix(uint4x32 x, int left, int right) {
  const uint32_t a = x.a + x.b, b = (x.b << left | x.b >> (32 - left)) ^ a;
  const uint32_t c = x.c + x.d, d = (x.d << right | x.d >> (32 - right)) ^ c;
  const uint4x32 mixed = {a, d, c, b};
  return mixed;
}

INLINE uint4x32 threefry_inject(uint4x32 x, uint4x32 key, uint32_t group) {
  const uint4x32 keyed = {x.a + key.a, x.b + key.b, x.c + key.c, x.d + key.d + group};
  return keyed;
}

INLINE uint4x32 threefry_even(uint4x32 x) {
  x = threefry_mix(threefry_mix(x, 10, 26), 11, 21);
  return threefry_mix(threefry_mix(x, 13, 27), 23, 5);
}

INLINE uint4x32 threefry_odd(uint4x32 x) {
  x = threefry_mix(threefry_mix(x, 6, 20), 17, 11);
  return threefry_mix(threefry_mix(x, 25, 10), 18, 20);
}""",
        ("uint4x32",),
    ),
}


def _threefry(name: str, groups: int) -> Helper:
    """Returns the hash with as many groups of four rounds; a key of the schedule follows each."""
    schedule = ("key.a", "key.b", "key.c", "key.d", "parity")
    named = []
    for group in range(1, min(groups, 4) + 1):
        lanes = ", ".join(schedule[(group + lane) % 5] for lane in range(4))
        named.append(f"key{group} = {{{lanes}}}")
    lines = [
        f"INLINE uint4x32 {name}(uint4x32 key, uint4x32 x) {{",
        "  const uint32_t parity = key.a ^ key.b ^ key.c ^ key.d ^ 0x1BD11BDA;",
        *(f"  const uint4x32 {', '.join(named[i : i + 2])};" for i in range(0, len(named), 2)),
        "  x = threefry_inject(x, key, 0);",
    ]
    for group in range(1, groups + 1):
        head = "return" if group == groups else "x ="
        half = "even" if group % 2 else "odd"
        key = f"key{group % 5 or ''}"
        lines.append(f"  {head} threefry_inject(threefry_{half}(x), {key}, {group});")
    return Helper("\n".join([*lines, "}"]), ("threefry_rounds",))


_HASHES = {
    "threefry4x32": _threefry("threefry4x32", 5),
    "threefry4x32_12": _threefry("threefry4x32_12", 3),
}


def _instances() -> dict[str, Helper]:
    """Returns the helpers that exist once per number format, named `function_format`."""
    made: dict[str, Helper] = {}
    for name, (type_name, suffix) in _FLOATS.items():
        for function, template in (_ANY_NUMBER | _ANY_FLOAT | _PARTS).items():
            made[f"{function}_{name}"] = _instance(template, name, type_name, suffix)
    for name, type_name in _INTEGERS.items():
        division = _UNSIGNED if name.startswith("u") else _SIGNED
        for function, template in (_ANY_NUMBER | _ANY_INTEGER | division).items():
            made[f"{function}_{name}"] = _instance(template, name, type_name, "")
    return made


def _instance(template: str, name: str, type_name: str, suffix: str) -> Helper:
    bits = "uint32_t" if suffix else "uint64_t"
    words = {"T": type_name, "UT": f"u{type_name}", "BITS": bits}
    text = re.sub(r"\b(T|UT|BITS)\b", lambda match: words[match[1]], template)
    return Helper(text.replace("NAME", name).replace("SUFFIX", suffix))


HELPERS: dict[str, Helper] = (
    _CONVERSIONS | _NARROW | _WORDS | _HASHES | FLOAT32_MATH | TILE_HELPERS | _instances()
)
"""Every helper by name. The order is that of their texts in a prelude."""


_ALWAYS = " __attribute__((always_inline))"
"""What stands for an instruction is never called, also where a compiler hardly optimises."""


def closure(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the helpers that these need, themselves included, each after what it needs.

    Headers stand among them under their own names, such as `<math.h>`.
    """
    return _closure(tuple(sorted(names)))


@lru_cache(maxsize=1024)
def _closure(names: tuple[str, ...]) -> tuple[str, ...]:
    ordered: dict[str, None] = {}
    for name in names:
        for needed in closure(_needs(name)):
            ordered.setdefault(needed)
        ordered.setdefault(name)
    return tuple(ordered)


def _needs(name: str) -> tuple[str, ...]:
    if _is_header(name):
        return ()
    helper = _helper(name)
    return (*headers_for(helper.text), *helper.needs)


def _is_header(name: str) -> bool:
    return name.startswith("<")


def headers_of(names: Iterable[str]) -> frozenset[str]:
    """Returns the headers that these helpers need."""
    return frozenset(filter(_is_header, closure(names)))


def prelude(names: Iterable[str], inline: str = "static inline") -> str:
    """Returns the definitions of the helpers and of what they need, separated by blank lines."""
    return _prelude(closure(names), inline)


@lru_cache(maxsize=1024)
def _prelude(ordered: tuple[str, ...], inline: str) -> str:
    return "\n\n".join(
        _helper(name).text.replace("INLINE", f"{inline}{_ALWAYS * _helper(name).is_instruction}")
        for name in ordered
        if not _is_header(name)
    )


def _helper(name: str) -> Helper:
    return HELPERS.get(name) or vector_helper(name) or HELPERS[name]
