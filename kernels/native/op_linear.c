/* y = x w^T for few or many rows, and the greedy head (largest output, log-sum-exp). */
#include <math.h>
#include <stdatomic.h>

#include "native.h"
#include "scratch.h"
#include "thread_pool.h"

#define MANY_ROWS 16             /* the call is limited by arithmetic from here on */
#define TASK_BYTES (48 * 1024)   /* weights of one task while memory is the limit */
#define ROWS_PER_TASK 256        /* while arithmetic is */
#define TASKS_PER_THREAD 6       /* enough that a late thread costs little */
#define COLUMN_UNIT 12           /* whole tiles, of 3 or of 4 columns */
/* The head sums exp over spans of this many columns, then over spans: one order for all calls. */
#define HEAD_SPAN 256
#define HEAD_ROWS 32

struct linear_job {
    const struct linear_args *args;
    const struct isa *isa;
    const float **x;
    float **y;
    size_t cols_per_task, col_tasks;
};

/* Column count of a task: `want`, but enough tasks for every thread, in whole tiles. */
static size_t task_columns(size_t want, size_t num_columns) {
    size_t even = num_columns / ((size_t)pool_num_threads() * TASKS_PER_THREAD);
    size_t columns = min_size(want, even) / COLUMN_UNIT * COLUMN_UNIT;
    return max_size(columns, COLUMN_UNIT);
}

static void linear_task(void *context, size_t index) {
    const struct linear_job *job = context;
    const struct linear_args *a = job->args;
    size_t col = index % job->col_tasks * job->cols_per_task;
    size_t row = index / job->col_tasks * ROWS_PER_TASK;
    job->isa->dot_rows(job->x + row, job->y + row, col, min_size(ROWS_PER_TASK, a->rows - row),
                       element(a->w, a->dtype, col * a->width), a->dtype, a->width,
                       min_size(job->cols_per_task, a->num_out - col), a->width, NULL);
}

enum status op_linear(const struct linear_args *a) {
    if (a->rows == 0 || a->num_out == 0) return STATUS_OK;
    const float **x = scratch_get(SCRATCH_POINTERS, a->rows * 2 * sizeof *x);
    if (x == NULL) return STATUS_NO_MEMORY;
    float **y = (float **)(x + a->rows);
    for (size_t r = 0; r < a->rows; r++) {
        x[r] = a->x + r * a->x_stride;
        y[r] = a->out + r * a->out_stride;
    }
    size_t row_bytes = a->width * dtype_size(a->dtype);
    size_t want = a->rows < MANY_ROWS ? TASK_BYTES / (row_bytes + 1) : 96;
    struct linear_job job = {.args = a, .isa = isa_in_use(), .x = x, .y = y};
    job.cols_per_task = task_columns(want, a->num_out);
    job.col_tasks = ceil_div(a->num_out, job.cols_per_task);
    size_t row_tasks = ceil_div(a->rows, ROWS_PER_TASK);
    size_t work = row_bytes * a->num_out * ceil_div(a->rows, 8);
    pool_run(job.col_tasks * row_tasks, linear_task, &job, work);
    return STATUS_OK;
}

struct span_maximum {
    float value, sum; /* sum over the span of exp(logit - value) */
    int64_t index;
};

struct argmax_job {
    const struct argmax_args *args;
    const struct isa *isa;
    struct span_maximum *spans; /* [span][row] */
    atomic_int failed;
};

static struct span_maximum span_maximum(const struct isa *isa, float *logits, size_t n,
                                        size_t first) {
    struct span_maximum span = {.value = isa->max(logits, n), .index = (int64_t)first};
    for (size_t i = 0; i < n; i++) {
        if (logits[i] == span.value) {
            span.index = (int64_t)(first + i);
            break;
        }
    }
    span.sum = isa->exp_sum(logits, span.value, n);
    return span;
}

static void argmax_task(void *context, size_t index) {
    struct argmax_job *job = context;
    const struct argmax_args *a = job->args;
    size_t col = index * HEAD_SPAN, n = min_size(HEAD_SPAN, a->num_out - col);
    float *logits = scratch_get(SCRATCH_TASK, HEAD_ROWS * HEAD_SPAN * sizeof *logits);
    if (logits == NULL) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (size_t row = 0; row < a->rows; row += HEAD_ROWS) {
        size_t rows = min_size(HEAD_ROWS, a->rows - row);
        const float *x[HEAD_ROWS];
        float *y[HEAD_ROWS];
        for (size_t r = 0; r < rows; r++) {
            x[r] = a->x + (row + r) * a->x_stride;
            y[r] = logits + r * HEAD_SPAN;
        }
        job->isa->dot_rows(x, y, 0, rows, element(a->w, a->dtype, col * a->width), a->dtype,
                           a->width, n, a->width, NULL);
        for (size_t r = 0; r < rows; r++)
            job->spans[index * a->rows + row + r] = span_maximum(job->isa, y[r], n, col);
    }
}

static void merge_spans(const struct argmax_args *a, const struct span_maximum *spans,
                        size_t num_spans, size_t row) {
    struct span_maximum best = spans[row];
    for (size_t s = 1; s < num_spans; s++)
        if (spans[s * a->rows + row].value > best.value) best = spans[s * a->rows + row];
    double sum = 0;
    for (size_t s = 0; s < num_spans; s++) {
        const struct span_maximum *span = &spans[s * a->rows + row];
        sum += span->sum * exp((double)span->value - best.value);
    }
    a->value[row] = best.value;
    a->index[row] = best.index;
    a->log_sum_exp[row] = (float)(best.value + log(sum));
}

enum status op_linear_argmax(const struct argmax_args *a) {
    if (a->rows == 0 || a->num_out == 0) return STATUS_OK;
    size_t num_spans = ceil_div(a->num_out, HEAD_SPAN);
    struct argmax_job job = {.args = a, .isa = isa_in_use()};
    job.spans = scratch_get(SCRATCH_SHARED, num_spans * a->rows * sizeof *job.spans);
    if (job.spans == NULL) return STATUS_NO_MEMORY;
    size_t work = a->num_out * a->width * dtype_size(a->dtype) * ceil_div(a->rows, 8);
    pool_run(num_spans, argmax_task, &job, work);
    if (atomic_load(&job.failed)) return STATUS_NO_MEMORY;
    for (size_t row = 0; row < a->rows; row++) merge_spans(a, job.spans, num_spans, row);
    return STATUS_OK;
}
