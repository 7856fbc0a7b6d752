/* The arithmetic of training except matrix products: plain loops over rows that the compiler vectorizes.
 *
 * All matrices are row-major fp32. Pure functions, thread-safe on distinct outputs. The same arguments give the same bits
 * on the same machine. NaN and infinity propagate. */
#ifndef ENGINE_KERNELS_H
#define ENGINE_KERNELS_H

#include <stdint.h>

#define LAYER_NORM_EPSILON 1e-5f

/* Dropout at one place in the model for one sample: element e is dropped if a hash of (key, e) is below `threshold`. */
struct dropout {
    uint64_t key;
    uint32_t threshold; /* probability x 2^32; 0 is no dropout */
    float scale;        /* 1 / (1 - probability) */
};

/* out = (x - mean) / sqrt(variance + epsilon) x weight + bias for each row; stores mean and 1/sqrt in `scale`. */
void kernel_layer_norm(const float *x, const float *weight, const float *bias, uint64_t rows, uint64_t width,
                       float *out, float *mean, float *scale);
/* The same from stored mean and scale. */
void kernel_layer_norm_again(const float *x, const float *weight, const float *bias, const float *mean,
                             const float *scale, uint64_t rows, uint64_t width, float *out);
/* Adds to dx, dweight and dbias. */
void kernel_layer_norm_backward(const float *x, const float *weight, const float *mean, const float *scale,
                                const float *dout, uint64_t rows, uint64_t width, float *dx, float *dweight,
                                float *dbias);

/* y = GELU(x), tanh form. */
void kernel_gelu(const float *x, float *y, uint64_t count);
/* The same; x becomes the derivative. */
void kernel_gelu_and_slope(float *x, float *y, uint64_t count);
void kernel_multiply(float *x, const float *factor, uint64_t count);
void kernel_add(float *x, const float *addend, uint64_t count);

/* out = base + bias in every row; NULL is 0. */
void kernel_start_rows(const float *base, const float *bias, uint64_t rows, uint64_t width, float *out);
/* sums[c] += the sum of column c for first <= c < end. */
void kernel_add_column_sums(const float *matrix, uint64_t stride, uint64_t rows, uint64_t first, uint64_t end,
                            float *sums);
double kernel_sum(const float *values, uint64_t count);
double kernel_sum_of_squares(const float *values, uint64_t count);

/* Row r of `scores` belongs to query `first + r`. Applies softmax to keys 0 ... first + r and sets the other keys up to
 * `keys` to 0. log_sum[r] is the logarithm of the sum of the exponentials. */
void kernel_causal_softmax(float *scores, uint64_t stride, uint64_t rows, uint64_t first, uint64_t keys,
                           float *log_sum);
/* The same weights, recomputed from log_sum. */
void kernel_causal_weights(float *scores, uint64_t stride, uint64_t rows, uint64_t first, uint64_t keys,
                           const float *log_sum);
/* dscores (in place of dweights) = weights x (dweights - mean of the row) x scale, where the mean of a row is
 * its dout . out over `size` elements (rows out_stride apart). */
void kernel_causal_backward(const float *weights, float *dweights, uint64_t stride, uint64_t rows, uint64_t keys,
                            const float *dout, const float *out, uint64_t out_stride, uint64_t size, float scale);

/* The loss of one row of logits, which become the gradient times `gradient_scale`. */
double kernel_cross_entropy(float *logits, uint64_t count, uint32_t target, float gradient_scale);

/* out = x with dropout, for elements `first` ... first + count - 1 of a site; x and out may be equal. */
void kernel_dropout(const struct dropout *self, uint64_t first, const float *x, float *out, uint64_t count);

struct adamw_factors {
    float decay;          /* 1 - rate x weight decay */
    float one_less_beta1; /* 1 - beta1 */
    float beta2, one_less_beta2;
    float rate;       /* rate / (1 - beta1^step) */
    float correction; /* 1 / sqrt(1 - beta2^step) */
    float epsilon, gradient_scale;
};
void kernel_adamw(const struct adamw_factors *factors, float *weights, const float *gradients, float *exp_avg,
                  float *exp_avg_sq, uint64_t count);
/* weights = decay x weights - rate x gradients. */
void kernel_sgd(float decay, float rate, float *weights, const float *gradients, uint64_t count);

void kernel_round_bf16(const float *values, float *rounded, uint64_t count);
void kernel_pack_bf16(const float *values, uint16_t *packed, uint64_t count);
void kernel_unpack_bf16(const uint16_t *packed, float *values, uint64_t count);

#endif
