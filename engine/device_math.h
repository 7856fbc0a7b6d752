/* The arithmetic of training in a device's memory: what engine/kernels.h is on this machine, under the same names and
 * with the same meaning, but queued.
 *
 * Addresses are memory of the device, except where noted; matrices are row-major fp32. Operations and the copies of the same
 * device (engine/device.h) happen in the order in which they were queued: an operation sees what copies before it brought, and
 * a copy what operations before it wrote. An event of the device (record) is done when they are.
 *
 * No operation fails where it is queued: the first failure is kept, nothing is done after it, and `check` tells it; what
 * fails later is told by poll or wait of an event, as of copies. device_math_finish does both. Operands do not overlap but
 * where noted. The same bits for the same arguments on the same device. Used from one thread, the device's. */
#ifndef ENGINE_DEVICE_MATH_H
#define ENGINE_DEVICE_MATH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device.h"
#include "engine/kernels.h"

#define DEVICE_MATH_VERSION 1

/* out[rows][columns] = base + bias + scale x in[rows][inner] x weight[inner][columns]. Of `samples` x `heads` such matrices,
 * each so many elements from the one before; 0 is one of them. */
struct device_product {
    const float *in, *weight;
    const float *base; /* lies as `out` does, and may be it; NULL: 0 */
    const float *bias; /* [columns], of every row; NULL: 0. Not with several matrices */
    float *out;
    uint64_t rows, inner, columns;
    uint64_t in_stride, weight_stride, out_stride; /* elements from row to row, as they lie in memory */
    bool in_transposed;                            /* `in` lies as [inner][rows] */
    bool weight_transposed;                        /* `weight` lies as [columns][inner] */
    float scale;
    uint64_t samples, heads;
    uint64_t in_sample, in_head, weight_sample, weight_head, out_sample, out_head;
};

/* Which values dropout takes of a matrix whose rows belong to samples, `sample_rows` each: element e of sample s is that of
 * the site (step_key, first_sample + s, place) of engine/rng.h. */
struct device_dropout {
    uint64_t step_key, first_sample, place;
    uint64_t sample_rows;
    uint32_t threshold; /* as in struct dropout */
    float scale;
};

/* Rows of a batch by their tokens: of distinct[i] they are order[begins[i]] ... order[begins[i + 1] - 1], ascending. */
struct device_token_rows {
    const uint32_t *distinct, *begins, *order;
    uint64_t distinct_count;
};

struct device_math;

struct device_math_ops {
    uint32_t version; /* DEVICE_MATH_VERSION */

    void (*product)(struct device_math *self, const struct device_product *product);

    void (*layer_norm)(struct device_math *self, const float *x, const float *weight, const float *bias, uint64_t rows,
                       uint64_t width, float *out, float *mean, float *scale);
    void (*layer_norm_again)(struct device_math *self, const float *x, const float *weight, const float *bias,
                             const float *mean, const float *scale, uint64_t rows, uint64_t width, float *out);
    void (*layer_norm_backward)(struct device_math *self, const float *x, const float *weight, const float *mean,
                                const float *scale, const float *dout, uint64_t rows, uint64_t width, float *dx,
                                float *dweight, float *dbias);

    void (*gelu)(struct device_math *self, const float *x, float *y, uint64_t count);
    void (*gelu_and_slope)(struct device_math *self, float *x, float *y, uint64_t count);
    void (*multiply)(struct device_math *self, float *x, const float *factor, uint64_t count);
    void (*add)(struct device_math *self, float *x, const float *addend, uint64_t count);
    void (*fill)(struct device_math *self, float *x, float value, uint64_t count);
    /* sums[c] += the sum of column c. */
    void (*add_column_sums)(struct device_math *self, const float *matrix, uint64_t stride, uint64_t rows,
                            uint64_t width, float *sums);
    /* sums[r] = the sum of row r. */
    void (*row_sums)(struct device_math *self, const float *matrix, uint64_t rows, uint64_t width, double *sums);
    void (*sum_of_squares)(struct device_math *self, const float *values, uint64_t count, double *sum);

    /* Of `matrices` square matrices of `rows` rows, one after the other: row r of each is query r. */
    void (*causal_softmax)(struct device_math *self, float *scores, uint64_t stride, uint64_t matrices, uint64_t rows,
                           float *log_sum);
    void (*causal_weights)(struct device_math *self, float *scores, uint64_t stride, uint64_t matrices, uint64_t rows,
                           const float *log_sum);
    /* Of `samples` x `heads` of them: dout and out of head h of sample s begin s x rows x out_stride + h x size on. */
    void (*causal_backward)(struct device_math *self, const float *weights, float *dweights, uint64_t stride,
                            uint64_t samples, uint64_t heads, uint64_t rows, const float *dout, const float *out,
                            uint64_t out_stride, uint64_t size, float scale);

    /* Losses of rows; a target of UINT32_MAX has none, and its row becomes 0. */
    void (*cross_entropy)(struct device_math *self, float *logits, uint64_t stride, uint64_t rows, uint64_t count,
                          const uint32_t *targets, float gradient_scale, double *row_loss);

    /* out[r] = tokens_weight[tokens[r]] + positions_weight[r % sequence] */
    void (*embed)(struct device_math *self, const uint32_t *tokens, const float *tokens_weight,
                  const float *positions_weight, uint64_t rows, uint64_t sequence, uint64_t width, float *out);
    /* Adds row r of `gradient` to those of its token and position, one row after the other. */
    void (*embed_backward)(struct device_math *self, const struct device_token_rows *token_rows, const float *gradient,
                           uint64_t rows, uint64_t sequence, uint64_t width, float *dtokens, float *dpositions);
    /* x and out may be the same. `stride` of both. */
    void (*dropout)(struct device_math *self, const struct device_dropout *dropout, const float *x, float *out,
                    uint64_t stride, uint64_t rows, uint64_t width);

    void (*adamw)(struct device_math *self, const struct adamw_factors *factors, float *weights, const float *gradients,
                  float *exp_avg, float *exp_avg_sq, uint64_t count);
    void (*sgd)(struct device_math *self, float decay, float rate, float *weights, const float *gradients,
                uint64_t count);
    /* `values` and `rounded` may be the same. */
    void (*round_bf16)(struct device_math *self, const float *values, float *rounded, uint64_t count);

    int (*check)(struct device_math *self, struct cb_err *err);
    void (*close)(struct device_math *self); /* before its device */
};

struct device_math {
    const struct device_math_ops *ops;
    struct device *device;
};

/* Whether a table may be used: its version, and that nothing in it is missing. */
bool device_math_is_whole(const struct device_math_ops *ops);

/* Until all that was queued on the device is done. CB_ERR_TIMEOUT at the monotonic deadline. */
int device_math_finish(struct device_math *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Queues a copy; it fails as operations do. */
int device_math_copy(struct device_math *self, enum device_direction direction, void *to, const void *from,
                     uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;

#endif
