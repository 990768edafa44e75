/* The arithmetic compiled for one instruction set. */
#include <math.h>
#include <string.h>

#include "native.h"
#include "scratch.h"
#include "simd_portable.h"

#include "primitives.h"
#include "tiles.h"

extern const struct isa isa_portable;
const struct isa isa_portable = {
    .name = "portable",
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
