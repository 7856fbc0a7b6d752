/* The operations of engine/device_math.h that a model needs, on the host: each thread of the pool computes its own rows, or
 * its own part of a sum over rows, with the loops of engine/kernels.h and the BLAS library. */
#include <assert.h>
#include <string.h>

#include "train/train_model_internal.h"

static const struct host_math *cast(const struct device_math *math)
{
    return (const struct host_math *)math;
}

/* This thread's columns of `width`; rows of the batch are self->first ... self->end - 1. */
static void share_columns(const struct host_math *self, uint64_t width, uint64_t *first, uint64_t *end)
{
    thread_pool_share(self->model->team, self->thread, width, LINE_FLOATS, first, end);
}

/* This thread's part of an array that has the same number of elements for each row; returns its length. */
static uint64_t share_elements(const struct host_math *self, uint64_t count, uint64_t *first)
{
    uint64_t width = count / self->model->rows;
    *first = self->first * width;
    return (self->end - self->first) * width;
}

/* The library computes in the calling thread, so the threads split the rows of `out`. */
static void host_product(struct device_math *math, const struct device_product *product)
{
    const struct host_math *self = cast(math);
    uint64_t first = self->first, end = self->end;
    if (product->in_transposed) /* `out` has the shape of a weight */
        share_columns(self, product->rows, &first, &end);
    if (first == end)
        return;
    float *out = product->out + first * product->out_stride;
    const float *in = product->in + first * (product->in_transposed ? 1 : product->in_stride);
    bool in_place = product->base == product->out;
    if (product->bias) {
        assert(product->out_stride == product->columns && !in_place);
        const float *base = product->base ? product->base + first * product->out_stride : NULL;
        kernel_start_rows(base, product->bias, end - first, product->columns, out);
    }
    blas_sgemm(&self->model->blas, product->in_transposed, product->weight_transposed, (int)(end - first),
               (int)product->columns, (int)product->inner, product->scale, in, (int)product->in_stride, product->weight,
               (int)product->weight_stride, product->bias || in_place ? 1.0f : 0.0f, out, (int)product->out_stride);
}

/* --- layer norm --- */

static void host_layer_norm(struct device_math *math, const float *x, const float *weight, const float *bias,
                            uint64_t rows, uint64_t width, float *out, float *mean, float *scale)
{
    uint64_t first, count = share_elements(cast(math), rows, &first), at = first * width;
    kernel_layer_norm(x + at, weight, bias, count, width, out + at, mean + first, scale + first);
}

static void host_layer_norm_again(struct device_math *math, const float *x, const float *weight, const float *bias,
                                  const float *mean, const float *scale, uint64_t rows, uint64_t width, float *out)
{
    uint64_t first, count = share_elements(cast(math), rows, &first), at = first * width;
    kernel_layer_norm_again(x + at, weight, bias, mean + first, scale + first, count, width, out + at);
}

/* Each thread sums its rows, then its columns over all threads' sums. */
static void host_layer_norm_backward(struct device_math *math, const float *x, const float *weight, const float *mean,
                                     const float *scale, const float *dout, uint64_t rows, uint64_t width, float *dx,
                                     float *dweight, float *dbias)
{
    const struct host_math *self = cast(math);
    uint64_t stride = self->model->gpt2.partial_stride, first, end, count = share_elements(self, rows, &first);
    uint64_t at = first * width;
    float *all = self->model->gpt2.partial, *partial = all + self->thread * stride;
    memset(partial, 0, stride * sizeof *partial);
    kernel_layer_norm_backward(x + at, weight, mean + first, scale + first, dout + at, count, width, dx + at, partial,
                               partial + width);
    model_meet(self->model);
    share_columns(self, width, &first, &end);
    for (uint32_t t = 0; t < thread_pool_threads(self->model->team); t++) {
        kernel_add(dweight + first, all + t * stride + first, end - first);
        kernel_add(dbias + first, all + t * stride + width + first, end - first);
    }
}

/* --- elements --- */

static void host_gelu(struct device_math *math, const float *x, float *y, uint64_t count)
{
    uint64_t first, mine = share_elements(cast(math), count, &first);
    kernel_gelu(x + first, y + first, mine);
}

static void host_gelu_and_slope(struct device_math *math, float *x, float *y, uint64_t count)
{
    uint64_t first, mine = share_elements(cast(math), count, &first);
    kernel_gelu_and_slope(x + first, y + first, mine);
}

static void host_multiply(struct device_math *math, float *x, const float *factor, uint64_t count)
{
    uint64_t first, mine = share_elements(cast(math), count, &first);
    kernel_multiply(x + first, factor + first, mine);
}

static void host_add(struct device_math *math, float *x, const float *addend, uint64_t count)
{
    uint64_t first, mine = share_elements(cast(math), count, &first);
    kernel_add(x + first, addend + first, mine);
}

static void host_fill(struct device_math *math, float *x, float value, uint64_t count)
{
    uint64_t first, mine = share_elements(cast(math), count, &first);
    for (uint64_t i = first; i < first + mine; i++)
        x[i] = value;
}

/* --- sums and losses --- */

static void host_add_column_sums(struct device_math *math, const float *matrix, uint64_t stride, uint64_t rows,
                                 uint64_t width, float *sums)
{
    uint64_t first, end;
    share_columns(cast(math), width, &first, &end);
    kernel_add_column_sums(matrix, stride, rows, first, end, sums);
}

static void host_row_sums(struct device_math *math, const float *matrix, uint64_t rows, uint64_t width, double *sums)
{
    (void)rows;
    for (uint64_t r = cast(math)->first; r < cast(math)->end; r++)
        sums[r] = kernel_sum(matrix + r * width, width);
}

static void host_cross_entropy(struct device_math *math, float *logits, uint64_t stride, uint64_t rows, uint64_t count,
                               const uint32_t *targets, float gradient_scale, double *row_loss)
{
    (void)rows;
    for (uint64_t r = cast(math)->first; r < cast(math)->end; r++) {
        row_loss[r] = 0;
        if (targets[r] == TRAIN_IGNORE)
            memset(logits + r * stride, 0, count * sizeof *logits);
        else
            row_loss[r] = kernel_cross_entropy(logits + r * stride, count, targets[r], gradient_scale);
    }
}

/* --- embeddings and dropout --- */

static void host_embed(struct device_math *math, const uint32_t *tokens, const float *tokens_weight,
                       const float *positions_weight, uint64_t rows, uint64_t sequence, uint64_t width, float *out)
{
    (void)rows;
    for (uint64_t r = cast(math)->first; r < cast(math)->end; r++)
        kernel_start_rows(tokens_weight + tokens[r] * width, positions_weight + r % sequence * width, 1, width,
                          out + r * width);
}

/* A token may occur in many rows, so threads split the work by columns, not rows. */
static void host_embed_backward(struct device_math *math, const struct device_token_rows *token_rows,
                                const float *gradient, uint64_t rows, uint64_t sequence, uint64_t width, float *dtokens,
                                float *dpositions)
{
    uint64_t first, end;
    share_columns(cast(math), width, &first, &end);
    for (uint64_t r = 0; r < rows; r++) {
        kernel_add(dtokens + token_rows->tokens[r] * width + first, gradient + r * width + first, end - first);
        kernel_add(dpositions + r % sequence * width + first, gradient + r * width + first, end - first);
    }
}

static void host_dropout(struct device_math *math, const struct device_dropout *dropout, const float *x, float *out,
                         uint64_t stride, uint64_t rows, uint64_t width)
{
    uint64_t end = cast(math)->end;
    (void)rows;
    assert(stride == width);
    for (uint64_t row = cast(math)->first, stop; row < end; row = stop) { /* one sample after another */
        uint64_t sample = row / dropout->sample_rows, next = (sample + 1) * dropout->sample_rows;
        struct dropout site = dropout_site(dropout, sample);
        stop = next < end ? next : end;
        kernel_dropout(&site, row % dropout->sample_rows * width, x + row * width, out + row * width,
                       (stop - row) * width);
    }
}

static const struct device_math_ops host_ops = {
    .version = DEVICE_MATH_VERSION,
    .product = host_product,
    .layer_norm = host_layer_norm,
    .layer_norm_again = host_layer_norm_again,
    .layer_norm_backward = host_layer_norm_backward,
    .gelu = host_gelu,
    .gelu_and_slope = host_gelu_and_slope,
    .multiply = host_multiply,
    .add = host_add,
    .fill = host_fill,
    .add_column_sums = host_add_column_sums,
    .row_sums = host_row_sums,
    .cross_entropy = host_cross_entropy,
    .embed = host_embed,
    .embed_backward = host_embed_backward,
    .dropout = host_dropout,
};

void host_math_init(struct host_math *self, struct train_model *model, uint32_t thread)
{
    *self = (struct host_math){.base.ops = &host_ops, .model = model, .thread = thread};
    thread_pool_share(model->team, thread, model->rows, 1, &self->first, &self->end);
}
