// Instructions of AVX-512 for processors that have AVX2: compilers `-include` this file.
//
// The helpers of kernels reach the instructions through builtins of GCC, which are functions here.
// They compute what the manual of the instructions defines, and are written to compile quickly.

#ifdef __AVX2__

#include <stdint.h>
#include <string.h>

#define __AVX512F__ 1
#define __AVX512VL__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1

#undef __has_builtin
#define __has_builtin(name) HAS_##name
#define HAS___builtin_shufflevector (__GNUC__ >= 12)
#define EMULATED static inline __attribute__((always_inline))
#define VECTOR_TYPE(name, type, nbytes) typedef type name __attribute__((vector_size(nbytes)))

VECTOR_TYPE(E16f, float, 64);
VECTOR_TYPE(E8f, float, 32);
VECTOR_TYPE(E4f, float, 16);
VECTOR_TYPE(E8d, double, 64);
VECTOR_TYPE(E4d, double, 32);
VECTOR_TYPE(E2d, double, 16);
VECTOR_TYPE(E16i, int, 64);
VECTOR_TYPE(E16u, unsigned, 64);
VECTOR_TYPE(E8i, int, 32);
VECTOR_TYPE(E4i, int, 16);
VECTOR_TYPE(E8l, long long, 64);
VECTOR_TYPE(E32h, short, 64);
VECTOR_TYPE(E16h, short, 32);
VECTOR_TYPE(E16uh, unsigned short, 32);
VECTOR_TYPE(E8h, short, 16);
VECTOR_TYPE(E16b, char, 16);
VECTOR_TYPE(E16sb, signed char, 16);
VECTOR_TYPE(E16ub, unsigned char, 16);

// Lanes of ones where the bit of a mask is set, and the mask of such lanes.
EMULATED E16i emulated_lanes16(unsigned mask) {
  return ((E16i){} + (int)mask & (E16i){1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768}) != 0;
}
EMULATED E8l emulated_lanes8(unsigned mask) {
  return ((E8l){} + (long long)mask & (E8l){1, 2, 4, 8, 16, 32, 64, 128}) != 0;
}
EMULATED uint16_t emulated_mask16(E16i lanes) {
  E8f halves[2];
  memcpy(halves, &lanes, sizeof halves);
  return __builtin_ia32_movmskps256(halves[0]) | __builtin_ia32_movmskps256(halves[1]) << 8;
}
EMULATED uint8_t emulated_mask8(E8l lanes) {
  E4d halves[2];
  memcpy(halves, &lanes, sizeof halves);
  return __builtin_ia32_movmskpd256(halves[0]) | __builtin_ia32_movmskpd256(halves[1]) << 4;
}
#define CHOSEN(V, lanes, yes, no) ((V)(((lanes) & (__typeof__(lanes))(yes)) | (~(lanes) & (__typeof__(lanes))(no))))

// Cells whose bits are not in the mask are neither read nor written.
#define EMULATED_MEMORY(suffix, load, store, V, cell, lanes) \
  EMULATED V __builtin_ia32_##load##suffix##_mask(const void *p, V x, unsigned mask) { \
    cell cells[lanes]; \
    memcpy(cells, &x, sizeof x); \
    for (int l = 0; l < lanes; ++l) \
      if (mask >> l & 1) memcpy(cells + l, (const char *)p + l * sizeof(cell), sizeof(cell)); \
    memcpy(&x, cells, sizeof x); \
    return x; \
  } \
  EMULATED void __builtin_ia32_##store##suffix##_mask(void *p, V x, unsigned mask) { \
    cell cells[lanes]; \
    memcpy(cells, &x, sizeof x); \
    for (int l = 0; l < lanes; ++l) \
      if (mask >> l & 1) memcpy((char *)p + l * sizeof(cell), cells + l, sizeof(cell)); \
  }
EMULATED_MEMORY(ps512, loadu, storeu, E16f, float, 16)
EMULATED_MEMORY(ps256, loadu, storeu, E8f, float, 8)
EMULATED_MEMORY(ps128, loadu, storeu, E4f, float, 4)
EMULATED_MEMORY(pd512, loadu, storeu, E8d, double, 8)
EMULATED_MEMORY(pd256, loadu, storeu, E4d, double, 4)
EMULATED_MEMORY(pd128, loadu, storeu, E2d, double, 2)
EMULATED_MEMORY(hi256, loaddqu, storedqu, E16h, short, 16)
EMULATED_MEMORY(hi128, loaddqu, storedqu, E8h, short, 8)
#define HAS___builtin_ia32_loadups512_mask 1
#define HAS___builtin_ia32_loadups256_mask 1
#define HAS___builtin_ia32_loadups128_mask 1
#define HAS___builtin_ia32_loadupd512_mask 1
#define HAS___builtin_ia32_loadupd256_mask 1
#define HAS___builtin_ia32_loadupd128_mask 1
#define HAS___builtin_ia32_loaddquhi256_mask 1
#define HAS___builtin_ia32_loaddquhi128_mask 1
#define HAS___builtin_ia32_storeups512_mask 1
#define HAS___builtin_ia32_storeups256_mask 1
#define HAS___builtin_ia32_storeups128_mask 1
#define HAS___builtin_ia32_storeupd512_mask 1
#define HAS___builtin_ia32_storeupd256_mask 1
#define HAS___builtin_ia32_storeupd128_mask 1
#define HAS___builtin_ia32_storedquhi256_mask 1
#define HAS___builtin_ia32_storedquhi128_mask 1

#define HAS___builtin_ia32_movntps512 1
EMULATED void __builtin_ia32_movntps512(float *p, E16f x) { memcpy(p, &x, sizeof x); }

// Comparisons: equal, less, less or equal, unordered, not equal.
#define COMPARED(a, b, code) \
  ((code) == 0 ? (a) == (b) : (code) == 1 ? (a) < (b) : (code) == 2 ? (a) <= (b) : (code) == 3 ? ((a) != (a)) | ((b) != (b)) : (a) != (b))
EMULATED uint16_t __builtin_ia32_cmpps512_mask(E16f a, E16f b, int code, uint16_t mask, int rounding) {
  return emulated_mask16(COMPARED(a, b, code)) & mask;
}
EMULATED uint8_t __builtin_ia32_cmppd512_mask(E8d a, E8d b, int code, uint8_t mask, int rounding) {
  return emulated_mask8(COMPARED(a, b, code)) & mask;
}
EMULATED uint16_t __builtin_ia32_cmpd512_mask(E16i a, E16i b, int code, uint16_t mask) {
  return emulated_mask16(COMPARED(a, b, code)) & mask;
}
#define HAS___builtin_ia32_ucmpd512_mask 1
EMULATED uint16_t __builtin_ia32_ucmpd512_mask(E16i a, E16i b, int code, uint16_t mask) {
  const E16u first = (E16u)a, second = (E16u)b;
  return emulated_mask16(COMPARED(first, second, code)) & mask;
}
EMULATED uint16_t __builtin_ia32_ptestmd512(E16i a, E16i b, uint16_t mask) {
  return emulated_mask16((a & b) != 0) & mask;
}

EMULATED E16f __builtin_ia32_blendmps_512_mask(E16f a, E16f b, uint16_t mask) {
  return CHOSEN(E16f, emulated_lanes16(mask), b, a);
}
EMULATED E8d __builtin_ia32_blendmpd_512_mask(E8d a, E8d b, uint8_t mask) {
  return CHOSEN(E8d, emulated_lanes8(mask), b, a);
}
EMULATED E16i __builtin_ia32_blendmd_512_mask(E16i a, E16i b, uint16_t mask) {
  return CHOSEN(E16i, emulated_lanes16(mask), b, a);
}

#define HAS___builtin_ia32_vfmaddps512_mask 1
EMULATED E16f __builtin_ia32_vfmaddps512_mask(E16f a, E16f b, E16f c, uint16_t mask, int rounding) {
  E8f x[2], y[2], z[2];
  memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(z, &c, sizeof c);
  for (int half = 0; half < 2; ++half) z[half] = __builtin_ia32_vfmaddps256(x[half], y[half], z[half]);
  memcpy(&c, z, sizeof c);
  return CHOSEN(E16f, emulated_lanes16(mask), c, a);
}
#define HAS___builtin_ia32_vfmaddpd512_mask 1
EMULATED E8d __builtin_ia32_vfmaddpd512_mask(E8d a, E8d b, E8d c, uint8_t mask, int rounding) {
  E4d x[2], y[2], z[2];
  memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(z, &c, sizeof c);
  for (int half = 0; half < 2; ++half) z[half] = __builtin_ia32_vfmaddpd256(x[half], y[half], z[half]);
  memcpy(&c, z, sizeof c);
  return CHOSEN(E8d, emulated_lanes8(mask), c, a);
}
// the second operand, if one is NaN or both are zeros
EMULATED E16f __builtin_ia32_maxps512_mask(E16f a, E16f b, E16f x, uint16_t mask, int rounding) {
  return CHOSEN(E16f, emulated_lanes16(mask), CHOSEN(E16f, a > b, a, b), x);
}
EMULATED E16f __builtin_ia32_minps512_mask(E16f a, E16f b, E16f x, uint16_t mask, int rounding) {
  return CHOSEN(E16f, emulated_lanes16(mask), CHOSEN(E16f, a < b, a, b), x);
}
#define HAS___builtin_ia32_pmaxsd512_mask 1
EMULATED E16i __builtin_ia32_pmaxsd512_mask(E16i a, E16i b, E16i x, uint16_t mask) {
  return CHOSEN(E16i, emulated_lanes16(mask), CHOSEN(E16i, a > b, a, b), x);
}
#define HAS___builtin_ia32_pminsd512_mask 1
EMULATED E16i __builtin_ia32_pminsd512_mask(E16i a, E16i b, E16i x, uint16_t mask) {
  return CHOSEN(E16i, emulated_lanes16(mask), CHOSEN(E16i, a < b, a, b), x);
}
#define HAS___builtin_ia32_permvarsf512_mask 1
EMULATED E16f __builtin_ia32_permvarsf512_mask(E16f a, E16i places, E16f x, uint16_t mask) {
  return CHOSEN(E16f, emulated_lanes16(mask), __builtin_shuffle(a, places), x);
}
#define HAS___builtin_ia32_vpermt2varps256_mask 1
EMULATED E8f __builtin_ia32_vpermt2varps256_mask(E8i places, E8f a, E8f b, uint8_t mask) {
  E8f x = __builtin_shuffle(a, b, places);
  for (int l = 0; l < 8; ++l)
    if (!(mask >> l & 1)) x[l] = a[l];
  return x;
}
EMULATED E8d __builtin_ia32_cvtps2pd512_mask(E8f a, E8d x, uint8_t mask, int rounding) {
  return CHOSEN(E8d, emulated_lanes8(mask), __builtin_convertvector(a, E8d), x);
}

// One rounding: the product by a power of two is exact in double precision.
EMULATED float emulated_scaled(float x, float power) {
  if (x != x || power != power) return x + power;
  return (float)__builtin_ldexp(x, (int)__builtin_floorf(power));
}
#define EMULATED_SCALING(suffix, V, lanes, ...) \
  EMULATED V __builtin_ia32_scalefps##suffix##_mask(V a, V b, V x, unsigned mask __VA_ARGS__) { \
    for (int l = 0; l < lanes; ++l) \
      if (mask >> l & 1) x[l] = emulated_scaled(a[l], b[l]); \
    return x; \
  }
EMULATED_SCALING(512, E16f, 16, , int rounding)
EMULATED_SCALING(256, E8f, 8)
EMULATED_SCALING(128, E4f, 4)
#define HAS___builtin_ia32_scalefps512_mask 1
#define HAS___builtin_ia32_scalefps256_mask 1
#define HAS___builtin_ia32_scalefps128_mask 1

// Conversions to lanes of 32 bits, and back: modulo their width. All lanes are asked for.
EMULATED E16i __builtin_ia32_pmovsxbd512_mask(E16b a, E16i x, uint16_t mask) { return __builtin_convertvector((E16sb)a, E16i); }
EMULATED E16i __builtin_ia32_pmovzxbd512_mask(E16b a, E16i x, uint16_t mask) { return __builtin_convertvector((E16ub)a, E16i); }
EMULATED E16i __builtin_ia32_pmovsxwd512_mask(E16h a, E16i x, uint16_t mask) { return __builtin_convertvector(a, E16i); }
EMULATED E16i __builtin_ia32_pmovzxwd512_mask(E16h a, E16i x, uint16_t mask) { return __builtin_convertvector((E16uh)a, E16i); }
EMULATED E16b __builtin_ia32_pmovdb512_mask(E16i a, E16b x, uint16_t mask) { return (E16b)__builtin_convertvector(a, E16sb); }
EMULATED E16h __builtin_ia32_pmovdw512_mask(E16i a, E16h x, uint16_t mask) { return __builtin_convertvector(a, E16h); }

EMULATED E16f __builtin_ia32_vcvtph2ps512_mask(E16h a, E16f x, uint16_t mask, int rounding) {
  E8h halves[2];
  memcpy(halves, &a, sizeof a);
  const E8f found[2] = {__builtin_ia32_vcvtph2ps256(halves[0]), __builtin_ia32_vcvtph2ps256(halves[1])};
  memcpy(&x, found, sizeof x);
  return x;
}
EMULATED E16h __builtin_ia32_vcvtps2ph512_mask(E16f a, int rounding, E16h x, uint16_t mask) {
  E8f halves[2];
  memcpy(halves, &a, sizeof a);
  const E8h found[2] = {__builtin_ia32_vcvtps2ph256(halves[0], 0), __builtin_ia32_vcvtps2ph256(halves[1], 0)};
  memcpy(&x, found, sizeof x);
  return x;
}

EMULATED E16i __builtin_ia32_pmaddwd512_mask(E32h a, E32h b, E16i x, uint16_t mask) {
  E16h y[2], z[2];
  memcpy(y, &a, sizeof a), memcpy(z, &b, sizeof b);
  const E8i found[2] = {__builtin_ia32_pmaddwd256(y[0], z[0]), __builtin_ia32_pmaddwd256(y[1], z[1])};
  memcpy(&x, found, sizeof x);
  return x;
}

#ifdef __AVX512VNNI__
// unsigned bytes by signed ones, modulo 2**32
#define EMULATED_BYTES(V, lanes) \
  EMULATED V __builtin_ia32_vpdpbusd_v##lanes##si(V x, V a, V b) { \
    for (int place = 0; place < 32; place += 8) x += (a >> place & 255) * (b << (24 - place) >> 24); \
    return x; \
  }
EMULATED_BYTES(E16i, 16)
EMULATED_BYTES(E8i, 8)
EMULATED_BYTES(E4i, 4)
#endif

#ifdef __AVX512BF16__
// Operands and results below 2**-126 are zeros.
EMULATED float emulated_flushed(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}
EMULATED float emulated_term(unsigned a, unsigned b, float sum) {
  float x, y;
  memcpy(&x, &a, sizeof x), memcpy(&y, &b, sizeof y);
  return emulated_flushed(__builtin_fmaf(emulated_flushed(x), emulated_flushed(y), emulated_flushed(sum)));
}
#define EMULATED_PAIRS(V, I, H, lanes) \
  EMULATED V __builtin_ia32_dpbf16ps_v##lanes##sf(V x, H first, H second) { \
    const I a = (I)first, b = (I)second; \
    for (int l = 0; l < lanes; ++l) { \
      const float sum = emulated_term(a[l] & 0xffff0000, b[l] & 0xffff0000, x[l]); \
      x[l] = emulated_term((unsigned)a[l] << 16, (unsigned)b[l] << 16, sum); \
    } \
    return x; \
  }
EMULATED_PAIRS(E16f, E16i, E32h, 16)
EMULATED_PAIRS(E8f, E8i, E16h, 8)
EMULATED_PAIRS(E4f, E4i, E8h, 4)
#endif

#endif
