#include <math.h>
#include <stdint.h>

static inline float where_float32(int condition, float a, float b) {
  union { float number; uint32_t bits; } x = {a}, y = {b};
  const uint32_t chosen = -(uint32_t)(condition != 0);
  x.bits = (x.bits & chosen) | (y.bits & ~chosen);
  return x.number;
}

static void k_6f6aa76fa2ac61bb_body(
    const float *restrict a0,
    const float *restrict a1,
    float *restrict a2,
    int64_t s0) {
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 8; ++j) {
      const float v0 = a0[6 * s0 + i];
      const int v1 = v0 >= 0 && v0 < 50.0f && v0 == truncf(v0);
      const int64_t v2 = v1 ? (int64_t)v0 : 0;
      a2[8 * i + j] = where_float32(v1, a1[8 * v2 + j], 0.0f);
    }
  }
}

void k_6f6aa76fa2ac61bb(void *const *args) {
  k_6f6aa76fa2ac61bb_body(args[0], args[1], args[2], *(const int64_t *)args[3]);
}
