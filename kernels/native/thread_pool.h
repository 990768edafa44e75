/* A small pool of threads that share one job at a time.
 *
 * A job is a number of tasks, each thread has its range of them, and whoever has done its own takes
 * from the others. The caller works too, so a job finishes even when no worker gets a core: a
 * worker that comes too late finds the job closed, and the caller waits only for workers that have
 * joined. Workers stay awake for some tens of microseconds after a job (the next one of a decoding
 * round follows at once), then give their core away, then sleep. */
#ifndef PHALANX_THREAD_POOL_H
#define PHALANX_THREAD_POOL_H

#include <stddef.h>

typedef void (*task_function)(void *context, size_t task);

/* Threads that work on a job, the caller included. */
int pool_num_threads(void);
void pool_set_num_threads(int num_threads);

/* Run task(context, i) for every i < num_tasks, in any order, and return when all are done.
 * `work_bytes` estimates the memory the job touches; small jobs stay on the calling thread. When
 * another thread's job holds the pool, the calling thread does its own alone. */
void pool_run(size_t num_tasks, task_function task, void *context, size_t work_bytes);

#endif
