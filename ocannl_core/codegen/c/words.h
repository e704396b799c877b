// Words of 128 bits, and the hash Threefry-4x32 with 20 and with 12 rounds.

/// uint4x32
typedef struct { uint32_t a, b, c, d; } uint4x32;

/// where_word needs uint4x32
INLINE uint4x32 where_word(int condition, uint4x32 a, uint4x32 b) {
  return condition ? a : b;
}

/// word_of needs uint4x32
INLINE uint4x32 word_of(uint64_t x) {
  const uint4x32 word = {(uint32_t)x, (uint32_t)(x >> 32), 0, 0};
  return word;
}

/// spread_word needs uint4x32
INLINE uint4x32 spread_word(uint32_t x) {
  const uint4x32 word = {x, x ^ 0x9E3779B9, x ^ 0x6C078965, x ^ (x << 16 | x >> 16)};
  return word;
}

/// low_half_of needs uint4x32
INLINE uint64_t low_half_of(uint4x32 word) {
  return (uint64_t)word.b << 32 | word.a;
}

/// uniform_of
INLINE float uniform_of(uint32_t lane) {
  return (float)(lane >> 8) * 0x1p-24f;
}

/// threefry_rounds needs uint4x32
HASH uint4x32 threefry_mix(uint4x32 x, int left, int right) {
  const uint32_t a = x.a + x.b, b = (x.b << left | x.b >> (32 - left)) ^ a;
  const uint32_t c = x.c + x.d, d = (x.d << right | x.d >> (32 - right)) ^ c;
  const uint4x32 mixed = {a, d, c, b};
  return mixed;
}

HASH uint4x32 threefry_inject(uint4x32 x, uint4x32 key, uint32_t group) {
  const uint4x32 keyed = {x.a + key.a, x.b + key.b, x.c + key.c, x.d + key.d + group};
  return keyed;
}

HASH uint4x32 threefry_even(uint4x32 x) {
  x = threefry_mix(threefry_mix(x, 10, 26), 11, 21);
  return threefry_mix(threefry_mix(x, 13, 27), 23, 5);
}

HASH uint4x32 threefry_odd(uint4x32 x) {
  x = threefry_mix(threefry_mix(x, 6, 20), 17, 11);
  return threefry_mix(threefry_mix(x, 25, 10), 18, 20);
}

/// threefry4x32 needs threefry_rounds
HASH uint4x32 threefry4x32(uint4x32 key, uint4x32 x) {
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

/// threefry4x32_12 needs threefry_rounds
HASH uint4x32 threefry4x32_12(uint4x32 key, uint4x32 x) {
  const uint32_t parity = key.a ^ key.b ^ key.c ^ key.d ^ 0x1BD11BDA;
  const uint4x32 key1 = {key.b, key.c, key.d, parity}, key2 = {key.c, key.d, parity, key.a};
  const uint4x32 key3 = {key.d, parity, key.a, key.b};
  x = threefry_inject(x, key, 0);
  x = threefry_inject(threefry_even(x), key1, 1);
  x = threefry_inject(threefry_odd(x), key2, 2);
  return threefry_inject(threefry_even(x), key3, 3);
}
