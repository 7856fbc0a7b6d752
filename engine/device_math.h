/* The arithmetic of training on a device: the functions of engine/kernels.h, with the same names and meaning, but
 * queued. For models on the host, train/host_math.c computes some of them at once, for the rows of the calling thread.
 *
 * Addresses are device memory unless noted; matrices are row-major fp32. Operations and copies of a device
 * (engine/device.h) run in the order in which they were queued, so each sees the results of those before it. An event
 * of the device is done when everything queued before it is done.
 *
 * Queueing an operation does not fail: the first failure is kept, later operations are skipped, and `check` returns the
 * failure. Failures on the device are returned by poll or wait of an event. device_math_finish checks both. Operands
 * may not overlap unless noted. The same arguments give the same bits on the same device. Used only from the device's
 * thread. */
#ifndef ENGINE_DEVICE_MATH_H
#define ENGINE_DEVICE_MATH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device.h"
#include "engine/kernels.h"

#define DEVICE_MATH_VERSION 3

/* out[rows][columns] = base + bias + scale x in[rows][inner] x weight[inner][columns], for `samples` x `heads` matrices
 * (0 means 1). The last six members are the distances between matrices, in elements. */
struct device_product {
    const float *in, *weight;
    const float *base; /* has the strides of `out`, and may be the same matrix; NULL counts as 0 */
    const float *bias; /* [columns], added to every row; NULL counts as 0. Only for a single matrix */
    float *out;
    uint64_t rows, inner, columns;
    uint64_t in_stride, weight_stride, out_stride; /* elements from row to row in memory */
    bool in_transposed;                            /* `in` is stored as [inner][rows] */
    bool weight_transposed;                        /* `weight` is stored as [columns][inner] */
    float scale;
    /* Device memory, not NULL: `in` and `weight` are rounded to bf16 before they are multiplied, with sums in fp32. Room for
     * all their elements from the first to the last, each matrix from an address that is a multiple of 256. Only for a
     * single matrix. */
    uint16_t *rounded;
    uint64_t samples, heads;
    uint64_t in_sample, in_head, weight_sample, weight_head, out_sample, out_head;
};

/* Dropout of a matrix with `sample_rows` rows for each sample. Element e of sample s uses the site
 * (step_key, first_sample + s, place) of engine/rng.h. */
struct device_dropout {
    uint64_t step_key, first_sample, place;
    uint64_t sample_rows;
    uint32_t threshold; /* as in struct dropout */
    float scale;
};

/* The rows of a batch, grouped by token: token distinct[i] has rows order[begins[i]] ... order[begins[i + 1] - 1],
 * ascending. The host needs only the token of each row. */
struct device_token_rows {
    const uint32_t *distinct, *begins, *order;
    uint64_t distinct_count;
    const uint32_t *tokens;
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
    /* sums[r] = sum of row r. */
    void (*row_sums)(struct device_math *self, const float *matrix, uint64_t rows, uint64_t width, double *sums);
    void (*sum_of_squares)(struct device_math *self, const float *values, uint64_t count, double *sum);

    /* For `matrices` adjacent square matrices of `rows` rows: row r of each is query r. */
    void (*causal_softmax)(struct device_math *self, float *scores, uint64_t stride, uint64_t matrices, uint64_t rows,
                           float *log_sum);
    void (*causal_weights)(struct device_math *self, float *scores, uint64_t stride, uint64_t matrices, uint64_t rows,
                           const float *log_sum);
    /* For `samples` x `heads` matrices: dout and out of head h of sample s are at s x rows x out_stride + h x size. */
    void (*causal_backward)(struct device_math *self, const float *weights, float *dweights, uint64_t stride,
                            uint64_t samples, uint64_t heads, uint64_t rows, const float *dout, const float *out,
                            uint64_t out_stride, uint64_t size, float scale);

    /* The loss of each row; a row with target UINT32_MAX has no loss and becomes 0. */
    void (*cross_entropy)(struct device_math *self, float *logits, uint64_t stride, uint64_t rows, uint64_t count,
                          const uint32_t *targets, float gradient_scale, double *row_loss);

    /* out[r] = tokens_weight[tokens[r]] + positions_weight[r % sequence] */
    void (*embed)(struct device_math *self, const uint32_t *tokens, const float *tokens_weight,
                  const float *positions_weight, uint64_t rows, uint64_t sequence, uint64_t width, float *out);
    /* Adds row r of `gradient` to the gradients of its token and its position, in the order of the rows. */
    void (*embed_backward)(struct device_math *self, const struct device_token_rows *token_rows, const float *gradient,
                           uint64_t rows, uint64_t sequence, uint64_t width, float *dtokens, float *dpositions);
    /* x and out may be equal; both have `stride`. */
    void (*dropout)(struct device_math *self, const struct device_dropout *dropout, const float *x, float *out,
                    uint64_t stride, uint64_t rows, uint64_t width);

    void (*adamw)(struct device_math *self, const struct adamw_factors *factors, float *weights, const float *gradients,
                  float *exp_avg, float *exp_avg_sq, uint64_t count);
    void (*sgd)(struct device_math *self, float decay, float rate, float *weights, const float *gradients,
                uint64_t count);
    /* `values` and `rounded` may be equal. */
    void (*round_bf16)(struct device_math *self, const float *values, float *rounded, uint64_t count);
    void (*pack_bf16)(struct device_math *self, const float *values, uint16_t *packed, uint64_t count);
    void (*unpack_bf16)(struct device_math *self, const uint16_t *packed, float *values, uint64_t count);

    int (*check)(struct device_math *self, struct cb_err *err);
    void (*close)(struct device_math *self); /* before the device is closed */
};

struct device_math {
    const struct device_math_ops *ops;
    struct device *device;
};

/* Elements of `in` and of `weight` from the first to the last, and where the latter's are in `rounded`. */
struct device_product_rounded {
    uint64_t in_count, weight_count;
    uint16_t *in, *weight;
};
static inline struct device_product_rounded device_product_rounded(const struct device_product *product)
{
    uint64_t in_rows = product->in_transposed ? product->inner : product->rows;
    uint64_t in_width = product->in_transposed ? product->rows : product->inner;
    uint64_t weight_rows = product->weight_transposed ? product->columns : product->inner;
    uint64_t weight_width = product->weight_transposed ? product->inner : product->columns;
    struct device_product_rounded rounded = {.in_count = (in_rows - 1) * product->in_stride + in_width,
                                             .weight_count = (weight_rows - 1) * product->weight_stride + weight_width,
                                             .in = product->rounded};
    rounded.weight = rounded.in + (rounded.in_count + 127) / 128 * 128;
    return rounded;
}

/* Whether a table has the right version and no missing function. */
bool device_math_is_whole(const struct device_math_ops *ops);

/* Waits until everything queued on the device is done. CB_ERR_TIMEOUT at the monotonic deadline. */
int device_math_finish(struct device_math *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Queues a copy, whose failures are reported like those of operations. */
int device_math_copy(struct device_math *self, enum device_direction direction, void *to, const void *from,
                     uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;

#endif
