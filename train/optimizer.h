/* Optimizers on flat ranges of a unit's parameters, so that each rank can run them on its shard; the learning
 * rate's schedule; the pieces of a gradient's norm. Pure but for the arrays given; knows nothing of ranks. */
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
    double beta1, beta2, epsilon; /* AdamW: 0.9, 0.999, 1e-8 in PyTorch */
    double weight_decay;          /* decoupled (w -= rate x decay x w), on the parameters that decay; SGD, too */
};

/* AdamW with PyTorch's defaults: weight decay 0.01. */
struct optimizer optimizer_default(enum optimizer_kind kind);
/* Arrays of moments that a step needs: 2 (exp_avg, exp_avg_sq), or 0. */
unsigned optimizer_moments(enum optimizer_kind kind);

/* The arrays of a range: element i of each belongs to the unit's element first + i. Moments start as zeros, and
 * are NULL where there are none. */
struct optimizer_range {
    uint64_t first, count;
    float *weights;
    const float *gradients;
    float *exp_avg, *exp_avg_sq;
};

/* One step; elements past the unit's (padding) are left alone. `gradient_scale` multiplies gradients on the way in
 * (clipping; 1 / accumulation steps). `step` counts from 1. A result does not depend on the range it is part of.
 * `team` may be NULL. */
void optimizer_step(const struct optimizer *self, const struct train_unit *unit, const struct optimizer_range *range,
                    double learning_rate, double gradient_scale, uint64_t step, struct team *team);

/* The same, queued on a device in whose memory the arrays are. */
void optimizer_step_on(struct device_math *math, const struct optimizer *self, const struct train_unit *unit,
                       const struct optimizer_range *range, double learning_rate, double gradient_scale, uint64_t step);

/* In double, the same with any number of threads. */
double optimizer_sum_of_squares(const float *values, uint64_t count, struct team *team);
/* What gradients of this norm are multiplied with: max_norm / (norm + 1e-6), at most 1; 1 where max_norm is 0. */
double optimizer_clip_scale(double norm, double max_norm);

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_COSINE };

/* Linear warm-up over `warmup` steps, which reaches `peak` at its last one; then constant, or half a cosine down to
 * `floor` at the last of `steps`. */
struct schedule {
    enum schedule_kind kind;
    double peak, floor;
    uint64_t warmup, steps;
};

/* The rate of a step, counted from 1. Past the last step it stays. */
double schedule_rate(const struct schedule *self, uint64_t step);

#endif
