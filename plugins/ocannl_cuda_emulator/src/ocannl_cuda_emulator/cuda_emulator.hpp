// Runs kernels of CUDA C++ on the processor: the same text that NVRTC takes, after this header.
//
// The threads of a block are fibers, which switch at barriers and shuffles; blocks run one after
// the other. Shared memory is one section of the object, filled with NaN before each block. A
// thread that ends while others wait at a barrier, threads that wait at different barriers, and
// shuffles of lanes that do not take part are errors, with the line.
//
// CUDA_EMULATOR_ORDER=reverse runs blocks and threads from the last one to the first: results that
// depend on the order then differ.
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define CUDA_EMULATOR_UNCHECKED __attribute__((no_sanitize_address))
#elif defined(__SANITIZE_THREAD__)
#define CUDA_EMULATOR_UNCHECKED __attribute__((no_sanitize_thread))
#else
#define CUDA_EMULATOR_UNCHECKED
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
#define CUDA_EMULATOR_VECTORS(T, name)                                               \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                 \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                  \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_EMULATOR_VECTORS(float, float)
CUDA_EMULATOR_VECTORS(double, double)
CUDA_EMULATOR_VECTORS(int, int)
CUDA_EMULATOR_VECTORS(unsigned, uint)
CUDA_EMULATOR_VECTORS(short, short)
CUDA_EMULATOR_VECTORS(unsigned short, ushort)
CUDA_EMULATOR_VECTORS(signed char, char)
CUDA_EMULATOR_VECTORS(unsigned char, uchar)

#define CUDA_EMULATOR 1
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define DYNAMIC_SHARED(name, bytes) char *const name = cuda_emulator::dynamic_shared(bytes)
#define __shared__ static __attribute__((section("cuda_shared"), aligned(16)))
enum { warpSize = 32 };

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

extern "C" char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" __attribute__((weak, visibility("default"))) char cuda_emulator_message[512];
char cuda_emulator_message[512];
// The dynamic shared memory of the launch; the driver states it.
extern "C" __attribute__((weak, visibility("default"))) unsigned cuda_emulator_shared_bytes;
unsigned cuda_emulator_shared_bytes = ~0u;

namespace cuda_emulator {

enum : size_t { stack_bytes = 512 << 10, most_threads = 1024 };
enum State { ready, at_block_barrier, at_warp_barrier, at_phase, ended };
enum : int { ok = 0, invalid_value = 1, launch_failed = 719 };

struct Fiber {
  State state;
  int line;
  unsigned mask;
#if defined(__x86_64__)
  void *stack;
#else
  ucontext_t context;
#endif
  void *fake_stack;
};

static Fiber fibers[most_threads];
static uint64_t lanes[most_threads];
static bool has_lane[most_threads];
static char *stacks;
static unsigned current, threads;
static void (*body)(void *);
static void *arguments;
static bool is_reverse;
static char *dynamic;

static inline int fail(const char *text, ...) {
  va_list given;
  va_start(given, text);
  vsnprintf(cuda_emulator_message, sizeof cuda_emulator_message, text, given);
  va_end(given);
  return launch_failed;
}

static inline void locate(unsigned thread) {
  current = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
               thread / (blockDim.x * blockDim.y)};
}

static void forget_copies(unsigned thread);
// Those of `warpgroup_emulator.hpp`.
static void forget_phases();
static bool release_phases(unsigned first, unsigned count);
static bool complete_copy();
static void check_completion();

CUDA_EMULATOR_UNCHECKED static void poison_shared() {
  volatile char *cell = __start_cuda_shared;
  for (; cell < __stop_cuda_shared; ++cell) *cell = (char)0xff;
  free(dynamic);
  dynamic = nullptr;
  forget_phases();
}

// Dynamic shared memory of a block, which begins at a multiple of 128 bytes.
static char *dynamic_shared(unsigned bytes) {
  if (cuda_emulator_shared_bytes < bytes)
    fail("the kernel uses %u bytes of shared memory, and is launched with %u", bytes,
         cuda_emulator_shared_bytes);
  if (!dynamic) memset(dynamic = (char *)aligned_alloc(128, (bytes + 127) / 128 * 128), 0xff, bytes);
  return dynamic;
}

// ----- fibers ------------------------------------------------------------------------------------

#if defined(__x86_64__)
static void *scheduler_stack;
extern "C" void cuda_emulator_switch(void **saved, void *next) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden cuda_emulator_switch
.type cuda_emulator_switch, @function
.globl cuda_emulator_switch
cuda_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
static ucontext_t scheduler;
#endif
#if defined(__SANITIZE_ADDRESS__)
static void *scheduler_fake_stack;
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif

static void leave(bool for_ever) {
  Fiber &own = fibers[current];
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &own.fake_stack, scheduler_bottom,
                                 scheduler_size);
#endif
#if defined(__x86_64__)
  cuda_emulator_switch(&own.stack, scheduler_stack);
#else
  swapcontext(&own.context, &scheduler);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(own.fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

static void enter(unsigned thread) {
  locate(thread);
  Fiber &next = fibers[thread];
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, stacks + thread * stack_bytes, stack_bytes);
#endif
#if defined(__x86_64__)
  cuda_emulator_switch(&scheduler_stack, next.stack);
#else
  swapcontext(&scheduler, &next.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

static void run_thread() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
  body(arguments);
  fibers[current].state = ended;
  leave(true);
  abort();
}

static void prepare(unsigned thread) {
  Fiber &fiber = fibers[thread];
  fiber = Fiber{};
  forget_copies(thread);
  char *bottom = stacks + thread * stack_bytes;
#if defined(__x86_64__)
  void **top = (void **)(bottom + stack_bytes);
  *--top = nullptr;  // the return address of run_thread, which keeps the stack aligned
  *--top = (void *)run_thread;
  fiber.stack = top - 6;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = bottom;
  fiber.context.uc_stack.ss_size = stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_thread, 0);
#endif
}

static inline void wait(State state, int line, unsigned mask = 0xffffffffu) {
  Fiber &own = fibers[current];
  const unsigned thread = current;
  own.state = state;
  own.line = line;
  own.mask = mask;
  leave(false);
  locate(thread);
}

// ----- blocks ------------------------------------------------------------------------------------

// Releases the warps whose participants have all arrived at one barrier.
static bool release_warps() {
  bool any = false;
  for (unsigned first = 0; first < threads; first += 32) {
    for (unsigned thread = first; thread < first + 32 && thread < threads; ++thread) {
      if (fibers[thread].state != at_warp_barrier) continue;
      const unsigned mask = fibers[thread].mask;
      bool all = true;
      for (unsigned lane = 0; lane < 32 && first + lane < threads; ++lane) {
        const Fiber &other = fibers[first + lane];
        if (mask >> lane & 1)
          all = all && other.state == at_warp_barrier && other.line == fibers[thread].line &&
                other.mask == mask;
      }
      if (!all) continue;
      for (unsigned lane = 0; lane < 32 && first + lane < threads; ++lane)
        if (mask >> lane & 1) fibers[first + lane].state = ready;
      any = true;
    }
  }
  return any;
}

static int stuck() {
  unsigned waiting = threads, other = threads;
  for (unsigned thread = 0; thread < threads; ++thread)
    if (fibers[thread].state != ended && waiting == threads) waiting = thread;
  for (unsigned thread = 0; thread < threads; ++thread)
    if (fibers[thread].state == ended || fibers[thread].line != fibers[waiting].line ||
        fibers[thread].state != fibers[waiting].state)
      other = other == threads ? thread : other;
  const State state = fibers[waiting].state;
  const char *kind = state == at_warp_barrier ? "a warp's barrier"
                     : state == at_phase      ? "a phase that nothing completes"
                                              : "a barrier";
  if (state == at_phase)
    return fail("thread %u waits at %s in line %d", waiting, kind, fibers[waiting].line);
  if (other == threads)
    return fail("thread %u waits at %s in line %d with lanes that never arrive", waiting, kind,
                fibers[waiting].line);
  if (fibers[other].state == ended)
    return fail("thread %u waits at %s in line %d, and thread %u has ended", waiting, kind,
                fibers[waiting].line, other);
  return fail("thread %u waits at %s in line %d, and thread %u at one in line %d", waiting, kind,
              fibers[waiting].line, other, fibers[other].line);
}

static int run_fibers() {
  for (unsigned thread = 0; thread < threads; ++thread) prepare(thread);
  const unsigned warps = (threads + 31) / 32;
  for (;;) {
    // a warp runs as far ahead of the others as it can
    for (unsigned warp = 0; warp < warps; ++warp) {
      const unsigned first = 32 * (is_reverse ? warps - 1 - warp : warp);
      do
        for (unsigned lane = 0; lane < 32; ++lane) {
          const unsigned thread = first + (is_reverse ? 31 - lane : lane);
          if (thread < threads && fibers[thread].state == ready) enter(thread);
          if (cuda_emulator_message[0]) return launch_failed;
        }
      while (release_warps() | release_phases(first, 32));
    }
    // a copy of the copy engine ends when nothing goes on without it
    if (release_phases(0, threads) || complete_copy()) continue;
    if (cuda_emulator_message[0]) return launch_failed;
    unsigned arrived = 0, over = 0, line = 0;
    bool is_one = true;
    for (unsigned thread = 0; thread < threads; ++thread) {
      over += fibers[thread].state == ended;
      if (fibers[thread].state != at_block_barrier) continue;
      is_one = is_one && (!arrived || line == (unsigned)fibers[thread].line);
      line = fibers[thread].line;
      ++arrived;
    }
    if (over == threads) {
      check_completion();
      return cuda_emulator_message[0] ? launch_failed : ok;
    }
    if (arrived != threads || !is_one) return stuck();
    for (unsigned thread = 0; thread < threads; ++thread) fibers[thread].state = ready;
  }
}

static int run_block(bool has_barriers) {
  poison_shared();
  if (has_barriers) return run_fibers();
  for (unsigned k = 0; k < threads; ++k) {
    locate(is_reverse ? threads - 1 - k : k);
    body(arguments);
  }
  return cuda_emulator_message[0] ? launch_failed : ok;
}

static int run_grid(void (*kernel)(void *), void *given, const unsigned *grid,
                    const unsigned *block, bool has_barriers) {
  const char *order = getenv("CUDA_EMULATOR_ORDER");
  is_reverse = order && !strcmp(order, "reverse");
  body = kernel;
  arguments = given;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  threads = block[0] * block[1] * block[2];
  cuda_emulator_message[0] = 0;
  if (threads > most_threads) return invalid_value;
  if (has_barriers && !stacks) {
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks = (char *)mmap(nullptr, most_threads * stack_bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (stacks == MAP_FAILED) abort();
  }
  const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  for (uint64_t k = 0; k < blocks; ++k) {
    const uint64_t at = is_reverse ? blocks - 1 - k : k;
    blockIdx = {(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]),
                (unsigned)(at / grid[0] / grid[1])};
    if (const int error = run_block(has_barriers)) return error;
  }
  return ok;
}

// Parameters lie one after the other, each at a multiple of its alignment.
template <class T>
T take(size_t &end, const char *buffer) {
  const size_t start = (end + alignof(T) - 1) / alignof(T) * alignof(T);
  T value;
  memcpy(&value, buffer + start, sizeof(T));
  end = start + sizeof(T);
  return value;
}

// Generated kernels state the exact number of threads that they are written for.
static inline int check_bounds(const unsigned *block, unsigned bounds) {
  const unsigned count = block[0] * block[1] * block[2];
  if (!bounds || count == bounds) return ok;
  return fail("the kernel is written for blocks of %u threads, and is launched with %u", bounds, count);
}

template <class... A>
struct Call {
  void (*kernel)(A...);
  const char *buffer;

  struct Now {
    Now(void (*kernel)(A...), A... given) { kernel(given...); }
  };

  static void run(void *self) {
    const Call *call = (const Call *)self;
    size_t end = 0;
    Now{call->kernel, take<A>(end, call->buffer)...};  // in order, as braces are
  }
};

template <class... A>
int launch(void (*kernel)(A...), const char *buffer, size_t size, const unsigned *grid,
           const unsigned *block, bool has_barriers) {
  size_t end = 0;
  ((end = (end + alignof(A) - 1) / alignof(A) * alignof(A) + sizeof(A)), ...);
  if (end != size) {
    fail("the kernel takes %zu bytes of parameters, and was given %zu", end, size);
    return invalid_value;
  }
  Call<A...> call{kernel, buffer};
  return run_grid(Call<A...>::run, &call, grid, block, has_barriers);
}

// ----- warps -------------------------------------------------------------------------------------

// Exchanges a value with another lane; a lane that does not take part gives NaN.
template <class T>
T exchange(int line, unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
  const unsigned first = current / 32 * 32;
  if (!(mask >> (current - first) & 1))
    fail("thread %u takes part in an exchange in line %d whose mask %#x leaves it out", current,
         line, mask);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  lanes[current] = bits;
  has_lane[current] = true;
  wait(at_warp_barrier, line, mask);
  const unsigned other = first + lane;
  const bool is_given = lane < 32 && other < threads && mask >> lane & 1 && has_lane[other];
  bits = is_given ? lanes[other] : ~(uint64_t)0;
  wait(at_warp_barrier, line, mask);
  has_lane[current] = false;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T shuffle_xor(int line, unsigned mask, T value, int lanes_apart, int width = 32) {
  const unsigned lane = current % 32, other = lane ^ lanes_apart;
  return exchange(line, mask, value, other / width <= lane / width ? other : lane);
}
template <class T>
T shuffle_down(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = current % 32;
  return exchange(line, mask, value, lane % width + delta < (unsigned)width ? lane + delta : lane);
}
template <class T>
T shuffle_up(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = current % 32;
  return exchange(line, mask, value, lane % width >= delta ? lane - delta : lane);
}
template <class T>
T shuffle(int line, unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = current % 32;
  return exchange(line, mask, value, lane / width * width + (unsigned)source % width);
}
static inline unsigned ballot(int line, unsigned mask, int predicate) {
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) votes |= (unsigned)(exchange(line, mask, predicate, lane) != 0) << lane;
  return votes;
}

}  // namespace cuda_emulator

#define __syncthreads() cuda_emulator::wait(cuda_emulator::at_block_barrier, __LINE__)
#define __syncwarp(...) cuda_emulator::wait(cuda_emulator::at_warp_barrier, __LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_emulator::shuffle_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_emulator::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cuda_emulator::shuffle_up(__LINE__, __VA_ARGS__)
#define __shfl_sync(...) cuda_emulator::shuffle(__LINE__, __VA_ARGS__)
#define __ballot_sync(...) cuda_emulator::ballot(__LINE__, __VA_ARGS__)
#define __any_sync(...) (cuda_emulator::ballot(__LINE__, __VA_ARGS__) != 0)
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)

template <class T>
static inline T __ldg(const T *cell) {
  return *cell;
}
static inline float __int_as_float(int bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline int __float_as_int(float x) {
  int bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
// C libraries of C23 declare a function of this name.
static inline float emulated_rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define rsqrtf emulated_rsqrtf
template <class T>
static inline T atomicAdd(T *cell, T value) {
  const T old = *cell;
  *cell = old + value;
  return old;
}

// Copies a vector, both ends of which begin at a multiple of its size.
template <class Vector>
static inline void copy_vector(void *to, const void *from, int line = __builtin_LINE()) {
  if ((uintptr_t)to % sizeof(Vector) || (uintptr_t)from % sizeof(Vector))
    cuda_emulator::fail("thread %u accesses a vector of %zu bytes in line %d at an address that is no "
                        "multiple of that", cuda_emulator::current, sizeof(Vector), line);
  memcpy(to, from, sizeof(Vector));
}

#define CUDA_EMULATOR_EXPORT(kernel, bounds, has_barriers)                                     \
  extern "C" __attribute__((visibility("default"))) int cuda_emulator_run_##kernel(            \
      const char *buffer, size_t size, const unsigned *grid, const unsigned *block) {          \
    if (const int error = cuda_emulator::check_bounds(block, bounds)) return error;            \
    return cuda_emulator::launch(kernel, buffer, size, grid, block, has_barriers);             \
  }
