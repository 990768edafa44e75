/* The two matrix products, in tiles of a few rows by a few columns that stay in registers.
 *
 * dot_rows sums over k lane by lane, ascending, one accumulator per (row, column), then adds the
 * lanes: the same order in every tile shape, which is why a row's result does not depend on how
 * many rows there are. bfloat16 weights are widened as they are loaded; the units that do it are
 * otherwise idle. */

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* 4 x 3 accumulators, 3 columns of w and one of x fill the 16 registers of AVX2. */
#define TILE_ROWS 4
#define TILE_COLUMNS 3
typedef vf tile_sums[TILE_ROWS][TILE_COLUMNS];
#define ROW_BLOCK_BYTES (192 * 1024) /* of x, beside the weights in a 512 KiB cache */
#define AHEAD_BYTES 10240            /* measured: enough to cover the latency, at least a tile */

/* The last k % LANES values of a tile's rows and columns, padded with zeros. Filled before the sums
 * begin, so that no call comes between the accumulators and their registers. */
struct tail {
    float x[TILE_ROWS][LANES], w[TILE_COLUMNS][LANES];
};

static FN __attribute__((noinline)) void pad_tail(struct tail *tail, size_t nr, size_t nc,
                                                  const float *const *x, const void *w, int dtype,
                                                  size_t w_stride, size_t k) {
    size_t m = k % LANES, first = k - m;
    for (size_t r = 0; r < nr; r++) vf_store(tail->x[r], vf_load_part(x[r] + first, m));
    for (size_t c = 0; c < nc; c++) {
        const void *rest = element(w, dtype, c * w_stride + first);
        vf_store(tail->w[c], dtype == DTYPE_BF16 ? vf_load_bf16_part(rest, m)
                                                 : vf_load_part(rest, m));
    }
}

/* One tile: nr x nc outputs. Inlined with constant nr and nc, so that `acc` becomes registers.
 * From `next` on, as many bytes as the tile reads are asked for, in one straight walk whichever
 * column is summed: memory answers that faster than nc walks, and a burst of requests gets lost. */
#define DEFINE_TILE(NAME, TYPE, DTYPE, LOAD)                                                      \
    VF void NAME##_step(const size_t nr, const size_t nc, tile_sums acc, const float *const *x,   \
                        const TYPE *w, size_t w_stride, size_t i) {                               \
        vf wv[TILE_COLUMNS];                                                                      \
        UNROLL for (size_t c = 0; c < nc; c++) wv[c] = LOAD(w + c * w_stride + i);                \
        UNROLL for (size_t r = 0; r < nr; r++) {                                                  \
            vf xv = vf_load(x[r] + i);                                                            \
            UNROLL for (size_t c = 0; c < nc; c++) acc[r][c] = vf_fma(xv, wv[c], acc[r][c]);      \
        }                                                                                         \
    }                                                                                             \
    VF void NAME(const size_t nr, const size_t nc, const float *const *x, float *const *y,        \
                 size_t y_col, const TYPE *w, size_t w_stride, size_t k, const char *next) {      \
        const size_t line = 64 / sizeof(TYPE);                                                    \
        const int has_tail = k % LANES != 0;                                                      \
        struct tail tail;                                                                         \
        if (has_tail) pad_tail(&tail, nr, nc, x, w, DTYPE, w_stride, k);                          \
        tile_sums acc;                                                                            \
        UNROLL for (size_t r = 0; r < nr; r++)                                                    \
            UNROLL for (size_t c = 0; c < nc; c++) acc[r][c] = vf_zero();                         \
        size_t i = 0;                                                                             \
        for (; i + line <= k; i += line) {                                                        \
            UNROLL for (size_t c = 0; c < nc; c++)                                                \
                __builtin_prefetch(next + (i / line * nc + c) * 64, 0, 2);                        \
            UNROLL for (size_t u = 0; u < line; u += LANES)                                       \
                NAME##_step(nr, nc, acc, x, w, w_stride, i + u);                                  \
        }                                                                                         \
        for (; i + LANES <= k; i += LANES) NAME##_step(nr, nc, acc, x, w, w_stride, i);           \
        if (has_tail)                                                                             \
            UNROLL for (size_t r = 0; r < nr; r++)                                                \
                UNROLL for (size_t c = 0; c < nc; c++)                                            \
                    acc[r][c] = vf_fma(vf_load(tail.x[r]), vf_load(tail.w[c]), acc[r][c]);        \
        store_sums(nr, nc, acc, y, y_col);                                                        \
    }

VF void store_sums(const size_t nr, const size_t nc, tile_sums acc, float *const *y, size_t y_col) {
    if (nr == 4) {
        UNROLL for (size_t c = 0; c < nc; c++) {
            float out[4];
            vf_sum4(acc[0][c], acc[1][c], acc[2][c], acc[3][c], out);
            UNROLL for (size_t r = 0; r < 4; r++) y[r][y_col + c] = out[r];
        }
    } else {
        UNROLL for (size_t r = 0; r < nr; r++)
            UNROLL for (size_t c = 0; c < nc; c++) y[r][y_col + c] = vf_sum(acc[r][c]);
    }
}

DEFINE_TILE(tile_f32, float, DTYPE_F32, vf_load)
DEFINE_TILE(tile_bf16, uint16_t, DTYPE_BF16, vf_load_bf16)

#define TILE_CASE(TILE, NR, NC)                                                                   \
    case NR * 8 + NC:                                                                             \
        TILE(NR, NC, x, y, y_col, w, w_stride, k, next);                                          \
        break;

#define DEFINE_SOME_TILE(NAME, TILE, TYPE)                                                        \
    static FN void NAME(size_t nr, size_t nc, const float *const *x, float *const *y,             \
                        size_t y_col, const TYPE *w, size_t w_stride, size_t k,                   \
                        const char *next) {                                                       \
        switch (nr * 8 + nc) {                                                                    \
            TILE_CASE(TILE, 1, 1) TILE_CASE(TILE, 1, 2) TILE_CASE(TILE, 1, 3)                     \
            TILE_CASE(TILE, 2, 1) TILE_CASE(TILE, 2, 2) TILE_CASE(TILE, 2, 3)                     \
            TILE_CASE(TILE, 3, 1) TILE_CASE(TILE, 3, 2) TILE_CASE(TILE, 3, 3)                     \
            TILE_CASE(TILE, 4, 1) TILE_CASE(TILE, 4, 2) TILE_CASE(TILE, 4, 3)                     \
        }                                                                                         \
    }

DEFINE_SOME_TILE(some_tile_f32, tile_f32, float)
DEFINE_SOME_TILE(some_tile_bf16, tile_bf16, uint16_t)

/* Column tiles outside, row tiles inside: a column tile's weights come from memory once, and stay
 * in the first-level cache for the other row tiles. Many rows go block by block, so that a block of
 * x stays in the second-level cache; the weights of a call are then read once per block. */
static FN void dot_rows(const float *const *x, float *const *y, size_t y_col, size_t rows,
                        const void *w, int dtype, size_t w_stride, size_t cols, size_t k,
                        const void *next) {
    size_t tile_bytes = TILE_COLUMNS * k * dtype_size(dtype), bytes = cols * k * dtype_size(dtype);
    size_t lead = max_size(AHEAD_BYTES, tile_bytes + AHEAD_BYTES / 4);
    if (w_stride != k || lead > bytes) lead = bytes;
    const char *after = next == NULL ? (const char *)w + bytes : next;
    size_t block = max_size(ROW_BLOCK_BYTES / (k * sizeof(float) + 1) / 4 * 4, 16);
    for (size_t first = 0; first < rows; first += block) {
        size_t end = min_size(rows, first + block);
        for (size_t c = 0; c < cols; c += TILE_COLUMNS) {
            size_t nc = min_size(TILE_COLUMNS, cols - c);
            const void *columns = element(w, dtype, c * w_stride);
            size_t place = c * k * dtype_size(dtype) + lead;
            const char *ahead =
                place < bytes ? (const char *)w + place : after + (place - bytes);
            for (size_t r = first; r < end; r += 4) {
                size_t nr = min_size(4, end - r);
                if (dtype == DTYPE_BF16)
                    some_tile_bf16(nr, nc, x + r, y + r, y_col + c, columns, w_stride, k, ahead);
                else
                    some_tile_f32(nr, nc, x + r, y + r, y_col + c, columns, w_stride, k, ahead);
            }
        }
    }
}

/* acc[q][0..nv*LANES) += sum over j of p[q][j] * v[j][..], accumulators in registers. `m` is the
 * number of valid values of the (single) vector when it is the last, partial one. */
#define DEFINE_MIX(NAME, TYPE, LOAD_N)                                                            \
    VF void NAME(const size_t nq, const size_t nv, float *const *acc, const float *const *p,      \
                 const TYPE *v, size_t v_stride, size_t num_j, size_t d, size_t m,                \
                 const char *next) {                                                              \
        vf sum[3][4];                                                                             \
        UNROLL for (size_t q = 0; q < nq; q++)                                                    \
            UNROLL for (size_t u = 0; u < nv; u++)                                                \
                sum[q][u] = vf_load_n(acc[q] + d + u * LANES, m);                                 \
        for (size_t j = 0; j < num_j; j++) {                                                      \
            vf vv[4];                                                                             \
            __builtin_prefetch(next + (j * v_stride + d) * sizeof(TYPE), 0, 2);                   \
            UNROLL for (size_t u = 0; u < nv; u++)                                                \
                vv[u] = LOAD_N(v + j * v_stride + d + u * LANES, m);                              \
            UNROLL for (size_t q = 0; q < nq; q++) {                                              \
                vf pv = vf_set(p[q][j]);                                                          \
                UNROLL for (size_t u = 0; u < nv; u++)                                            \
                    sum[q][u] = vf_fma(pv, vv[u], sum[q][u]);                                     \
            }                                                                                     \
        }                                                                                         \
        UNROLL for (size_t q = 0; q < nq; q++)                                                    \
            UNROLL for (size_t u = 0; u < nv; u++)                                                \
                vf_store_n(acc[q] + d + u * LANES, sum[q][u], m);                                 \
    }                                                                                             \
    static FN void some_##NAME(size_t nq, float *const *acc, const float *const *p,               \
                               const TYPE *v, size_t v_stride, size_t num_j, size_t dim,          \
                               const char *next) {                                                \
        size_t d = 0;                                                                             \
        for (; d + 4 * LANES <= dim; d += 4 * LANES) {                                            \
            if (nq == 3) NAME(3, 4, acc, p, v, v_stride, num_j, d, LANES, next);                  \
            if (nq == 2) NAME(2, 4, acc, p, v, v_stride, num_j, d, LANES, next);                  \
            if (nq == 1) NAME(1, 4, acc, p, v, v_stride, num_j, d, LANES, next);                  \
        }                                                                                         \
        for (; d < dim; d += LANES)                                                               \
            for (size_t q = 0; q < nq; q++)                                                       \
                NAME(1, 1, acc + q, p + q, v, v_stride, num_j, d, min_size(LANES, dim - d), next);\
    }

DEFINE_MIX(mix_f32, float, vf_load_n)
DEFINE_MIX(mix_bf16, uint16_t, vf_load_bf16_n)

static FN void mix_rows(float *const *acc, const float *const *p, size_t num_q, const void *v,
                        int dtype, size_t v_stride, size_t num_j, size_t dim,
                        const void *next) {
    for (size_t q = 0; q < num_q; q += 3) {
        size_t nq = min_size(3, num_q - q);
        if (dtype == DTYPE_BF16)
            some_mix_bf16(nq, acc + q, p + q, v, v_stride, num_j, dim, next);
        else
            some_mix_f32(nq, acc + q, p + q, v, v_stride, num_j, dim, next);
    }
}
