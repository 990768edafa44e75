/* Router scores to chosen experts: softmax, and grouped sigmoid with a correction bias.
 *
 * Equal scores go to the lower id; NaN scores come last, so ids are always valid and distinct. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "native.h"
#include "scratch.h"
#include "thread_pool.h"

#define ROWS_PER_TASK 8

struct router_job {
    const struct router_args *args;
    const struct isa *isa;
    atomic_int failed;
};

/* Working memory of one row. */
struct router_work {
    float *scores, *biased; /* [num_experts] */
    float *by_group;        /* [num_groups] */
    int32_t *groups;        /* [topk_groups] */
    unsigned char *taken;   /* [num_experts] */
};

/* The `count` best of `scores`, best first; the chosen are marked in `taken`. */
static void choose(const float *scores, unsigned char *taken, size_t n, int32_t *ids,
                   size_t count) {
    for (size_t c = 0; c < count; c++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++) {
            if (taken[i]) continue;
            if (best == n || scores[i] > scores[best] ||
                (isnan(scores[best]) && !isnan(scores[i])))
                best = i;
        }
        taken[best] = 1;
        ids[c] = (int32_t)best;
    }
}

static void softmax_row(const struct router_job *job, size_t row, const struct router_work *work) {
    const struct router_args *a = job->args;
    float *scores = work->scores;
    const float *logits = a->logits + row * a->num_experts;
    int32_t *ids = a->ids + row * a->top_k;
    float *weights = a->weights + row * a->top_k, chosen = 0;
    memcpy(scores, logits, a->num_experts * sizeof *scores);
    memset(work->taken, 0, a->num_experts);
    choose(logits, work->taken, a->num_experts, ids, a->top_k);
    float top = job->isa->max(scores, a->num_experts);
    float sum = job->isa->exp_sum(scores, top, a->num_experts);
    for (size_t c = 0; c < a->top_k; c++) {
        weights[c] = scores[ids[c]] / sum;
        chosen += weights[c];
    }
    for (size_t c = 0; a->normalize && c < a->top_k; c++) weights[c] /= chosen;
}

/* Sum of the two best biased scores of a group. */
static float group_score(const float *biased, size_t size) {
    float first = -INFINITY, second = -INFINITY;
    for (size_t i = 0; i < size; i++) {
        if (biased[i] > first) {
            second = first;
            first = biased[i];
        } else if (biased[i] > second) {
            second = biased[i];
        }
    }
    return first + second;
}

static void grouped_row(const struct router_job *job, size_t row, const struct router_work *work) {
    const struct router_args *a = job->args;
    size_t size = a->num_experts / a->num_groups;
    float *scores = work->scores, *biased = work->biased;
    unsigned char *taken = work->taken;
    int32_t *ids = a->ids + row * a->top_k;
    float *weights = a->weights + row * a->top_k, chosen = 0;
    memcpy(scores, a->logits + row * a->num_experts, a->num_experts * sizeof *scores);
    job->isa->sigmoid(scores, a->num_experts);
    job->isa->add(scores, a->bias, biased, a->num_experts);
    for (size_t g = 0; g < a->num_groups; g++)
        work->by_group[g] = group_score(biased + g * size, size);
    memset(taken, 0, a->num_groups);
    choose(work->by_group, taken, a->num_groups, work->groups, a->topk_groups);
    memset(taken, 1, a->num_experts); /* experts of other groups cannot be chosen */
    for (size_t g = 0; g < a->topk_groups; g++)
        memset(taken + (size_t)work->groups[g] * size, 0, size);
    choose(biased, taken, a->num_experts, ids, a->top_k);
    for (size_t c = 0; c < a->top_k; c++) {
        weights[c] = scores[ids[c]];
        chosen += weights[c];
    }
    /* The floor keeps vanishing weights from dividing by zero. */
    float factor = a->normalize ? a->scale / (chosen + 1e-20f) : a->scale;
    for (size_t c = 0; c < a->top_k; c++) weights[c] *= factor;
}

static void router_task(void *context, size_t index) {
    struct router_job *job = context;
    const struct router_args *a = job->args;
    size_t experts = a->num_experts, groups = a->num_groups;
    float *memory = scratch_get(SCRATCH_TASK, experts * 9 + groups * 8);
    if (memory == NULL) {
        atomic_store(&job->failed, 1);
        return;
    }
    struct router_work work = {.scores = memory, .biased = memory + experts};
    work.by_group = work.biased + experts;
    work.groups = (int32_t *)(work.by_group + groups);
    work.taken = (unsigned char *)(work.groups + groups);
    size_t end = min_size((index + 1) * ROWS_PER_TASK, a->rows);
    for (size_t row = index * ROWS_PER_TASK; row < end; row++) {
        if (a->bias == NULL)
            softmax_row(job, row, &work);
        else
            grouped_row(job, row, &work);
    }
}

enum status op_router(const struct router_args *a) {
    struct router_job job = {.args = a, .isa = isa_in_use()};
    size_t work = a->rows * a->num_experts * (16 + 4 * a->top_k);
    pool_run(ceil_div(a->rows, ROWS_PER_TASK), router_task, &job, work);
    return atomic_load(&job.failed) ? STATUS_NO_MEMORY : STATUS_OK;
}
