/* The operations on rows: norm, rotary embedding, cache store. */
#include <string.h>

#include "native.h"
#include "thread_pool.h"

#define ROWS_PER_TASK 8

struct rows_job {
    const void *args;
    const struct isa *isa;
    size_t rows;
    void (*one_row)(const struct rows_job *job, size_t row);
};

static void rows_task(void *context, size_t index) {
    const struct rows_job *job = context;
    size_t end = min_size((index + 1) * ROWS_PER_TASK, job->rows);
    for (size_t row = index * ROWS_PER_TASK; row < end; row++) job->one_row(job, row);
}

static void run_rows(const void *args, size_t rows, size_t row_bytes,
                     void (*one_row)(const struct rows_job *job, size_t row)) {
    struct rows_job job = {.args = args, .isa = isa_in_use(), .rows = rows, .one_row = one_row};
    pool_run(ceil_div(rows, ROWS_PER_TASK), rows_task, &job, rows * row_bytes);
}

static void norm_row(const struct rows_job *job, size_t row) {
    const struct norm_args *a = job->args;
    const float *x = a->x + row * a->x_stride;
    if (a->residual != NULL) {
        float *total = a->total + row * a->width;
        job->isa->add(x, a->residual + row * a->residual_stride, total, a->width);
        x = total;
    }
    job->isa->rms_norm(x, a->weight, a->dtype, a->eps, a->normed + row * a->width, a->width);
}

enum status op_rms_norm(const struct norm_args *a) {
    run_rows(a, a->rows, a->width * sizeof(float) * 2, norm_row);
    return STATUS_OK;
}

static void rotary_row(const struct rows_job *job, size_t row) {
    const struct rotary_args *a = job->args;
    const float *cos = a->cos + (size_t)a->positions[row] * a->half;
    const float *sin = a->sin + (size_t)a->positions[row] * a->half;
    float *q = a->q + row * a->q_stride, *k = a->k + row * a->k_stride;
    for (size_t head = 0; head < a->num_heads; head++, q += a->head_dim)
        job->isa->rotate(q, q + a->half, cos, sin, a->half);
    for (size_t head = 0; head < a->num_kv_heads; head++, k += a->head_dim)
        job->isa->rotate(k, k + a->half, cos, sin, a->half);
}

static int all_within(const int64_t *index, size_t count, size_t limit) {
    for (size_t i = 0; i < count; i++)
        if (index[i] < 0 || (uint64_t)index[i] >= limit) return 0;
    return 1;
}

enum status op_rotary(const struct rotary_args *a) {
    if (!all_within(a->positions, a->rows, a->num_positions)) return STATUS_OUT_OF_RANGE;
    size_t row_bytes = (a->num_heads + a->num_kv_heads) * a->head_dim * sizeof(float) * 2;
    run_rows(a, a->rows, row_bytes, rotary_row);
    return STATUS_OK;
}

static void store_one(const struct rows_job *job, const float *from, void *pool, size_t row) {
    const struct store_args *a = job->args;
    size_t place = (size_t)a->slots[row] * a->slot_width;
    if (a->dtype == DTYPE_BF16)
        job->isa->to_bf16(from, (uint16_t *)pool + place, a->slot_width);
    else
        memcpy((float *)pool + place, from, a->slot_width * sizeof(float));
}

static void store_row(const struct rows_job *job, size_t row) {
    const struct store_args *a = job->args;
    store_one(job, a->k + row * a->k_stride, a->k_pool, row);
    store_one(job, a->v + row * a->v_stride, a->v_pool, row);
}

enum status op_kv_store(const struct store_args *a) {
    if (!all_within(a->slots, a->rows, a->num_slots)) return STATUS_OUT_OF_RANGE;
    run_rows(a, a->rows, a->slot_width * sizeof(float) * 4, store_row);
    return STATUS_OK;
}
