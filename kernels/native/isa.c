/* Which instruction set runs: the best one the machine has, unless told otherwise. */
#include <stdatomic.h>
#include <string.h>

#include "native.h"

extern const struct isa isa_avx2, isa_avx512, isa_portable;

static _Atomic(const struct isa *) in_use;

const struct isa *isa_at(size_t index) {
    const struct isa *runnable[4] = {NULL};
    size_t count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && __builtin_cpu_supports("avx512f")) runnable[count++] = &isa_avx512;
    if (has_avx2) runnable[count++] = &isa_avx2;
#endif
    runnable[count++] = &isa_portable;
    return index < count ? runnable[index] : NULL;
}

const struct isa *isa_in_use(void) {
    const struct isa *isa = atomic_load_explicit(&in_use, memory_order_acquire);
    if (isa == NULL) {
        isa = isa_at(0);
        atomic_store_explicit(&in_use, isa, memory_order_release);
    }
    return isa;
}

int isa_use(const char *name) {
    for (size_t i = 0; isa_at(i) != NULL; i++) {
        if (strcmp(isa_at(i)->name, name) == 0) {
            atomic_store_explicit(&in_use, isa_at(i), memory_order_release);
            return 1;
        }
    }
    return 0;
}
