#include <math.h>
#include <stdint.h>
#include <string.h>

static void k_da4741278ae81545_body(
    const float *restrict a0,
    const float *restrict a1,
    float *restrict a2,
    int64_t s0) {
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 8; ++j) {
      const float v0 = a0[6 * s0 + i];
      a2[8 * i + j] = v0 >= 0 && v0 < 50.0f && v0 == truncf(v0) ? a1[8 * (int64_t)v0 + j] : 0.0f;
    }
  }
}

void k_da4741278ae81545(void *const *args) {
  k_da4741278ae81545_body(args[0], args[1], args[2], *(const int64_t *)args[3]);
}
