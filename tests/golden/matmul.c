#include <stdint.h>
#include <string.h>

static void k_7da6292f44446278_body(
    float *restrict a0,
    const float *restrict a1,
    const float *restrict a2) {
  memset(a0, 0, 32 * sizeof *a0);
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t k = 0; k < 16; ++k) {
        a0[4 * i + j] += a1[16 * i + k] * a2[4 * k + j];
      }
    }
  }
}

void k_7da6292f44446278(void *const *args) {
  k_7da6292f44446278_body(args[0], args[1], args[2]);
}
