// A library in place of the NVIDIA driver: devices are memory of this process, and kernels are
// functions of shared objects, which the host compiler made of their CUDA C++.
//
// Work of a stream is queued, and runs when something waits for it, up to the point that is waited
// for: a missing synchronization shows as a wrong result. Copies and kernels must stay inside live
// allocations. A lost context refuses every call. At exit the library writes what was left to the
// file that CUDA_EMULATOR_REPORT names.
//
//   CUDA_EMULATOR_EARLY    devices whose first stream runs its work as soon as its own waits allow,
//                          as 0,1; `others` for all other streams; without it, none does
//   CUDA_EMULATOR_POOLED   1 for a pool of memory that reuses blocks, as that of a device does
//   CUDA_EMULATOR_DEVICES  the number of devices, 1 by default
//   CUDA_EMULATOR_MEMORY   bytes of each, 4 GiB by default
//   CUDA_EMULATOR_PEERS    0 for devices that cannot access each other's memory
//   CUDA_EMULATOR_FAIL     NAME:N lets the Nth call of the function fail, for cuMemAlloc_v2,
//                          cuMemHostAlloc, cuLaunchKernel, cuModuleLoadDataEx, cuGraphLaunch,
//                          cuGraphInstantiateWithFlags, cuEventCreate, cuEventRecord, cuStreamWaitEvent,
//                          cuTensorMapEncodeTiled
//   CUDA_EMULATOR_LIMITS   other limits of a device, as numbers of attributes with their values:
//                          5:3,1:64 for three blocks along x, and blocks of 64 threads
//   CUDA_EMULATOR_REGISTERS  0:N for kernels whose threads have N registers
//   CUDA_LAUNCH_BLOCKING   1 runs each kernel when it is launched
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef unsigned long long Address;
typedef int (*Run)(const char *, size_t, const unsigned *, const unsigned *);

enum {
  OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
  INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, PEER_UNSUPPORTED = 217, PEER_ENABLED = 704,
  INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
};
enum { MOST_DEVICES = 16, MOST_CONTEXTS = 64 };

typedef struct Context { int device, retained, streams; Result error; } Context;
typedef struct Block { char *start; size_t size; Context *context; int is_host; struct Block *next; } Block;
typedef struct Point {  // what an event has recorded
  struct timespec time;
  struct Stream *stream;
  int is_reached, uses;
} Point;
typedef struct Event { Point *point; Context *context; } Event;
typedef enum { COPY, SNAPSHOT, FILL, KERNEL, RECORD, WAIT } Kind;
typedef struct Work {
  Kind kind;
  char *to, *from;
  size_t size, width;
  unsigned value, grid[3], block[3], shared;
  struct Function *function;
  Point *point;
  struct Work **before;  // of a graph: the nodes that it follows
  size_t befores;
  uint64_t number;
  struct Work *next;
} Work;
typedef struct Graph { Work **nodes, **last; size_t count, lasts; Context *context; } Graph;  // last: what the next one follows
typedef struct GraphExec { Graph copy; Context *context; } GraphExec;
typedef struct Stream {
  Context *context;
  unsigned flags;
  int is_first;     // of its context
  Work *first, *last;
  Graph *captured;  // NULL unless the stream is in capture
  int is_invalid;   // a call that a capture does not allow was made
  struct Stream *next;
} Stream;
typedef struct Function { Run run; const char *message; unsigned *shared, most_shared; char name[256]; } Function;
typedef struct KernelParams {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function *function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
  void *kernel;
  Context *context;
} KernelParams;
typedef struct Module { void *library; Context *context; Function *functions[256]; int count; } Module;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int devices = -1;
static size_t memory_bytes, used[MOST_DEVICES];
static Context primary[MOST_DEVICES];
static Stream legacy[MOST_DEVICES];
static __thread Context *stack[MOST_CONTEXTS];
static __thread int depth;
static Block *blocks;
static Stream *streams;
static long live_events, live_modules, live_contexts, live_graphs, launches, graph_launches, copies, graph_nodes, graph_levels;

#define CURRENT() (depth ? stack[depth - 1] : NULL)
#define NEED_CONTEXT()                                    \
  GUARD();                                                \
  if (!depth) return INVALID_CONTEXT;                     \
  if (CURRENT()->error) return CURRENT()->error

static void take_lock(void) { pthread_mutex_lock(&lock); }
static void run_early(void);
static void leave(int *held) {
  run_early();
  pthread_mutex_unlock(&lock);
}
#define GUARD() __attribute__((cleanup(leave))) int held = (take_lock(), 1)

static int must_fail(const char *name) {
  static const char *const names[] = {"cuMemAlloc_v2",      "cuMemHostAlloc", "cuLaunchKernel",
                                      "cuModuleLoadDataEx", "cuGraphLaunch",  "cuGraphInstantiateWithFlags",
                                      "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent",
                                      "cuTensorMapEncodeTiled"};
  enum { COUNT = sizeof names / sizeof *names };
  static int counts[COUNT];
  const char *asked = getenv("CUDA_EMULATOR_FAIL");
  const size_t length = strlen(name);
  for (int k = 0; k < COUNT; ++k)
    if (!strcmp(name, names[k])) {
      const int number = ++counts[k];
      if (asked && !strncmp(asked, name, length) && asked[length] == ':') {
        const char *which = asked + length + 1;
        return *which == '*' || atoi(which) == number;
      }
    }
  return 0;
}

// ----- streams -----------------------------------------------------------------------------------

static void run_until(Stream *stream, const Point *until);

static Point *use(Point *point) {
  ++point->uses;
  return point;
}
static void drop_point(Point *point) {
  if (point && !--point->uses) free(point);
}
static void reach(Point *point) {
  // once it is reached, the stream may be gone
  if (!point->is_reached) run_until(point->stream, point);
}

static Stream *stream_of(Stream *given) {
  return given && given != (Stream *)1 && given != (Stream *)2 ? given : &legacy[CURRENT()->device];
}

static void run_work(Stream *stream, Work *work) {
  Context *context = stream->context;
  switch (work->kind) {
    case COPY: case SNAPSHOT:
      if (!context->error) memmove(work->to, work->from, work->size);
      if (work->kind == SNAPSHOT) free(work->from);
      break;
    case FILL:
      for (size_t k = 0; k < work->size && !context->error; ++k)
        memcpy(work->to + k * work->width, &work->value, work->width);
      break;
    case KERNEL:
      if (!context->error) {
        const Function *function = work->function;
        if (function->shared) *function->shared = work->shared;
        const int code = function->run(work->from, work->size, work->grid, work->block);
        if (code) {
          fprintf(stderr, "emulated device %d, kernel %s: %s\n", context->device, function->name,
                  function->message ? function->message : "failed");
          context->error = code;
        }
      }
      free(work->from);
      break;
    case RECORD:
      clock_gettime(CLOCK_MONOTONIC, &work->point->time);
      work->point->is_reached = 1;
      break;
    case WAIT: reach(work->point); break;
  }
}

static void run_first(Stream *stream) {
  Work *work = stream->first;
  stream->first = work->next;
  if (!stream->first) stream->last = NULL;
  run_work(stream, work);
  drop_point(work->point);
  free(work);
}

// Only the work that the point demands: the rest of the stream is as late as it may be.
static void run_until(Stream *stream, const Point *until) {
  while (stream->first && !(until && until->is_reached)) run_first(stream);
}
static void run_stream(Stream *stream) { run_until(stream, NULL); }

static int run_ready(Stream *stream) {
  int has_run = 0;
  for (const Work *next; (next = stream->first) && !(next->kind == WAIT && !next->point->is_reached); has_run = 1) run_first(stream);
  return has_run;
}
static void run_early(void) {
  static int is_running;
  const char *early = getenv("CUDA_EMULATOR_EARLY");
  if (is_running || !early || !*early) return;
  const int are_others = strchr(early, 'o') != NULL;
  is_running = 1;
  for (int has_run = 1; has_run;) {
    has_run = 0;
    for (int k = 0; k < MOST_DEVICES && are_others; ++k) has_run |= run_ready(&legacy[k]);
    for (Stream *each = streams; each; each = each->next)
      if (each->is_first ? strchr(early, '0' + each->context->device) != NULL : are_others) has_run |= run_ready(each);
  }
  is_running = 0;
}

static void run_context(Context *context) {
  run_stream(&legacy[context->device]);
  for (Stream *each = streams; each; each = each->next)
    if (each->context == context) run_stream(each);
}

static void append(Stream *stream, Work *work) {
  if (stream->last) stream->last->next = work; else stream->first = work;
  stream->last = work;
}

static Work *submit(Stream *stream, Kind kind) {
  Work *work = calloc(1, sizeof *work);
  work->kind = kind;
  if (stream->captured) {
    Graph *graph = stream->captured;
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
    graph->nodes[graph->count++] = work;
    work->before = graph->last, work->befores = graph->lasts;
    graph->last = malloc(sizeof work), graph->lasts = 1;
    graph->last[0] = work;
  } else {
    append(stream, work);
  }
  return work;
}

// A capture takes kernels, copies and fills of its stream; anything else makes it invalid.
static int is_captured(Stream *stream) {
  if (!stream->captured) return 0;
  return stream->is_invalid = 1;
}

// The legacy stream and the streams that are not marked as independent of it run one after the other.
static void run_legacy(void) {
  run_stream(&legacy[CURRENT()->device]);
  for (Stream *each = streams; each; each = each->next)
    if (each->context == CURRENT() && !(each->flags & 1)) run_stream(each);
}

// For tests: as after a kernel that has accessed memory that is not there.
void cuda_emulator_lose_context(int device) { primary[device].error = ILLEGAL_ADDRESS; }

// ----- errors, devices, contexts -----------------------------------------------------------------

Result cuGetErrorString(Result code, const char **text) {
  switch (code) {
    case OK: *text = "no error"; break;
    case INVALID_VALUE: *text = "invalid argument"; break;
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    case NOT_INITIALIZED: *text = "initialization error"; break;
    case NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case INVALID_DEVICE: *text = "invalid device ordinal"; break;
    case INVALID_IMAGE: *text = "device kernel image is invalid"; break;
    case INVALID_CONTEXT: *text = "invalid device context"; break;
    case INVALID_HANDLE: *text = "invalid resource handle"; break;
    case NOT_READY: *text = "device not ready"; break;
    case NOT_FOUND: *text = "named symbol not found"; break;
    case ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    case PEER_UNSUPPORTED: *text = "peer access is not supported between these two devices"; break;
    case PEER_ENABLED: *text = "peer access is already enabled"; break;
    case LAUNCH_FAILED: *text = "unspecified launch failure"; break;
    case NOT_SUPPORTED: *text = "operation not supported"; break;
    case CAPTURE_UNSUPPORTED: *text = "operation not permitted when stream is capturing"; break;
    case CAPTURE_INVALIDATED: *text = "operation failed due to a previous error during capture"; break;
    default: *text = "unknown error"; break;
  }
  return OK;
}

static void report(void) {
  const char *path = getenv("CUDA_EMULATOR_REPORT");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  long device_blocks = 0, host_blocks = 0, live_streams = 0, retained = 0;
  for (Block *each = blocks; each; each = each->next) *(each->is_host ? &host_blocks : &device_blocks) += 1;
  for (Stream *each = streams; each; each = each->next) ++live_streams;
  for (int k = 0; k < MOST_DEVICES; ++k) retained += primary[k].retained;
  fprintf(file,
          "{\"allocations\": %ld, \"host_allocations\": %ld, \"streams\": %ld, \"events\": %ld, "
          "\"modules\": %ld, \"contexts\": %ld, \"graphs\": %ld, \"launches\": %ld, "
          "\"graph_launches\": %ld, \"copies\": %ld, \"graph_nodes\": %ld, \"graph_levels\": %ld}\n",
          device_blocks, host_blocks, live_streams, live_events, live_modules,
          retained + live_contexts, live_graphs, launches, graph_launches, copies, graph_nodes, graph_levels);
  fclose(file);
}

Result cuInit(unsigned flags) {
  if (devices < 0) {
    const char *count = getenv("CUDA_EMULATOR_DEVICES"), *memory = getenv("CUDA_EMULATOR_MEMORY");
    devices = count ? atoi(count) : 1;
    memory_bytes = memory ? strtoull(memory, NULL, 10) : (size_t)4 << 30;
    for (int k = 0; k < MOST_DEVICES; ++k) {
      primary[k].device = k;
      legacy[k].context = &primary[k];
    }
    atexit(report);
  }
  return devices ? OK : NO_DEVICE;
}
Result cuDriverGetVersion(int *version) { *version = 13000; return OK; }
Result cuDeviceGetCount(int *count) { if (devices < 0) return NOT_INITIALIZED; *count = devices; return OK; }
Result cuDeviceGet(int *device, int ordinal) {
  if (devices < 0) return NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
  *device = ordinal;
  return OK;
}
Result cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Emulated device %d", device); return OK; }
Result cuDeviceComputeCapability(int *major, int *minor, int device) { *major = 9; *minor = 0; return OK; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = memory_bytes; return OK; }
static int planted(const char *variable, int key, int usual) {  // the value of a key in a list KEY:VALUE,KEY:VALUE
  const char *at = getenv(variable);
  int found, value, length;
  while (at && sscanf(at, "%d:%d%n", &found, &value, &length) == 2) {
    if (found == key) return value;
    at += length;
    at += *at == ',';
  }
  return usual;
}
static int limit(int attribute, int usual) { return planted("CUDA_EMULATOR_LIMITS", attribute, usual); }
static int registers_of_thread(void) { return planted("CUDA_EMULATOR_REGISTERS", 0, 0); }
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 1: *value = 1024; break;              // threads per block
    case 2: case 3: *value = 1024; break;      // block x, y
    case 4: *value = 64; break;                // block z
    case 5: *value = 2147483647; break;        // grid x
    case 6: case 7: *value = 65535; break;     // grid y, z
    case 8: *value = 49152; break;             // shared memory per block
    case 10: *value = 32; break;               // warp
    case 12: *value = 65536; break;            // registers per block
    case 13: *value = 1000000; break;          // clock
    case 16: *value = 4; break;                // multiprocessors
    case 38: *value = 1 << 20; break;          // L2
    case 39: *value = 2048; break;             // threads per multiprocessor
    case 75: *value = 9; break;                // capability
    case 76: *value = 0; break;
    case 81: *value = 233472; break;           // shared memory per multiprocessor
    case 82: *value = 65536; break;            // registers per multiprocessor
    case 97: *value = 232448; break;           // shared memory per block, opt in
    case 41: case 19: *value = 1; break;       // unified addresses, mapped host memory
    default: *value = 0;
  }
  *value = limit(attribute, *value);
  return OK;
}
Result cuDeviceCanAccessPeer(int *value, int device, int peer) {
  const char *peers = getenv("CUDA_EMULATOR_PEERS");
  *value = device != peer && !(peers && *peers == '0');
  return OK;
}
Result cuDevicePrimaryCtxRetain(Context **context, int device) { primary[device].retained++; *context = &primary[device]; return OK; }
Result cuDevicePrimaryCtxRelease_v2(int device) {
  GUARD();
  if (!primary[device].retained) return INVALID_CONTEXT;
  if (!--primary[device].retained) run_context(&primary[device]);
  return primary[device].error;
}
Result cuCtxCreate_v2(Context **context, unsigned flags, int device) {
  *context = calloc(1, sizeof **context);
  (*context)->device = device;
  stack[depth++] = *context;
  ++live_contexts;
  return OK;
}
Result cuCtxCreate_v4(Context **context, void *parameters, unsigned flags, int device) { return cuCtxCreate_v2(context, flags, device); }
Result cuCtxDestroy_v2(Context *context) {   GUARD();
run_context(context); --live_contexts; return OK; }
Result cuCtxDetach(Context *context) { run_context(context); if (context != &primary[context->device]) --live_contexts; return OK; }
Result cuCtxPushCurrent_v2(Context *context) {
  if (depth == MOST_CONTEXTS) return INVALID_VALUE;
  stack[depth++] = context;
  return OK;
}
Result cuCtxPopCurrent_v2(Context **context) {
  if (!depth) return INVALID_CONTEXT;
  --depth;
  if (context) *context = stack[depth];
  return OK;
}
Result cuCtxGetCurrent(Context **context) { *context = CURRENT(); return OK; }
Result cuCtxGetDevice(int *device) { if (!depth) return INVALID_CONTEXT; *device = CURRENT()->device; return OK; }
Result cuCtxSynchronize(void) {
  NEED_CONTEXT();
  run_context(CURRENT());
  return CURRENT()->error;
}
Result cuCtxEnablePeerAccess(Context *peer, unsigned flags) {
  static char enabled[MOST_DEVICES][MOST_DEVICES];
  NEED_CONTEXT();
  int can_access = 0;
  cuDeviceCanAccessPeer(&can_access, CURRENT()->device, peer->device);
  if (!can_access) return PEER_UNSUPPORTED;
  char *cell = &enabled[CURRENT()->device][peer->device];
  if (*cell) return PEER_ENABLED;
  *cell = 1;
  return OK;
}

// ----- memory ------------------------------------------------------------------------------------

static Block *block_of(Address address, size_t size) {
  char *start = (char *)(uintptr_t)address;
  for (Block *each = blocks; each; each = each->next)
    if (start >= each->start && start + size <= each->start + each->size) return each;
  return NULL;
}
static Block *add_block(size_t size, Context *context, int is_host) {
  Block *block = calloc(1, sizeof *block);
  // 256 bytes of alignment, and no byte more than was asked for: sanitizers see every overrun
  if (posix_memalign((void **)&block->start, 256, size)) abort();
  memset(block->start, 0xff, size);
  block->size = size, block->context = context, block->is_host = is_host, block->next = blocks;
  blocks = block;
  return block;
}
static int holds(const Block *block, const void *place) {
  return (char *)place >= block->start && (char *)place < block->start + block->size;
}
static int is_used(const Stream *stream, const Block *block) {
  for (const Work *each = stream->first; each; each = each->next) {
    if (each->kind == COPY && (holds(block, each->to) || holds(block, each->from))) return 1;
    for (size_t k = 0; each->kind == KERNEL && k + 8 <= each->size; k += 8)
      if (holds(block, *(void **)(each->from + k))) return 1;
  }
  return 0;
}
// Memory of a device is freed after its work. Memory of the host is freed at once: queued work must not use it.
static Result drop_block(void *start, int is_host) {
  GUARD();
  for (Block **each = &blocks; *each; each = &(*each)->next)
    if ((*each)->start == start && (*each)->is_host == is_host) {
      Block *found = *each;
      Context *context = found->context;
      int used_still = is_host && is_used(&legacy[context->device], found);
      for (Stream *other = streams; other && is_host; other = other->next) used_still |= is_used(other, found);
      if (used_still) {
        fprintf(stderr, "emulated device %d: page-locked memory is freed under queued work\n", context->device);
        context->error = ILLEGAL_ADDRESS;
      }
      run_context(context);
      if (!is_host) used[context->device] -= found->size;
      *each = found->next;
      free(found->start);
      free(found);
      return context->error;
    }
  return INVALID_VALUE;
}
Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  NEED_CONTEXT();
  *total = memory_bytes;
  *free_bytes = memory_bytes - used[CURRENT()->device];
  return OK;
}
Result cuMemAlloc_v2(Address *address, size_t size) {
  NEED_CONTEXT();
  if (!size) return INVALID_VALUE;
  const int device = CURRENT()->device;
  if (must_fail("cuMemAlloc_v2") || used[device] + size > memory_bytes) return OUT_OF_MEMORY;
  used[device] += size;
  *address = (Address)(uintptr_t)add_block(size, CURRENT(), 0)->start;
  return OK;
}
Result cuMemFree_v2(Address address) { return drop_block((void *)(uintptr_t)address, 0); }
Result cuMemHostAlloc(void **start, size_t size, unsigned flags) {
  NEED_CONTEXT();
  if (must_fail("cuMemHostAlloc")) return OUT_OF_MEMORY;
  *start = add_block(size, CURRENT(), 1)->start;
  return OK;
}
Result cuMemFreeHost(void *start) { return drop_block(start, 1); }
Result cuMemHostGetDevicePointer_v2(Address *address, void *start, unsigned flags) {
  *address = (Address)(uintptr_t)start;
  return block_of(*address, 1) ? OK : INVALID_VALUE;
}

static int is_device(Address address, size_t size, Context *context) {
  const Block *block = block_of(address, size);
  return block && !block->is_host && block->context == context;
}
static Result copy(Stream *stream, void *to, const void *from, size_t size, int snapshot) {
  Work *work = submit(stream, snapshot ? SNAPSHOT : COPY);
  work->to = to, work->from = (char *)from, work->size = size;
  if (snapshot) memcpy(work->from = malloc(size + !size), from, size);
  ++copies;
  return OK;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, Stream *stream) {
  NEED_CONTEXT();
  if (!is_device(to, size, CURRENT())) return INVALID_VALUE;
  // memory that is not page-locked is copied before the call returns
  return copy(stream_of(stream), (void *)(uintptr_t)to, from, size, !block_of((uintptr_t)from, size));
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, Stream *stream) {
  NEED_CONTEXT();
  if (!is_device(from, size, CURRENT())) return INVALID_VALUE;
  copy(stream_of(stream), to, (void *)(uintptr_t)from, size, 0);
  if (!block_of((uintptr_t)to, size)) run_stream(stream_of(stream));
  return CURRENT()->error;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, Stream *stream) {
  NEED_CONTEXT();
  if (!is_device(to, size, CURRENT()) || !is_device(from, size, CURRENT())) return INVALID_VALUE;
  return copy(stream_of(stream), (void *)(uintptr_t)to, (void *)(uintptr_t)from, size, 0);
}
Result cuMemcpyPeerAsync(Address to, Context *there, Address from, Context *here, size_t size, Stream *stream) {
  NEED_CONTEXT();
  if (!is_device(to, size, there) || !is_device(from, size, here)) return INVALID_VALUE;
  return copy(stream_of(stream), (void *)(uintptr_t)to, (void *)(uintptr_t)from, size, 0);
}
#define SYNCHRONOUS(call) { NEED_CONTEXT(); run_legacy(); const Result code = call; run_legacy(); return code ? code : CURRENT()->error; }
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t size) SYNCHRONOUS(cuMemcpyHtoDAsync_v2(to, from, size, NULL))
Result cuMemcpyDtoH_v2(void *to, Address from, size_t size) SYNCHRONOUS(cuMemcpyDtoHAsync_v2(to, from, size, NULL))
Result cuMemcpyDtoD_v2(Address to, Address from, size_t size) SYNCHRONOUS(cuMemcpyDtoDAsync_v2(to, from, size, NULL))
Result cuMemcpyPeer(Address to, Context *there, Address from, Context *here, size_t size) SYNCHRONOUS(cuMemcpyPeerAsync(to, there, from, here, size, NULL))

static Result fill(Address to, unsigned value, size_t count, size_t width, Stream *stream) {
  NEED_CONTEXT();
  if (!is_device(to, count * width, CURRENT())) return INVALID_VALUE;
  Work *work = submit(stream_of(stream), FILL);
  work->to = (char *)(uintptr_t)to, work->value = value, work->size = count, work->width = width;
  return OK;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t count, Stream *stream) { return fill(to, value, count, 1, stream); }
Result cuMemsetD16Async(Address to, unsigned short value, size_t count, Stream *stream) { return fill(to, value, count, 2, stream); }
Result cuMemsetD32Async(Address to, unsigned value, size_t count, Stream *stream) { return fill(to, value, count, 4, stream); }
Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) { return fill(to, value, count, 1, NULL); }
Result cuMemsetD32_v2(Address to, unsigned value, size_t count) { return fill(to, value, count, 4, NULL); }

// ----- streams and events ------------------------------------------------------------------------

Result cuStreamCreate(Stream **stream, unsigned flags) {
  NEED_CONTEXT();
  Stream *made = calloc(1, sizeof *made);
  made->context = CURRENT(), made->flags = flags, made->next = streams;
  made->is_first = !CURRENT()->streams++;
  *stream = streams = made;
  return OK;
}
Result cuStreamGetCtx(Stream *stream, Context **context) {
  NEED_CONTEXT();
  *context = CURRENT();
  if (stream && stream != (Stream *)1 && stream != (Stream *)2) {
    const Stream *each = streams;
    while (each && each != stream) each = each->next;
    if (!each) return INVALID_HANDLE;
    *context = stream->context;
  }
  return OK;
}
Result cuStreamDestroy_v2(Stream *stream) {
  GUARD();
  for (Stream **each = &streams; *each; each = &(*each)->next)
    if (*each == stream) {
      const Context *context = stream->context;
      run_stream(stream);
      *each = stream->next;
      free(stream);
      return context->error;
    }
  return INVALID_HANDLE;
}
Result cuStreamSynchronize(Stream *stream) {
  NEED_CONTEXT();
  if (is_captured(stream_of(stream))) return CAPTURE_UNSUPPORTED;
  run_stream(stream_of(stream));
  return stream_of(stream)->context->error;
}
Result cuStreamQuery(Stream *stream) {
  NEED_CONTEXT();
  return stream_of(stream)->first ? NOT_READY : stream_of(stream)->context->error;
}
Result cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
  NEED_CONTEXT();
  if (must_fail("cuStreamWaitEvent")) return OUT_OF_MEMORY;
  if (is_captured(stream_of(stream))) return CAPTURE_UNSUPPORTED;
  if (event->point) submit(stream_of(stream), WAIT)->point = use(event->point);
  return OK;
}
Result cuEventCreate(Event **event, unsigned flags) {
  NEED_CONTEXT();
  if (must_fail("cuEventCreate")) return OUT_OF_MEMORY;
  *event = calloc(1, sizeof **event);
  (*event)->context = CURRENT();
  ++live_events;
  return OK;
}
Result cuEventDestroy_v2(Event *event) {
  GUARD();
  const Context *context = event->context;
  drop_point(event->point);  // waits for nothing, as on a device
  free(event);
  --live_events;
  return context->error;
}
Result cuEventRecord(Event *event, Stream *stream) {
  NEED_CONTEXT();
  if (must_fail("cuEventRecord")) return OUT_OF_MEMORY;
  if (event->context != stream_of(stream)->context) return INVALID_HANDLE;
  if (is_captured(stream_of(stream))) return CAPTURE_UNSUPPORTED;
  drop_point(event->point);  // streams that wait for it keep it
  event->point = use(calloc(1, sizeof *event->point));
  event->point->stream = stream_of(stream);
  submit(stream_of(stream), RECORD)->point = use(event->point);
  return OK;
}
Result cuEventSynchronize(Event *event) {
  GUARD();
  if (!depth) return INVALID_CONTEXT;
  if (event->point && !event->context->error) reach(event->point);
  return event->context->error;
}
Result cuEventQuery(Event *event) {
  GUARD();
  if (event->context->error) return event->context->error;
  return event->point && !event->point->is_reached ? NOT_READY : OK;
}
Result cuEventElapsedTime_v2(float *milliseconds, Event *first, Event *last) {
  if (!first->point || !first->point->is_reached || !last->point || !last->point->is_reached) return INVALID_HANDLE;
  const struct timespec *a = &first->point->time, *b = &last->point->time;
  *milliseconds = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) * 1e-6f;
  return OK;
}
Result cuEventElapsedTime(float *milliseconds, Event *first, Event *last) { return cuEventElapsedTime_v2(milliseconds, first, last); }

// ----- kernels -----------------------------------------------------------------------------------

Result cuModuleLoadDataEx(Module **module, const void *image, unsigned count, void *options, void *values) {
  NEED_CONTEXT();
  const Elf64_Ehdr *header = image;
  if (must_fail("cuModuleLoadDataEx")) return OUT_OF_MEMORY;
  if (memcmp(header->e_ident, ELFMAG, 4) || header->e_type != ET_DYN || header->e_machine == EM_CUDA) return INVALID_IMAGE;
  const size_t size = header->e_shoff + (size_t)header->e_shentsize * header->e_shnum;
  const int file = memfd_create("kernels", 0);
  if (file < 0 || write(file, image, size) != (ssize_t)size) return INVALID_IMAGE;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // the file stays open: libraries are found by name
  if (!library) { fprintf(stderr, "emulated driver: %s\n", dlerror()); return INVALID_IMAGE; }
  *module = calloc(1, sizeof **module);
  (*module)->library = library, (*module)->context = CURRENT();
  ++live_modules;
  return OK;
}
Result cuModuleLoadData(Module **module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
Result cuModuleUnload(Module *module) {
  GUARD();
  const Context *context = module->context;
  run_context(module->context);
  for (int k = 0; k < module->count; ++k) free(module->functions[k]);
  free(module);
  --live_modules;
  return context->error;
}
Result cuModuleGetFunction(Function **function, Module *module, const char *name) {
  NEED_CONTEXT();
  char symbol[512];
  snprintf(symbol, sizeof symbol, "cuda_emulator_run_%s", name);
  void *found = dlsym(module->library, symbol);
  if (!found || module->count == 256) return NOT_FOUND;
  Function *made = *function = module->functions[module->count++] = calloc(1, sizeof **function);
  made->run = (Run)found, made->message = dlsym(module->library, "cuda_emulator_message");
  made->shared = dlsym(module->library, "cuda_emulator_shared_bytes"), made->most_shared = 49152;
  snprintf(made->name, sizeof made->name, "%s", name);
  return OK;
}
Result cuFuncGetAttribute(int *value, int attribute, Function *function) {
  NEED_CONTEXT();
  *value = attribute == 0 ? 1024 : attribute == 4 ? registers_of_thread() : 0;
  return OK;
}
Result cuFuncSetAttribute(Function *function, int attribute, int value) {
  NEED_CONTEXT();
  if (attribute == 8 && value > limit(97, 232448)) return INVALID_VALUE;
  if (attribute == 8) function->most_shared = value;
  return OK;
}
Result cuFuncSetCacheConfig(Function *function, int config) { return OK; }
Result cuFuncSetBlockShape(Function *function, int x, int y, int z) { return OK; }
static void set_parameters(Work *work, void **extra) {
  const char *buffer = NULL;
  size_t size = 0;
  for (int k = 0; extra[k]; k += 2) {
    if (extra[k] == (void *)1) buffer = extra[k + 1];
    if (extra[k] == (void *)2) size = *(size_t *)extra[k + 1];
  }
  free(work->from);
  work->from = size ? memcpy(malloc(size), buffer, size) : NULL;
  work->size = size;
}
Result cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, Stream *stream, void **parameters, void **extra) {
  NEED_CONTEXT();
  if (must_fail("cuLaunchKernel")) return LAUNCH_FAILED;
  const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
  static const int usual[] = {1024, 1024, 64, 2147483647, 65535, 65535};
  const unsigned extents[] = {block_x, block_y, block_z, grid_x, grid_y, grid_z};
  for (int k = 0; k < 6; ++k)
    if (!extents[k] || extents[k] > (unsigned)limit(2 + k, usual[k])) return INVALID_VALUE;
  const size_t threads = (size_t)block_x * block_y * block_z;
  if (threads > (size_t)limit(1, 1024) || threads * registers_of_thread() > (size_t)limit(12, 65536) || !extra)
    return INVALID_VALUE;
  if (shared > function->most_shared) return INVALID_VALUE;
  Work *work = submit(stream_of(stream), KERNEL);
  work->shared = shared;
  memcpy(work->grid, grid, sizeof grid);
  memcpy(work->block, block, sizeof block);
  work->function = function;
  set_parameters(work, extra);
  if (stream_of(stream)->captured) return OK;
  ++launches;
  const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking && *blocking == '1') run_stream(stream_of(stream));
  return CURRENT()->error;
}

// ----- tensor maps -------------------------------------------------------------------------------

typedef struct TensorMap {  // as warpgroup_emulator.hpp reads it
  uint64_t address, strides[4];
  uint32_t extents[5], box[5], cell_bytes, rank, kind, unused;
  uint64_t mark, rest[3];
} TensorMap;

Result cuTensorMapEncodeTiled(TensorMap *map, int format, uint32_t rank, void *address, const uint64_t *extents,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                              int swizzle, int promotion, int fill) {
  GUARD();
  if (must_fail("cuTensorMapEncodeTiled")) return INVALID_VALUE;
  static const uint32_t bytes_of[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};  // by formats
  const int is_known = format >= 0 && format < 10 && !interleave && !fill && swizzle == 3;
  if (!is_known || (uintptr_t)map % 64 || (uintptr_t)address % 16 || rank < 1 || rank > 5) return INVALID_VALUE;
  memset(map, 0, sizeof *map);
  const uint32_t cell_bytes = bytes_of[format];
  uint64_t reach = cell_bytes;
  for (uint32_t axis = 0; axis < rank; ++axis) {
    if (!extents[axis] || extents[axis] > 1ull << 32 || !box[axis] || box[axis] > 256 || steps[axis] != 1) return INVALID_VALUE;
    if (axis + 1 < rank && (strides[axis] % 16 || strides[axis] >= 1ull << 40)) return INVALID_VALUE;
    if (axis && axis + 1 < rank && strides[axis] % strides[axis - 1]) return INVALID_VALUE;
    map->extents[axis] = (uint32_t)extents[axis], map->box[axis] = box[axis];
    if (axis + 1 < rank) map->strides[axis] = strides[axis];
    reach += (extents[axis] - 1) * (axis ? strides[axis - 1] : cell_bytes);
  }
  if (box[0] * cell_bytes > 128 || !block_of((Address)(uintptr_t)address, reach)) return INVALID_VALUE;
  map->address = (uintptr_t)address, map->cell_bytes = cell_bytes, map->rank = rank, map->kind = swizzle;
  map->mark = 0x70616d726f736e65;
  return OK;
}

// ----- graphs ------------------------------------------------------------------------------------

static Work *duplicate(const Work *work) {
  Work *made = malloc(sizeof *made);
  *made = *work;
  made->next = NULL, made->before = NULL, made->befores = 0;
  if (work->kind == KERNEL && work->size) made->from = memcpy(malloc(work->size), work->from, work->size);
  return made;
}
static void free_nodes(Graph *graph) {
  for (size_t k = 0; k < graph->count; ++k) {
    if (graph->nodes[k]->kind == KERNEL) free(graph->nodes[k]->from);
    free(graph->nodes[k]->before);
    free(graph->nodes[k]);
  }
  free(graph->nodes);
  free(graph->last);
}
Result cuStreamBeginCapture_v2(Stream *stream, int mode) {
  NEED_CONTEXT();
  if (mode < 0 || mode > 2) return INVALID_VALUE;
  if (stream_of(stream) == &legacy[CURRENT()->device] || stream->captured) return CAPTURE_UNSUPPORTED;
  stream->captured = calloc(1, sizeof *stream->captured);
  stream->captured->context = stream->context;
  stream->is_invalid = 0;
  return OK;
}
Result cuStreamGetCaptureInfo_v2(Stream *stream, int *status, uint64_t *id, Graph **graph, Work ***dependencies, size_t *count) {
  NEED_CONTEXT();
  Graph *captured = stream_of(stream)->captured;
  *status = captured ? 1 + stream->is_invalid : 0;
  if (!captured) return OK;
  if (id) *id = (uintptr_t)captured;
  if (graph) *graph = captured;
  *count = captured->lasts, *dependencies = captured->last;
  return OK;
}
Result cuStreamUpdateCaptureDependencies(Stream *stream, Work **before, size_t count, unsigned flags) {
  NEED_CONTEXT();
  Graph *captured = stream_of(stream)->captured;
  if (!captured || flags != 1) return INVALID_VALUE;  // 1: in place of the last ones
  for (size_t k = 0; k < count; ++k) {
    size_t at = 0;
    while (at < captured->count && captured->nodes[at] != before[k]) ++at;
    if (at == captured->count) return INVALID_VALUE;
  }
  free(captured->last);
  captured->last = count ? memcpy(malloc(count * sizeof *before), before, count * sizeof *before) : NULL;
  captured->lasts = count;
  return OK;
}
Result cuStreamEndCapture(Stream *stream, Graph **graph) {
  NEED_CONTEXT();
  if (!stream->captured) return INVALID_VALUE;
  Graph *captured = stream->captured;
  stream->captured = NULL;
  *graph = NULL;
  if (stream->is_invalid) {
    free_nodes(captured);
    free(captured);
    return CAPTURE_INVALIDATED;
  }
  *graph = captured;
  ++live_graphs;
  return OK;
}
Result cuGraphDestroy(Graph *graph) {
  GUARD();
  const Context *context = graph->context;
  free_nodes(graph);
  free(graph);
  --live_graphs;
  return context->error;
}
Result cuGraphInstantiateWithFlags(GraphExec **exec, Graph *graph, unsigned long long flags) {
  NEED_CONTEXT();
  if (must_fail("cuGraphInstantiateWithFlags")) return OUT_OF_MEMORY;
  GraphExec *made = *exec = calloc(1, sizeof *made);
  made->context = CURRENT();
  made->copy.count = graph->count;
  made->copy.nodes = calloc(graph->count + 1, sizeof *made->copy.nodes);
  uint64_t levels = 0;
  for (size_t k = 0; k < graph->count; ++k) graph->nodes[k]->number = 0;
  for (size_t done = 0; done < graph->count; ++done) {
    // the latest node whose dependences are done: one that states too few of them runs too early
    size_t next = graph->count;
    for (int is_ready = 0; !is_ready;) {
      if (!next--) abort();
      Work *node = graph->nodes[next];
      is_ready = !node->number;
      for (size_t k = 0; k < node->befores && is_ready; ++k) is_ready = node->before[k]->number != 0;
    }
    uint64_t level = 0;
    for (size_t k = 0; k < graph->nodes[next]->befores; ++k)
      if (graph->nodes[next]->before[k]->number > level) level = graph->nodes[next]->before[k]->number;
    graph->nodes[next]->number = ++level;
    if (level > levels) levels = level;
    made->copy.nodes[done] = duplicate(graph->nodes[next]);
    made->copy.nodes[done]->number = (uintptr_t)graph->nodes[next];  // the node that calls name
  }
  graph_nodes += graph->count, graph_levels += levels;
  ++live_graphs;
  return OK;
}
Result cuGraphExecDestroy(GraphExec *exec) {
  GUARD();
  const Context *context = exec->context;
  free_nodes(&exec->copy);
  free(exec);
  --live_graphs;
  return context->error;
}
Result cuGraphLaunch(GraphExec *exec, Stream *stream) {
  NEED_CONTEXT();
  if (must_fail("cuGraphLaunch")) return LAUNCH_FAILED;
  if (stream_of(stream)->context != exec->context) return INVALID_HANDLE;
  if (is_captured(stream_of(stream))) return CAPTURE_UNSUPPORTED;
  for (size_t k = 0; k < exec->copy.count; ++k) append(stream_of(stream), duplicate(exec->copy.nodes[k]));
  ++graph_launches;
  return CURRENT()->error;
}
Result cuGraphKernelNodeGetParams_v2(Work *node, KernelParams *params) {
  NEED_CONTEXT();
  if (node->kind != KERNEL) return INVALID_VALUE;
  memset(params, 0, sizeof *params);
  params->function = node->function;
  memcpy(params->grid, node->grid, sizeof node->grid);
  memcpy(params->block, node->block, sizeof node->block);
  return OK;
}
Result cuGraphExecKernelNodeSetParams_v2(GraphExec *exec, Work *node, const KernelParams *params) {
  NEED_CONTEXT();
  for (size_t k = 0; k < exec->copy.count; ++k) {
    Work *own = exec->copy.nodes[k];
    if (own->number != (uintptr_t)node) continue;
    if (own->kind != KERNEL || own->function != params->function || !params->extra) return INVALID_VALUE;
    memcpy(own->grid, params->grid, sizeof own->grid);
    memcpy(own->block, params->block, sizeof own->block);
    set_parameters(own, params->extra);
    return OK;
  }
  return INVALID_VALUE;
}
