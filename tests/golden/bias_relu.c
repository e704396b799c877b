#include <stdint.h>

static inline float relu_float32(float x) {
  return x < 0 ? 0 : x;
}

static void k_52fd8087e3e37b26_body(
    const float *restrict a0,
    const float *restrict a1,
    float *restrict a2) {
  for (int64_t i = 0; i < 32; ++i) {
    #pragma GCC ivdep
    for (int64_t j = 0; j < 64; ++j) {
      a2[64 * i + j] = relu_float32(a0[64 * i + j] + a1[j]);
    }
  }
}

void k_52fd8087e3e37b26(void *const *args) {
  k_52fd8087e3e37b26_body(args[0], args[1], args[2]);
}
