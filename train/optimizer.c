/* Optimizer steps: the factors of a step, and which elements decay. */
#include "train/optimizer.h"

#include <math.h>
#include <stddef.h>

#include "engine/kernels.h"

#define CHUNK UINT64_C(65536) /* squares per sum, added in a fixed order for any number of threads */
#define CHUNKS_AT_ONCE 256

struct optimizer optimizer_default(enum optimizer_kind kind)
{
    return (struct optimizer){.kind = kind, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};
}

unsigned optimizer_moments(enum optimizer_kind kind)
{
    return kind == OPTIMIZER_ADAMW ? 2 : 0;
}

struct call {
    const struct optimizer *optimizer;
    const struct train_unit *unit;
    const struct optimizer_range *range;
    double learning_rate, gradient_scale;
    struct adamw_factors factors; /* except weight decay */
    struct thread_pool *team;
};

static struct adamw_factors factors_of(const struct optimizer *self, double rate, double gradient_scale, uint64_t step)
{
    return (struct adamw_factors){.one_less_beta1 = (float)(1 - self->beta1),
                                  .beta2 = (float)self->beta2,
                                  .one_less_beta2 = (float)(1 - self->beta2),
                                  .rate = (float)(rate / (1 - pow(self->beta1, (double)step))),
                                  .correction = (float)(1 / sqrt(1 - pow(self->beta2, (double)step))),
                                  .epsilon = (float)self->epsilon,
                                  .gradient_scale = (float)gradient_scale};
}

/* Elements [first, end) of the unit, all within one parameter. */
static void step_part(const struct call *self, bool decays, uint64_t first, uint64_t end)
{
    const struct optimizer_range *range = self->range;
    uint64_t at = first - range->first, count = end - first;
    float decay = decays ? (float)(1 - self->learning_rate * self->optimizer->weight_decay) : 1.0f;
    float rate = (float)(self->learning_rate * self->gradient_scale);
    bool sgd = self->optimizer->kind == OPTIMIZER_SGD;
    struct adamw_factors factors = self->factors;
    factors.decay = decay;
    float *weights = range->weights + at;
    const float *gradients = range->gradients + at;
    if (sgd && range->math)
        range->math->ops->sgd(range->math, decay, rate, weights, gradients, count);
    else if (sgd)
        kernel_sgd(decay, rate, weights, gradients, count);
    else if (range->math)
        range->math->ops->adamw(range->math, &factors, weights, gradients, range->exp_avg + at, range->exp_avg_sq + at,
                                count);
    else
        kernel_adamw(&factors, weights, gradients, range->exp_avg + at, range->exp_avg_sq + at, count);
}

static void step_share(void *context, uint32_t thread)
{
    const struct call *self = context;
    uint64_t from, to;
    thread_pool_share(self->team, thread, self->range->count, 16, &from, &to);
    from += self->range->first;
    to += self->range->first;
    for (size_t i = 0; i < self->unit->count; i++) {
        const struct train_parameter *parameter = &self->unit->parameters[i];
        uint64_t parameter_end = parameter->offset + parameter->count;
        uint64_t first = parameter->offset > from ? parameter->offset : from;
        uint64_t end = parameter_end < to ? parameter_end : to;
        if (first < end)
            step_part(self, parameter->decays, first, end);
    }
}

void optimizer_step(const struct optimizer *self, const struct train_unit *unit, const struct optimizer_range *range,
                    double learning_rate, double gradient_scale, uint64_t step, struct thread_pool *team)
{
    if (self->kind == OPTIMIZER_NONE)
        return;
    team = range->math ? NULL : team; /* a device's operations are queued by the caller */
    struct call call = {.optimizer = self,
                        .unit = unit,
                        .range = range,
                        .learning_rate = learning_rate,
                        .gradient_scale = gradient_scale,
                        .factors = factors_of(self, learning_rate, gradient_scale, step),
                        .team = team};
    thread_pool_run(team, step_share, &call);
}

struct squares {
    const float *values;
    uint64_t count;
    struct thread_pool *team;
    double sums[CHUNKS_AT_ONCE]; /* one per chunk, so that the order of summation is fixed */
};

static void add_squares(void *context, uint32_t thread)
{
    struct squares *self = context;
    uint64_t first, end, chunks = (self->count + CHUNK - 1) / CHUNK;
    thread_pool_share(self->team, thread, chunks, 1, &first, &end);
    for (uint64_t i = first; i < end; i++) {
        uint64_t left = self->count - i * CHUNK;
        self->sums[i] = kernel_sum_of_squares(self->values + i * CHUNK, left < CHUNK ? left : CHUNK);
    }
}

double optimizer_sum_of_squares(const float *values, uint64_t count, struct thread_pool *team)
{
    struct squares squares = {.team = team};
    double sum = 0;
    for (uint64_t at = 0; at < count; at += CHUNK * CHUNKS_AT_ONCE) {
        squares.values = values + at;
        squares.count = count - at < CHUNK * CHUNKS_AT_ONCE ? count - at : CHUNK * CHUNKS_AT_ONCE;
        thread_pool_run(team, add_squares, &squares);
        for (uint64_t i = 0; i < (squares.count + CHUNK - 1) / CHUNK; i++)
            sum += squares.sums[i];
    }
    return sum;
}

double optimizer_clip_scale(double norm, double max_norm)
{
    double scale = max_norm / (norm + 1e-6);
    return max_norm > 0 && scale < 1 ? scale : 1;
}

double schedule_rate(const struct schedule *self, uint64_t step)
{
    if (self->warmup > 0 && step <= self->warmup)
        return self->peak * (double)step / (double)self->warmup;
    if (self->kind == SCHEDULE_CONSTANT)
        return self->peak;
    if (step >= self->steps)
        return self->floor;
    double done = (double)(step - self->warmup) / (double)(self->steps - self->warmup);
    return self->floor + 0.5 * (1 + cos(3.14159265358979323846 * done)) * (self->peak - self->floor);
}
