/* The transformer's stages on a device: the operations of train/gpt2.c, train/block.c and train/attention.c, in the
 * same order. */
#include <math.h>

#include "train/device_model.h"

static struct device_math *math_of(const struct train_model *model)
{
    return model->on_device->math;
}

/* --- dropout --- */

/* Each sample has `sample_rows` rows of the matrix; the first sample is number `first` of this rank. */
static void drop(const struct train_model *model, size_t stage, unsigned place, uint64_t first, const float *x,
                 float *out, uint64_t stride, uint64_t rows, uint64_t sample_rows, uint64_t width)
{
    struct device_math *math = math_of(model);
    struct dropout site = dropout_site(model, stage, place, 0);
    struct device_dropout dropout = {.step_key = dropout_step_key(model->setup.seed, model->batch.step),
                                     .first_sample = model->batch.first_sample + first,
                                     .place = stage * PLACES + place,
                                     .sample_rows = sample_rows,
                                     .threshold = site.threshold,
                                     .scale = site.scale};
    math->ops->dropout(math, &dropout, x, out, stride, rows, width);
}

/* Of an [N][C] matrix. */
static void drop_rows(const struct train_model *model, size_t stage, unsigned place, const float *x, float *out)
{
    uint64_t c = model->setup.shape.width;
    drop(model, stage, place, 0, x, out, c, model->rows, model->setup.sequence, c);
}

/* --- products --- */

/* out[N][out_width] = base + bias + in[N][in_width] x weight */
static void multiply(const struct train_model *model, const float *in, uint64_t in_width, const float *weight,
                     const float *base, const float *bias, float *out, uint64_t out_width)
{
    struct device_math *math = math_of(model);
    struct device_product product = {.in = in,
                                     .weight = weight,
                                     .base = base,
                                     .bias = bias,
                                     .out = out,
                                     .rows = model->rows,
                                     .inner = in_width,
                                     .columns = out_width,
                                     .in_stride = in_width,
                                     .weight_stride = out_width,
                                     .out_stride = out_width,
                                     .scale = 1};
    math->ops->product(math, &product);
}

/* din[N][din_width] = dout[N][dout_width] x weight' */
static void back_through(const struct train_model *model, const float *dout, uint64_t dout_width, const float *weight,
                         float *din, uint64_t din_width)
{
    struct device_math *math = math_of(model);
    struct device_product product = {.in = dout,
                                     .weight = weight,
                                     .out = din,
                                     .rows = model->rows,
                                     .inner = dout_width,
                                     .columns = din_width,
                                     .in_stride = dout_width,
                                     .weight_stride = dout_width,
                                     .out_stride = din_width,
                                     .weight_transposed = true,
                                     .scale = 1};
    math->ops->product(math, &product);
}

void device_outer_add(struct train_model *model, const float *in, uint64_t in_width, uint64_t in_stride,
                      const float *dout, uint64_t out_width, float *gradient)
{
    struct device_math *math = model->on_device->math;
    struct device_product product = {.in = in,
                                     .weight = dout,
                                     .base = gradient,
                                     .out = gradient,
                                     .rows = in_width,
                                     .inner = model->rows,
                                     .columns = out_width,
                                     .in_stride = in_stride,
                                     .weight_stride = out_width,
                                     .out_stride = out_width,
                                     .in_transposed = true,
                                     .scale = 1};
    math->ops->product(math, &product);
}

static void add_outer(struct train_model *model, const float *in, uint64_t in_width, const float *dout,
                      uint64_t dout_width, float *gradient, float *bias_gradient)
{
    struct device_math *math = math_of(model);
    device_outer_add(model, in, in_width, in_width, dout, dout_width, gradient);
    math->ops->add_column_sums(math, dout, dout_width, model->rows, dout_width, bias_gradient);
}

/* --- attention --- */

/* The heads of some samples of a layer. */
struct heads {
    const float *q, *k, *v;
    const float *dout; /* this and the following: NULL in forward */
    float *dq, *dk, *dv;
    float *out, *log_sum;
    uint64_t first, count; /* number of samples */
    uint64_t heads, size, sequence, width, stride;
};

static struct heads heads_at(const struct train_model *model, const struct block *block, uint64_t first,
                             const float *dmixed, float *dqkv)
{
    const struct train_setup *setup = &model->setup;
    uint64_t width = block->width, sequence = setup->sequence, at_once = model->on_device->samples_at_once;
    uint64_t narrow = first * sequence * width, wide = 3 * narrow;
    return (struct heads){
        .q = block->qkv + wide,
        .k = block->qkv + wide + width,
        .v = block->qkv + wide + 2 * width,
        .dout = dmixed ? dmixed + narrow : NULL,
        .dq = dqkv ? dqkv + wide : NULL,
        .dk = dqkv ? dqkv + wide + width : NULL,
        .dv = dqkv ? dqkv + wide + 2 * width : NULL,
        .out = block->mixed + narrow,
        .log_sum =
            model->gpt2.log_sum + ((uint64_t)block->layer * setup->batch + first) * setup->shape.heads * sequence,
        .first = first,
        .count = setup->batch - first < at_once ? setup->batch - first : at_once,
        .heads = setup->shape.heads,
        .size = width / setup->shape.heads,
        .sequence = sequence,
        .width = width,
        .stride = model->gpt2.scores_stride,
    };
}

/* scores[sequence][sequence] = scale x in x other', from rows of q, k and v, or of attention's output. */
static void score(const struct train_model *model, const struct heads *self, const float *in, uint64_t in_stride,
                  const float *other, float scale, float *scores)
{
    struct device_math *math = math_of(model);
    struct device_product product = {.in = in,
                                     .weight = other,
                                     .out = scores,
                                     .rows = self->sequence,
                                     .inner = self->size,
                                     .columns = self->sequence,
                                     .in_stride = in_stride,
                                     .weight_stride = 3 * self->width,
                                     .out_stride = self->stride,
                                     .weight_transposed = true,
                                     .scale = scale,
                                     .samples = self->count,
                                     .heads = self->heads,
                                     .in_sample = self->sequence * in_stride,
                                     .in_head = self->size,
                                     .weight_sample = self->sequence * 3 * self->width,
                                     .weight_head = self->size,
                                     .out_sample = self->heads * self->sequence * self->stride,
                                     .out_head = self->sequence * self->stride};
    math->ops->product(math, &product);
}

/* out[sequence][size] = weights (or their transpose) x values, with the given strides between rows of values and of
 * out. */
static void mix(const struct train_model *model, const struct heads *self, const float *weights, bool transposed,
                const float *values, uint64_t values_stride, float *out, uint64_t out_stride)
{
    struct device_math *math = math_of(model);
    struct device_product product = {.in = weights,
                                     .weight = values,
                                     .out = out,
                                     .rows = self->sequence,
                                     .inner = self->sequence,
                                     .columns = self->size,
                                     .in_stride = self->stride,
                                     .weight_stride = values_stride,
                                     .out_stride = out_stride,
                                     .in_transposed = transposed,
                                     .scale = 1,
                                     .samples = self->count,
                                     .heads = self->heads,
                                     .in_sample = self->heads * self->sequence * self->stride,
                                     .in_head = self->sequence * self->stride,
                                     .weight_sample = self->sequence * values_stride,
                                     .weight_head = self->size,
                                     .out_sample = self->sequence * out_stride,
                                     .out_head = self->size};
    math->ops->product(math, &product);
}

static void drop_weights(const struct train_model *model, const struct heads *self, uint32_t layer, float *weights)
{
    uint64_t sample_rows = self->heads * self->sequence;
    if (dropout_is_on(model))
        drop(model, layer + 1, PLACE_ATTENTION, self->first, weights, weights, self->stride, self->count * sample_rows,
             sample_rows, self->sequence);
}

static float head_scale(const struct heads *self)
{
    return 1.0f / sqrtf((float)self->size);
}

static void attention(const struct train_model *model, const struct block *block)
{
    struct device_math *math = math_of(model);
    float *weights = model->on_device->weights;
    for (uint64_t first = 0; first < model->setup.batch; first += model->on_device->samples_at_once) {
        struct heads heads = heads_at(model, block, first, NULL, NULL);
        score(model, &heads, heads.q, 3 * heads.width, heads.k, head_scale(&heads), weights);
        math->ops->causal_softmax(math, weights, heads.stride, heads.count * heads.heads, heads.sequence,
                                  heads.log_sum);
        drop_weights(model, &heads, block->layer, weights);
        mix(model, &heads, weights, false, heads.v, 3 * heads.width, heads.out, heads.width);
    }
}

static void attention_back(const struct train_model *model, const struct block *block, const float *dmixed, float *dqkv)
{
    struct device_math *math = math_of(model);
    float *weights = model->on_device->weights, *dweights = model->on_device->dweights;
    for (uint64_t first = 0; first < model->setup.batch; first += model->on_device->samples_at_once) {
        struct heads heads = heads_at(model, block, first, dmixed, dqkv);
        uint64_t wide = 3 * heads.width;
        score(model, &heads, heads.q, wide, heads.k, head_scale(&heads), weights);
        math->ops->causal_weights(math, weights, heads.stride, heads.count * heads.heads, heads.sequence,
                                  heads.log_sum);
        score(model, &heads, heads.dout, heads.width, heads.v, 1, dweights);
        drop_weights(model, &heads, block->layer, dweights);
        math->ops->causal_backward(math, weights, dweights, heads.stride, heads.count, heads.heads, heads.sequence,
                                   heads.dout, heads.out, heads.width, heads.size, head_scale(&heads));
        drop_weights(model, &heads, block->layer, weights);
        mix(model, &heads, weights, true, heads.dout, heads.width, heads.dv, wide);
        mix(model, &heads, dweights, true, heads.q, wide, heads.dk, wide);
        mix(model, &heads, dweights, false, heads.k, wide, heads.dq, wide);
    }
}

/* --- a block --- */

/* out = base + dropout(in weight + bias); without dropout in one product. */
static void project(const struct train_model *model, const struct block *block, const float *in, uint64_t in_width,
                    uint64_t weight, uint64_t bias, unsigned place, const float *base, float *out)
{
    struct device_math *math = math_of(model);
    const float *flat = block->flat;
    uint64_t c = block->width;
    if (!dropout_is_on(model)) {
        multiply(model, in, in_width, flat + weight, base, flat + bias, out, c);
        return;
    }
    float *narrow = model->gpt2.narrow;
    multiply(model, in, in_width, flat + weight, NULL, flat + bias, narrow, c);
    drop_rows(model, block->layer + 1, place, narrow, out);
    math->ops->add(math, out, base, block->rows * c);
}

void device_block_forward(struct train_model *model, uint32_t layer, const float *flat)
{
    struct device_math *math = math_of(model);
    struct block block = block_at(model, layer, flat, NULL);
    const struct block_places *at = &block.at;
    float *normal = model->gpt2.normal, *wide = model->gpt2.wide;
    uint64_t c = block.width, rows = block.rows;
    math->ops->layer_norm(math, block.before, flat + at->norm1_weight, flat + at->norm1_bias, rows, c, normal,
                          block.mean1, block.scale1);
    multiply(model, normal, c, flat + at->qkv_weight, NULL, flat + at->qkv_bias, block.qkv, 3 * c);
    attention(model, &block);
    project(model, &block, block.mixed, c, at->projection_weight, at->projection_bias, PLACE_PROJECTION, block.before,
            block.middle);
    math->ops->layer_norm(math, block.middle, flat + at->norm2_weight, flat + at->norm2_bias, rows, c, normal,
                          block.mean2, block.scale2);
    multiply(model, normal, c, flat + at->up_weight, NULL, flat + at->up_bias, block.hidden, 4 * c);
    math->ops->gelu(math, block.hidden, wide, 4 * rows * c);
    project(model, &block, wide, 4 * c, at->down_weight, at->down_bias, PLACE_MLP, block.middle, block.after);
}

/* The gradient after a branch's dropout; without dropout that of the stream itself. */
static const float *behind_dropout(const struct train_model *model, const struct block *block, unsigned place)
{
    if (!dropout_is_on(model))
        return model->gpt2.gradient;
    drop_rows(model, block->layer + 1, place, model->gpt2.gradient, model->gpt2.dropped);
    return model->gpt2.dropped;
}

static void think_backward(struct train_model *model, const struct block *block)
{
    struct device_math *math = math_of(model);
    const struct gpt2_memory *memory = &model->gpt2;
    const struct block_places *at = &block->at;
    const float *flat = block->flat, *dout = behind_dropout(model, block, PLACE_MLP);
    float *gradients = block->gradients;
    uint64_t c = block->width, rows = block->rows;
    math->ops->layer_norm_again(math, block->middle, flat + at->norm2_weight, flat + at->norm2_bias, block->mean2,
                                block->scale2, rows, c, memory->normal);
    math->ops->gelu_and_slope(math, block->hidden, memory->wide, 4 * rows * c);
    back_through(model, dout, c, flat + at->down_weight, memory->hidden_slope, 4 * c);
    math->ops->multiply(math, block->hidden, memory->hidden_slope, 4 * rows * c);
    add_outer(model, memory->wide, 4 * c, dout, c, gradients + at->down_weight, gradients + at->down_bias);
    add_outer(model, memory->normal, c, block->hidden, 4 * c, gradients + at->up_weight, gradients + at->up_bias);
    back_through(model, block->hidden, 4 * c, flat + at->up_weight, memory->narrow, c);
    math->ops->layer_norm_backward(math, block->middle, flat + at->norm2_weight, block->mean2, block->scale2,
                                   memory->narrow, rows, c, memory->gradient, gradients + at->norm2_weight,
                                   gradients + at->norm2_bias);
}

static void attend_backward(struct train_model *model, const struct block *block)
{
    struct device_math *math = math_of(model);
    const struct gpt2_memory *memory = &model->gpt2;
    const struct block_places *at = &block->at;
    const float *flat = block->flat, *dout = behind_dropout(model, block, PLACE_PROJECTION);
    float *gradients = block->gradients, *dqkv = memory->wide;
    uint64_t c = block->width, rows = block->rows;
    math->ops->layer_norm_again(math, block->before, flat + at->norm1_weight, flat + at->norm1_bias, block->mean1,
                                block->scale1, rows, c, memory->normal);
    back_through(model, dout, c, flat + at->projection_weight, memory->narrow, c);
    add_outer(model, block->mixed, c, dout, c, gradients + at->projection_weight, gradients + at->projection_bias);
    attention_back(model, block, memory->narrow, dqkv);
    add_outer(model, memory->normal, c, dqkv, 3 * c, gradients + at->qkv_weight, gradients + at->qkv_bias);
    back_through(model, dqkv, 3 * c, flat + at->qkv_weight, memory->narrow, c);
    math->ops->layer_norm_backward(math, block->before, flat + at->norm1_weight, block->mean1, block->scale1,
                                   memory->narrow, rows, c, memory->gradient, gradients + at->norm1_weight,
                                   gradients + at->norm1_bias);
}

void device_block_backward(struct train_model *model, uint32_t layer, const float *flat, float *gradients)
{
    struct block block = block_at(model, layer, flat, gradients);
    think_backward(model, &block);
    attend_backward(model, &block);
}

/* --- embeddings and head --- */

void device_embed(struct train_model *model, const float *flat)
{
    struct device_math *math = math_of(model);
    float *stream = model->gpt2.stream;
    math->ops->embed(math, model->batch.tokens, flat, flat + gpt2_positions_at(model), model->rows,
                     model->setup.sequence, model->setup.shape.width, stream);
    if (dropout_is_on(model))
        drop_rows(model, 0, PLACE_EMBEDDING, stream, stream);
}

void device_embed_backward(struct train_model *model, float *gradients)
{
    struct device_math *math = math_of(model);
    float *gradient = model->gpt2.gradient;
    if (dropout_is_on(model))
        drop_rows(model, 0, PLACE_EMBEDDING, gradient, gradient);
    math->ops->embed_backward(math, &model->on_device->token_rows, gradient, model->rows, model->setup.sequence,
                              model->setup.shape.width, gradients, gradients + gpt2_positions_at(model));
}

void device_head(struct train_model *model, const float *flat)
{
    struct device_math *math = math_of(model);
    const struct gpt2_memory *memory = &model->gpt2;
    struct output output = output_at(model, flat, NULL);
    uint64_t c = model->setup.shape.width, vocabulary = model->setup.shape.vocabulary, rows = model->rows;
    struct device_product logits = {.in = memory->normal,
                                    .weight = flat,
                                    .out = memory->logits,
                                    .rows = rows,
                                    .inner = c,
                                    .columns = vocabulary,
                                    .in_stride = c,
                                    .weight_stride = c,
                                    .out_stride = memory->logits_stride,
                                    .weight_transposed = true,
                                    .scale = 1};
    math->ops->layer_norm(math, output.last, flat + output.norm_weight, flat + output.norm_bias, rows, c,
                          memory->normal, output.mean, output.scale);
    math->ops->product(math, &logits);
    math->ops->cross_entropy(math, memory->logits, memory->logits_stride, rows, vocabulary, model->batch.targets,
                             1.0f / (float)model->counted, memory->row_loss);
}

void device_head_backward(struct train_model *model, const float *flat, float *gradients)
{
    struct device_math *math = math_of(model);
    const struct gpt2_memory *memory = &model->gpt2;
    struct output output = output_at(model, flat, gradients);
    uint64_t c = model->setup.shape.width, vocabulary = model->setup.shape.vocabulary, rows = model->rows;
    struct device_product product = {.in = memory->logits,
                                     .weight = flat,
                                     .out = memory->narrow,
                                     .rows = rows,
                                     .inner = vocabulary,
                                     .columns = c,
                                     .in_stride = memory->logits_stride,
                                     .weight_stride = c,
                                     .out_stride = c,
                                     .scale = 1};
    device_outer_add(model, memory->logits, vocabulary, memory->logits_stride, memory->normal, c, gradients);
    math->ops->product(math, &product);
    math->ops->fill(math, memory->gradient, 0, rows * c);
    math->ops->layer_norm_backward(math, output.last, flat + output.norm_weight, output.mean, output.scale,
                                   memory->narrow, rows, c, memory->gradient, gradients + output.norm_weight,
                                   gradients + output.norm_bias);
}
