/* Working memory of one thread, kept between calls so that a decoding round allocates nothing. */
#ifndef PHALANX_SCRATCH_H
#define PHALANX_SCRATCH_H

#include <stddef.h>

/* Each use has its own slot; a slot's content is lost when it is asked for again. */
enum scratch_slot {
    SCRATCH_POINTERS, /* row pointers of an operation */
    SCRATCH_SHARED,   /* an operation's buffer that all its tasks see */
    SCRATCH_INDEX,    /* an operation's integer tables */
    SCRATCH_TASK,     /* a task's own floats */
    SCRATCH_TASK_POINTERS,
    SCRATCH_SLOTS,
};

/* At least `bytes` bytes, 64-byte aligned, of the calling thread; NULL when memory is short. */
void *scratch_get(enum scratch_slot slot, size_t bytes);

#endif
