#include <math.h>
#include <stdint.h>
#include <string.h>

static void k_5a3473acbc53f90b_body(
    float *restrict a0,
    const float *restrict a1,
    const float *restrict a2) {
  memset(a0, 0, 7 * sizeof *a0);
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      a0[i] += a1[j] * (0 <= 2 * i + j - 1 && 2 * i + j - 1 < 12 ? a2[2 * i + j - 1] : 0.0f);
    }
  }
}

void k_5a3473acbc53f90b(void *const *args) {
  k_5a3473acbc53f90b_body(args[0], args[1], args[2]);
}
