/* Grouped-query attention over the paged cache.
 *
 * Positions are cut into spans of SPAN, counted from 0. A row's scores, maximum, sum and weighted
 * values are computed per span and merged in ascending order, so the result depends on the row and
 * its cache only. Consecutive rows of one sequence form a group that reads its keys and values
 * once, all KV heads of a block together, as they lie in memory. A task is a group; when those are
 * too few for the threads (few streams), a task is one span of a group, and the merging follows. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "native.h"
#include "scratch.h"
#include "thread_pool.h"

#define SPAN 128
/* Between the score rows of two queries: a power of two would put them all in the same few sets of
 * the first-level cache. */
#define SCORE_STRIDE (SPAN + 16)
#define GROUP_QUERIES 48          /* rows * heads of one KV head in a group */
#define SPLIT_BYTES (64u << 20)   /* limit of the buffer of unmerged spans */
#define TASKS_PER_THREAD 4

struct group {
    size_t first_row, rows, num_positions; /* positions: of the row that sees most */
};

struct attention_job {
    const struct attention_args *args;
    const struct isa *isa;
    const struct group *groups;
    size_t num_groups, heads_per_kv, max_spans, state_stride;
    float *parts; /* split work only: [row][head][span] states */
    atomic_int failed;
};

/* A query head's state over some positions: values[head_dim] (not yet divided by the sum), the
 * maximum of its scores, the sum of exp(score - maximum). `state_stride` floats. */
static float *maximum_of(const struct attention_job *job, float *state) {
    return state + job->args->head_dim;
}
static float *sum_of(const struct attention_job *job, float *state) {
    return state + job->args->head_dim + 1;
}

/* into = into + next, where next covers later positions. */
static void merge(const struct attention_job *job, float *into, float *next) {
    float *maximum = maximum_of(job, into), *sum = sum_of(job, into);
    float top = fmaxf(*maximum, *maximum_of(job, next));
    float keep = expf(*maximum - top), take = expf(*maximum_of(job, next) - top);
    *maximum = top;
    *sum = *sum * keep + *sum_of(job, next) * take;
    job->isa->scale(into, keep, job->args->head_dim);
    job->isa->add_scaled(into, take, next, job->args->head_dim);
}

static void finish(const struct attention_job *job, float *state, size_t row, size_t head) {
    const struct attention_args *a = job->args;
    float *out = a->out + (row * a->num_heads + head) * a->head_dim;
    memcpy(out, state, a->head_dim * sizeof *out);
    job->isa->scale(out, 1.0f / *sum_of(job, state), a->head_dim);
}

/* Positions of a span that row `row` of the batch sees. */
static size_t visible(const struct attention_args *a, size_t row, size_t span) {
    int64_t n = (int64_t)a->row_last[row] + 1 - (int64_t)(span * SPAN);
    return n <= 0 ? 0 : min_size((size_t)n, SPAN);
}

/* The cached vectors of all KV heads from position `pos` to the end of its block, [run][G][D]. */
static const void *cached(const struct attention_args *a, const void *pool, size_t seq, size_t pos,
                          size_t *run) {
    size_t block = (size_t)a->block_tables[seq * a->table_width + pos / a->block_size];
    size_t offset = pos % a->block_size;
    *run = a->block_size - offset;
    size_t slot = block * a->block_size + offset;
    return element(pool, a->dtype, slot * a->num_kv_heads * a->head_dim);
}

/* Where to read after the run before `pos`: the values from `base` on follow the keys of a span,
 * the next span's keys follow its values. The hardware cannot guess where the next block lies. */
static const void *next_keys(const struct attention_args *a, size_t seq, size_t base, size_t pos,
                             size_t end, const void *now) {
    size_t run;
    return pos < end ? cached(a, a->k_pool, seq, pos, &run)
                     : (end > base ? cached(a, a->v_pool, seq, base, &run) : now);
}

static const void *next_values(const struct attention_args *a, const struct group *group,
                               size_t pos, size_t end, const void *now) {
    size_t seq = (size_t)a->row_seq[group->first_row], run;
    if (pos < end) return cached(a, a->v_pool, seq, pos, &run);
    return end < group->num_positions ? cached(a, a->k_pool, seq, end, &run) : now;
}

/* Everything a task works with; its queries are ordered by KV head, then row, then head. */
struct workspace {
    const float **q, **weights_at;
    float **scores_at, **values;
    float *scores, *states, *next; /* [nq][SCORE_STRIDE], [nq][state_stride] twice */
};

static int get_workspace(const struct attention_job *job, size_t rows, struct workspace *ws) {
    size_t nq = rows * job->args->num_heads, state = nq * job->state_stride;
    float *floats = scratch_get(SCRATCH_TASK, (nq * SCORE_STRIDE + 2 * state) * sizeof *floats);
    void **pointers = scratch_get(SCRATCH_TASK_POINTERS, 4 * nq * sizeof *pointers);
    if (floats == NULL || pointers == NULL) return 0;
    ws->states = floats;
    ws->next = ws->states + state;
    ws->scores = ws->next + state;
    ws->q = (const float **)pointers;
    ws->weights_at = (const float **)(pointers + nq);
    ws->scores_at = (float **)(pointers + 2 * nq);
    ws->values = (float **)(pointers + 3 * nq);
    return 1;
}

/* Row (within its group) and head of query i. */
static size_t row_of(const struct attention_job *job, const struct group *group, size_t i) {
    return i / job->heads_per_kv % group->rows;
}
static size_t head_of(const struct attention_job *job, const struct group *group, size_t i) {
    size_t heads = job->heads_per_kv;
    return i / (heads * group->rows) * heads + i % heads;
}

/* values += weights * v over one run of positions, first .. first + run of the span; queries of
 * rows that see equally many of them go together. */
static void mix_run(const struct attention_job *job, const struct group *group, size_t span,
                    struct workspace *ws, const void *v, size_t first, size_t run,
                    const void *next) {
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
        for (size_t g = 0; num_j > 0 && g < a->num_kv_heads; g++) {
            size_t i = (g * group->rows + r) * heads;
            job->isa->mix_rows(ws->values + i, ws->weights_at + i, (end - r) * heads,
                               element(v, a->dtype, g * a->head_dim), a->dtype, stride, num_j,
                               a->head_dim, element(next, a->dtype, g * a->head_dim));
        }
        r = end;
    }
}

static void score_span(const struct attention_job *job, const struct group *group, size_t base,
                       size_t end, struct workspace *ws) {
    const struct attention_args *a = job->args;
    size_t seq = (size_t)a->row_seq[group->first_row], run;
    size_t nq = group->rows * job->heads_per_kv, stride = a->num_kv_heads * a->head_dim;
    for (size_t pos = base; pos < end; pos += run) {
        const void *k = cached(a, a->k_pool, seq, pos, &run);
        run = min_size(run, end - pos);
        const void *next = next_keys(a, seq, base, pos + run, end, k);
        size_t head_run = run * a->head_dim; /* each KV head asks for its share */
        for (size_t g = 0; g < a->num_kv_heads; g++)
            job->isa->dot_rows(ws->q + g * nq, ws->scores_at + g * nq, pos - base, nq,
                               element(k, a->dtype, g * a->head_dim), a->dtype, stride, run,
                               a->head_dim, element(next, a->dtype, g * head_run));
    }
}

/* The states of all of a group's queries over one span, into `states`. */
static void attend_span(const struct attention_job *job, const struct group *group, size_t span,
                        struct workspace *ws, float *states) {
    const struct attention_args *a = job->args;
    size_t seq = (size_t)a->row_seq[group->first_row], nq = group->rows * a->num_heads;
    size_t base = span * SPAN, end = min_size(group->num_positions, base + SPAN), run;
    for (size_t i = 0; i < nq; i++) {
        size_t row = group->first_row + row_of(job, group, i);
        ws->q[i] = a->q + row * a->q_stride + head_of(job, group, i) * a->head_dim;
        ws->scores_at[i] = ws->scores + i * SCORE_STRIDE;
        ws->values[i] = states + i * job->state_stride;
        memset(ws->values[i], 0, a->head_dim * sizeof(float));
    }
    score_span(job, group, base, end, ws);
    for (size_t i = 0; i < nq; i++) {
        size_t n = visible(a, group->first_row + row_of(job, group, i), span);
        if (n == 0) continue;
        job->isa->scale(ws->scores_at[i], a->scale, n);
        float top = job->isa->max(ws->scores_at[i], n);
        *maximum_of(job, ws->values[i]) = top;
        *sum_of(job, ws->values[i]) = job->isa->exp_sum(ws->scores_at[i], top, n);
    }
    for (size_t pos = base; pos < end; pos += run) {
        const void *v = cached(a, a->v_pool, seq, pos, &run);
        run = min_size(run, end - pos);
        for (size_t i = 0; i < nq; i++) ws->weights_at[i] = ws->scores_at[i] + (pos - base);
        const void *next = next_values(a, group, pos + run, end, v);
        mix_run(job, group, span, ws, v, pos - base, run, next);
    }
}

/* A group, all spans. */
static void whole_task(void *context, size_t index) {
    struct attention_job *job = context;
    const struct attention_args *a = job->args;
    /* Last groups first: under a causal prefill they are the longest. */
    const struct group *group = &job->groups[job->num_groups - 1 - index];
    size_t nq = group->rows * a->num_heads;
    struct workspace ws;
    if (!get_workspace(job, group->rows, &ws)) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (size_t span = 0; span * SPAN < group->num_positions; span++) {
        attend_span(job, group, span, &ws, span == 0 ? ws.states : ws.next);
        for (size_t i = 0; span > 0 && i < nq; i++)
            if (visible(a, group->first_row + row_of(job, group, i), span) > 0)
                merge(job, ws.states + i * job->state_stride, ws.next + i * job->state_stride);
    }
    for (size_t i = 0; i < nq; i++) {
        size_t row = group->first_row + row_of(job, group, i);
        if (a->row_last[row] >= 0)
            finish(job, ws.states + i * job->state_stride, row, head_of(job, group, i));
    }
}

static float *part_at(const struct attention_job *job, size_t row, size_t head, size_t span) {
    size_t place = (row * job->args->num_heads + head) * job->max_spans + span;
    return job->parts + place * job->state_stride;
}

/* One span of a group. */
static void span_task(void *context, size_t index) {
    struct attention_job *job = context;
    const struct group *group = &job->groups[index / job->max_spans];
    size_t span = index % job->max_spans;
    if (span * SPAN >= group->num_positions) return;
    struct workspace ws;
    if (!get_workspace(job, group->rows, &ws)) {
        atomic_store(&job->failed, 1);
        return;
    }
    attend_span(job, group, span, &ws, ws.states);
    for (size_t i = 0; i < group->rows * job->args->num_heads; i++) {
        size_t row = group->first_row + row_of(job, group, i);
        memcpy(part_at(job, row, head_of(job, group, i), span),
               ws.states + i * job->state_stride, job->state_stride * sizeof(float));
    }
}

static void merge_spans_of_row(const struct attention_job *job, size_t row) {
    for (size_t head = 0; job->args->row_last[row] >= 0 && head < job->args->num_heads; head++) {
        float *state = part_at(job, row, head, 0);
        for (size_t span = 1; visible(job->args, row, span) > 0; span++)
            merge(job, state, part_at(job, row, head, span));
        finish(job, state, row, head);
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

/* About the bytes the call reads, counted again for every few queries that read them. */
static size_t work_of(const struct attention_job *job) {
    const struct attention_args *a = job->args;
    size_t work = 0;
    for (size_t i = 0; i < job->num_groups; i++)
        work += job->groups[i].num_positions * ceil_div(job->groups[i].rows * job->heads_per_kv, 4);
    return work * a->num_kv_heads * a->head_dim * 2 * dtype_size(a->dtype);
}

enum status op_paged_attention(const struct attention_args *a) {
    if (a->rows == 0 || a->num_heads == 0 || a->head_dim == 0) return STATUS_OK;
    struct group *groups = scratch_get(SCRATCH_INDEX, a->rows * sizeof *groups);
    if (groups == NULL) return STATUS_NO_MEMORY;
    struct attention_job job = {.args = a, .isa = isa_in_use(), .groups = groups};
    job.heads_per_kv = a->num_heads / a->num_kv_heads;
    job.state_stride = (a->head_dim + 2 + 7) & ~(size_t)7;
    if (!make_groups(&job, groups)) return STATUS_OUT_OF_RANGE;
    size_t row_width = a->num_heads * a->head_dim;
    for (size_t row = 0; row < a->rows; row++)
        if (a->row_last[row] < 0) memset(a->out + row * row_width, 0, row_width * sizeof(float));
    size_t num_threads = (size_t)pool_num_threads();
    size_t part_bytes = a->rows * a->num_heads * job.max_spans * job.state_stride * sizeof(float);
    if (job.max_spans > 1 && num_threads > 1 && part_bytes <= SPLIT_BYTES &&
        job.num_groups < num_threads * TASKS_PER_THREAD)
        job.parts = scratch_get(SCRATCH_SHARED, part_bytes);
    if (job.parts == NULL) {
        pool_run(job.num_groups, whole_task, &job, work_of(&job));
    } else {
        pool_run(job.num_groups * job.max_spans, span_task, &job, work_of(&job));
        for (size_t row = 0; row < a->rows; row++) merge_spans_of_row(&job, row);
    }
    return atomic_load(&job.failed) ? STATUS_NO_MEMORY : STATUS_OK;
}
