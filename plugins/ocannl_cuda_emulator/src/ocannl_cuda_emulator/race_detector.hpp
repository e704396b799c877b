// Reports races of the threads of a kernel: the compiler calls the functions of `race_detector.cpp`
// at every access to memory (-fsanitize=thread). Comes right after `cuda_emulator.hpp`.
#pragma once

extern "C" {
// A launch as the detector needs it.
struct CudaRaceLaunch {
  const char *kernel, *names;  // the names of its parameters, with commas; pointers have a star
  const char *buffer;          // the parameters
  size_t size;
  const unsigned *thread;      // the number of the thread that runs, in its block
  const uint3 *block;
  const dim3 *grid;
  const char *shared_start, *shared_stop;
  char *const *stacks;         // of the threads
  size_t stack_bytes;
  char *message;
  size_t message_size;
};
void cuda_race_start(const CudaRaceLaunch *launch) __attribute__((visibility("hidden")));
void cuda_race_block_barrier() __attribute__((visibility("hidden")));
void cuda_race_warp_barrier() __attribute__((visibility("hidden")));
void cuda_race_atomic(int change) __attribute__((visibility("hidden")));
void cuda_race_range(const void *start, size_t size, int writes) __attribute__((visibility("hidden")));
}

namespace cuda_emulator {

// The compiler leaves out calls of these two.
__attribute__((always_inline)) static inline void *race_copy(void *to, const void *from, size_t size) {
  cuda_race_range(from, size, 0);
  cuda_race_range(to, size, 1);
  return memcpy(to, from, size);
}
__attribute__((always_inline)) static inline void *race_set(void *to, int value, size_t size) {
  cuda_race_range(to, size, 1);
  return memset(to, value, size);
}
static inline void race_barrier(int line) {
  wait(at_block_barrier, line);
  cuda_race_block_barrier();
}
template <class... A>
static inline void race_warp_barrier(int line, A... mask) {
  wait(at_warp_barrier, line, mask...);
  cuda_race_warp_barrier();
}
// The lanes of a shuffle meet.
template <class T>
static inline T after_shuffle(T value) {
  cuda_race_warp_barrier();
  return value;
}
template <class T>
static inline T race_atomic_add(T *cell, T value) {
  cuda_race_atomic(1);
  const T old = atomicAdd(cell, value);
  cuda_race_atomic(-1);
  return old;
}
static inline void race_start(const char *kernel, const char *names, const char *buffer, size_t size) {
  const CudaRaceLaunch launch = {
      kernel,    names,     buffer, size,
      &current,  &blockIdx, &gridDim,
      __start_cuda_shared, __stop_cuda_shared,
      &stacks,   most_threads * stack_bytes,
      cuda_emulator_message, sizeof cuda_emulator_message};
  cuda_race_start(&launch);
}

}  // namespace cuda_emulator

#define memcpy(to, from, size) cuda_emulator::race_copy(to, from, size)
#define memset(to, value, size) cuda_emulator::race_set(to, value, size)
#undef __syncthreads
#undef __syncwarp
#undef __shfl_xor_sync
#undef __shfl_down_sync
#undef __shfl_up_sync
#undef __shfl_sync
#undef __ballot_sync
#undef __any_sync
#define __syncthreads() cuda_emulator::race_barrier(__LINE__)
#define __syncwarp(...) cuda_emulator::race_warp_barrier(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_emulator::after_shuffle(cuda_emulator::shuffle_xor(__LINE__, __VA_ARGS__))
#define __shfl_down_sync(...) cuda_emulator::after_shuffle(cuda_emulator::shuffle_down(__LINE__, __VA_ARGS__))
#define __shfl_up_sync(...) cuda_emulator::after_shuffle(cuda_emulator::shuffle_up(__LINE__, __VA_ARGS__))
#define __shfl_sync(...) cuda_emulator::after_shuffle(cuda_emulator::shuffle(__LINE__, __VA_ARGS__))
#define __ballot_sync(...) cuda_emulator::after_shuffle(cuda_emulator::ballot(__LINE__, __VA_ARGS__))
#define __any_sync(...) (cuda_emulator::after_shuffle(cuda_emulator::ballot(__LINE__, __VA_ARGS__)) != 0)
#define atomicAdd(...) cuda_emulator::race_atomic_add(__VA_ARGS__)

// The names of parameters come before the export of a kernel.
#undef CUDA_EMULATOR_EXPORT
#define CUDA_EMULATOR_EXPORT(kernel, bounds, has_barriers)                                     \
  extern "C" __attribute__((visibility("default"))) int cuda_emulator_run_##kernel(            \
      const char *buffer, size_t size, const unsigned *grid, const unsigned *block) {          \
    if (const int error = cuda_emulator::check_bounds(block, bounds)) return error;            \
    cuda_emulator::race_start(#kernel, cuda_race_names_##kernel, buffer, size);                \
    const int code = cuda_emulator::launch(kernel, buffer, size, grid, block, has_barriers);   \
    return code || !cuda_emulator_message[0] ? code : cuda_emulator::launch_failed;            \
  }
