/* The arithmetic, in terms of lanes; compiled once per instruction set.
 *
 * The including file defines (through its simd_*.h): FN, the function attribute; VF, a forced
 * inline FN; LANES; vf, a vector of LANES floats; and vf_* on it. vf_max and vf_min return their
 * second operand when either is NaN. vf_sum adds the lanes of one vector, vf_sum4 those of four
 * vectors in the same order, so either may be used for the same result. vf_pow2 is 2^n for whole
 * n in -126..127. */

VF vf vf_load_part(const float *p, size_t n) {
    float lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vf_load(lanes);
}

VF vf vf_load_bf16_part(const uint16_t *p, size_t n) {
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return vf_load_bf16(lanes);
}

VF void vf_store_part(float *p, vf x, size_t n) {
    float lanes[LANES];
    vf_store(lanes, x);
    memcpy(p, lanes, n * sizeof *p);
}

/* The first n <= LANES values; a value is computed alike in a whole vector and in the last part. */
VF vf vf_load_n(const float *p, size_t n) { return n == LANES ? vf_load(p) : vf_load_part(p, n); }

VF vf vf_load_bf16_n(const uint16_t *p, size_t n) {
    return n == LANES ? vf_load_bf16(p) : vf_load_bf16_part(p, n);
}

VF void vf_store_n(float *p, vf x, size_t n) {
    if (n == LANES)
        vf_store(p, x);
    else
        vf_store_part(p, x, n);
}

/* e^x to about 1e-7 relative; x is clamped to where the result is a normal number. NaN stays. */
VF vf vf_exp(vf x) {
    x = vf_min(vf_set(88.0f), x);
    x = vf_max(vf_set(-87.0f), x);
    vf n = vf_round(vf_mul(x, vf_set(1.44269504088896341f)));
    /* ln 2 in two parts; n times the first is exact. */
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440054690583e-4f), r);
    /* Taylor series on |r| <= ln(2)/2: the first term left out is below 1e-8. */
    vf p = vf_set(1.0f / 5040);
    p = vf_fma(p, r, vf_set(1.0f / 720));
    p = vf_fma(p, r, vf_set(1.0f / 120));
    p = vf_fma(p, r, vf_set(1.0f / 24));
    p = vf_fma(p, r, vf_set(1.0f / 6));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_mul(p, vf_pow2(n));
}

VF vf vf_sigmoid(vf x) {
    vf one = vf_set(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
}

static FN void silu_mul(float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf g = vf_load_n(gate + i, m);
        vf_store_n(gate + i, vf_mul(vf_mul(g, vf_sigmoid(g)), vf_load_n(up + i, m)), m);
    }
}

static FN void add_scaled(float *acc, float factor, const float *x, size_t n) {
    vf f = vf_set(factor);
    for (size_t i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf_store_n(acc + i, vf_fma(f, vf_load_n(x + i, m), vf_load_n(acc + i, m)), m);
    }
}

static FN void scale(float *x, float factor, size_t n) {
    vf f = vf_set(factor);
    for (size_t i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf_store_n(x + i, vf_mul(f, vf_load_n(x + i, m)), m);
    }
}

static FN float max_of(const float *x, size_t n) {
    float lanes[LANES], best = -INFINITY;
    size_t i = 0;
    if (n >= LANES) {
        vf top = vf_set(-INFINITY);
        for (; i + LANES <= n; i += LANES) top = vf_max(vf_load(x + i), top);
        vf_store(lanes, top);
        for (size_t lane = 0; lane < LANES; lane++) best = lanes[lane] > best ? lanes[lane] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

static FN float exp_sum(float *x, float shift, size_t n) {
    vf s = vf_set(shift), sum = vf_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf e = vf_exp(vf_sub(vf_load(x + i), s));
        vf_store(x + i, e);
        sum = vf_add(sum, e);
    }
    if (i < n) {
        vf_store_part(x + i, vf_exp(vf_sub(vf_load_part(x + i, n - i), s)), n - i);
        sum = vf_add(sum, vf_load_part(x + i, n - i));
    }
    return vf_sum(sum);
}

static FN void sigmoid(float *x, size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf_store_n(x + i, vf_sigmoid(vf_load_n(x + i, m)), m);
    }
}

static FN void rms_norm(const float *x, const void *weight, int dtype, float eps, float *y,
                        size_t n) {
    vf sum0 = vf_zero(), sum1 = vf_zero();
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf a = vf_load(x + i), b = vf_load(x + i + LANES);
        sum0 = vf_fma(a, a, sum0);
        sum1 = vf_fma(b, b, sum1);
    }
    for (; i < n; i += LANES) {
        vf a = vf_load_n(x + i, min_size(n - i, LANES));
        sum0 = vf_fma(a, a, sum0);
    }
    vf factor = vf_set(1.0f / sqrtf(vf_sum(vf_add(sum0, sum1)) / (float)n + eps));
    for (i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf w = dtype == DTYPE_BF16 ? vf_load_bf16_n((const uint16_t *)weight + i, m)
                                   : vf_load_n((const float *)weight + i, m);
        vf_store_n(y + i, vf_mul(w, vf_mul(vf_load_n(x + i, m), factor)), m);
    }
}

static FN void add(const float *a, const float *b, float *y, size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf_store_n(y + i, vf_add(vf_load_n(a + i, m), vf_load_n(b + i, m)), m);
    }
}

static FN void rotate(float *a, float *b, const float *cos, const float *sin, size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        size_t m = min_size(n - i, LANES);
        vf va = vf_load_n(a + i, m), vb = vf_load_n(b + i, m);
        vf c = vf_load_n(cos + i, m), s = vf_load_n(sin + i, m);
        vf_store_n(a + i, vf_sub(vf_mul(va, c), vf_mul(vb, s)), m);
        vf_store_n(b + i, vf_add(vf_mul(vb, c), vf_mul(va, s)), m);
    }
}

static FN void to_bf16(const float *x, uint16_t *y, size_t n) {
    for (size_t i = 0; i < n; i++) { /* the compiler makes vectors of this */
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1);
        uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        y[i] = (uint16_t)(is_nan ? 0x7fc0u : rounded >> 16);
    }
}
