#include <math.h>
#include <stdint.h>
#include <string.h>

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

/* x * 2^n for n from -252 to 254 */
static inline float scaled_float32(float x, int32_t n) {
  const int32_t half = n >> 1;
  const float one = float_of((uint32_t)(half + 127) << 23);
  return x * one * float_of((uint32_t)(n - half + 127) << 23);
}

#ifdef FP_FAST_FMAF
static inline float exp_float32(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = c < -105.0f ? -105.0f : c;
  /* x = n * log 2 + r */
  const float shifted = fmaf(c, 0x1.715476p+0f, 0x1.8p23f);
  const float n = shifted - 0x1.8p23f;
  const float r = fmaf(n, 0x1.05c610p-29f, fmaf(n, -0x1.62e430p-1f, c));
  float p = 0x1.6a4cb4p-10f;
  p = fmaf(p, r, 0x1.123986p-7f);
  p = fmaf(p, r, 0x1.5558b0p-5f);
  p = fmaf(p, r, 0x1.555492p-3f);
  p = fmaf(p, r, 0x1.fffffcp-2f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  return scaled_float32(p, (int32_t)bits_of(shifted) - 0x4b400000);
}
#else
static inline float exp_float32(float x) {
  return expf(x);
}
#endif

static inline float max_float32(float a, float b) {
  return a != a || a >= b ? a : b;
}

static void k_38e72a4f8d18d6d7_body(
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

void k_38e72a4f8d18d6d7(void *const *args) {
  k_38e72a4f8d18d6d7_body(args[0], args[1], args[2]);
}
