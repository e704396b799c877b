#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float max_float32(float a, float b) {
  return a != a || a >= b ? a : b;
}

static void k_da0074bf9d6dc5f8_body(
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
        v0 += expf(a1[10 * i + k] - a0[i]);
      }
      a2[10 * i + j] = expf(a1[10 * i + j] - a0[i]) / v0;
    }
  }
}

void k_da0074bf9d6dc5f8(void *const *args) {
  k_da0074bf9d6dc5f8_body(args[0], args[1], args[2]);
}
