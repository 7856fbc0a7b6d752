/* The arithmetic of training on the device's stream: kernels (cuda/train_kernels.cu), matrix products
 * (cuda/products.c), their scratch memory, and the first failure. */
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cuda/train_kernels.h"

struct cuda_math {
    struct device_math base;
    struct cuda_device *device;
    struct cuda_products *products;
    void *scratch;
    int failed; /* code and message of the first failure */
    struct cb_err failure;
};

static struct cuda_math *cast(struct device_math *math)
{
    return (struct cuda_math *)math;
}

static void *stream_of(const struct cuda_math *self)
{
    return self->device->work.stream;
}

/* Whether anything may still be queued. */
static bool is_well(struct cuda_math *self)
{
    if (!self->failed)
        self->failed = cuda_use(self->device, &self->failure);
    return !self->failed;
}

static void keep(struct cuda_math *self, int code, const char *doing)
{
    self->failed = cuda_check((cudaError_t)code, &self->failure, doing);
}

static void math_product(struct device_math *math, const struct device_product *product)
{
    struct cuda_math *self = cast(math);
    if (is_well(self))
        self->failed = cuda_products_queue(self->products, product, &self->failure);
}

/* A kernel of cuda/train_kernels.h and its arguments. */
#define QUEUE(kernel, doing, ...)                                                                                      \
    do {                                                                                                               \
        struct cuda_math *self = cast(math);                                                                           \
        if (is_well(self))                                                                                             \
            keep(self, kernel(__VA_ARGS__, stream_of(self)), doing);                                                   \
    } while (0)

static void math_layer_norm(struct device_math *math, const float *x, const float *weight, const float *bias,
                            uint64_t rows, uint64_t width, float *out, float *mean, float *scale)
{
    QUEUE(train_layer_norm, "a layer norm on the GPU", x, weight, bias, rows, width, out, mean, scale);
}

static void math_layer_norm_again(struct device_math *math, const float *x, const float *weight, const float *bias,
                                  const float *mean, const float *scale, uint64_t rows, uint64_t width, float *out)
{
    QUEUE(train_layer_norm_again, "a layer norm on the GPU", x, weight, bias, mean, scale, rows, width, out);
}

static void math_layer_norm_backward(struct device_math *math, const float *x, const float *weight, const float *mean,
                                     const float *scale, const float *dout, uint64_t rows, uint64_t width, float *dx,
                                     float *dweight, float *dbias)
{
    QUEUE(train_layer_norm_backward, "a layer norm's gradient on the GPU", x, weight, mean, scale, dout, rows, width,
          dx, dweight, dbias, self->scratch);
}

static void math_gelu(struct device_math *math, const float *x, float *y, uint64_t count)
{
    QUEUE(train_gelu, "GELU on the GPU", x, y, count);
}

static void math_gelu_and_slope(struct device_math *math, float *x, float *y, uint64_t count)
{
    QUEUE(train_gelu_and_slope, "GELU's slope on the GPU", x, y, count);
}

static void math_multiply(struct device_math *math, float *x, const float *factor, uint64_t count)
{
    QUEUE(train_multiply, "multiplying on the GPU", x, factor, count);
}

static void math_add(struct device_math *math, float *x, const float *addend, uint64_t count)
{
    QUEUE(train_add, "adding on the GPU", x, addend, count);
}

static void math_fill(struct device_math *math, float *x, float value, uint64_t count)
{
    QUEUE(train_fill, "filling on the GPU", x, value, count);
}

static void math_add_column_sums(struct device_math *math, const float *matrix, uint64_t stride, uint64_t rows,
                                 uint64_t width, float *sums)
{
    QUEUE(train_add_column_sums, "sums of columns on the GPU", matrix, stride, rows, width, sums, self->scratch);
}

static void math_row_sums(struct device_math *math, const float *matrix, uint64_t rows, uint64_t width, double *sums)
{
    QUEUE(train_row_sums, "sums of rows on the GPU", matrix, rows, width, sums);
}

static void math_sum_of_squares(struct device_math *math, const float *values, uint64_t count, double *sum)
{
    QUEUE(train_sum_of_squares, "a sum of squares on the GPU", values, count, sum, self->scratch);
}

static void math_causal_softmax(struct device_math *math, float *scores, uint64_t stride, uint64_t matrices,
                                uint64_t rows, float *log_sum)
{
    QUEUE(train_causal_softmax, "a softmax on the GPU", scores, stride, matrices, rows, log_sum);
}

static void math_causal_weights(struct device_math *math, float *scores, uint64_t stride, uint64_t matrices,
                                uint64_t rows, const float *log_sum)
{
    QUEUE(train_causal_weights, "a softmax on the GPU", scores, stride, matrices, rows, log_sum);
}

static void math_causal_backward(struct device_math *math, const float *weights, float *dweights, uint64_t stride,
                                 uint64_t samples, uint64_t heads, uint64_t rows, const float *dout, const float *out,
                                 uint64_t out_stride, uint64_t size, float scale)
{
    QUEUE(train_causal_backward, "a softmax's gradient on the GPU", weights, dweights, stride, samples, heads, rows,
          dout, out, out_stride, size, scale);
}

static void math_cross_entropy(struct device_math *math, float *logits, uint64_t stride, uint64_t rows, uint64_t count,
                               const uint32_t *targets, float gradient_scale, double *row_loss)
{
    QUEUE(train_cross_entropy, "a loss on the GPU", logits, stride, rows, count, targets, gradient_scale, row_loss);
}

static void math_embed(struct device_math *math, const uint32_t *tokens, const float *tokens_weight,
                       const float *positions_weight, uint64_t rows, uint64_t sequence, uint64_t width, float *out)
{
    QUEUE(train_embed, "an embedding on the GPU", tokens, tokens_weight, positions_weight, rows, sequence, width, out);
}

static void math_embed_backward(struct device_math *math, const struct device_token_rows *token_rows,
                                const float *gradient, uint64_t rows, uint64_t sequence, uint64_t width, float *dtokens,
                                float *dpositions)
{
    QUEUE(train_embed_backward, "an embedding's gradient on the GPU", token_rows->distinct, token_rows->begins,
          token_rows->order, token_rows->distinct_count, gradient, rows, sequence, width, dtokens, dpositions);
}

static void math_dropout(struct device_math *math, const struct device_dropout *dropout, const float *x, float *out,
                         uint64_t stride, uint64_t rows, uint64_t width)
{
    QUEUE(train_dropout, "dropout on the GPU", dropout->step_key, dropout->first_sample, dropout->place,
          dropout->sample_rows, dropout->threshold, dropout->scale, x, out, stride, rows, width);
}

static void math_adamw(struct device_math *math, const struct adamw_factors *factors, float *weights,
                       const float *gradients, float *exp_avg, float *exp_avg_sq, uint64_t count)
{
    QUEUE(train_adamw, "AdamW on the GPU", factors, weights, gradients, exp_avg, exp_avg_sq, count);
}

static void math_sgd(struct device_math *math, float decay, float rate, float *weights, const float *gradients,
                     uint64_t count)
{
    QUEUE(train_sgd, "SGD on the GPU", decay, rate, weights, gradients, count);
}

static void math_round_bf16(struct device_math *math, const float *values, float *rounded, uint64_t count)
{
    QUEUE(train_rounded_bf16, "rounding on the GPU", values, rounded, count);
}

static int math_check(struct device_math *math, struct cb_err *err)
{
    struct cuda_math *self = cast(math);
    if (self->failed && err)
        *err = self->failure;
    return self->failed;
}

/* Waits for pending work before it frees the memory that it uses. */
static void math_close(struct device_math *math)
{
    struct cuda_math *self = cast(math);
    if (cudaSetDevice(self->device->index) == cudaSuccess) {
        (void)cudaStreamSynchronize(self->device->work.stream);
        cuda_products_free(self->products);
        (void)cudaFree(self->scratch);
    }
    free(self);
}

static const struct device_math_ops cuda_math_ops = {
    .version = DEVICE_MATH_VERSION,
    .product = math_product,
    .layer_norm = math_layer_norm,
    .layer_norm_again = math_layer_norm_again,
    .layer_norm_backward = math_layer_norm_backward,
    .gelu = math_gelu,
    .gelu_and_slope = math_gelu_and_slope,
    .multiply = math_multiply,
    .add = math_add,
    .fill = math_fill,
    .add_column_sums = math_add_column_sums,
    .row_sums = math_row_sums,
    .sum_of_squares = math_sum_of_squares,
    .causal_softmax = math_causal_softmax,
    .causal_weights = math_causal_weights,
    .causal_backward = math_causal_backward,
    .cross_entropy = math_cross_entropy,
    .embed = math_embed,
    .embed_backward = math_embed_backward,
    .dropout = math_dropout,
    .adamw = math_adamw,
    .sgd = math_sgd,
    .round_bf16 = math_round_bf16,
    .check = math_check,
    .close = math_close,
};

int cuda_open_math(struct device *device, struct device_math **math, struct cb_err *err)
{
    struct cuda_math *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the GPU's arithmetic");
    self->base = (struct device_math){.ops = &cuda_math_ops, .device = device};
    self->device = (struct cuda_device *)device;
    int rc = cuda_allocate(self->device, TRAIN_SCRATCH_BYTES, &self->scratch, err);
    if (!rc)
        rc = cuda_products_new(self->device, &self->products, err);
    if (rc)
        math_close(&self->base);
    else
        *math = &self->base;
    return rc;
}
