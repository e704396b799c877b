#include <stdint.h>

typedef struct { uint32_t a, b, c, d; } uint4x32;

static inline __attribute__((always_inline)) uint4x32 threefry_mix(uint4x32 x, int left, int right) {
  const uint32_t a = x.a + x.b, b = (x.b << left | x.b >> (32 - left)) ^ a;
  const uint32_t c = x.c + x.d, d = (x.d << right | x.d >> (32 - right)) ^ c;
  const uint4x32 mixed = {a, d, c, b};
  return mixed;
}

static inline __attribute__((always_inline)) uint4x32 threefry_inject(uint4x32 x, uint4x32 key, uint32_t group) {
  const uint4x32 keyed = {x.a + key.a, x.b + key.b, x.c + key.c, x.d + key.d + group};
  return keyed;
}

static inline __attribute__((always_inline)) uint4x32 threefry_even(uint4x32 x) {
  x = threefry_mix(threefry_mix(x, 10, 26), 11, 21);
  return threefry_mix(threefry_mix(x, 13, 27), 23, 5);
}

static inline __attribute__((always_inline)) uint4x32 threefry_odd(uint4x32 x) {
  x = threefry_mix(threefry_mix(x, 6, 20), 17, 11);
  return threefry_mix(threefry_mix(x, 25, 10), 18, 20);
}

static inline __attribute__((always_inline)) uint4x32 threefry4x32(uint4x32 key, uint4x32 x) {
  const uint32_t parity = key.a ^ key.b ^ key.c ^ key.d ^ 0x1BD11BDA;
  const uint4x32 key1 = {key.b, key.c, key.d, parity}, key2 = {key.c, key.d, parity, key.a};
  const uint4x32 key3 = {key.d, parity, key.a, key.b}, key4 = {parity, key.a, key.b, key.c};
  x = threefry_inject(x, key, 0);
  x = threefry_inject(threefry_even(x), key1, 1);
  x = threefry_inject(threefry_odd(x), key2, 2);
  x = threefry_inject(threefry_even(x), key3, 3);
  x = threefry_inject(threefry_odd(x), key4, 4);
  return threefry_inject(threefry_even(x), key, 5);
}

static inline float uniform_of(uint32_t lane) {
  return (float)(lane >> 8) * 0x1p-24f;
}

static inline uint4x32 word_of(uint64_t x) {
  const uint4x32 word = {(uint32_t)x, (uint32_t)(x >> 32), 0, 0};
  return word;
}

static void k_3ef30912410d2bb1_body(uint4x32 *restrict a0, float *restrict a1) {
  a0[0] = threefry4x32(word_of(7), word_of(42));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      const uint4x32 v0 = threefry4x32(a0[0], word_of(4 * i + j));
      a1[16 * i + 4 * j] = uniform_of(v0.a);
      a1[16 * i + 4 * j + 1] = uniform_of(v0.b);
      a1[16 * i + 4 * j + 2] = uniform_of(v0.c);
      a1[16 * i + 4 * j + 3] = uniform_of(v0.d);
    }
  }
}

void k_3ef30912410d2bb1(void *const *args) {
  k_3ef30912410d2bb1_body(args[0], args[1]);
}
