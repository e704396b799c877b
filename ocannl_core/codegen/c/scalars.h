// Conversions of numbers, and of narrow floats, in terms of their bits.
//
// INLINE stands for the function specifiers of a dialect.

/// unfused
// multiply-adds round twice: the target has no fused ones

/// integer_of
INLINE uint64_t integer_of(double x) {
  if (fabs(x) < 0x1p63) return (uint64_t)(int64_t)x;
  if (!(fabs(x) < INFINITY)) return 0;
  const double rest = fmod(trunc(x), 0x1p64);
  return rest < 0 ? 0 - (uint64_t)-rest : (uint64_t)rest;
}

/// floor_div_float64 -- as fmod is exact, the quotient is close to a whole number
INLINE double floor_div_float64(double a, double b) {
  if (b == 0) return a / b;
  const double rest = fmod(a, b);
  const double turns = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  if (turns == 0) return copysign(0.0, a / b);
  const double down = floor(turns);
  return turns - down > 0.5 ? down + 1 : down;
}

/// floor_div_float32 needs floor_div_float64
INLINE float floor_div_float32(float a, float b) {
  return (float)floor_div_float64((double)a, (double)b);
}

/// bits_of
INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// float_of
INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/// float64_bits
INLINE uint64_t float64_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// float64_of
INLINE double float64_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/// float32_pattern needs bits_of -- all NaN have one pattern, as words have one hash
INLINE uint32_t float32_pattern(float x) {
  return x != x ? 0x7fc00000u : bits_of(x);
}

/// float64_pattern needs float64_bits
INLINE uint64_t float64_pattern(double x) {
  return x != x ? (uint64_t)0x7ff8 << 48 : float64_bits(x);
}

/// of_float32
INLINE float of_float32(int32_t x) {
  return (float)x;
}

/// bfloat16_bits needs bits_of
INLINE uint16_t bfloat16_bits(float x) {
  const uint32_t bits = bits_of(x);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// bfloat16_value needs float_of
INLINE float bfloat16_value(uint16_t bits) {
  return float_of((uint32_t)bits << 16);
}

/// half_bits needs bits_of float_of
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
}

/// half_value needs bits_of float_of
INLINE float half_value(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
  if (rest >= 0x0f800000) return float_of(sign | 0x70000000 | rest);
  return float_of(sign | bits_of(float_of(rest) * 0x1p112f));
}

/// float16_bits needs half_bits
INLINE uint16_t float16_bits(float x) {
  return half_bits(x, 13);
}

/// float16_value needs half_value
INLINE float float16_value(uint16_t bits) {
  return half_value(bits);
}

/// float8_e4m3fn_bits needs bits_of float_of
INLINE uint8_t float8_e4m3fn_bits(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size > 0x43e80000) return (uint8_t)(sign | 0x7f);
  if (size < 0x3c800000) return (uint8_t)(sign | (bits_of(float_of(size) + 0x1p14f) - 0x46800000));
  return (uint8_t)(sign | (size - 0x3c000000 + 0x7ffff + (size >> 20 & 1)) >> 20);
}

/// float8_e4m3fn_value needs bits_of float_of
INLINE float float8_e4m3fn_value(uint8_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x80) << 24, rest = (uint32_t)(bits & 0x7f) << 20;
  if (rest == 0x07f00000) return float_of(sign | 0x7fc00000);
  return float_of(sign | bits_of(float_of(rest) * 0x1p120f));
}

/// float8_e5m2_bits needs half_bits
INLINE uint8_t float8_e5m2_bits(float x) {
  return (uint8_t)half_bits(x, 21);
}

/// float8_e5m2_value needs half_value
INLINE float float8_e5m2_value(uint8_t bits) {
  return half_value((uint16_t)(bits << 8));
}

/// bfloat16_pattern needs bfloat16_bits
INLINE uint16_t bfloat16_pattern(float x) {
  return x != x ? 0x7fc0 : bfloat16_bits(x);
}

/// float16_pattern needs float16_bits
INLINE uint16_t float16_pattern(float x) {
  return x != x ? 0x7e00 : float16_bits(x);
}

/// float8_e4m3fn_pattern needs float8_e4m3fn_bits
INLINE uint8_t float8_e4m3fn_pattern(float x) {
  return x != x ? 0x7f : float8_e4m3fn_bits(x);
}

/// float8_e5m2_pattern needs float8_e5m2_bits
INLINE uint8_t float8_e5m2_pattern(float x) {
  return x != x ? 0x7e : float8_e5m2_bits(x);
}

/// float8_e4m3fn_round needs float8_e4m3fn_value float8_e4m3fn_bits
INLINE float float8_e4m3fn_round(float x) {
  return float8_e4m3fn_value(float8_e4m3fn_bits(x));
}

/// float8_e5m2_round needs float8_e5m2_value float8_e5m2_bits
INLINE float float8_e5m2_round(float x) {
  return float8_e5m2_value(float8_e5m2_bits(x));
}

/// float16_round needs float16_value float16_bits
INLINE float float16_round(float x) {
  return float16_value(float16_bits(x));
}

/// bfloat16_round needs bfloat16_value bfloat16_bits
INLINE float bfloat16_round(float x) {
  return bfloat16_value(bfloat16_bits(x));
}

/// int4_cell -- two cells in a byte, the first one in the low bits
INLINE int8_t int4_cell(uint8_t both, int64_t at) {
  return (int8_t)((both >> 4 * (at & 1) & 15) ^ 8) - 8;
}

/// uint4_cell
INLINE uint8_t uint4_cell(uint8_t both, int64_t at) {
  return both >> 4 * (at & 1) & 15;
}
