/* Layers y = x W' + b in a row; the loss is the mean of the last output. */
#include "train/train_model_internal.h"

void linear_take_memory(const struct train_setup *setup, struct linear_memory *memory, struct arena *arena)
{
    uint64_t rows = (uint64_t)setup->batch * setup->sequence, narrow = rows * setup->shape.width;
    memory->output = arena_take(arena, setup->shape.layers * narrow, sizeof(float));
    memory->gradient = arena_take(arena, narrow, sizeof(float));
    memory->row_loss = arena_take(arena, rows, sizeof(double));
}

/* The gradient of layer i's output reuses the memory of layer i + 1's output, which is no longer needed. */
struct layer layer_at(struct train_model *self, uint32_t index, const float *flat, float *gradients)
{
    uint64_t narrow = self->rows * self->setup.shape.width;
    float *output = self->linear.output + index * narrow;
    bool last = index + 1 == self->setup.shape.layers;
    return (struct layer){.model = self,
                          .width = self->setup.shape.width,
                          .index = index,
                          .last = last,
                          .flat = flat,
                          .in = index ? output - narrow : self->batch.input,
                          .gradients = gradients,
                          .out = output,
                          .dout = last ? self->linear.gradient : output + narrow,
                          .din = index ? output : NULL};
}

static void forward_on(void *context, uint32_t thread)
{
    const struct layer *self = context;
    struct train_model *model = self->model;
    uint64_t c = self->width, first, end;
    thread_pool_share(model->team, thread, model->rows, 1, &first, &end);
    kernel_start_rows(NULL, model->setup.shape.bias ? self->flat + c * c : NULL, end - first, c, self->out + first * c);
    struct product product = {.in = self->in, .weight = self->flat, .out = self->out, .transposed = true, .add = true};
    product.in_width = product.in_stride = product.out_width = product.out_stride = c;
    product_rows(model, &product, first, end);
    for (uint64_t r = first; r < end && self->last; r++)
        model->linear.row_loss[r] = kernel_sum(self->out + r * c, c);
}

void linear_forward(struct train_model *self, uint32_t layer, const float *flat)
{
    struct layer call = layer_at(self, layer, flat, NULL);
    thread_pool_run(self->team, forward_on, &call);
    if (!call.last)
        return;
    double sum = 0;
    for (uint64_t r = 0; r < self->rows; r++)
        sum += self->linear.row_loss[r];
    self->loss = sum / ((double)self->rows * (double)call.width);
}

static void backward_on(void *context, uint32_t thread)
{
    const struct layer *self = context;
    struct train_model *model = self->model;
    uint64_t c = self->width, first, end;
    thread_pool_share(model->team, thread, model->rows, 1, &first, &end);
    if (self->last) {
        float each = (float)(1.0 / ((double)model->rows * (double)c));
        for (uint64_t i = first * c; i < end * c; i++)
            self->dout[i] = each;
        thread_pool_meet(model->team);
    }
    /* The weight is [out][in]: its gradient is dout' x in. */
    struct outer outer = {.in = self->dout, .dout = self->in, .gradient = self->gradients};
    outer.in_width = outer.in_stride = outer.out_width = outer.dout_stride = c;
    outer_add(model, &outer, thread);
    if (model->setup.shape.bias) {
        uint64_t from, to;
        thread_pool_share(model->team, thread, c, LINE_FLOATS, &from, &to);
        kernel_add_column_sums(self->dout, c, model->rows, from, to, self->gradients + c * c);
    }
    if (!self->din)
        return;
    struct product product = {.in = self->dout, .weight = self->flat, .out = self->din};
    product.in_width = product.in_stride = product.out_width = product.out_stride = c;
    product_rows(model, &product, first, end);
}

void linear_backward(struct train_model *self, uint32_t layer, const float *flat, float *gradients)
{
    struct layer call = layer_at(self, layer, flat, gradients);
    thread_pool_run(self->team, backward_on, &call);
}
