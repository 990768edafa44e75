/* The arithmetic compiled for one instruction set. */
#if defined(__x86_64__)
#include <math.h>
#include <string.h>

#include "native.h"
#include "scratch.h"
#include "simd_avx2.h"

#include "primitives.h"
#include "tiles.h"

extern const struct isa isa_avx2;
const struct isa isa_avx2 = {
    .name = "avx2",
    .dot_rows = dot_rows,
    .mix_rows = mix_rows,
    .silu_mul = silu_mul,
    .add_scaled = add_scaled,
    .scale = scale,
    .max = max_of,
    .exp_sum = exp_sum,
    .sigmoid = sigmoid,
    .rms_norm = rms_norm,
    .add = add,
    .rotate = rotate,
    .to_bf16 = to_bf16,
};
#else
typedef int isa_avx2_is_for_x86_64; /* a translation unit must not be empty */
#endif
