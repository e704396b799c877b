#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float above_float32(float x, float limit) {
  return limit > x ? limit : x;
}

static inline float below_float32(float x, float limit) {
  return limit < x ? limit : x;
}

static inline float madd_float32(float a, float b, float c) {
  return fmaf(a, b, c);
}

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* x * 2^n for n from -252 to 254, given as 0x1.8p23 + n */
static inline float scaled_float32(float x, float shifted) {
  const int32_t n = (int32_t)bits_of(shifted) - 0x4b400000;
  const int32_t half = n >> 1;
  const float first = float_of((uint32_t)(half + 127) << 23);
  return x * first * float_of((uint32_t)(n - half + 127) << 23);
}

static inline float exp_float32(float x) {
  const float c = above_float32(below_float32(x, 89.0f), -105.0f);
  /* x = n * log 2 + r; products of n with the first part of log 2 are exact */
  const float shift = 0x1.8p23f;
  const float shifted = madd_float32(c, 0x1.715476p+0f, shift);
  const float n = shifted - shift;
  float r = madd_float32(n, -0x1.62e4p-1f, c);
  r = madd_float32(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6a50acp-10f;
  p = madd_float32(p, r, 0x1.123978p-7f);
  p = madd_float32(p, r, 0x1.5558acp-5f);
  p = madd_float32(p, r, 0x1.555492p-3f);
  p = madd_float32(p, r, 0x1.fffffcp-2f);
  p = madd_float32(p, r, 1.0f);
  p = madd_float32(p, r, 1.0f);
  return scaled_float32(p, shifted);
}

static inline float max_float32(float a, float b) {
  return a != a || a >= b ? a : b;
}

static void k_ef2f816d6f7f6aac_body(
    float *restrict a0,
    const float *restrict a1,
    float *restrict a2) {
  for (int64_t i = 0; i < 32; ++i) {
    a0[i] = -INFINITY;
    for (int64_t j = 0; j < 10; ++j) {
      a0[i] = max_float32(a0[i], a1[10 * i + j]);
    }
    for (int64_t j = 0; j < 10; ++j) {
      float v0 = 0.0f;
      for (int64_t k = 0; k < 10; ++k) {
        v0 += exp_float32(a1[10 * i + k] - a0[i]);
      }
      a2[10 * i + j] = exp_float32(a1[10 * i + j] - a0[i]) / v0;
    }
  }
}

void k_ef2f816d6f7f6aac(void *const *args) {
  k_ef2f816d6f7f6aac_body(args[0], args[1], args[2]);
}
