#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>

struct arena {
    void *memory[SCRATCH_SLOTS];
    size_t capacity[SCRATCH_SLOTS];
};

static pthread_key_t arena_key;
static pthread_once_t arena_once = PTHREAD_ONCE_INIT;
static __thread struct arena *own_arena;

static void free_arena(void *pointer) {
    struct arena *arena = pointer;
    for (int slot = 0; slot < SCRATCH_SLOTS; slot++) free(arena->memory[slot]);
    free(arena);
    own_arena = NULL;
}

static void make_key(void) { pthread_key_create(&arena_key, free_arena); }

void *scratch_get(enum scratch_slot slot, size_t bytes) {
    if (own_arena == NULL) {
        pthread_once(&arena_once, make_key);
        own_arena = calloc(1, sizeof *own_arena);
        if (own_arena == NULL) return NULL;
        pthread_setspecific(arena_key, own_arena); /* frees it when the thread ends */
    }
    if (own_arena->capacity[slot] < bytes || own_arena->memory[slot] == NULL) {
        /* Half as much again, so that a growing batch does not reallocate every round. */
        size_t capacity = (bytes + bytes / 2 + 4096) & ~(size_t)63;
        free(own_arena->memory[slot]);
        own_arena->memory[slot] = NULL;
        own_arena->capacity[slot] = 0;
        void *memory = NULL;
        if (posix_memalign(&memory, 64, capacity) != 0) return NULL;
        own_arena->memory[slot] = memory;
        own_arena->capacity[slot] = capacity;
    }
    return own_arena->memory[slot];
}
