#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define MAX_THREADS 256
/* Waking a worker costs about as much as reading this many bytes. */
#define PARALLEL_BYTES (48 * 1024)
#define SPIN_NS 40000
#define YIELD_ROUNDS 16

/* The gate is one word, so that joining a job and closing it cannot cross:
 * generation (upper bits), a closed flag, and the number of workers inside. */
#define GATE_CLOSED 512u
#define GATE_INSIDE 511u
#define GATE_GENERATION 1024u

static struct {
    _Alignas(64) atomic_uint gate;
    _Alignas(64) size_t num_ranges;
    task_function task;
    void *context;
    _Alignas(64) atomic_flag busy;
    atomic_int num_threads; /* wanted, the caller included */
    int num_workers;        /* started; written while busy is held */
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    /* The tasks of one thread; others take from it when they have done their own. */
    struct {
        _Alignas(64) atomic_size_t next;
        size_t end;
    } ranges[MAX_THREADS];
} pool = {
    .gate = GATE_CLOSED,
    .busy = ATOMIC_FLAG_INIT,
    .num_threads = 1,
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
};

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* First the own range, in order: a task asks memory for what the next one reads. */
static void work_on_tasks(size_t self) {
    for (size_t i = 0; i < pool.num_ranges; i++) {
        size_t range = (self + i) % pool.num_ranges, end = pool.ranges[range].end, task;
        while ((task = atomic_fetch_add_explicit(&pool.ranges[range].next, 1,
                                                 memory_order_relaxed)) < end)
            pool.task(pool.context, task);
    }
}

static unsigned generation_of(unsigned gate) { return gate / GATE_GENERATION; }

/* Wait for a job later than `seen`: spin, then yield, then sleep. Returns the gate. */
static unsigned wait_for_job(unsigned seen, int may_spin) {
    unsigned gate = atomic_load(&pool.gate);
    if (may_spin) {
        int64_t deadline = now_ns() + SPIN_NS;
        do {
            for (int i = 0; i < 32; i++) {
                gate = atomic_load_explicit(&pool.gate, memory_order_acquire);
                if (generation_of(gate) != seen) return gate;
                pause_briefly();
            }
        } while (now_ns() < deadline);
        for (int i = 0; i < YIELD_ROUNDS; i++) {
            sched_yield();
            gate = atomic_load_explicit(&pool.gate, memory_order_acquire);
            if (generation_of(gate) != seen) return gate;
        }
    }
    pthread_mutex_lock(&pool.mutex);
    atomic_fetch_add(&pool.sleepers, 1);
    while (generation_of(gate = atomic_load(&pool.gate)) == seen)
        pthread_cond_wait(&pool.wake, &pool.mutex);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.mutex);
    return gate;
}

static void *worker_main(void *argument) {
    int index = (int)(intptr_t)argument; /* 1 .. ; the caller is 0 */
    unsigned seen = generation_of(atomic_load(&pool.gate));
    for (;;) {
        int wanted = index < atomic_load_explicit(&pool.num_threads, memory_order_relaxed);
        unsigned gate = wait_for_job(seen, wanted);
        seen = generation_of(gate);
        wanted = index < atomic_load_explicit(&pool.num_threads, memory_order_relaxed);
        while (wanted && !(gate & GATE_CLOSED) && generation_of(gate) == seen) {
            if (!atomic_compare_exchange_weak(&pool.gate, &gate, gate + 1)) continue;
            work_on_tasks((size_t)index);
            atomic_fetch_sub(&pool.gate, 1);
            break;
        }
    }
    return NULL;
}

/* A forked child has none of the workers, and may have inherited a job half done. */
static void reset_in_child(void) {
    pool.num_workers = 0;
    atomic_store(&pool.gate, GATE_CLOSED);
    atomic_store(&pool.sleepers, 0);
    atomic_flag_clear(&pool.busy);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.wake, NULL);
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, reset_in_child); }

static void start_workers(int num_workers) {
    pthread_once(&fork_once, watch_forks);
    sigset_t all, before; /* signals belong to the host program's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.num_workers < num_workers) {
        pthread_t thread;
        void *index = (void *)(intptr_t)(pool.num_workers + 1);
        if (pthread_create(&thread, NULL, worker_main, index) != 0) break; /* fewer will do */
        pthread_detach(thread);
        pool.num_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Wait for the workers inside; one of them may have lost its core in the middle of a task. */
static void close_gate(void) {
    unsigned gate = atomic_fetch_or(&pool.gate, GATE_CLOSED) | GATE_CLOSED;
    int64_t deadline = 0;
    while (gate & GATE_INSIDE) {
        for (int i = 0; i < 32 && (gate & GATE_INSIDE); i++) {
            pause_briefly();
            gate = atomic_load_explicit(&pool.gate, memory_order_acquire);
        }
        int64_t now = now_ns();
        if (deadline == 0) deadline = now + SPIN_NS;
        if (now > deadline) sched_yield();
    }
}

int pool_num_threads(void) { return atomic_load(&pool.num_threads); }

void pool_set_num_threads(int num_threads) {
    if (num_threads < 1) num_threads = 1;
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
    atomic_store(&pool.num_threads, num_threads);
}

void pool_run(size_t num_tasks, task_function task, void *context, size_t work_bytes) {
    int num_workers = atomic_load(&pool.num_threads) - 1;
    int alone = num_workers == 0 || num_tasks < 2 || work_bytes < PARALLEL_BYTES;
    if (alone || atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
        for (size_t i = 0; i < num_tasks; i++) task(context, i);
        return;
    }
    if (pool.num_workers < num_workers) start_workers(num_workers);
    pool.task = task;
    pool.context = context;
    pool.num_ranges = (size_t)num_workers + 1;
    for (size_t i = 0; i < pool.num_ranges; i++) {
        size_t first = num_tasks * i / pool.num_ranges;
        atomic_store_explicit(&pool.ranges[i].next, first, memory_order_relaxed);
        pool.ranges[i].end = num_tasks * (i + 1) / pool.num_ranges;
    }
    unsigned gate = atomic_load(&pool.gate);
    atomic_store(&pool.gate, (gate / GATE_GENERATION + 1) * GATE_GENERATION); /* open, empty */
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.mutex);
    }
    work_on_tasks(0);
    close_gate();
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}
