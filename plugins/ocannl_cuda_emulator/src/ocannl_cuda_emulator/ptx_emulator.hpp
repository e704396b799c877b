// Twins of the functions for PTX instructions (ptx.py), which do the same on the processor.
//
// A copy is made when its thread waits for it, not before: code that does not wait finds other
// numbers, or NaN. Matrix instructions are as inaccurate as their description allows: all addends
// are truncated to the digits of the largest one, and so is the sum. Addresses that an instruction
// would refuse, and lanes that do not take part, are errors.
#pragma once
#define CUDA_EMULATOR 1

namespace cuda_emulator {

// ----- asynchronous copies -----------------------------------------------------------------------

enum : unsigned { most_copies = 512 };

struct Copy {
  void *to;
  const void *from;
  unsigned bytes, valid, group;
};

static Copy copies[most_threads][most_copies];
static unsigned copy_count[most_threads], copy_group[most_threads];

static void forget_copies(unsigned thread) { copy_count[thread] = copy_group[thread] = 0; }

static inline void copy_async(void *to, const void *from, int valid, unsigned bytes, int line) {
  if ((uintptr_t)to % bytes || (valid && (uintptr_t)from % bytes)) {
    fail("a copy of %u bytes in line %d is not aligned", bytes, line);
    return;
  }
  if (valid < 0 || (unsigned)valid > bytes) {
    fail("a copy of %u bytes in line %d has %d valid ones", bytes, line, valid);
    return;
  }
  // no copy is left out that nothing waits for
  for (int at = 0; at < valid; at += valid - 1 > at ? valid - 1 - at : 1) (void)((const volatile char *)from)[at];
  unsigned &count = copy_count[current];
  if (count == most_copies) {
    fail("thread %u has more than %u copies under way", current, (unsigned)most_copies);
    return;
  }
  copies[current][count++] = {to, from, bytes, (unsigned)valid, copy_group[current]};
}

// Ends a group, and makes the copies of all but the last groups.
static inline void await_copies(unsigned pending) {
  const unsigned groups = ++copy_group[current];
  unsigned left = 0;
  for (unsigned k = 0; k < copy_count[current]; ++k) {
    const Copy &each = copies[current][k];
    if (each.group + pending >= groups) {
      copies[current][left++] = each;
      continue;
    }
    memcpy(each.to, each.from, each.valid);
    memset((char *)each.to + each.valid, 0, each.bytes - each.valid);
  }
  copy_count[current] = left;
}

// ----- small matrices of a warp ------------------------------------------------------------------

static const char *rows[most_threads];
static uint32_t lefts[most_threads][4], rights[most_threads][2];

// Gives each lane the numbers of the lanes' rows: a word of one row, or of two rows a column.
static inline void load_matrices(uint32_t *words, unsigned count, bool is_transposed,
                                 const void *row, int line) {
  const unsigned lane = current % 32, first = current - lane;
  if (lane < 8 * count && (uintptr_t)row % 16)
    fail("a row of matrices in line %d is not aligned", line);
  rows[current] = (const char *)row;
  wait(at_warp_barrier, line);
  for (unsigned k = 0; k < count; ++k) {
    if (!is_transposed) {
      memcpy(&words[k], rows[first + 8 * k + lane / 4] + 4 * (lane % 4), 4);
      continue;
    }
    uint16_t halves[2];
    for (unsigned at = 0; at < 2; ++at)
      memcpy(&halves[at], rows[first + 8 * k + 2 * (lane % 4) + at] + 2 * (lane / 4), 2);
    words[k] = halves[0] | (uint32_t)halves[1] << 16;
  }
  wait(at_warp_barrier, line);
}

// Adds with 24 binary digits below the largest addend; what is smaller vanishes.
static inline float add_truncated(float sum, const double *products, unsigned count) {
  double largest = fabs((double)sum), total = sum;
  for (unsigned k = 0; k < count; ++k) {
    largest = fabs(products[k]) > largest ? fabs(products[k]) : largest;
    total += products[k];
  }
  if (!(largest < INFINITY) || total != total) return (float)total;
  if (largest == 0) return 0;
  int exponent;
  frexp(largest, &exponent);
  const double unit = ldexp(1.0, exponent - 24 > -149 ? exponent - 24 : -149);
  total = trunc(sum / unit);
  for (unsigned k = 0; k < count; ++k) total += trunc(products[k] / unit);
  total *= unit;
  float result = (float)total;
  if (fabs((double)result) > fabs(total) && fabs((double)result) < INFINITY)
    result = nextafterf(result, 0.0f);
  return result;
}

static inline double bfloat16_half(uint32_t word, unsigned half) {
  const uint32_t bits = (half ? word >> 16 : word & 0xffff) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static inline double float16_half(uint32_t word, unsigned half) {
  const unsigned bits = half ? word >> 16 : word & 0xffff;
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  const double size = exponent == 31 ? (digits ? (double)NAN : (double)INFINITY)
                      : exponent     ? ldexp(1024 + digits, exponent - 25)
                                     : ldexp(digits, -24);
  return bits >> 15 ? -size : size;
}

// The factors of an instruction, from the registers of the lanes that have them.
template <double half(uint32_t, unsigned)>
struct Halves {
  enum : unsigned { terms = 16 };
  static double left(unsigned first, unsigned row, unsigned term) {
    const uint32_t *own = lefts[first + row % 8 * 4 + term % 8 / 2];
    return half(own[row / 8 + term / 8 * 2], term % 2);
  }
  static double right(unsigned first, unsigned term, unsigned column) {
    return half(rights[first + column * 4 + term % 8 / 2][term / 8], term % 2);
  }
};

struct Words {
  enum : unsigned { terms = 8 };
  static double number(uint32_t word) {
    word &= ~(uint32_t)0x1fff;  // the last 13 digits are not multiplied
    float x;
    memcpy(&x, &word, 4);
    return x;
  }
  static double left(unsigned first, unsigned row, unsigned term) {
    return number(lefts[first + row % 8 * 4 + term % 4][row / 8 + term / 4 * 2]);
  }
  static double right(unsigned first, unsigned term, unsigned column) {
    return number(rights[first + column * 4 + term % 4][term / 4]);
  }
};

template <class Factors>
static inline void multiply_add(float &s0, float &s1, float &s2, float &s3, const uint32_t *left,
                                const uint32_t *right, int line) {
  const unsigned lane = current % 32, first = current - lane;
  memcpy(lefts[current], left, 16);
  memcpy(rights[current], right, 8);
  wait(at_warp_barrier, line);
  float *const sums[4] = {&s0, &s1, &s2, &s3};
  for (unsigned k = 0; k < 4; ++k) {
    const unsigned row = lane / 4 + k / 2 * 8, column = lane % 4 * 2 + k % 2;
    double products[Factors::terms];
    for (unsigned term = 0; term < Factors::terms; ++term)
      products[term] = Factors::left(first, row, term) * Factors::right(first, term, column);
    *sums[k] = add_truncated(*sums[k], products, Factors::terms);
  }
  wait(at_warp_barrier, line);
}

// To the nearest number of 11 digits, the one of larger magnitude of two.
static inline uint32_t round_to_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return x == x && fabsf(x) < INFINITY ? (bits + 0x1000) & ~(uint32_t)0x1fff : bits;
}

static inline void split_tf32(uint32_t *words, uint32_t *rests, unsigned count) {
  for (unsigned k = 0; k < count; ++k) {
    float x, high;
    memcpy(&x, &words[k], 4);
    words[k] = round_to_tf32(x);
    memcpy(&high, &words[k], 4);
    rests[k] = round_to_tf32(x - high);
  }
}

}  // namespace cuda_emulator

// ----- functions of ptx.py -----------------------------------------------------------------------

#define CUDA_EMULATOR_LINE int line = __builtin_LINE()

#define CUDA_EMULATOR_COPY(n)                                                                   \
  static inline void copy_async_##n(void *to, const void *from, int valid, CUDA_EMULATOR_LINE) { \
    cuda_emulator::copy_async(to, from, valid, n, line);                                        \
  }
CUDA_EMULATOR_COPY(4)
CUDA_EMULATOR_COPY(8)
CUDA_EMULATOR_COPY(16)

#define CUDA_EMULATOR_AWAIT(n) \
  static inline void await_copies_##n() { cuda_emulator::await_copies(n); }
CUDA_EMULATOR_AWAIT(0)
CUDA_EMULATOR_AWAIT(1)
CUDA_EMULATOR_AWAIT(2)
CUDA_EMULATOR_AWAIT(3)
CUDA_EMULATOR_AWAIT(4)
CUDA_EMULATOR_AWAIT(5)
CUDA_EMULATOR_AWAIT(6)
CUDA_EMULATOR_AWAIT(7)

#define CUDA_EMULATOR_LOAD(n, form, is_transposed)                                        \
  static inline void load_matrices_##n##form(uint32_t (&words)[n], const void *row,       \
                                             CUDA_EMULATOR_LINE) {                        \
    cuda_emulator::load_matrices(words, n, is_transposed, row, line);                     \
  }
CUDA_EMULATOR_LOAD(2, , false)
CUDA_EMULATOR_LOAD(4, , false)
CUDA_EMULATOR_LOAD(2, _transposed, true)
CUDA_EMULATOR_LOAD(4, _transposed, true)

#define CUDA_EMULATOR_LOAD_TWICE(form, is_transposed)                                            \
  static inline void load_matrices_2_twice##form(uint32_t (&words)[2], uint32_t (&others)[2],   \
                                                 const void *row, CUDA_EMULATOR_LINE) {         \
    uint32_t every[4];                                                                          \
    cuda_emulator::load_matrices(every, 4, is_transposed, row, line);                           \
    memcpy(words, every, 8);                                                                    \
    memcpy(others, every + 2, 8);                                                               \
  }
CUDA_EMULATOR_LOAD_TWICE(, false)
CUDA_EMULATOR_LOAD_TWICE(_transposed, true)

#define CUDA_EMULATOR_MULTIPLY(name, factors)                                                \
  static inline void multiply_add_##name(float &s0, float &s1, float &s2, float &s3,         \
                                         const uint32_t (&left)[4],                          \
                                         const uint32_t (&right)[2], CUDA_EMULATOR_LINE) {   \
    cuda_emulator::multiply_add<cuda_emulator::factors>(s0, s1, s2, s3, left, right, line);  \
  }
CUDA_EMULATOR_MULTIPLY(bf16, Halves<cuda_emulator::bfloat16_half>)
CUDA_EMULATOR_MULTIPLY(f16, Halves<cuda_emulator::float16_half>)
CUDA_EMULATOR_MULTIPLY(tf32, Words)

static inline void split_tf32_2(uint32_t (&words)[2], uint32_t (&rests)[2]) {
  cuda_emulator::split_tf32(words, rests, 2);
}
static inline void split_tf32_4(uint32_t (&words)[4], uint32_t (&rests)[4]) {
  cuda_emulator::split_tf32(words, rests, 4);
}
static inline uint32_t word_of_float32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
