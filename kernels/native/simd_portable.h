/* Lanes of the compiler's own vectors: four floats, on any machine (SSE2, NEON, or plain code).
 * See primitives.h for what each name must do. Multiplication and addition round separately here
 * (the build turns contraction off), so that every tile shape rounds alike. */
#include <math.h>
#include <string.h>

#define FN
#define LANES 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));

#define VF static inline __attribute__((always_inline, unused)) FN

VF vf vf_zero(void) { return (vf){0, 0, 0, 0}; }
VF vf vf_set(float x) { return (vf){x, x, x, x}; }
VF vf vf_load(const float *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
VF void vf_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
VF vf vf_load_bf16(const uint16_t *p) {
    vh half;
    memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}
VF vf vf_add(vf a, vf b) { return a + b; }
VF vf vf_sub(vf a, vf b) { return a - b; }
VF vf vf_mul(vf a, vf b) { return a * b; }
VF vf vf_div(vf a, vf b) { return a / b; }
VF vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
VF vf vf_select(vi condition, vf yes, vf no) {
    return (vf)((condition & (vi)yes) | (~condition & (vi)no));
}
VF vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
VF vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
VF vf vf_round(vf x) {
    for (int i = 0; i < LANES; i++) x[i] = nearbyintf(x[i]);
    return x;
}
VF vf vf_pow2(vf n) {
    vi biased;
    for (int i = 0; i < LANES; i++) biased[i] = ((int32_t)n[i] + 127) << 23;
    return (vf)biased;
}
VF float vf_sum(vf x) { return (x[0] + x[2]) + (x[1] + x[3]); }
VF void vf_sum4(vf a, vf b, vf c, vf d, float *out) {
    out[0] = vf_sum(a), out[1] = vf_sum(b), out[2] = vf_sum(c), out[3] = vf_sum(d);
}
