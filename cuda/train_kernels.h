/* The C interface of the training kernels: each call queues on a stream and returns a cudaError_t as a number.
 * engine/device_math.h documents the calls of the same names. */
#ifndef CUDA_TRAIN_KERNELS_H
#define CUDA_TRAIN_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/kernels.h"

/* Sums over rows take two steps; the first leaves partial sums in the device's scratch memory. */
#define TRAIN_SCRATCH_BYTES (UINT64_C(8) << 20)

int train_layer_norm(const float *x, const float *weight, const float *bias, uint64_t rows, uint64_t width, float *out,
                     float *mean, float *scale, void *stream);
int train_layer_norm_again(const float *x, const float *weight, const float *bias, const float *mean,
                           const float *scale, uint64_t rows, uint64_t width, float *out, void *stream);
int train_layer_norm_backward(const float *x, const float *weight, const float *mean, const float *scale,
                              const float *dout, uint64_t rows, uint64_t width, float *dx, float *dweight, float *dbias,
                              void *scratch, void *stream);
int train_gelu(const float *x, float *y, uint64_t count, void *stream);
int train_gelu_and_slope(float *x, float *y, uint64_t count, void *stream);
int train_multiply(float *x, const float *factor, uint64_t count, void *stream);
int train_add(float *x, const float *addend, uint64_t count, void *stream);
int train_fill(float *x, float value, uint64_t count, void *stream);
int train_add_column_sums(const float *matrix, uint64_t stride, uint64_t rows, uint64_t width, float *sums,
                          void *scratch, void *stream);
int train_row_sums(const float *matrix, uint64_t rows, uint64_t width, double *sums, void *stream);
int train_sum_of_squares(const float *values, uint64_t count, double *sum, void *scratch, void *stream);
int train_causal_softmax(float *scores, uint64_t stride, uint64_t matrices, uint64_t rows, float *log_sum,
                         void *stream);
int train_causal_weights(float *scores, uint64_t stride, uint64_t matrices, uint64_t rows, const float *log_sum,
                         void *stream);
int train_causal_backward(const float *weights, float *dweights, uint64_t stride, uint64_t samples, uint64_t heads,
                          uint64_t rows, const float *dout, const float *out, uint64_t out_stride, uint64_t size,
                          float scale, void *stream);
int train_cross_entropy(float *logits, uint64_t stride, uint64_t rows, uint64_t count, const uint32_t *targets,
                        float gradient_scale, double *row_loss, void *stream);
int train_embed(const uint32_t *tokens, const float *tokens_weight, const float *positions_weight, uint64_t rows,
                uint64_t sequence, uint64_t width, float *out, void *stream);
int train_embed_backward(const uint32_t *distinct, const uint32_t *begins, const uint32_t *order,
                         uint64_t distinct_count, const float *gradient, uint64_t rows, uint64_t sequence,
                         uint64_t width, float *dtokens, float *dpositions, void *stream);
/* The key of a dropout site follows from step_key, sample and place (engine/rng.h). */
int train_dropout(uint64_t step_key, uint64_t first_sample, uint64_t place, uint64_t sample_rows, uint32_t threshold,
                  float scale, const float *x, float *out, uint64_t stride, uint64_t rows, uint64_t width,
                  void *stream);
int train_adamw(const struct adamw_factors *factors, float *weights, const float *gradients, float *exp_avg,
                float *exp_avg_sq, uint64_t count, void *stream);
int train_sgd(float decay, float rate, float *weights, const float *gradients, uint64_t count, void *stream);
int train_rounded_bf16(const float *values, float *rounded, uint64_t count, void *stream);

#ifdef __cplusplus
}
#endif

#endif
