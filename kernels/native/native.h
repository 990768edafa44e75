/* What the native library's files share: operand types, the table of instruction-set functions,
 * and the operations that module.c hands to Python.
 *
 * An operation (op_*.c) is plain C: it cuts the work into tasks and runs them on the thread pool.
 * The arithmetic is in `primitives.h`, compiled once per instruction set (isa_*.c) and reached
 * through `struct isa`. Two promises hold for every operation:
 *   - the result of a row has the same bits whatever the other rows are, wherever it stands among
 *     them, and however many threads work: each sum has one fixed order;
 *   - no operand is read outside its bounds, also where the bounds come from an index operand. */
#ifndef PHALANX_NATIVE_H
#define PHALANX_NATIVE_H

#include <stddef.h>
#include <stdint.h>

enum dtype { DTYPE_F32 = 0, DTYPE_BF16 = 1 };

enum status { STATUS_OK, STATUS_OUT_OF_RANGE, STATUS_NO_MEMORY };

static inline size_t dtype_size(int dtype) { return dtype == DTYPE_BF16 ? 2 : 4; }

static inline const void *element(const void *base, int dtype, size_t index) {
    return (const char *)base + index * dtype_size(dtype);
}

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
static inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

/* The arithmetic of one instruction set. Lengths are elements; `w_stride` is between rows of w.
 * `next` is where the caller will read next, asked for meanwhile; NULL: behind w. */
struct isa {
    const char *name;
    /* y[r][y_col + c] = sum over k of x[r][k] * w[c][k], for every r < rows and c < cols. */
    void (*dot_rows)(const float *const *x, float *const *y, size_t y_col, size_t rows,
                     const void *w, int dtype, size_t w_stride, size_t cols, size_t k,
                     const void *next);
    /* acc[q][d] += sum over j of p[q][j] * v[j][d], in ascending j. */
    void (*mix_rows)(float *const *acc, const float *const *p, size_t num_q, const void *v,
                     int dtype, size_t v_stride, size_t num_j, size_t dim, const void *next);
    /* gate[i] = silu(gate[i]) * up[i]. */
    void (*silu_mul)(float *gate, const float *up, size_t n);
    /* acc[i] += factor * x[i]; acc[i] *= factor. */
    void (*add_scaled)(float *acc, float factor, const float *x, size_t n);
    void (*scale)(float *x, float factor, size_t n);
    /* The largest value, NaN ignored; -inf when there is none. */
    float (*max)(const float *x, size_t n);
    /* x[i] = exp(x[i] - shift); returns the sum. */
    float (*exp_sum)(float *x, float shift, size_t n);
    /* x[i] = 1 / (1 + exp(-x[i])). */
    void (*sigmoid)(float *x, size_t n);
    /* y = weight * x / sqrt(mean(x^2) + eps). */
    void (*rms_norm)(const float *x, const void *weight, int dtype, float eps, float *y, size_t n);
    /* y = a + b. */
    void (*add)(const float *a, const float *b, float *y, size_t n);
    /* (a, b) = (a cos - b sin, b cos + a sin), elementwise. */
    void (*rotate)(float *a, float *b, const float *cos, const float *sin, size_t n);
    /* Round to bfloat16, nearest, ties to even. */
    void (*to_bf16)(const float *x, uint16_t *y, size_t n);
};

/* isa.c: the table in use, the names that this machine can run (best first), and a switch. */
const struct isa *isa_in_use(void);
const struct isa *isa_at(size_t index); /* NULL past the last */
int isa_use(const char *name);          /* 0 when the name is unknown or cannot run here */

struct linear_args {
    const float *x;
    size_t x_stride;
    const void *w;
    int dtype;
    float *out;
    size_t out_stride;
    size_t rows, num_out, width;
};

struct argmax_args {
    const float *x;
    size_t x_stride;
    const void *w;
    int dtype;
    float *value;
    int64_t *index;
    float *log_sum_exp;
    size_t rows, num_out, width;
};

/* expert_ids == NULL: one expert, every row goes to it with weight 1. */
struct experts_args {
    const float *x;
    size_t x_stride;
    const void *gate_up, *down;
    int dtype;
    const int32_t *expert_ids;
    const float *weights;
    float *out;
    size_t rows, num_chosen, num_experts, inner, width;
};

struct attention_args {
    const float *q;
    size_t q_stride;
    const void *k_pool, *v_pool;
    int dtype;
    const int32_t *block_tables, *row_seq, *row_last;
    float scale;
    float *out;
    size_t rows, num_heads, num_kv_heads, head_dim;
    size_t num_blocks, block_size, num_seqs, table_width;
};

struct norm_args {
    const float *x;
    size_t x_stride;
    const float *residual; /* NULL: no addition before the norm */
    size_t residual_stride;
    const void *weight;
    int dtype;
    float eps;
    float *normed, *total;
    size_t rows, width;
};

struct rotary_args {
    float *q;
    size_t q_stride;
    float *k;
    size_t k_stride;
    const float *cos, *sin;
    const int64_t *positions;
    size_t rows, num_heads, num_kv_heads, head_dim, half, num_positions;
};

struct store_args {
    const float *k;
    size_t k_stride;
    const float *v;
    size_t v_stride;
    void *k_pool, *v_pool;
    int dtype;
    const int64_t *slots;
    size_t rows, num_slots, slot_width;
};

struct router_args {
    const float *logits;
    const float *bias; /* NULL: softmax; else grouped sigmoid */
    int32_t *ids;
    float *weights;
    size_t rows, num_experts, top_k, num_groups, topk_groups;
    int normalize;
    float scale;
};

enum status op_linear(const struct linear_args *args);
enum status op_linear_argmax(const struct argmax_args *args);
enum status op_gated_experts(const struct experts_args *args);
enum status op_paged_attention(const struct attention_args *args);
enum status op_rms_norm(const struct norm_args *args);
enum status op_rotary(const struct rotary_args *args);
enum status op_kv_store(const struct store_args *args);
enum status op_router(const struct router_args *args);

#endif
