// Tile registers: eight registers of 16 rows of 64 bytes.
//
// The emulation computes as the manual of the instructions defines: even and odd terms are added up
// separately with fused multiply-adds, both sums are added, and then the number in the tile;
// numbers below 2**-126 are flushed to zero, also in between. Compilers know neither the registers
// nor that the instructions access memory.

/// tile_state
#if !(defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES))
static __thread union {
  float sums[16][16];
  uint16_t pairs[16][32];
} tiles[8];
#endif

/// tile_begin needs tile_state
#if defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES)
INLINE void tile_begin(void) {
  // eight tiles of 16 rows of 64 bytes
  static const __attribute__((aligned(64))) uint8_t shapes[64] = {
      [0] = 1, [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64,
      [30] = 64, [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16,
      [55] = 16};
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}
#else
#define tile_begin() memset(tiles, 0, sizeof tiles)
#endif

/// tile_end
#if defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES)
#define tile_end() __asm__ volatile("tilerelease" : :)
#else
#define tile_end() (void)0
#endif

/// tile_zero needs tile_state
#if defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES)
#define tile_zero(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#else
#define tile_zero(tile) memset(&tiles[tile], 0, sizeof tiles[tile])
#endif

/// tile_load needs tile_state
#if defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES)
#define tile_load(tile, cells, bytes) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile \
                   : : "r"((const void *)(cells)), "r"((int64_t)(bytes)) : "memory")
#else
INLINE void tile_load(int tile, const void *cells, int64_t bytes) {
  for (int row = 0; row < 16; ++row)
    memcpy(tiles[tile].sums[row], (const char *)cells + row * bytes, 64);
}
#endif

/// tile_store needs tile_state
#if defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES)
#define tile_store(tile, cells, bytes) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" \
                   : : "r"((void *)(cells)), "r"((int64_t)(bytes)) : "memory")
#else
INLINE void tile_store(int tile, void *cells, int64_t bytes) {
  for (int row = 0; row < 16; ++row)
    memcpy((char *)cells + row * bytes, tiles[tile].sums[row], 64);
}
#endif

/// tile_multiply_add needs tile_state
#if defined(__AMX_BF16__) && !defined(OCANNL_EMULATED_TILES)
#define tile_multiply_add(sums, rows, columns) \
  __asm__ volatile("tdpbf16ps %%tmm" #columns ", %%tmm" #rows ", %%tmm" #sums : :)
#else
INLINE float tile_flushed(float x) {
  return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}
INLINE float tile_number(uint16_t cell) {
  const uint32_t bits = (uint32_t)cell << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return tile_flushed(x);
}
INLINE float tile_fma(float a, float b, float c) {
  const float x = fmaf(a, b, c);
  // what rounds to 2**-126 with fewer digits only is flushed
  const int is_below = fabsf(fmaf(a * 0x1p32f, b, c * 0x1p32f)) < 0x1p-94f;
  return fabsf(x) <= 0x1p-126f && is_below ? copysignf(0.0f, x) : x;
}
static __attribute__((noinline)) void tile_multiply_add(int sums, int rows, int columns) {
  float right[2][16][16];
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < 32; ++n) right[n % 2][k][n / 2] = tile_number(tiles[columns].pairs[k][n]);
  for (int m = 0; m < 16; ++m) {
    float even[16] = {0}, odd[16] = {0};
    for (int k = 0; k < 16; ++k) {
      const float first = tile_number(tiles[rows].pairs[m][2 * k]);
      const float second = tile_number(tiles[rows].pairs[m][2 * k + 1]);
      for (int n = 0; n < 16; ++n) even[n] = tile_fma(first, right[0][k][n], even[n]);
      for (int n = 0; n < 16; ++n) odd[n] = tile_fma(second, right[1][k][n], odd[n]);
    }
    for (int n = 0; n < 16; ++n) {
      const float both = tile_flushed(even[n] + odd[n]);
      tiles[sums].sums[m][n] = tile_flushed(tile_flushed(tiles[sums].sums[m][n]) + both);
    }
  }
}
#endif
