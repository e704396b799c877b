/* Running routines: one call from Python runs all kernels in order, some on several threads.

   A kernel that may be cut has one table of arguments per part, which say, last of all, which
   iterations are its own. The caller and the workers of a pool take parts until none is left. Who
   runs a part does not change what it computes, so results do not depend on the threads; and a
   caller whose workers get no processor does it all. */

#pragma GCC optimize("O2") /* a call takes a few nanoseconds less */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct step {
  void (*kernel)(void *const *);
  void ***args; /* one table per part */
  int64_t parts;
  int64_t work;  /* about how many cycles it takes */
  /* arguments that are memory of the thread: how many, which is the first, where they begin */
  int64_t private_count;
  int64_t private_at;
  const int64_t *offsets;
  const int64_t *failed; /* what its checks set to end the routine; null if it has none */
  /* without a kernel, a jump: the start of a repetition, forwards to its end if there are no
     iterations; or the end, backwards to the start until the index is at its end */
  int64_t *index;
  int64_t start;
  int64_t end;
  int64_t by;
  int64_t jump;
};

struct routine {
  const struct step *steps;
  int64_t count;
  struct pool *pool;     /* may be null if no step has parts */
  int64_t *indices;      /* where kernels find the static indices; after them, while it runs, `generation` */
  int64_t index_count;
  char *memory;          /* that of the threads, one after the other */
  int64_t room;          /* the bytes of each */
};

struct pool {
  pthread_mutex_t owner; /* held by the caller whose step is running */
  pthread_mutex_t mutex; /* guards `sleeping`, and new orders while somebody sleeps */
  pthread_cond_t wake;
  /* the number of the order, and in the lower half which of its parts nobody has taken: 16 bits for
     the first one and 16 for the end; only who took a part may look at the next two, which stay
     until all parts are finished */
  _Atomic uint64_t order;
  _Atomic int64_t unfinished;
  const struct routine *routine;
  const struct step *step;
  int64_t sleeping;
  int64_t missed; /* the work that was done while somebody slept, since the last wake-up */
  int64_t threads; /* wanted, the caller included */
  int is_started;
  struct pool *next;
};

/* some 80 microseconds: longer than the gaps between kernels and between calls */
enum { PATIENCE = 2000 };

enum { MOST_PARTS = 0xffff };

/* Cycles of work for which sleepers are woken. Handing a part to a thread that waits takes a tenth
   of a microsecond; waking one that sleeps costs the caller 6 to 20, measured on a virtual machine
   of two processors. So small kernels wake nobody until enough of them came one after the other. */
enum { WAKING_WORK = 1 << 16 };

static _Atomic(struct pool *) pools;

/* The forks between the first process and this one, and 1. */
static int64_t generation = 1;

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Runs a part on a thread, which are counted from 0. A table is used by one thread at a time. */
static void run_part(const struct routine *routine, const struct step *step, int64_t part,
                     int64_t thread) {
  void **const args = step->args[part];
  for (int64_t i = 0; i < step->private_count; ++i)
    args[step->private_at + i] = routine->memory + thread * routine->room + step->offsets[i];
  step->kernel(args);
}

static uint32_t number_of(uint64_t order) { return (uint32_t)(order >> 32); }

/* Returns the number of an order other than the last one seen, once there is one. */
static uint32_t next_order(struct pool *pool, uint32_t seen) {
  uint32_t number = seen;
  for (unsigned tries = 0; tries < PATIENCE; ++tries) {
    number = number_of(atomic_load_explicit(&pool->order, memory_order_acquire));
    if (number != seen) return number;
    pause_briefly();
    if (tries % 32 == 31) sched_yield(); /* the caller may be waiting for this processor */
  }
  pthread_mutex_lock(&pool->mutex);
  ++pool->sleeping;
  while ((number = number_of(atomic_load_explicit(&pool->order, memory_order_acquire))) == seen)
    pthread_cond_wait(&pool->wake, &pool->mutex);
  --pool->sleeping;
  pthread_mutex_unlock(&pool->mutex);
  return number;
}

static uint64_t order_of(uint32_t number, uint32_t first, uint32_t end) {
  return (uint64_t)number << 32 | first << 16 | end;
}

/* Runs parts of an order until all are taken: the caller from the front, workers from the back, so
   that they mostly find in their caches what they left there in the kernel before. */
static void take_parts(struct pool *pool, uint32_t number, int64_t thread) {
  uint64_t order = atomic_load_explicit(&pool->order, memory_order_acquire);
  for (;;) {
    const uint32_t first = (uint32_t)order >> 16, end = order & MOST_PARTS;
    if (number_of(order) != number || first == end) break;
    const uint64_t left = thread ? order_of(number, first, end - 1) : order_of(number, first + 1, end);
    if (!atomic_compare_exchange_weak_explicit(&pool->order, &order, left, memory_order_acq_rel,
                                               memory_order_acquire))
      continue;
    run_part(pool->routine, pool->step, thread ? end - 1 : first, thread);
    atomic_fetch_sub_explicit(&pool->unfinished, 1, memory_order_release);
    order = atomic_load_explicit(&pool->order, memory_order_acquire);
  }
}

struct worker {
  struct pool *pool;
  int64_t thread;
};

static void *work(void *given) {
  const struct worker self = *(struct worker *)given;
  uint32_t number = 0;
  free(given);
  for (;;) {
    number = next_order(self.pool, number);
    take_parts(self.pool, number, self.thread);
  }
  return NULL;
}

static void reset(struct pool *pool) {
  pthread_mutex_init(&pool->owner, NULL);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  atomic_store(&pool->order, 0);
  pool->sleeping = 0;
  pool->missed = 0;
  pool->is_started = 0;
}

/* The child of a fork has none of its parent's threads: it starts workers when it needs them, and
   calls that ran there do not run here. */
static void after_fork(void) {
  ++generation;
  for (struct pool *pool = atomic_load(&pools); pool; pool = pool->next) reset(pool);
}

#ifdef __GLIBC__
/* pthread_atfork is in the static part of the C library, which a linker without a development
   package does not have, and calls this function of the shared part. Without the handle of an
   object, the function stays registered, as this object stays mapped. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
__attribute__((constructor)) static void watch_forks(void) { __register_atfork(NULL, NULL, after_fork, NULL); }
#else
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#endif

/* Workers take no signals, which are Python's, and end with the process. */
static void start(struct pool *pool) {
  sigset_t all, before;
  pthread_attr_t attributes;
  pool->is_started = 1;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
  for (int64_t count = 1; count < pool->threads; ++count) {
    pthread_t thread;
    struct worker *worker = malloc(sizeof *worker);
    if (!worker) break; /* fewer do it all too */
    *worker = (struct worker){pool, count};
    if (pthread_create(&thread, &attributes, work, worker) != 0) {
      free(worker);
      break;
    }
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct pool *ocannl_pool(int64_t threads) {
  struct pool *pool = calloc(1, sizeof *pool);
  if (!pool) return NULL;
  pool->threads = threads;
  reset(pool);
  pool->next = atomic_load(&pools);
  while (!atomic_compare_exchange_weak(&pools, &pool->next, pool)) continue;
  return pool;
}

static void run_together(const struct routine *routine, const struct step *step) {
  struct pool *const pool = routine->pool;
  /* another thread of the process is using the workers: one thread gives the same result */
  if (!pool || pthread_mutex_trylock(&pool->owner) != 0) {
    for (int64_t part = 0; part < step->parts; ++part) run_part(routine, step, part, 0);
    return;
  }
  if (!pool->is_started) start(pool);
  uint32_t number = number_of(atomic_load_explicit(&pool->order, memory_order_relaxed)) + 1;
  if (number == 0) number = 1; /* what workers start from */
  pool->routine = routine;
  pool->step = step;
  atomic_store_explicit(&pool->unfinished, step->parts, memory_order_relaxed);
  pthread_mutex_lock(&pool->mutex);
  atomic_store_explicit(&pool->order, order_of(number, 0, (uint32_t)step->parts),
                        memory_order_release);
  pool->missed = pool->sleeping ? pool->missed + step->work : 0;
  const int wakes = pool->missed >= WAKING_WORK;
  if (wakes) pool->missed = 0;
  pthread_mutex_unlock(&pool->mutex);
  if (wakes) pthread_cond_broadcast(&pool->wake); /* who wakes up finds the mutex free */
  take_parts(pool, number, 0);
  for (unsigned tries = 0; atomic_load_explicit(&pool->unfinished, memory_order_acquire); ++tries)
    if (tries < PATIENCE)
      pause_briefly();
    else
      sched_yield(); /* a worker that has a part has no processor */
  pthread_mutex_unlock(&pool->owner);
}

/* Runs the steps in order, up to one whose checks fail; returns 1 if there is such a step. */
static int run(const struct routine *routine) {
  const struct step *const end = routine->steps + routine->count;
  for (const struct step *step = routine->steps; step != end; ++step) {
    if (!step->kernel) {
      *step->index = step->jump > 0 ? step->start : *step->index + step->by;
      if ((*step->index == step->end) == (step->jump > 0)) step += step->jump;
      continue;
    }
    if (step->parts == 1)
      run_part(routine, step, 0, 0);
    else
      run_together(routine, step);
    if (step->failed && *step->failed) return 1;
  }
  return 0;
}

/* Code that compilers optimize little leaves the upper parts of vector registers in use, with which
   instructions for shorter vectors, in other libraries on this thread, take three times as long. */
static void leave_vectors(void) {
#if defined(__AVX__)
  __builtin_ia32_vzeroupper();
#endif
}

/* What this file calls of Python: functions of its stable interface. Python gives their addresses,
   so that neither its headers nor its library are needed to compile and load this. */
struct python {
  void *none;
  ptrdiff_t (*size)(void *);
  void *(*item)(void *, ptrdiff_t);
  void *(*member)(void *, ptrdiff_t); /* of a tuple, borrowed */
  long long (*as_integer)(void *);
  void *(*as_pointer)(void *);
  void *(*error)(void);
  void *(*call)(void *, ...);
  void (*keep)(void *);
  void (*drop)(void *);
  void *(*let_others_run)(void);
  void (*run_again)(void *);
};

struct python ocannl_python;

/* A function of Python: runs a routine with the values of its static indices, a sequence. `self` is a
   tuple: the address of the routine, what is called with values that are too few or too many, what is
   called while the routine runs already, what is called after a check fails, and what lives as long.
   Calls through a foreign function interface take several times as long. */
static void *run_from_python(void *self, void *values) {
  const struct python *const python = &ocannl_python;
  const struct routine *const routine = python->as_pointer(python->member(self, 0));
  const ptrdiff_t count = python->size(values);
  if (count != routine->index_count)
    return count < 0 ? NULL : python->call(python->member(self, 1), values, NULL);
  int64_t *const is_running = routine->indices + count;
  /* threads of Python look at this one after the other: none runs here until others are let run */
  if (*is_running == generation) return python->call(python->member(self, 2), NULL);
  *is_running = generation;
  for (ptrdiff_t i = 0; i < count; ++i) {
    void *const value = python->item(values, i);
    if (!value) goto failed;
    const long long number = python->as_integer(value);
    python->drop(value);
    if (number == -1 && python->error()) goto failed;
    routine->indices[i] = number;
  }
  void *const state = python->let_others_run();
  const int has_failed = run(routine);
  leave_vectors();
  python->run_again(state);
  *is_running = 0;
  if (has_failed) return python->call(python->member(self, 3), NULL);
  python->keep(python->none);
  return python->none;
failed:
  *is_running = 0;
  return NULL;
}

enum { ONE_ARGUMENT = 8 }; /* METH_O */

struct {
  const char *name;
  void *(*function)(void *, void *);
  int flags;
  const char *doc;
} ocannl_method = {"launch", run_from_python, ONE_ARGUMENT,
                   "Runs a routine with these values of its static indices."};
