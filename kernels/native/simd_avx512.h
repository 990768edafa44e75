/* Lanes of AVX-512F: sixteen floats. See primitives.h for what each name must do.
 *
 * NEVER RUN on a real machine so far, for want of one. It is compiled and chosen by dispatch, and
 * the tests cover it on a machine that has AVX-512; they passed with SIMDe's emulation of the
 * intrinsics (vf_load_bf16 and vf_pow2 written out as loops). Its speed is unknown. The bfloat16
 * dot product of AVX512_BF16 is not used: it would round the activations to bfloat16. */
#include <immintrin.h>
#include <string.h>

#define FN __attribute__((target("avx512f,avx2,fma")))
#define LANES 16
typedef __m512 vf;

#define VF static inline __attribute__((always_inline, unused)) FN

VF vf vf_zero(void) { return _mm512_setzero_ps(); }
VF vf vf_set(float x) { return _mm512_set1_ps(x); }
VF vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
VF vf vf_load_bf16(const uint16_t *p) {
    __m256i half = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
VF vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VF vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VF vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VF vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VF vf vf_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VF vf vf_pow2(vf n) {
    __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

VF __m128 vf_fold(vf x) {
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x), high);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
VF float vf_sum(vf x) {
    __m128 s = vf_fold(x);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
VF void vf_sum4(vf a, vf b, vf c, vf d, float *out) {
    __m128 fa = vf_fold(a), fb = vf_fold(b), fc = vf_fold(c), fd = vf_fold(d);
    __m128 ab = _mm_add_ps(_mm_unpacklo_ps(fa, fb), _mm_unpackhi_ps(fa, fb));
    __m128 cd = _mm_add_ps(_mm_unpacklo_ps(fc, fd), _mm_unpackhi_ps(fc, fd));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
