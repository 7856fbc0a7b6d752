/* Shared by all kinds of model: a memory arena, products with weights, dropout, losses. */
#include "train/train_model_internal.h"

void *arena_take(struct arena *self, uint64_t count, uint64_t bytes)
{
    void *memory = self->base ? self->base + self->used_bytes : NULL;
    self->used_bytes += (count * bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return memory;
}

void model_meet(const struct train_model *self)
{
    if (!self->on_device)
        thread_pool_meet(self->team);
}

/* Where the operands of products with weights are rounded to bf16; NULL: they are not. */
static uint16_t *rounded(const struct train_model *self)
{
    return self->on_device ? self->on_device->rounded : NULL;
}

struct device_product plain_product(const struct train_model *self, const float *in, uint64_t in_width,
                                    const float *weight, bool transposed, float *out, uint64_t out_width)
{
    return (struct device_product){.in = in,
                                   .weight = weight,
                                   .out = out,
                                   .rows = self->rows,
                                   .inner = in_width,
                                   .columns = out_width,
                                   .in_stride = in_width,
                                   .weight_stride = transposed ? in_width : out_width,
                                   .out_stride = out_width,
                                   .weight_transposed = transposed,
                                   .rounded = rounded(self),
                                   .scale = 1};
}

void multiply(const struct train_model *self, struct device_math *math, const float *in, uint64_t in_width,
              const float *weight, const float *base, const float *bias, float *out, uint64_t out_width)
{
    struct device_product product = plain_product(self, in, in_width, weight, false, out, out_width);
    product.base = base;
    product.bias = bias;
    math->ops->product(math, &product);
}

void back_through(const struct train_model *self, struct device_math *math, const float *dout, uint64_t dout_width,
                  const float *weight, float *din, uint64_t din_width)
{
    struct device_product product = plain_product(self, dout, dout_width, weight, true, din, din_width);
    math->ops->product(math, &product);
}

void add_outer(const struct train_model *self, struct device_math *math, const float *in, uint64_t in_width,
               uint64_t in_stride, const float *dout, uint64_t out_width, float *gradient, float *bias_gradient)
{
    struct device_product product = {.in = in,
                                     .weight = dout,
                                     .base = gradient,
                                     .out = gradient,
                                     .rows = in_width,
                                     .inner = self->rows,
                                     .columns = out_width,
                                     .in_stride = in_stride,
                                     .weight_stride = out_width,
                                     .out_stride = out_width,
                                     .in_transposed = true,
                                     .rounded = rounded(self),
                                     .scale = 1};
    math->ops->product(math, &product);
    if (bias_gradient)
        math->ops->add_column_sums(math, dout, out_width, self->rows, out_width, bias_gradient);
}

bool dropout_is_on(const struct train_model *self)
{
    return self->setup.dropout > 0 && self->batch.training;
}

struct device_dropout dropout_at(const struct train_model *self, size_t stage, unsigned place, uint64_t first,
                                 uint64_t sample_rows)
{
    return (struct device_dropout){.step_key = dropout_step_key(self->setup.seed, self->batch.step),
                                   .first_sample = self->batch.first_sample + first,
                                   .place = stage * PLACES + place,
                                   .sample_rows = sample_rows,
                                   .threshold = (uint32_t)((double)self->setup.dropout * 0x1p32),
                                   .scale = 1.0f / (1.0f - self->setup.dropout)};
}

struct dropout dropout_site(const struct device_dropout *self, uint64_t sample)
{
    return (struct dropout){.key = dropout_site_key(self->step_key, self->first_sample + sample, self->place),
                            .threshold = self->threshold,
                            .scale = self->scale};
}

void drop_rows(const struct train_model *self, struct device_math *math, size_t stage, unsigned place, const float *in,
               float *out)
{
    uint64_t width = self->setup.shape.width;
    struct device_dropout dropout = dropout_at(self, stage, place, 0, self->setup.sequence);
    math->ops->dropout(math, &dropout, in, out, width, self->rows, width);
}

const double *model_row_loss(const struct train_model *self)
{
    return self->setup.shape.kind == TRAIN_LINEAR ? self->linear.row_loss : self->gpt2.row_loss;
}

void model_add_up_loss(struct train_model *self, const double *row_loss)
{
    bool linear = self->setup.shape.kind == TRAIN_LINEAR;
    double sum = 0, count = linear ? (double)self->rows * (double)self->setup.shape.width : (double)self->counted;
    for (uint64_t r = 0; r < self->rows; r++)
        sum += row_loss[r];
    self->loss = count > 0 ? sum / count : 0;
}
