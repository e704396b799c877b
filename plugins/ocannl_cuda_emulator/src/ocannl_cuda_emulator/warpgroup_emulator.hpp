// Twins of the functions for the PTX instructions of asynchronous products (warpgroup_ptx.py).
//
// The copy engine copies a box when no thread goes on without it, and products are made when their
// thread waits for them, not before. A copy to memory that products under way read, a product of
// memory that a copy under way fills, sums without the fence before them, and barriers that are not
// published to the copy engine are errors. So is a number of bytes that a barrier does not expect.
#pragma once

#if defined(__SANITIZE_THREAD__)
// phases order the accesses of copies and products, and the checks above find what they do not
#define CUDA_EMULATOR_ORDERED __attribute__((no_sanitize_thread))
#else
#define CUDA_EMULATOR_ORDERED
#endif

struct alignas(64) TensorMap {
  // what the emulated driver has encoded
  uint64_t address, strides[4];
  uint32_t extents[5], box[5], cell_bytes, rank, kind, unused;
  uint64_t mark, rest[3];
};
static_assert(sizeof(TensorMap) == 128, "a tensor map has 128 bytes");

namespace cuda_emulator {

enum : unsigned {
  most_barriers = 64,
  most_boxes = 512,
  most_products = 64,
  shared_base = 0x480,  // no multiple of 1024, as on a device
  row_bytes = 128,
  group_threads = 128,
};
static const uint64_t tensor_map_mark = 0x70616d726f736e65;

struct Phases {
  uint32_t place;
  unsigned arrivals, pending, parity, thread;
  int64_t bytes;
  bool is_published;
};
struct Box {
  TensorMap map;  // a copy: that of the thread is gone when it has ended
  uint32_t to, bytes;
  Phases *barrier;
  int32_t from[5];
  int line;
};
struct Factor {
  uint32_t start, leading, stride;
  bool is_across;
};
struct Product {
  float *sums;
  unsigned columns, group;
  Factor left, right;
  double (*number)(uint32_t, unsigned);
};

static Phases barriers[most_barriers];
static Box boxes[most_boxes];
static unsigned barrier_count, box_count;
static Product products[most_threads][most_products];
static unsigned product_count[most_threads], product_group[most_threads];
static bool is_fenced[most_threads];
static Phases *awaited[most_threads];
static unsigned awaited_parity[most_threads];

static void forget_phases() {
  barrier_count = box_count = 0;
  memset(product_count, 0, sizeof product_count);
  memset(product_group, 0, sizeof product_group);
  memset(is_fenced, 0, sizeof is_fenced);
}

// A kernel has its shared memory in one piece.
static inline char *shared_start() { return dynamic ? dynamic : __start_cuda_shared; }
static inline uint32_t address_of(const void *place) {
  return shared_base + (uint32_t)((const char *)place - shared_start());
}
static inline char *place_of(uint32_t address) {
  return shared_start() + (address - shared_base);
}
// The chunks of 16 bytes of eight rows are exchanged.
static inline uint32_t exchanged(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// ----- phases ------------------------------------------------------------------------------------

static inline Phases *phases_at(uint32_t place, int line) {
  for (unsigned k = 0; k < barrier_count; ++k)
    if (barriers[k].place == place) return &barriers[k];
  fail("thread %u uses a barrier in line %d that no thread has started", current, line);
  return nullptr;
}
static inline void end_phase(Phases &own) {
  if (own.pending || own.bytes) return;
  own.parity ^= 1;
  own.pending = own.arrivals;
}
static inline void start_phases(uint32_t place, uint32_t arrivals, int line) {
  if (place % 8 || barrier_count == most_barriers || !arrivals) {
    fail("a barrier of %u arrivals in line %d cannot be started", arrivals, line);
    return;
  }
  barriers[barrier_count++] = {place, arrivals, arrivals, 0, current, 0, false};
}
static inline void publish_phases() {
  for (unsigned k = 0; k < barrier_count; ++k)
    if (barriers[k].thread == current) barriers[k].is_published = true;
}
static inline void arrive(uint32_t place, uint32_t bytes, int line) {
  Phases *own = phases_at(place, line);
  if (!own) return;
  if (!own->pending) {
    fail("more threads arrive at the barrier in line %d than it has", line);
    return;
  }
  own->bytes += bytes;
  --own->pending;
  end_phase(*own);
  if (bytes) return;
  awaited[current] = nullptr;
  wait(at_phase, line);  // the threads that it lets go on do so first
}
static inline void await_phase(uint32_t place, uint32_t parity, int line) {
  Phases *own = phases_at(place, line);
  if (!own || own->parity != parity) return;
  awaited[current] = own;
  awaited_parity[current] = parity;
  wait(at_phase, line);
}
// Lets threads go on whose phases have ended. Given all threads, it also releases those that have
// arrived at a barrier, which others run before.
static bool release_phases(unsigned first, unsigned count) {
  bool any = false;
  for (unsigned thread = first; thread < first + count && thread < threads; ++thread) {
    if (fibers[thread].state != at_phase) continue;
    const Phases *own = awaited[thread];
    if (own ? own->parity == awaited_parity[thread] : count < threads) continue;
    fibers[thread].state = ready;
    any = true;
  }
  return any;
}

// ----- boxes -------------------------------------------------------------------------------------

static inline bool overlaps(uint32_t start, uint32_t size, uint32_t other, uint32_t other_size) {
  return start < other + other_size && other < start + size;
}
// The first byte that a factor reads, and the bytes after it.
static inline void range_of(const Factor &factor, unsigned cells, uint32_t &start, uint32_t &size) {
  const unsigned blocks = (cells + 63) / 64;
  start = factor.start & ~(uint32_t)1023;
  size = factor.is_across ? (blocks - 1) * factor.leading + 2 * factor.stride : cells / 8 * factor.stride;
}
static inline bool is_read(uint32_t to, uint32_t bytes) {
  for (unsigned thread = 0; thread < threads; ++thread)
    for (unsigned k = 0; k < product_count[thread]; ++k) {
      const Product &each = products[thread][k];
      uint32_t start, size;
      range_of(each.left, 64, start, size);
      if (overlaps(start, size, to, bytes)) return true;
      range_of(each.right, each.columns, start, size);
      if (overlaps(start, size, to, bytes)) return true;
    }
  return false;
}
static inline void copy_box(uint32_t to, const TensorMap &map, uint32_t barrier, unsigned rank,
                            const int32_t *from, int line) {
  Phases *own = phases_at(barrier, line);
  if (!own) return;
  if (map.mark != tensor_map_mark || map.rank != rank) {
    fail("the tensor map in line %d is not one of %u axes", line, rank);
    return;
  }
  if (!own->is_published) {
    fail("the barrier in line %d is not published to the copy engine", line);
    return;
  }
  uint32_t bytes = map.cell_bytes;
  for (unsigned axis = 0; axis < rank; ++axis) bytes *= map.box[axis];
  if (to % 1024) fail("a box in line %d is not copied to a multiple of 1024 bytes", line);
  if (is_read(to, bytes)) fail("the copy in line %d fills memory that products under way read", line);
  if (box_count == most_boxes) fail("more than %u copies are under way", (unsigned)most_boxes);
  if (cuda_emulator_message[0]) return;
  Box &box = boxes[box_count++];
  box = {map, to, bytes, own, {}, line};
  memcpy(box.from, from, rank * sizeof *from);
}
// Copies the box that was started last, or first in reverse order; cells beyond the array are zero.
CUDA_EMULATOR_ORDERED static bool complete_copy() {
  if (!box_count || cuda_emulator_message[0]) return false;
  const Box box = boxes[is_reverse ? 0 : box_count - 1];
  --box_count;
  if (is_reverse) memmove(boxes, boxes + 1, box_count * sizeof *boxes);
  const TensorMap &map = box.map;
  uint32_t at[5] = {};
  for (uint32_t offset = 0; offset < box.bytes; offset += map.cell_bytes) {
    bool is_inside = true;
    uint64_t from = map.address;
    for (unsigned axis = 0; axis < map.rank; ++axis) {
      const int64_t place = (int64_t)box.from[axis] + at[axis];
      is_inside = is_inside && place >= 0 && place < map.extents[axis];
      from += place * (axis ? map.strides[axis - 1] : map.cell_bytes);
    }
    const uint32_t to = box.to + offset;
    char *const cell = place_of(map.kind == 3 ? exchanged(to) : to);
    for (unsigned byte = 0; byte < map.cell_bytes; ++byte)
      cell[byte] = is_inside ? ((const char *)from)[byte] : 0;
    for (unsigned axis = 0; axis < map.rank && ++at[axis] == map.box[axis]; ++axis) at[axis] = 0;
  }
  box.barrier->bytes -= box.bytes;
  if (box.barrier->bytes < 0)
    fail("more bytes are copied in line %d than the barrier expects", box.line);
  end_phase(*box.barrier);
  return true;
}
static void check_completion() {
  if (box_count) fail("nothing waits for the copy in line %d", boxes[0].line);
  for (unsigned thread = 0; thread < threads; ++thread)
    if (product_count[thread]) fail("thread %u does not wait for its products", thread);
}

// ----- products ----------------------------------------------------------------------------------

static inline Factor factor_of(uint64_t descriptor, bool is_across, int line) {
  if (descriptor >> 62 != 1 || descriptor >> 49 & 7)
    fail("the descriptor %#llx in line %d is not one of rows of 128 bytes",
         (unsigned long long)descriptor, line);
  return {(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
          (uint32_t)(descriptor >> 32 & 0x3fff) << 4, is_across};
}
static inline void multiply(float *sums, unsigned columns, uint64_t left, uint64_t right,
                            bool is_left_across, bool is_right_across,
                            double (*number)(uint32_t, unsigned), int line) {
  if (!is_fenced[current]) fail("products in line %d come without a fence before them", line);
  if (product_count[current] == most_products)
    fail("thread %u has more than %u products under way", current, (unsigned)most_products);
  const Product own = {sums, columns, product_group[current], factor_of(left, is_left_across, line),
                       factor_of(right, is_right_across, line), number};
  const Factor *const factors[2] = {&own.left, &own.right};
  for (unsigned at = 0; at < 2; ++at) {
    uint32_t start, size;
    range_of(*factors[at], at ? columns : 64, start, size);
    for (unsigned k = 0; k < box_count; ++k)
      if (overlaps(start, size, boxes[k].to, boxes[k].bytes))
        fail("the product in line %d reads memory that a copy under way fills", line);
  }
  if (cuda_emulator_message[0]) return;
  products[current][product_count[current]++] = own;
  wait(at_warp_barrier, line);  // all threads of a warp execute it
}
CUDA_EMULATOR_ORDERED static double factor_number(const Factor &factor, unsigned cell, unsigned term,
                                                  double (*number)(uint32_t, unsigned)) {
  const uint32_t offset =
      factor.is_across
          ? cell / 64 * factor.leading + cell % 64 * 2 + term / 8 * factor.stride + term % 8 * row_bytes
          : cell / 8 * factor.stride + cell % 8 * row_bytes + term * 2;
  uint16_t bits;
  __builtin_memcpy(&bits, place_of(exchanged(factor.start + offset)), 2);
  return number(bits, 0);
}
CUDA_EMULATOR_ORDERED static void make(const Product &own) {
  enum : unsigned { terms = 16 };
  const unsigned lane = current % 32, warp = current % group_threads / 32;
  double left[2][terms];
  for (unsigned at = 0; at < 2; ++at)
    for (unsigned term = 0; term < terms; ++term)
      left[at][term] = factor_number(own.left, 16 * warp + lane / 4 + 8 * at, term, own.number);
  for (unsigned block = 0; block < own.columns / 8; ++block)
    for (unsigned beside = 0; beside < 2; ++beside) {
      double right[terms], addends[terms];
      for (unsigned term = 0; term < terms; ++term)
        right[term] = factor_number(own.right, 8 * block + lane % 4 * 2 + beside, term, own.number);
      for (unsigned at = 0; at < 2; ++at) {
        for (unsigned term = 0; term < terms; ++term) addends[term] = left[at][term] * right[term];
        float &sum = own.sums[4 * block + 2 * at + beside];
        sum = add_truncated(sum, addends, terms);
      }
    }
}
// Makes the products of all groups that have ended, but for some of the last ones.
static inline void await_products(unsigned pending) {
  unsigned left = 0;
  for (unsigned k = 0; k < product_count[current]; ++k) {
    const Product &each = products[current][k];
    if (each.group + pending < product_group[current])
      make(each);
    else
      products[current][left++] = each;
  }
  product_count[current] = left;
  is_fenced[current] = false;
}
static inline void set_registers(unsigned count, bool takes, int line) {
  if (count % 8 || count < 24 || count > 256) fail("%u registers in line %d", count, line);
  wait(at_warp_barrier, line);
}

}  // namespace cuda_emulator

// ----- functions of warpgroup_ptx.py -------------------------------------------------------------

static inline uint32_t shared_address(const void *place) { return cuda_emulator::address_of(place); }
static inline void start_phases(uint32_t barrier, uint32_t arrivals, CUDA_EMULATOR_LINE) {
  cuda_emulator::start_phases(barrier, arrivals, line);
}
static inline void publish_phases() { cuda_emulator::publish_phases(); }
static inline void arrive(uint32_t barrier, CUDA_EMULATOR_LINE) {
  cuda_emulator::arrive(barrier, 0, line);
}
static inline void arrive_expecting(uint32_t barrier, uint32_t bytes, CUDA_EMULATOR_LINE) {
  cuda_emulator::arrive(barrier, bytes, line);
}
static inline void await_phase(uint32_t barrier, uint32_t parity, CUDA_EMULATOR_LINE) {
  cuda_emulator::await_phase(barrier, parity, line);
}
static inline void commit_products() { ++cuda_emulator::product_group[cuda_emulator::current]; }
static inline void await_earlier_products() { cuda_emulator::await_products(1); }
static inline void give_registers(CUDA_EMULATOR_LINE) { cuda_emulator::set_registers(40, false, line); }
static inline void take_registers(CUDA_EMULATOR_LINE) { cuda_emulator::set_registers(232, true, line); }

#define CUDA_EMULATOR_BOX(rank, parameters, ...)                                                \
  static inline void copy_box_##rank(uint32_t to, const TensorMap &map, uint32_t barrier,       \
                                     CUDA_EMULATOR_UNPACK parameters, CUDA_EMULATOR_LINE) {     \
    const int32_t from[] = {__VA_ARGS__};                                                       \
    cuda_emulator::copy_box(to, map, barrier, rank, from, line);                                \
  }
#define CUDA_EMULATOR_UNPACK(...) __VA_ARGS__
CUDA_EMULATOR_BOX(2, (int32_t x0, int32_t x1), x0, x1)
CUDA_EMULATOR_BOX(3, (int32_t x0, int32_t x1, int32_t x2), x0, x1, x2)
CUDA_EMULATOR_BOX(4, (int32_t x0, int32_t x1, int32_t x2, int32_t x3), x0, x1, x2, x3)
CUDA_EMULATOR_BOX(5, (int32_t x0, int32_t x1, int32_t x2, int32_t x3, int32_t x4), x0, x1, x2, x3, x4)

#define CUDA_EMULATOR_PRODUCT(name, half, columns, left, right, is_left_across, is_right_across)   \
  static inline void multiply_async_##name##_##columns##_##left##_##right(                         \
      float (&sums)[columns / 2], uint64_t first, uint64_t second, CUDA_EMULATOR_LINE) {           \
    cuda_emulator::multiply(sums, columns, first, second, is_left_across, is_right_across,         \
                            cuda_emulator::half, line);                                            \
  }
#define CUDA_EMULATOR_FORMS(name, half, columns)                                \
  CUDA_EMULATOR_PRODUCT(name, half, columns, along, along, false, false)        \
  CUDA_EMULATOR_PRODUCT(name, half, columns, along, across, false, true)        \
  CUDA_EMULATOR_PRODUCT(name, half, columns, across, along, true, false)        \
  CUDA_EMULATOR_PRODUCT(name, half, columns, across, across, true, true)
#define CUDA_EMULATOR_COLUMNS(columns)                                          \
  CUDA_EMULATOR_FORMS(bf16, bfloat16_half, columns)                             \
  CUDA_EMULATOR_FORMS(f16, float16_half, columns)                               \
  static inline void start_products_##columns(float (&sums)[columns / 2]) {     \
    cuda_emulator::is_fenced[cuda_emulator::current] = true;                    \
  }                                                                             \
  static inline void await_products_##columns(float (&sums)[columns / 2]) {     \
    cuda_emulator::await_products(0);                                           \
  }
CUDA_EMULATOR_COLUMNS(64)
CUDA_EMULATOR_COLUMNS(128)
CUDA_EMULATOR_COLUMNS(256)

static inline uint64_t described(uint64_t form, uint32_t address) {
  return form | (address & 0x3ffff) >> 4;
}
