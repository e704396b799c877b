/* Running routines: one call from Python runs all kernels in order, some on several threads.

   A kernel that may be cut has one table of arguments per part, which say, last of all, which
   iterations are its own. Who runs a part does not change what it computes, so results do not
   depend on the number of threads. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

struct step {
  void (*kernel)(void *const *);
  void *const *const *args; /* one table per part */
  int64_t parts;
};

struct routine {
  const struct step *steps;
  int64_t count;
  struct pool *pool;     /* may be null if no step has parts */
  int64_t *indices;      /* where kernels find the static indices */
  int64_t index_count;
};

struct worker {
  struct pool *pool;
  int64_t number; /* from 1; the caller is number 0 */
  uint64_t seen;  /* the last order that it has carried out */
};

struct pool {
  pthread_mutex_t owner; /* held by the caller whose step is running */
  pthread_mutex_t mutex; /* guards `sleeping`, and orders while somebody sleeps */
  pthread_cond_t wake;
  _Atomic uint64_t order;
  _Atomic int64_t pending; /* workers that have not finished the order */
  const struct step *step; /* of the order; changes only while none is pending */
  int64_t sleeping;
  int64_t threads; /* wanted, the caller included */
  int64_t workers; /* started, the caller not included */
  int is_started;
  struct worker *team;
  struct pool *next;
};

/* about 20 microseconds: longer than the gap between kernels, shorter than anybody notices */
enum { PATIENCE = 1000 };

static _Atomic(struct pool *) pools;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Returns once there is an order newer than the last one seen. */
static uint64_t next_order(struct pool *pool, uint64_t seen) {
  for (int tries = 0; tries < PATIENCE; ++tries) {
    const uint64_t order = atomic_load_explicit(&pool->order, memory_order_acquire);
    if (order != seen) return order;
    pause_briefly();
  }
  pthread_mutex_lock(&pool->mutex);
  ++pool->sleeping;
  while (atomic_load_explicit(&pool->order, memory_order_acquire) == seen)
    pthread_cond_wait(&pool->wake, &pool->mutex);
  --pool->sleeping;
  pthread_mutex_unlock(&pool->mutex);
  return atomic_load_explicit(&pool->order, memory_order_acquire);
}

static void run_parts(const struct step *step, int64_t first, int64_t stride) {
  for (int64_t part = first; part < step->parts; part += stride) step->kernel(step->args[part]);
}

static void *work(void *given) {
  struct worker *self = given;
  struct pool *pool = self->pool;
  for (;;) {
    self->seen = next_order(pool, self->seen);
    run_parts(pool->step, self->number, pool->workers + 1);
    atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_release);
  }
  return NULL;
}

static void reset(struct pool *pool) {
  pthread_mutex_init(&pool->owner, NULL);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  atomic_store(&pool->pending, 0);
  pool->sleeping = 0;
  pool->workers = 0;
  pool->is_started = 0;
}

/* The child of a fork has none of its parent's workers: it starts its own when it needs them. */
static void after_fork(void) {
  for (struct pool *pool = atomic_load(&pools); pool; pool = pool->next) reset(pool);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

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
  for (int64_t number = 1; number < pool->threads; ++number) {
    struct worker *worker = &pool->team[number - 1];
    pthread_t thread;
    worker->pool = pool;
    worker->number = number;
    worker->seen = atomic_load(&pool->order);
    if (pthread_create(&thread, &attributes, work, worker) != 0) break; /* fewer do it all too */
    ++pool->workers;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct pool *ocannl_pool(int64_t threads) {
  struct pool *pool = calloc(1, sizeof *pool);
  struct worker *team = calloc(threads, sizeof *team);
  if (!pool || !team) {
    free(pool);
    free(team);
    return NULL;
  }
  pthread_once(&once, watch_forks);
  pool->threads = threads;
  pool->team = team;
  reset(pool);
  pool->next = atomic_load(&pools);
  while (!atomic_compare_exchange_weak(&pools, &pool->next, pool)) continue;
  return pool;
}

static void run_together(struct pool *pool, const struct step *step) {
  /* another thread of the process is using the workers: one thread gives the same result */
  if (!pool || pthread_mutex_trylock(&pool->owner) != 0) {
    run_parts(step, 0, 1);
    return;
  }
  if (!pool->is_started) start(pool);
  pool->step = step;
  atomic_store_explicit(&pool->pending, pool->workers, memory_order_relaxed);
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add_explicit(&pool->order, 1, memory_order_release);
  if (pool->sleeping) pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  run_parts(step, 0, pool->workers + 1);
  for (int64_t tries = 0; atomic_load_explicit(&pool->pending, memory_order_acquire); ++tries)
    if (tries < PATIENCE)
      pause_briefly();
    else
      sched_yield();
  pthread_mutex_unlock(&pool->owner);
}

void ocannl_run(const struct routine *routine, const int64_t *indices) {
  for (int64_t i = 0; i < routine->index_count; ++i) routine->indices[i] = indices[i];
  const struct step *const end = routine->steps + routine->count;
  for (const struct step *step = routine->steps; step != end; ++step)
    if (step->parts == 1)
      step->kernel(step->args[0]);
    else
      run_together(routine->pool, step);
}
