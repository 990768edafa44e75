/* A rank's experts: y[r] = sum over a of weight[r][a] * down(silu(gate(x[r])) * up(x[r])).
 *
 * Two jobs. The first has a task for every (expert, span of its inner columns) and fills `hidden`,
 * one row per (row, choice) pair, pairs sorted by expert. The second has a task for every span of
 * output columns: all experts' down-projections of that span, then the weighted sum of each row
 * over its choices in ascending order. An expert's weights are read once for all its rows. */
#include <stdatomic.h>
#include <string.h>

#include "native.h"
#include "scratch.h"
#include "thread_pool.h"

#define ROWS_PER_PASS 512        /* bounds the hidden buffer; weights are read once per pass */
#define ROWS_PER_PANEL 128       /* pairs of one expert worked on at once */
#define TASK_BYTES (128 * 1024)  /* weights of one task while memory is the limit */
#define MAX_COLUMNS 96           /* while arithmetic is */
#define TASKS_PER_THREAD 6
#define COLUMN_UNIT 12           /* whole tiles, of 3 or of 4 columns */

struct experts_job {
    const struct experts_args *args;
    const struct isa *isa;
    size_t first_row, rows;
    size_t num_pairs, num_active;
    const int32_t *active; /* [num_active] experts with rows in this pass */
    const int32_t *starts; /* [num_experts + 1] first pair of each expert */
    const int32_t *places; /* [rows * num_chosen] pair of (row, choice), or -1 */
    const float **x;       /* [num_pairs] input row of each pair */
    float **hidden;        /* [num_pairs] */
    size_t inner_span, inner_tasks, out_span;
    atomic_int failed;
};

static size_t span_of(size_t row_bytes, size_t num_columns, size_t num_groups) {
    size_t want = min_size(TASK_BYTES / (row_bytes + 1), MAX_COLUMNS);
    size_t even = num_columns * num_groups / ((size_t)pool_num_threads() * TASKS_PER_THREAD);
    size_t span = min_size(want, even) / COLUMN_UNIT * COLUMN_UNIT;
    return min_size(max_size(span, COLUMN_UNIT), num_columns);
}

static void hidden_task(void *context, size_t index) {
    struct experts_job *job = context;
    const struct experts_args *a = job->args;
    size_t expert = (size_t)job->active[index / job->inner_tasks];
    size_t col = index % job->inner_tasks * job->inner_span;
    size_t cols = min_size(job->inner_span, a->inner - col);
    size_t end = (size_t)job->starts[expert + 1];
    float *up = scratch_get(SCRATCH_TASK, ROWS_PER_PANEL * cols * sizeof *up);
    if (up == NULL) {
        atomic_store(&job->failed, 1);
        return;
    }
    const void *gate_w = element(a->gate_up, a->dtype, (2 * expert * a->inner + col) * a->width);
    const void *up_w = element(gate_w, a->dtype, a->inner * a->width);
    const void *after = element(gate_w, a->dtype, cols * a->width);
    for (size_t pair = (size_t)job->starts[expert]; pair < end; pair += ROWS_PER_PANEL) {
        size_t rows = min_size(ROWS_PER_PANEL, end - pair);
        float *up_rows[ROWS_PER_PANEL];
        for (size_t r = 0; r < rows; r++) up_rows[r] = up + r * cols;
        job->isa->dot_rows(job->x + pair, job->hidden + pair, col, rows, gate_w, a->dtype,
                           a->width, cols, a->width, up_w);
        job->isa->dot_rows(job->x + pair, up_rows, 0, rows, up_w, a->dtype, a->width, cols,
                           a->width, after);
        for (size_t r = 0; r < rows; r++)
            job->isa->silu_mul(job->hidden[pair + r] + col, up_rows[r], cols);
    }
}

/* The weighted sum of one row over its choices, ascending; -1 is another rank's expert. */
static void combine_row(const struct experts_job *job, size_t row, size_t col, size_t cols,
                        float *const *down) {
    const struct experts_args *a = job->args;
    float *y = a->out + (job->first_row + row) * a->width + col;
    const int32_t *places = job->places + row * a->num_chosen;
    if (a->expert_ids == NULL) {
        memcpy(y, down[places[0]], cols * sizeof *y);
        return;
    }
    const float *weights = a->weights + (job->first_row + row) * a->num_chosen;
    memset(y, 0, cols * sizeof *y);
    for (size_t c = 0; c < a->num_chosen; c++)
        if (places[c] >= 0) job->isa->add_scaled(y, weights[c], down[places[c]], cols);
}

static void output_task(void *context, size_t index) {
    struct experts_job *job = context;
    const struct experts_args *a = job->args;
    size_t col = index * job->out_span, cols = min_size(job->out_span, a->width - col);
    float *down = scratch_get(SCRATCH_TASK, job->num_pairs * cols * sizeof *down);
    float **rows = scratch_get(SCRATCH_TASK_POINTERS, job->num_pairs * sizeof *rows);
    if (down == NULL || rows == NULL) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (size_t pair = 0; pair < job->num_pairs; pair++) rows[pair] = down + pair * cols;
    for (size_t i = 0; i < job->num_active; i++) {
        size_t expert = (size_t)job->active[i];
        size_t pair = (size_t)job->starts[expert];
        size_t num_rows = (size_t)job->starts[expert + 1] - pair;
        size_t later = i + 1 < job->num_active ? (size_t)job->active[i + 1] : expert;
        job->isa->dot_rows((const float *const *)job->hidden + pair, rows + pair, 0, num_rows,
                           element(a->down, a->dtype, (expert * a->width + col) * a->inner),
                           a->dtype, a->inner, cols, a->inner,
                           element(a->down, a->dtype, (later * a->width + col) * a->inner));
    }
    for (size_t row = 0; row < job->rows; row++) combine_row(job, row, col, cols, rows);
}

/* Sort the pass's (row, choice) pairs by expert (stable counting sort). */
static int sort_pairs(struct experts_job *job) {
    const struct experts_args *a = job->args;
    size_t num_choices = job->rows * a->num_chosen;
    int32_t *table = scratch_get(SCRATCH_INDEX,
                                 (2 * a->num_experts + 2 + num_choices) * sizeof *table);
    const float **x = scratch_get(SCRATCH_POINTERS, num_choices * 2 * sizeof *x);
    if (table == NULL || x == NULL) return 0;
    int32_t *starts = table, *active = starts + a->num_experts + 1;
    int32_t *places = active + a->num_experts + 1;
    const int32_t *ids =
        a->expert_ids == NULL ? NULL : a->expert_ids + job->first_row * a->num_chosen;
    memset(starts, 0, (a->num_experts + 1) * sizeof *starts);
    for (size_t i = 0; i < num_choices; i++) {
        int32_t id = ids == NULL ? 0 : ids[i];
        if (id >= 0) starts[id]++;
    }
    int32_t total = 0;
    for (size_t e = 0; e <= a->num_experts; e++) { /* counts become first pairs */
        int32_t count = starts[e];
        if (count > 0) active[job->num_active++] = (int32_t)e;
        starts[e] = total;
        total += count;
    }
    for (size_t i = 0; i < num_choices; i++) {
        int32_t id = ids == NULL ? 0 : ids[i];
        places[i] = id < 0 ? -1 : starts[id]++;
        if (id >= 0) x[places[i]] = a->x + (job->first_row + i / a->num_chosen) * a->x_stride;
    }
    for (size_t e = a->num_experts; e > 0; e--) starts[e] = starts[e - 1]; /* undo the advance */
    starts[0] = 0;
    job->num_pairs = (size_t)total;
    job->starts = starts, job->active = active, job->places = places;
    job->x = x, job->hidden = (float **)(x + num_choices);
    return 1;
}

static enum status run_pass(struct experts_job *job) {
    const struct experts_args *a = job->args;
    if (!sort_pairs(job)) return STATUS_NO_MEMORY;
    float *hidden =
        scratch_get(SCRATCH_SHARED, max_size(job->num_pairs, 1) * a->inner * sizeof *hidden);
    if (hidden == NULL) return STATUS_NO_MEMORY;
    for (size_t pair = 0; pair < job->num_pairs; pair++)
        job->hidden[pair] = hidden + pair * a->inner;
    size_t size = dtype_size(a->dtype), reuse = ceil_div(job->num_pairs, 8 * job->num_active + 1);
    size_t work = job->num_active * a->inner * a->width * size * max_size(reuse, 1);
    if (job->num_pairs > 0) {
        job->inner_span = span_of(2 * a->width * size, a->inner, job->num_active);
        job->inner_tasks = ceil_div(a->inner, job->inner_span);
        pool_run(job->num_active * job->inner_tasks, hidden_task, job, 2 * work);
    }
    job->out_span = span_of(max_size(job->num_active, 1) * a->inner * size, a->width, 1);
    pool_run(ceil_div(a->width, job->out_span), output_task, job, work);
    return atomic_load(&job->failed) ? STATUS_NO_MEMORY : STATUS_OK;
}

enum status op_gated_experts(const struct experts_args *a) {
    for (size_t i = 0; a->expert_ids != NULL && i < a->rows * a->num_chosen; i++)
        if (a->expert_ids[i] < -1 || a->expert_ids[i] >= (int64_t)a->num_experts)
            return STATUS_OUT_OF_RANGE;
    if (a->width == 0) return STATUS_OK;
    if (a->inner == 0 || a->num_experts == 0) {
        memset(a->out, 0, a->rows * a->width * sizeof *a->out);
        return STATUS_OK;
    }
    for (size_t row = 0; row < a->rows; row += ROWS_PER_PASS) {
        struct experts_job job = {
            .args = a,
            .isa = isa_in_use(),
            .first_row = row,
            .rows = min_size(ROWS_PER_PASS, a->rows - row),
        };
        enum status status = run_pass(&job);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}
