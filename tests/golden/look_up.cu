#include <stdint.h>

static __device__ float k_6d01571d064605c0_twice(float x) { return 2 * x; }
extern "C" __global__ void k_6d01571d064605c0(
    const float *__restrict__ table,
    const int32_t *__restrict__ rows,
    float *__restrict__ found) {
  const int64_t table_shape[] = {6, 4};
  enum { found_size = 12 };
  const int64_t width = table_shape[1];
  const int64_t cell = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (cell < found_size)
    found[cell] = k_6d01571d064605c0_twice(table[rows[cell / width] * width + cell % width]);
}
