/* A stack of layers y = x W' + b; the loss is the mean of the last output. */
#include "train/train_model_internal.h"

void linear_take_memory(struct train_model *self, struct arena *arena)
{
    struct linear_memory *memory = &self->linear;
    uint64_t rows = (uint64_t)self->setup.batch * self->setup.sequence, narrow = rows * self->setup.shape.width;
    memory->output = arena_take(arena, self->setup.shape.layers * narrow, sizeof(float));
    memory->gradient = arena_take(arena, narrow, sizeof(float));
    memory->row_loss = arena_take(arena, rows, sizeof(double));
}

static bool is_last(const struct train_model *self, uint32_t layer)
{
    return layer + 1 == self->setup.shape.layers;
}

static const float *input_of(const struct train_model *self, uint32_t layer)
{
    return layer ? self->linear.output + (layer - 1) * self->rows * self->setup.shape.width : self->batch.input;
}

void linear_forward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat)
{
    uint64_t c = self->setup.shape.width;
    float *output = self->linear.output + layer * self->rows * c;
    struct device_product product = plain_product(self, input_of(self, layer), c, flat, true, output, c);
    product.bias = self->setup.shape.bias ? flat + c * c : NULL;
    math->ops->product(math, &product);
    if (is_last(self, layer))
        math->ops->row_sums(math, output, self->rows, c, self->linear.row_loss);
}

/* The gradient of a layer's output reuses the memory of the next layer's output, which is no longer needed. */
void linear_backward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat,
                     float *gradients)
{
    uint64_t rows = self->rows, c = self->setup.shape.width;
    float *output = self->linear.output + layer * rows * c;
    float *dout = is_last(self, layer) ? self->linear.gradient : output + rows * c;
    if (is_last(self, layer)) {
        math->ops->fill(math, dout, (float)(1.0 / ((double)rows * (double)c)), rows * c);
        model_meet(self);
    }
    /* The weight is [out][in]: its gradient is dout' x in. */
    add_outer(self, math, dout, c, c, input_of(self, layer), c, gradients, NULL);
    if (self->setup.shape.bias)
        math->ops->add_column_sums(math, dout, c, rows, c, gradients + c * c);
    if (layer > 0) /* the first layer's input has no gradient */
        multiply(self, math, dout, c, flat, NULL, NULL, output, c);
}
