/* Optimizers on flat ranges of a unit's parameters, so that each rank can run them on its shard; the learning rate
 * schedule; the gradient norm in parts. Pure except for the given arrays. */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device_math.h"
#include "train/thread_pool.h"
#include "train/train_model.h"

enum optimizer_kind { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_NONE };

struct optimizer {
    enum optimizer_kind kind;
    double beta1, beta2, epsilon; /* AdamW: 0.9, 0.999, 1e-8 as in PyTorch */
    double weight_decay;          /* decoupled (w -= rate x decay x w), for the parameters that decay; also with SGD */
};

/* AdamW with PyTorch's defaults: weight decay 0.01. */
struct optimizer optimizer_default(enum optimizer_kind kind);
/* Number of moment arrays: 2 (exp_avg, exp_avg_sq), or 0. */
unsigned optimizer_moments(enum optimizer_kind kind);

/* The arrays of a range: element i of each is the unit's element first + i. Moments start as zeros, and are NULL if
 * the optimizer has none. */
struct optimizer_range {
    uint64_t first, count;
    float *weights;
    const float *gradients;
    float *exp_avg, *exp_avg_sq;
    struct device_math
        *math; /* of the device that has the arrays: the step is queued there; NULL: they are in host memory */
};

/* One step; elements past the unit's end (padding) are unchanged. Gradients are multiplied by `gradient_scale`
 * (clipping; 1 / accumulation steps). `step` counts from 1. The result for an element does not depend on the range.
 * `team` may be NULL. */
void optimizer_step(const struct optimizer *self, const struct train_unit *unit, const struct optimizer_range *range,
                    double learning_rate, double gradient_scale, uint64_t step, struct thread_pool *team);

/* Sum of squares in double; the same for any number of threads. */
double optimizer_sum_of_squares(const float *values, uint64_t count, struct thread_pool *team);
/* The factor that clips gradients of this norm: max_norm / (norm + 1e-6), at most 1; 1 if max_norm is 0. */
double optimizer_clip_scale(double norm, double max_norm);

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_COSINE };

/* Linear warm-up over `warmup` steps, whose last one reaches `peak`; then constant, or half a cosine down to `floor`
 * at the last of `steps`. */
struct schedule {
    enum schedule_kind kind;
    double peak, floor;
    uint64_t warmup, steps;
};

/* The rate of a step, counted from 1. It stays constant after the last step. */
double schedule_rate(const struct schedule *self, uint64_t step);

#endif
