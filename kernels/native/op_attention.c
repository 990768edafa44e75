/* Grouped-query attention over the paged cache.
 *
 * Positions are cut into spans of SPAN, counted from 0. A row's scores, maximum, sum and weighted
 * values are computed per span and merged in ascending order, so the result depends on the row and
 * its cache only. Consecutive rows of one sequence form a group that reads its keys and values
 * once. A task is a group and a KV head; when those are too few for the threads (one stream with a
 * long cache), a task is one span of them, and the merging follows. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "native.h"
#include "scratch.h"
#include "thread_pool.h"

#define SPAN 256
#define GROUP_QUERIES 48         /* rows * heads of a group; bounds its scores to 48 KiB */
#define SPLIT_BYTES (16u << 20)  /* limit of the buffer of unmerged spans */
#define TASKS_PER_THREAD 4

struct group {
    size_t first_row, rows, num_positions; /* positions: of the row that sees most */
};

struct attention_job {
    const struct attention_args *args;
    const struct isa *isa;
    const struct group *groups;
    size_t num_groups, heads_per_kv, max_spans;
    /* Split work only: [row][head][span] of {maximum, sum, values[head_dim]}. */
    float *parts;
    atomic_int failed;
};

/* One query head's state over some positions; `values` is not yet divided by `sum`. */
struct partial {
    float *maximum, *sum, *values;
};

static struct partial partial_at(float *memory) {
    return (struct partial){memory, memory + 1, memory + 2};
}

/* into = into + next, where next covers later positions. */
static void merge(const struct isa *isa, struct partial into, struct partial next, size_t dim) {
    float top = *into.maximum > *next.maximum ? *into.maximum : *next.maximum;
    float keep = expf(*into.maximum - top), take = expf(*next.maximum - top);
    *into.maximum = top;
    *into.sum = *into.sum * keep + *next.sum * take;
    isa->scale(into.values, keep, dim);
    isa->add_scaled(into.values, take, next.values, dim);
}

static void finish(const struct isa *isa, struct partial state, float *out, size_t dim) {
    memcpy(out, state.values, dim * sizeof *out);
    isa->scale(out, 1.0f / *state.sum, dim);
}

/* Positions of a span that row `row` of the batch sees. */
static size_t visible(const struct attention_args *a, size_t row, size_t span) {
    int64_t n = (int64_t)a->row_last[row] + 1 - (int64_t)(span * SPAN);
    return n <= 0 ? 0 : min_size((size_t)n, SPAN);
}

/* Cached vectors of KV head g: those from position `pos` to the end of its block. */
static const void *cached(const struct attention_args *a, const void *pool, size_t row, size_t g,
                          size_t pos, size_t *run) {
    size_t block = (size_t)a->block_tables[(size_t)a->row_seq[row] * a->table_width +
                                           pos / a->block_size];
    size_t offset = pos % a->block_size;
    *run = a->block_size - offset;
    size_t slot = block * a->block_size + offset;
    return element(pool, a->dtype, (slot * a->num_kv_heads + g) * a->head_dim);
}

/* Everything a task works with: nq = rows of the group times heads of the KV head. */
struct workspace {
    const float **q;
    float **scores_at, **values;
    const float **weights_at;
    float *scores;        /* [nq][SPAN] */
    float *states, *next; /* [nq][head_dim + 2] */
};

static int get_workspace(struct workspace *ws, size_t nq, size_t dim) {
    size_t state = nq * (dim + 2);
    float *floats = scratch_get(SCRATCH_TASK, (nq * SPAN + 2 * state) * sizeof *floats);
    void **pointers = scratch_get(SCRATCH_TASK_POINTERS, 4 * nq * sizeof *pointers);
    if (floats == NULL || pointers == NULL) return 0;
    ws->scores = floats;
    ws->states = floats + nq * SPAN;
    ws->next = ws->states + state;
    ws->q = (const float **)pointers;
    ws->scores_at = (float **)(pointers + nq);
    ws->values = (float **)(pointers + 2 * nq);
    ws->weights_at = (const float **)(pointers + 3 * nq);
    return 1;
}

/* acc += weights * values of one run of positions; queries of rows that see equally many positions
 * of it go together. */
static void mix_run(const struct attention_job *job, const struct group *group, size_t span,
                    struct workspace *ws, const void *v, size_t first, size_t run) {
    const struct attention_args *a = job->args;
    size_t heads = job->heads_per_kv, stride = a->num_kv_heads * a->head_dim;
    for (size_t r = 0; r < group->rows;) {
        size_t seen = visible(a, group->first_row + r, span);
        size_t num_j = seen <= first ? 0 : min_size(run, seen - first), end = r + 1;
        while (end < group->rows) {
            size_t other = visible(a, group->first_row + end, span);
            if ((other <= first ? 0 : min_size(run, other - first)) != num_j) break;
            end++;
        }
        if (num_j > 0)
            job->isa->mix_rows(ws->values + r * heads, ws->weights_at + r * heads,
                               (end - r) * heads, v, a->dtype, stride, num_j, a->head_dim);
        r = end;
    }
}

/* The states of all of a group's queries over one span, into `states`. */
static void attend_span(const struct attention_job *job, const struct group *group, size_t g,
                        size_t span, struct workspace *ws, float *states) {
    const struct attention_args *a = job->args;
    size_t heads = job->heads_per_kv, nq = group->rows * heads, dim = a->head_dim;
    size_t base = span * SPAN, end = min_size(group->num_positions, base + SPAN), run;
    for (size_t i = 0; i < nq; i++) {
        size_t row = group->first_row + i / heads, head = g * heads + i % heads;
        ws->q[i] = a->q + row * a->q_stride + head * dim;
        ws->scores_at[i] = ws->scores + i * SPAN;
        ws->values[i] = partial_at(states + i * (dim + 2)).values;
        memset(ws->values[i], 0, dim * sizeof(float));
    }
    for (size_t pos = base; pos < end; pos += run) {
        const void *k = cached(a, a->k_pool, group->first_row, g, pos, &run);
        run = min_size(run, end - pos);
        job->isa->dot_rows(ws->q, ws->scores_at, pos - base, nq, k, a->dtype,
                           a->num_kv_heads * dim, run, dim);
    }
    for (size_t i = 0; i < nq; i++) {
        size_t n = visible(a, group->first_row + i / heads, span);
        struct partial state = partial_at(states + i * (dim + 2));
        if (n == 0) continue;
        job->isa->scale(ws->scores_at[i], a->scale, n);
        *state.maximum = job->isa->max(ws->scores_at[i], n);
        *state.sum = job->isa->exp_sum(ws->scores_at[i], *state.maximum, n);
    }
    for (size_t pos = base; pos < end; pos += run) {
        const void *v = cached(a, a->v_pool, group->first_row, g, pos, &run);
        run = min_size(run, end - pos);
        for (size_t i = 0; i < nq; i++) ws->weights_at[i] = ws->scores_at[i] + (pos - base);
        mix_run(job, group, span, ws, v, pos - base, run);
    }
}

/* A group and a KV head, all spans. */
static void whole_task(void *context, size_t index) {
    struct attention_job *job = context;
    const struct attention_args *a = job->args;
    /* Last groups first: under a causal prefill they are the longest. */
    const struct group *group = &job->groups[job->num_groups - 1 - index / a->num_kv_heads];
    size_t g = index % a->num_kv_heads, heads = job->heads_per_kv, dim = a->head_dim;
    size_t nq = group->rows * heads;
    struct workspace ws;
    if (!get_workspace(&ws, nq, dim)) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (size_t span = 0; span * SPAN < group->num_positions; span++) {
        attend_span(job, group, g, span, &ws, span == 0 ? ws.states : ws.next);
        for (size_t i = 0; span > 0 && i < nq; i++)
            if (visible(a, group->first_row + i / heads, span) > 0)
                merge(job->isa, partial_at(ws.states + i * (dim + 2)),
                      partial_at(ws.next + i * (dim + 2)), dim);
    }
    for (size_t i = 0; i < nq; i++) {
        size_t row = group->first_row + i / heads, head = g * heads + i % heads;
        if (a->row_last[row] >= 0)
            finish(job->isa, partial_at(ws.states + i * (dim + 2)),
                   a->out + (row * a->num_heads + head) * dim, dim);
    }
}

static float *part_at(const struct attention_job *job, size_t row, size_t head, size_t span) {
    size_t place = (row * job->args->num_heads + head) * job->max_spans + span;
    return job->parts + place * (job->args->head_dim + 2);
}

/* One span of a group and a KV head. */
static void span_task(void *context, size_t index) {
    struct attention_job *job = context;
    const struct attention_args *a = job->args;
    size_t span = index % job->max_spans, pair = index / job->max_spans;
    const struct group *group = &job->groups[pair / a->num_kv_heads];
    size_t g = pair % a->num_kv_heads, heads = job->heads_per_kv, dim = a->head_dim;
    if (span * SPAN >= group->num_positions) return;
    struct workspace ws;
    if (!get_workspace(&ws, group->rows * heads, dim)) {
        atomic_store(&job->failed, 1);
        return;
    }
    attend_span(job, group, g, span, &ws, ws.states);
    for (size_t i = 0; i < group->rows * heads; i++)
        memcpy(part_at(job, group->first_row + i / heads, g * heads + i % heads, span),
               ws.states + i * (dim + 2), (dim + 2) * sizeof(float));
}

static void merge_spans_of_row(const struct attention_job *job, size_t row) {
    const struct attention_args *a = job->args;
    if (a->row_last[row] < 0) return;
    for (size_t head = 0; head < a->num_heads; head++) {
        struct partial state = partial_at(part_at(job, row, head, 0));
        for (size_t span = 1; visible(a, row, span) > 0; span++)
            merge(job->isa, state, partial_at(part_at(job, row, head, span)), a->head_dim);
        finish(job->isa, state, a->out + (row * a->num_heads + head) * a->head_dim, a->head_dim);
    }
}

/* Cut the batch into groups; 0 when an index operand is out of range. */
static int make_groups(struct attention_job *job, struct group *groups) {
    const struct attention_args *a = job->args;
    size_t limit = max_size(GROUP_QUERIES / job->heads_per_kv, 1);
    struct group *group = NULL;
    for (size_t row = 0; row < a->rows; row++) {
        int64_t seq = a->row_seq[row], last = a->row_last[row];
        if (seq < 0 || seq >= (int64_t)a->num_seqs || last < -1 ||
            last >= (int64_t)(a->table_width * a->block_size))
            return 0;
        if (group == NULL || group->rows == limit || a->row_seq[group->first_row] != seq) {
            group = &groups[job->num_groups++];
            *group = (struct group){.first_row = row};
        }
        group->rows++;
        group->num_positions = max_size(group->num_positions, (size_t)(last + 1));
    }
    for (size_t i = 0; i < job->num_groups; i++) {
        size_t seq = (size_t)a->row_seq[groups[i].first_row];
        for (size_t b = 0; b * a->block_size < groups[i].num_positions; b++) {
            int64_t block = a->block_tables[seq * a->table_width + b];
            if (block < 0 || block >= (int64_t)a->num_blocks) return 0;
        }
        job->max_spans = max_size(job->max_spans, ceil_div(groups[i].num_positions, SPAN));
    }
    return 1;
}

enum status op_paged_attention(const struct attention_args *a) {
    if (a->rows == 0 || a->num_heads == 0 || a->head_dim == 0) return STATUS_OK;
    struct group *groups = scratch_get(SCRATCH_INDEX, a->rows * sizeof *groups);
    if (groups == NULL) return STATUS_NO_MEMORY;
    struct attention_job job = {.args = a, .isa = isa_in_use(), .groups = groups};
    job.heads_per_kv = a->num_heads / a->num_kv_heads;
    if (!make_groups(&job, groups)) return STATUS_OUT_OF_RANGE;
    size_t row_width = a->num_heads * a->head_dim, work = 0;
    for (size_t row = 0; row < a->rows; row++)
        if (a->row_last[row] < 0) memset(a->out + row * row_width, 0, row_width * sizeof(float));
    for (size_t i = 0; i < job.num_groups; i++)
        work += groups[i].num_positions * a->num_kv_heads * a->head_dim * 2 *
                dtype_size(a->dtype) * ceil_div(groups[i].rows * job.heads_per_kv, 4);
    size_t num_tasks = job.num_groups * a->num_kv_heads;
    size_t part_bytes =
        a->rows * a->num_heads * job.max_spans * (a->head_dim + 2) * sizeof(float);
    if (job.max_spans > 1 && pool_num_threads() > 1 && part_bytes <= SPLIT_BYTES &&
        num_tasks < (size_t)pool_num_threads() * TASKS_PER_THREAD)
        job.parts = scratch_get(SCRATCH_SHARED, part_bytes);
    if (job.parts == NULL) {
        pool_run(num_tasks, whole_task, &job, work);
    } else {
        pool_run(num_tasks * job.max_spans, span_task, &job, work);
        for (size_t row = 0; row < a->rows; row++) merge_spans_of_row(&job, row);
    }
    return atomic_load(&job.failed) ? STATUS_NO_MEMORY : STATUS_OK;
}
