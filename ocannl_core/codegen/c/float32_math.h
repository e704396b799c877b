// Elementary functions of one number of float32: tables, and functions that compute with doubles.

/// quarters -- 2/pi * 2^(e - 23) modulo 4 for every exponent e of a far angle
TABLE double quarters_high[106] = {
0x1.45f3070000000p-2, 0x1.45f306c000000p-1, 0x1.45f306e000000p+0, -0x1.7419f24000000p+0,
0x1.17cc1b8000000p+0, -0x1.d067c92000000p+0, 0x1.7cc1b70000000p-2, 0x1.7cc1b74000000p-1,
0x1.7cc1b72000000p+0, -0x1.067c91c000000p+0, 0x1.f306dca000000p+0, -0x1.9f246c0000000p-4,
-0x1.9f246c0000000p-3, -0x1.9f246c8000000p-2, -0x1.9f246c8000000p-1, -0x1.9f246c6000000p+0,
0x1.836e4e4000000p-1, 0x1.836e4e4000000p+0, -0x1.f246c70000000p-1, -0x1.f246c6e000000p+0,
0x1.b727220000000p-4, 0x1.b727220000000p-3, 0x1.b727220000000p-2, 0x1.b727220000000p-1,
0x1.b727220000000p+0, -0x1.236377c000000p-1, -0x1.236377e000000p+0, 0x1.b939106000000p+0,
-0x1.1b1bbec000000p-1, -0x1.1b1bbea000000p+0, 0x1.c9c882a000000p+0, -0x1.b1bbeb0000000p-2,
-0x1.b1bbeac000000p-1, -0x1.b1bbeae000000p+0, 0x1.391054c000000p-1, 0x1.391054a000000p+0,
-0x1.8ddf56c000000p+0, 0x1.c882a54000000p-1, 0x1.c882a54000000p+0, -0x1.bbead60000000p-2,
-0x1.bbead60000000p-1, -0x1.bbead60000000p+0, 0x1.1054a80000000p-1, 0x1.1054a80000000p+0,
-0x1.df56b02000000p+0, 0x1.054a7f0000000p-2, 0x1.054a7f0000000p-1, 0x1.054a7f0000000p+0,
-0x1.f56b01e000000p+0, 0x1.529fc20000000p-4, 0x1.529fc20000000p-3, 0x1.529fc28000000p-2,
0x1.529fc28000000p-1, 0x1.529fc28000000p+0, -0x1.5ac07b2000000p+0, 0x1.4a7f09e000000p+0,
-0x1.6b01ec6000000p+0, 0x1.29fc276000000p+0, -0x1.ac07b16000000p+0, 0x1.4fe13ac000000p-1,
0x1.4fe13ac000000p+0, -0x1.603d8a8000000p+0, 0x1.3f84eb0000000p+0, -0x1.80f62a0000000p+0,
0x1.fc2757c000000p-1, 0x1.fc2757e000000p+0, -0x1.ec54180000000p-6, -0x1.ec54180000000p-5,
-0x1.ec54180000000p-4, -0x1.ec54170000000p-3, -0x1.ec54170000000p-2, -0x1.ec54170000000p-1,
-0x1.ec54170000000p+0, 0x1.3abe900000000p-3, 0x1.3abe8f8000000p-2, 0x1.3abe8fc000000p-1,
0x1.3abe8fa000000p+0, -0x1.8a82e0a000000p+0, 0x1.d5f47d4000000p-1, 0x1.d5f47d4000000p+0,
-0x1.505c158000000p-2, -0x1.505c158000000p-1, -0x1.505c15a000000p+0, 0x1.5f47d4e000000p+0,
-0x1.4170566000000p+0, 0x1.7d1f534000000p+0, -0x1.05c1596000000p+0, 0x1.f47d4d4000000p+0,
-0x1.70565a0000000p-4, -0x1.7056590000000p-3, -0x1.7056590000000p-2, -0x1.7056590000000p-1,
-0x1.7056592000000p+0, 0x1.1f534de000000p+0, -0x1.c159644000000p+0, 0x1.f534de0000000p-2,
0x1.f534ddc000000p-1, 0x1.f534ddc000000p+0, -0x1.5964480000000p-4, -0x1.5964480000000p-3,
-0x1.5964480000000p-2, -0x1.5964480000000p-1, -0x1.596447e000000p+0, 0x1.4d37704000000p+0,
-0x1.65911fa000000p+0, 0x1.34ddc0e000000p+0};
TABLE double quarters_low[106] = {
-0x1.1b1bbead603d9p-29, 0x1.c9c882a53f84fp-29, -0x1.b1bbead603d8bp-31, -0x1.b1bbead603d8bp-30,
-0x1.b1bbead603d8bp-29, 0x1.391054a7f09d6p-30, 0x1.391054a7f09d6p-29, -0x1.8ddf56b01ec54p-29,
0x1.c882a53f84eb0p-30, 0x1.c882a53f84eb0p-29, -0x1.bbead603d8a83p-31, -0x1.bbead603d8a83p-30,
-0x1.bbead603d8a83p-29, 0x1.1054a7f09d5f4p-30, 0x1.1054a7f09d5f4p-29, -0x1.df56b01ec5417p-29,
0x1.054a7f09d5f48p-31, 0x1.054a7f09d5f48p-30, 0x1.054a7f09d5f48p-29, -0x1.f56b01ec54170p-29,
0x1.529fc2757d1f5p-33, 0x1.529fc2757d1f5p-32, 0x1.529fc2757d1f5p-31, 0x1.529fc2757d1f5p-30,
0x1.529fc2757d1f5p-29, -0x1.5ac07b1505c16p-29, 0x1.4a7f09d5f47d5p-29, -0x1.6b01ec5417056p-29,
0x1.29fc2757d1f53p-29, -0x1.ac07b1505c159p-29, 0x1.4fe13abe8fa9ap-30, 0x1.4fe13abe8fa9ap-29,
-0x1.603d8a82e0acbp-29, 0x1.3f84eafa3ea6ap-29, -0x1.80f62a0b82b2dp-29, 0x1.fc2757d1f534ep-30,
0x1.fc2757d1f534ep-29, -0x1.ec54170565912p-35, -0x1.ec54170565912p-34, -0x1.ec54170565912p-33,
-0x1.ec54170565912p-32, -0x1.ec54170565912p-31, -0x1.ec54170565912p-30, -0x1.ec54170565912p-29,
0x1.3abe8fa9a6ee0p-32, 0x1.3abe8fa9a6ee0p-31, 0x1.3abe8fa9a6ee0p-30, 0x1.3abe8fa9a6ee0p-29,
-0x1.8a82e0acb223fp-29, 0x1.d5f47d4d37703p-30, 0x1.d5f47d4d37703p-29, -0x1.505c1596447e5p-31,
-0x1.505c1596447e5p-30, -0x1.505c1596447e5p-29, 0x1.5f47d4d377037p-29, -0x1.4170565911f92p-29,
0x1.7d1f534ddc0dbp-29, -0x1.05c1596447e49p-29, 0x1.f47d4d377036ep-29, -0x1.70565911f924fp-33,
-0x1.70565911f924fp-32, -0x1.70565911f924fp-31, -0x1.70565911f924fp-30, -0x1.70565911f924fp-29,
0x1.1f534ddc0db63p-29, -0x1.c1596447e493bp-29, 0x1.f534ddc0db629p-31, 0x1.f534ddc0db629p-30,
0x1.f534ddc0db629p-29, -0x1.596447e493ad5p-33, -0x1.596447e493ad5p-32, -0x1.596447e493ad5p-31,
-0x1.596447e493ad5p-30, -0x1.596447e493ad5p-29, 0x1.4d377036d8a56p-29, -0x1.65911f924eb53p-29,
0x1.34ddc0db6295ap-29, -0x1.96447e493ad4dp-29, 0x1.a6ee06db14acdp-30, 0x1.a6ee06db14acdp-29,
-0x1.6447e493ad4cep-30, -0x1.6447e493ad4cep-29, 0x1.377036d8a5665p-29, -0x1.911f924eb5336p-29,
0x1.bb81b6c52b328p-30, 0x1.bb81b6c52b328p-29, -0x1.11f924eb53362p-30, -0x1.11f924eb53362p-29,
0x1.dc0db6295993cp-29, -0x1.1f924eb53361ep-31, -0x1.1f924eb53361ep-30, -0x1.1f924eb53361ep-29,
0x1.c0db6295993c4p-29, -0x1.f924eb53361dep-31, -0x1.f924eb53361dep-30, -0x1.f924eb53361dep-29,
0x1.b6c52b3278872p-34, 0x1.b6c52b3278872p-33, 0x1.b6c52b3278872p-32, 0x1.b6c52b3278872p-31,
0x1.b6c52b3278872p-30, 0x1.b6c52b3278872p-29, -0x1.24eb53361de38p-30, -0x1.24eb53361de38p-29,
0x1.b6295993c4390p-29, -0x1.275a99b0ef1bfp-30};

/// tanh_cells -- by rows: the middle of each interval, coefficients from the lowest
TABLE float tanh_cells[7][16] __attribute__((aligned(64))) = {
  {0x1.89cf46p-1, 0x1.13bd86p+0, 0x1.628162p+0, 0x1.b14104p+0, 0x1.13c04ap+1, 0x1.626b5p+1,
   0x1.b135d2p+1, 0x1.000cbep+2, 0x1.3b1fd2p+2, 0x1.89c0ep+2, 0x1.d8707ap+2, 0x1.154246p+3, 0,
   0x1.d89f1ep-3, 0x1.89d8a4p-2, 0x1.13b636p-1},
  {0x1.4afa3ep-1, 0x1.95916ep-1, 0x1.c397f2p-1, 0x1.de707ep-1, 0x1.f26864p-1, 0x1.fbfc76p-1,
   0x1.fed328p-1, 0x1.ffa83ap-1, 0x1.fff224p-1, 0x1.fffedp-1, 0x1.ffffe6p-1, 0x1.fffffep-1, 0,
   0x1.d06814p-3, 0x1.778292p-2, 0x1.f7a7ep-2},
  {0x1.2a0af2p-1, 0x1.7d7a88p-2, 0x1.c6be8cp-3, 0x1.03af7p-3, 0x1.ad2d72p-5, 0x1.ffc18cp-7,
   0x1.2c7fb6p-8, 0x1.5efa1p-10, 0x1.bb8636p-13, 0x1.30071p-16, 0x1.a0094p-20, 0x1.0014bp-23,
   0x1p+0, 0x1.e5ac34p-1, 0x1.bb2606p-1, 0x1.84235cp-1},
  {-0x1.815584p-2, -0x1.2e2ef6p-2, -0x1.911922p-3, -0x1.e55464p-4, -0x1.a1c406p-5, -0x1.fbad32p-7,
   -0x1.2bc2b2p-8, -0x1.5eae8p-10, -0x1.ba2a88p-13, -0x1.2f209ap-16, -0x1.9ecf66p-20,
   -0x1.0033p-23, 0, -0x1.b88674p-3, -0x1.450328p-2, -0x1.7dcfdep-2},
  {0x1.9323aap-5, 0x1.c0d07ep-4, 0x1.946552p-4, 0x1.18653ap-4, 0x1.07a76cp-5, 0x1.4d260cp-7,
   0x1.8dd92ep-9, 0x1.d2eeeap-11, 0x1.26a132p-13, 0x1.942cap-17, 0x1.149a1cp-20, 0x1.50a598p-24,
   -0x1.555a3ep-2, -0x1.11d56ep-2, -0x1.6079fap-3, -0x1.1bdefep-4},
  {0x1.7fa3d6p-4, 0x1.8f9468p-7, -0x1.5f62eap-6, -0x1.8f6a4p-6, -0x1.d813d6p-7, -0x1.473a24p-8,
   -0x1.90d3dcp-10, -0x1.d9e31cp-12, -0x1.3cc8dap-14, -0x1.b2aabap-18, -0x1.296cbep-21,
   -0x1.5206f8p-25, 0x1.167086p-11, 0x1.0e0d44p-3, 0x1.58e0dcp-3, 0x1.43af6p-3},
  {-0x1.02e558p-4, -0x1.32bf2p-5, -0x1.26c4fcp-7, 0x1.6acd0ap-9, 0x1.1c4a6cp-8, 0x1.e7a5b6p-10,
   0x1.3a3f8ep-11, 0x1.7977e8p-13, 0x1.fab11ap-16, 0x1.5a6fd8p-19, 0x1.d8ea16p-23,
   0x1.8651c4p-26, 0x1.090f3ep-3, 0x1.494b8ep-4, 0x1.c7172ep-7, -0x1.2fd1d6p-5}};

/// erf_cells -- by rows: the middle of each interval, coefficients from the lowest
TABLE float erf_cells[7][16] __attribute__((aligned(64))) = {
  {0x1.59f3ccp-2, 0x1.e65ad8p-2, 0x1.376f52p-1, 0x1.7d5834p-1, 0x1.e3a22ap-1, 0x1.385bb2p+0,
   0x1.7f30f4p+0, 0x1.c29f5ap+0, 0x1.15d738p+1, 0x1.5c3c82p+1, 0x1.a0974ap+1, 0x1.e059fap+1, 0,
   0x1.9efcbep-4, 0x1.5aa1f6p-3, 0x1.e7b73p-3},
  {0x1.78022ep-2, 0x1.fe2cf4p-2, 0x1.387ddap-1, 0x1.6a65d4p-1, 0x1.a30608p-1, 0x1.d4c5d6p-1,
   0x1.ee73dap-1, 0x1.f972a2p-1, 0x1.fee72ep-1, 0x1.fff05cp-1, 0x1.ffff74p-1, 0x1.fffffcp-1, 0,
   0x1.d2aa6cp-4, 0x1.836e16p-3, 0x1.0e0cb8p-2},
  {0x1.01b4d8p+0, 0x1.cd0ed6p-1, 0x1.8f0f7cp-1, 0x1.4bbe2p-1, 0x1.d96c8ap-2, 0x1.04bb32p-2,
   0x1.ebc5bap-4, 0x1.a1100ep-5, 0x1.4c670ap-7, 0x1.69146ep-11, 0x1.db6e88p-16, 0x1.cf9102p-21,
   0x1.06eba8p-3, 0x1.1dea44p+0, 0x1.18b516p+0, 0x1.10f05ap+0},
  {-0x1.5c41aap-2, -0x1.b5f6f2p-2, -0x1.e57a32p-2, -0x1.ee2c4ap-2, -0x1.bf31c6p-2, -0x1.3e226p-2,
   -0x1.700ef2p-3, -0x1.6f1256p-4, -0x1.68add8p-6, -0x1.e9fcd6p-10, -0x1.7f7e9ep-14,
   -0x1.18c1e2p-19, 0x1.e19822p-22, -0x1.cf79fp-4, -0x1.7c150ap-3, -0x1.03fd5ep-2},
  {-0x1.092508p-2, -0x1.5166dep-3, -0x1.14a01p-4, 0x1.839f26p-6, 0x1.ef325ep-4, 0x1.57bb18p-3,
   0x1.1d57a6p-3, 0x1.693dbp-4, 0x1.d2c622p-6, 0x1.9de97p-9, 0x1.8d5b0cp-13, 0x1.f1f53p-18,
   -0x1.813002p-2, -0x1.756c9p-2, -0x1.60f22ep-2, -0x1.428962p-2},
  {0x1.4080c8p-3, 0x1.73b938p-3, 0x1.6ec854p-3, 0x1.373732p-3, 0x1.6a32dp-4, 0x1.bc0696p-10,
   -0x1.67603p-5, -0x1.8554b4p-5, -0x1.85f908p-6, -0x1.fb1512p-9, -0x1.42fb4p-12, -0x1.2768cp-15,
   0x1.a340f8p-11, 0x1.c3bc3p-5, 0x1.6b4762p-4, 0x1.e74e7ap-4},
  {0x1.acb336p-5, 0x1.024b4ap-6, -0x1.ad9cbp-6, -0x1.b8c2f8p-5, -0x1.1b3f4cp-4, -0x1.9f9b1p-5,
   -0x1.071168p-6, 0x1.cf1ec2p-8, 0x1.809534p-7, 0x1.a9d7fap-9, 0x1.5c04f6p-12, 0x1.151f2p-15,
   0x1.b52a5ap-4, 0x1.f2837ep-4, 0x1.469fa4p-3, 0x1.8e5438p-7}};

/// lookup_float32
/* the cell of sixteen whose number is the last four bits of i */
INLINE float lookup_float32(CELLS float *cells, int32_t i) {
  return cells[i & 15];
}

/// map_sqrtf_float32
INLINE float map_sqrtf_float32(float x) {
  return sqrtf(x);
}

/// far_float64 needs float64_bits quarters
/* the quarter turns of a far angle and so many more, rounded to the last place of shift and added to
   it, and the angle that is left, at most half of that place */
INLINE void far_float64(
    double x, double quarters, double shift, double *angle, double *shifted) {
  /* x = mantissa * 2^(exponent - 23); its quarter turns, without whole turns: */
  const uint64_t bits = float64_bits(x);
  const int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  const double size = (double)(int64_t)((bits >> 29 & 0x7fffff) | 0x800000);
  const double mantissa = x < 0.0 ? -size : size;
  const double product = mantissa * quarters_high[exponent - 22] + quarters;
  const double rest = mantissa * quarters_low[exponent - 22];
  *shifted = (product + rest) + shift;
  *angle = ((product - (*shifted - shift)) + rest) * 0x1.921fb54442d18p+0;
}

/// is_far_float32
/* a finite angle of a million turns */
INLINE int is_far_float32(float x) {
  return (x >= 0x1p22f && x < INFINITY) || (x <= -0x1p22f && x > -INFINITY);
}

/// far_sine_float32 needs is_far_float32 far_float64 wave_float64
/* the sine of a far angle and so many quarter turns; y of others */
INLINE float far_sine_float32(float x, double quarters, float y) {
  double r, shifted;
  if (!is_far_float32(x)) return y;
  far_float64((double)x, quarters, 0x1.8p53, &r, &shifted);
  return (float)wave_float64(r, shifted);
}

/// far_tangent_float32 needs is_far_float32 far_float64 slope_float64
/* the tangent of a far angle; y of others */
INLINE float far_tangent_float32(float x, float y) {
  double r, shifted;
  if (!is_far_float32(x)) return y;
  far_float64((double)x, 0.0, 0x1.8p52, &r, &shifted);
  return (float)slope_float64(r, shifted);
}

/// near_sin_float32 needs sine_float64
INLINE float near_sin_float32(float x) {
  return (float)sine_float64((double)x);
}

/// near_cos_float32 needs cosine_float64
INLINE float near_cos_float32(float x) {
  return (float)cosine_float64((double)x);
}

/// near_tan_float32 needs tangent_float64
INLINE float near_tan_float32(float x) {
  return (float)tangent_float64((double)x);
}

/// near_pow_float32 needs power_float64
INLINE float near_pow_float32(float x, float y) {
  return (float)power_float64((double)x, (double)y);
}
