/* One transformer block, forward and backward: the order of its products and which buffers share memory. Each thread
 * processes rows (or heads, or rows of a weight's gradient); threads synchronise before one reads what others wrote. */
#include "train/train_model_internal.h"

struct block block_at(struct train_model *self, uint32_t layer, const float *flat, float *gradients)
{
    const struct train_parameter *p = self->units[layer + 1].parameters;
    uint64_t width = self->setup.shape.width, rows = self->rows, narrow = rows * width;
    const struct gpt2_memory *memory = &self->gpt2;
    return (struct block){
        .model = self,
        .layer = layer,
        .flat = flat,
        .gradients = gradients,
        .at = {p[0].offset, p[1].offset, p[2].offset, p[3].offset, p[4].offset, p[5].offset, p[6].offset, p[7].offset,
               p[8].offset, p[9].offset, p[10].offset, p[11].offset},
        .width = width,
        .rows = rows,
        .before = memory->stream + layer * narrow,
        .after = memory->stream + (layer + 1) * narrow,
        .middle = memory->middle + layer * narrow,
        .qkv = memory->qkv + layer * 3 * narrow,
        .mixed = memory->mixed + layer * narrow,
        .hidden = memory->hidden + layer * 4 * narrow,
        .mean1 = memory->mean + 2 * layer * rows,
        .scale1 = memory->scale + 2 * layer * rows,
        .mean2 = memory->mean + (2 * layer + 1) * rows,
        .scale2 = memory->scale + (2 * layer + 1) * rows,
    };
}

static void share_rows(const struct block *self, uint32_t thread, uint64_t *first, uint64_t *end)
{
    thread_pool_share(self->model->team, thread, self->rows, 1, first, end);
}

/* Forward. */

/* out = base + dropout(in weight + bias) for these rows; without dropout the product adds to base + bias. */
static void project(const struct block *self, const struct product *product, const float *base, uint64_t bias,
                    unsigned place, uint64_t first, uint64_t end)
{
    const struct train_model *model = self->model;
    uint64_t c = self->width, from = first * c;
    struct product adding = *product;
    adding.add = true;
    if (!dropout_is_on(model)) {
        kernel_start_rows(base + from, self->flat + bias, end - first, c, product->out + from);
        product_rows(model, &adding, first, end);
        return;
    }
    adding.out = model->gpt2.narrow;
    kernel_start_rows(NULL, self->flat + bias, end - first, c, adding.out + from);
    product_rows(model, &adding, first, end);
    dropout_rows(model, self->layer + 1, place, adding.out, product->out, first, end);
    kernel_add(product->out + from, base + from, (end - first) * c);
}

static void attend(struct block *self, uint32_t thread, uint64_t first, uint64_t end)
{
    struct train_model *model = self->model;
    uint64_t c = self->width, from = first * c;
    float *normal = model->gpt2.normal;
    kernel_layer_norm(self->before + from, self->flat + self->at.norm1_weight, self->flat + self->at.norm1_bias,
                      end - first, c, normal + from, self->mean1 + first, self->scale1 + first);
    kernel_start_rows(NULL, self->flat + self->at.qkv_bias, end - first, 3 * c, self->qkv + 3 * from);
    struct product qkv = {.in = normal, .weight = self->flat + self->at.qkv_weight, .out = self->qkv};
    qkv.in_width = qkv.in_stride = c;
    qkv.out_width = qkv.out_stride = 3 * c;
    qkv.add = true;
    product_rows(model, &qkv, first, end);
    thread_pool_meet(model->team);
    attention_forward(model, self->layer, thread);
    thread_pool_meet(model->team);
    struct product projection = {.in = self->mixed, .weight = self->flat + self->at.projection_weight};
    projection.out = self->middle;
    projection.in_width = projection.in_stride = projection.out_width = projection.out_stride = c;
    project(self, &projection, self->before, self->at.projection_bias, PLACE_PROJECTION, first, end);
}

static void think(struct block *self, uint64_t first, uint64_t end)
{
    struct train_model *model = self->model;
    uint64_t c = self->width, from = first * c;
    float *normal = model->gpt2.normal, *wide = model->gpt2.wide;
    kernel_layer_norm(self->middle + from, self->flat + self->at.norm2_weight, self->flat + self->at.norm2_bias,
                      end - first, c, normal + from, self->mean2 + first, self->scale2 + first);
    kernel_start_rows(NULL, self->flat + self->at.up_bias, end - first, 4 * c, self->hidden + 4 * from);
    struct product up = {.in = normal, .weight = self->flat + self->at.up_weight, .out = self->hidden, .add = true};
    up.in_width = up.in_stride = c;
    up.out_width = up.out_stride = 4 * c;
    product_rows(model, &up, first, end);
    kernel_gelu(self->hidden + 4 * from, wide + 4 * from, 4 * (end - first) * c);
    struct product down = {.in = wide, .weight = self->flat + self->at.down_weight, .out = self->after};
    down.in_width = down.in_stride = 4 * c;
    down.out_width = down.out_stride = c;
    project(self, &down, self->middle, self->at.down_bias, PLACE_MLP, first, end);
}

static void forward_on(void *context, uint32_t thread)
{
    struct block self = *(struct block *)context;
    uint64_t first, end;
    share_rows(&self, thread, &first, &end);
    attend(&self, thread, first, end);
    think(&self, first, end);
}

void block_forward(struct train_model *self, uint32_t layer, const float *flat)
{
    struct block block = block_at(self, layer, flat, NULL);
    thread_pool_run(self->team, forward_on, &block);
}

/* Backward. The gradient of the residual stream stays in place: each branch adds to it. */

/* The gradient after a branch's dropout; without dropout that of the stream itself. */
static const float *behind_dropout(const struct block *self, unsigned place, uint64_t first, uint64_t end)
{
    const struct train_model *model = self->model;
    if (!dropout_is_on(model))
        return model->gpt2.gradient;
    dropout_rows(model, self->layer + 1, place, model->gpt2.gradient, model->gpt2.dropped, first, end);
    return model->gpt2.dropped;
}

/* dout weight', for these rows. */
static void back_through(const struct block *self, const float *dout, uint64_t dout_width, uint64_t weight, float *din,
                         uint64_t din_width, uint64_t first, uint64_t end)
{
    struct product product = {.in = dout,
                              .weight = self->flat + weight,
                              .out = din,
                              .in_width = dout_width,
                              .in_stride = dout_width,
                              .out_width = din_width,
                              .out_stride = din_width,
                              .transposed = true};
    product_rows(self->model, &product, first, end);
}

static void add_outer(const struct block *self, const float *in, uint64_t in_width, const float *dout,
                      uint64_t dout_width, uint64_t weight, uint64_t bias, uint32_t thread)
{
    struct outer outer = {.in = in,
                          .dout = dout,
                          .gradient = self->gradients + weight,
                          .bias_gradient = self->gradients + bias,
                          .in_width = in_width,
                          .in_stride = in_width,
                          .out_width = dout_width,
                          .dout_stride = dout_width};
    outer_add(self->model, &outer, thread);
}

/* Adds the gradient that passed through a norm to the stream's gradient. */
static void back_through_norm(const struct block *self, const float *x, uint64_t weight, const float *mean,
                              const float *scale, const float *dout, uint32_t thread, uint64_t first, uint64_t end)
{
    float *partial = gpt2_clear_partial(self->model, thread);
    uint64_t from = first * self->width;
    kernel_layer_norm_backward(x + from, self->flat + weight, mean + first, scale + first, dout + from, end - first,
                               self->width, self->model->gpt2.gradient + from, partial, partial + self->width);
}

static void norm_again(const struct block *self, const float *x, uint64_t weight, uint64_t bias, const float *mean,
                       const float *scale, uint64_t first, uint64_t end)
{
    uint64_t from = first * self->width;
    kernel_layer_norm_again(x + from, self->flat + weight, self->flat + bias, mean + first, scale + first, end - first,
                            self->width, self->model->gpt2.normal + from);
}

/* Leaves the sums of the second norm in `partial`, not yet added up. */
static void think_backward(struct block *self, uint32_t thread, uint64_t first, uint64_t end)
{
    struct train_model *model = self->model;
    const struct gpt2_memory *memory = &model->gpt2;
    uint64_t c = self->width, from = 4 * first * c, wide_count = 4 * (end - first) * c;
    const float *dout = behind_dropout(self, PLACE_MLP, first, end);
    norm_again(self, self->middle, self->at.norm2_weight, self->at.norm2_bias, self->mean2, self->scale2, first, end);
    kernel_gelu_and_slope(self->hidden + from, memory->wide + from, wide_count);
    back_through(self, dout, c, self->at.down_weight, memory->hidden_slope, 4 * c, first, end);
    kernel_multiply(self->hidden + from, memory->hidden_slope + from, wide_count);
    thread_pool_meet(model->team);
    add_outer(self, memory->wide, 4 * c, dout, c, self->at.down_weight, self->at.down_bias, thread);
    add_outer(self, memory->normal, c, self->hidden, 4 * c, self->at.up_weight, self->at.up_bias, thread);
    back_through(self, self->hidden, 4 * c, self->at.up_weight, memory->narrow, c, first, end);
    thread_pool_meet(model->team);
    back_through_norm(self, self->middle, self->at.norm2_weight, self->mean2, self->scale2, memory->narrow, thread,
                      first, end);
}

static void attend_backward(struct block *self, uint32_t thread, uint64_t first, uint64_t end)
{
    struct train_model *model = self->model;
    const struct gpt2_memory *memory = &model->gpt2;
    uint64_t c = self->width;
    float *dqkv = memory->wide, *narrow = memory->narrow;
    const float *dout = behind_dropout(self, PLACE_PROJECTION, first, end);
    norm_again(self, self->before, self->at.norm1_weight, self->at.norm1_bias, self->mean1, self->scale1, first, end);
    back_through(self, dout, c, self->at.projection_weight, narrow, c, first, end);
    thread_pool_meet(model->team);
    gpt2_add_partial(model, thread, self->gradients + self->at.norm2_weight, self->gradients + self->at.norm2_bias);
    add_outer(self, self->mixed, c, dout, c, self->at.projection_weight, self->at.projection_bias, thread);
    attention_backward(model, self->layer, thread, narrow, dqkv);
    thread_pool_meet(model->team);
    add_outer(self, memory->normal, c, dqkv, 3 * c, self->at.qkv_weight, self->at.qkv_bias, thread);
    back_through(self, dqkv, 3 * c, self->at.qkv_weight, narrow, c, first, end);
    back_through_norm(self, self->before, self->at.norm1_weight, self->mean1, self->scale1, narrow, thread, first, end);
    thread_pool_meet(model->team);
    gpt2_add_partial(model, thread, self->gradients + self->at.norm1_weight, self->gradients + self->at.norm1_bias);
}

static void backward_on(void *context, uint32_t thread)
{
    struct block self = *(struct block *)context;
    uint64_t first, end;
    share_rows(&self, thread, &first, &end);
    think_backward(&self, thread, first, end);
    attend_backward(&self, thread, first, end);
}

void block_backward(struct train_model *self, uint32_t layer, const float *flat, float *gradients)
{
    struct block block = block_at(self, layer, flat, gradients);
    thread_pool_run(self->team, backward_on, &block);
}
