/* Random calls of an exported model, two states on two threads: sanitizers find what is wrong.

   Both threads make the same calls; their results and states must be equal. `inputs` of floats are
   random bits, so that many are NaN, infinite or denormal, or small numbers; integers are mostly
   small, so that some are positions and some are beyond an axis. Returns 0 if each call has one of
   the results that its arguments allow. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#ifdef MODEL_WEIGHTS_BYTES
#define WEIGHTS , weights, sizeof weights
static _Alignas(64) char weights[MODEL_WEIGHTS_BYTES];
#else
#define WEIGHTS
#endif

static long calls;

#define CHECK(condition) \
  do \
    if (!(condition)) { \
      fprintf(stderr, "failed: %s, line %d\n", #condition, __LINE__); \
      exit(1); \
    } \
  while (0);

struct instance {
  char *state;
  uint64_t random;
  uint64_t digest;
  long accepted, refused;
};

static uint64_t draw(struct instance *self) {
  uint64_t *const x = &self->random;
  *x ^= *x << 13;
  *x ^= *x >> 7;
  *x ^= *x << 17;
  return *x;
}

static void note(struct instance *self, const void *cells, size_t nbytes) {
  for (size_t k = 0; k < nbytes; ++k)
    self->digest = (self->digest ^ ((const unsigned char *)cells)[k]) * 0x100000001b3u;
}

static size_t cell_bytes(const struct model_tensor *tensor) {
  return tensor->rank ? (size_t)tensor->strides[tensor->rank - 1] : (size_t)tensor->nbytes;
}

static int64_t index_of(const struct model_function *function, const char *name) {
  for (int64_t k = 0; k < function->indices; ++k)
    if (!strcmp(function->index_names[k], name)) return k;
  CHECK(0);
  return 0;
}

/* The bytes of an argument. */
static size_t room(const struct model_function *function, const struct model_tensor *tensor,
                   const int64_t *indices) {
  size_t size = cell_bytes(tensor);
  if (size == 0) return (size_t)tensor->nbytes; /* packed */
  for (int64_t axis = 0; axis < tensor->rank; ++axis) {
    const char *const extent = tensor->extents[axis];
    const int64_t stated = extent ? indices[index_of(function, extent)] : tensor->dims[axis];
    size *= stated < 0 ? 0 : (size_t)(stated < tensor->dims[axis] ? stated : tensor->dims[axis]);
  }
  return size;
}

static void fill(struct instance *self, const struct model_tensor *tensor, char *cells,
                 size_t nbytes) {
  const int is_float = !strncmp(tensor->format, "float", 5) || !strncmp(tensor->format, "bfloat", 6);
  const size_t size = cell_bytes(tensor) ? cell_bytes(tensor) : 1;
  const int mode = (int)(draw(self) % 3); /* of all cells: any bits, small ones, some of both */
  for (size_t at = 0; at < nbytes; at += size) {
    uint64_t bits = draw(self);
    const int is_any = mode == 0 || (mode == 2 && bits % 7 == 0);
    if (!is_any && is_float && size == 4) {
      const float small = (float)(int64_t)(bits % 4001) / 1000 - 2;
      memcpy(&bits, &small, 4);
    } else if (!is_any && is_float && size == 8) {
      const double small = (double)(int64_t)(bits % 4001) / 1000 - 2;
      memcpy(&bits, &small, 8);
    } else if (!is_any && is_float && size == 2) {
      bits = 0x3c00 + bits % 0x300 + (bits >> 63 << 15);
    } else if (!is_float && mode) {
      bits %= mode == 1 ? 3 : 40;
    }
    memcpy(cells + at, &bits, size < nbytes - at ? size : nbytes - at);
  }
}

static void call(struct instance *self) {
  void *inputs[256] = {0}, *outputs[256] = {0};
  int64_t indices[16] = {0};
  const int number = (int)(draw(self) % MODEL_FUNCTIONS);
  const struct model_function *const function = &model_functions[number];
  int is_outside = 0, has_null = 0;
  for (int64_t k = 0; k < function->indices; ++k) {
    const int64_t least = function->ranges[2 * k], most = function->ranges[2 * k + 1];
    indices[k] = least + (int64_t)(draw(self) % ((uint64_t)most - (uint64_t)least + 1));
    if (draw(self) % 16 == 0) indices[k] = (int64_t)draw(self);
    is_outside |= indices[k] < least || indices[k] > most;
  }
  for (int64_t k = 0; k < function->inputs + function->outputs; ++k) {
    const struct model_tensor *const tensor = &model_tensors[function->tensors[k]];
    const size_t nbytes = room(function, tensor, indices);
    char *const cells = malloc(nbytes ? nbytes : 1); /* so that sanitizers know its end */
    memset(cells, 0, nbytes);
    if (k < function->inputs) {
      fill(self, tensor, cells, nbytes);
      inputs[k] = cells;
    } else {
      outputs[k - function->inputs] = cells;
    }
  }
  if (function->inputs && draw(self) % 16 == 0) {
    void **const missing = &inputs[draw(self) % (uint64_t)function->inputs];
    free(*missing);
    *missing = 0;
    has_null = 1;
  }
  if (function->outputs && draw(self) % 4 == 0) {
    void **const missing = &outputs[draw(self) % (uint64_t)function->outputs];
    free(*missing);
    *missing = 0;
  }
  const void *const *const given = (const void *const *)inputs;
  const int status = model_call(self->state, number, given, outputs, indices);
  if (has_null)
    CHECK(status == MODEL_NULL_ARGUMENT)
  else if (is_outside)
    CHECK(status == MODEL_BAD_INDEX)
  else
    CHECK(status == MODEL_OK || status == MODEL_BAD_INDEX || status == MODEL_BAD_POSITION)
  *(status ? &self->refused : &self->accepted) += 1;
  note(self, &status, sizeof status);
  for (int64_t k = 0; k < function->outputs; ++k)
    if (outputs[k])
      note(self, outputs[k], room(function, &model_tensors[function->tensors[function->inputs + k]],
                                  indices));
  for (int k = 0; k < 256; ++k) free(inputs[k]), free(outputs[k]);
}

static void misuse(struct instance *self) {
  char *const small = malloc(MODEL_STATE_BYTES + 128);
  char *const aligned = small + (64 - (uintptr_t)small % 64) % 64;
  memset(small, (int)draw(self), MODEL_STATE_BYTES + 128);
  CHECK(model_init(0, MODEL_STATE_BYTES WEIGHTS) == MODEL_BAD_STATE)
  CHECK(model_init(aligned, draw(self) % MODEL_STATE_BYTES WEIGHTS) == MODEL_BAD_STATE)
  CHECK(model_init(aligned + 1 + draw(self) % 63, MODEL_STATE_BYTES WEIGHTS) == MODEL_BAD_STATE)
#ifdef MODEL_WEIGHTS_BYTES
  CHECK(model_init(aligned, MODEL_STATE_BYTES, 0, sizeof weights) == MODEL_BAD_WEIGHTS)
  CHECK(model_init(aligned, MODEL_STATE_BYTES, weights + 1 + draw(self) % 7, sizeof weights) ==
        MODEL_BAD_WEIGHTS)
  CHECK(model_init(aligned, MODEL_STATE_BYTES, weights, draw(self) % sizeof weights) ==
        MODEL_BAD_WEIGHTS)
#endif
  const void *inputs[256] = {0};
  void *outputs[256] = {0};
  const int64_t indices[16] = {0};
  CHECK(model_call(0, 0, inputs, outputs, indices) == MODEL_BAD_STATE)
  CHECK(model_call(aligned, 0, inputs, outputs, indices) == MODEL_BAD_STATE)
  CHECK(model_call(aligned + 8, 0, inputs, outputs, indices) == MODEL_BAD_STATE)
  CHECK(model_call(self->state, MODEL_FUNCTIONS, inputs, outputs, indices) == MODEL_BAD_FUNCTION)
  CHECK(model_call(self->state, -1, inputs, outputs, indices) == MODEL_BAD_FUNCTION)
  CHECK(!model_cells(aligned, 0))
  CHECK(!model_cells(self->state, MODEL_TENSORS) && !model_cells(self->state, -1))
  CHECK(*model_status_text(-1) && *model_status_text((int)draw(self)))
  free(small);
}

static void *run(void *given) {
  struct instance *const self = given;
  for (long k = 0; k < calls; ++k) {
    if (k % 64 == 0) { /* NaN would fill all parameters for good */
      CHECK(model_init(self->state, MODEL_STATE_BYTES WEIGHTS) == MODEL_OK)
      misuse(self);
    }
    call(self);
  }
  return 0;
}

int main(int count, char **arguments) {
  struct instance each[2];
  pthread_t threads[2];
  calls = count > 1 ? atol(arguments[1]) : 100;
#ifdef MODEL_WEIGHTS_BYTES
  FILE *const file = fopen(arguments[2], "rb");
  CHECK(file && fread(weights, 1, sizeof weights, file) == sizeof weights)
  fclose(file);
#endif
  for (int k = 0; k < 2; ++k) {
    char *const state = aligned_alloc(64, (MODEL_STATE_BYTES + 63) / 64 * 64);
    each[k] = (struct instance){state, 0x9e3779b97f4a7c15u, 0xcbf29ce484222325u, 0, 0};
    CHECK(!pthread_create(&threads[k], 0, run, &each[k]))
  }
  for (int k = 0; k < 2; ++k) pthread_join(threads[k], 0);
  CHECK(each[0].digest == each[1].digest)
  printf("%ld accepted, %ld refused\n", each[0].accepted, each[0].refused);
  for (int k = 0; k < 2; ++k) free(each[k].state);
  return 0;
}
