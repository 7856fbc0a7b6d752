/* One transformer block, forward and backward: the order of its products, and which buffers share memory. */
#include "train/train_model_internal.h"

static struct block block_at(const struct train_model *self, uint32_t layer, const float *flat, float *gradients)
{
    const struct train_parameter *p = self->units[layer + 1].parameters;
    uint64_t width = self->setup.shape.width, rows = self->rows, narrow = rows * width;
    const struct gpt2_memory *memory = &self->gpt2;
    return (struct block){
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

/* out = base + dropout(in weight + bias); a single product if there is no dropout. */
static void project(const struct train_model *model, struct device_math *math, const struct block *block,
                    const float *in, uint64_t in_width, uint64_t weight, uint64_t bias, unsigned place,
                    const float *base, float *out)
{
    const float *flat = block->flat;
    uint64_t c = block->width;
    if (!dropout_is_on(model)) {
        multiply(model, math, in, in_width, flat + weight, base, flat + bias, out, c);
        return;
    }
    float *narrow = model->gpt2.narrow;
    multiply(model, math, in, in_width, flat + weight, NULL, flat + bias, narrow, c);
    drop_rows(model, math, block->layer + 1, place, narrow, out);
    math->ops->add(math, out, base, block->rows * c);
}

void block_forward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat)
{
    struct block block = block_at(self, layer, flat, NULL);
    const struct block_places *at = &block.at;
    float *normal = self->gpt2.normal, *wide = self->gpt2.wide;
    uint64_t c = block.width, rows = block.rows;
    math->ops->layer_norm(math, block.before, flat + at->norm1_weight, flat + at->norm1_bias, rows, c, normal,
                          block.mean1, block.scale1);
    multiply(self, math, normal, c, flat + at->qkv_weight, NULL, flat + at->qkv_bias, block.qkv, 3 * c);
    model_meet(self);
    attention(self, math, &block, NULL, NULL);
    model_meet(self);
    project(self, math, &block, block.mixed, c, at->projection_weight, at->projection_bias, PLACE_PROJECTION,
            block.before, block.middle);
    math->ops->layer_norm(math, block.middle, flat + at->norm2_weight, flat + at->norm2_bias, rows, c, normal,
                          block.mean2, block.scale2);
    multiply(self, math, normal, c, flat + at->up_weight, NULL, flat + at->up_bias, block.hidden, 4 * c);
    math->ops->gelu(math, block.hidden, wide, 4 * rows * c);
    project(self, math, &block, wide, 4 * c, at->down_weight, at->down_bias, PLACE_MLP, block.middle, block.after);
}

/* Backward. The gradient of the residual stream stays in place: each branch adds to it. */

/* The gradient after a branch's dropout; without dropout it is the gradient of the stream itself. */
static const float *behind_dropout(const struct train_model *model, struct device_math *math, const struct block *block,
                                   unsigned place)
{
    if (!dropout_is_on(model))
        return model->gpt2.gradient;
    drop_rows(model, math, block->layer + 1, place, model->gpt2.gradient, model->gpt2.dropped);
    return model->gpt2.dropped;
}

static void think_backward(const struct train_model *model, struct device_math *math, const struct block *block)
{
    const struct gpt2_memory *memory = &model->gpt2;
    const struct block_places *at = &block->at;
    const float *flat = block->flat, *dout = behind_dropout(model, math, block, PLACE_MLP);
    float *gradients = block->gradients, *hidden = block->hidden;
    uint64_t c = block->width, rows = block->rows;
    math->ops->layer_norm_again(math, block->middle, flat + at->norm2_weight, flat + at->norm2_bias, block->mean2,
                                block->scale2, rows, c, memory->normal);
    math->ops->gelu_and_slope(math, hidden, memory->wide, 4 * rows * c);
    back_through(model, math, dout, c, flat + at->down_weight, memory->hidden_slope, 4 * c);
    math->ops->multiply(math, hidden, memory->hidden_slope, 4 * rows * c);
    model_meet(model);
    add_outer(model, math, memory->wide, 4 * c, 4 * c, dout, c, gradients + at->down_weight, gradients + at->down_bias);
    add_outer(model, math, memory->normal, c, c, hidden, 4 * c, gradients + at->up_weight, gradients + at->up_bias);
    back_through(model, math, hidden, 4 * c, flat + at->up_weight, memory->narrow, c);
    model_meet(model);
    math->ops->layer_norm_backward(math, block->middle, flat + at->norm2_weight, block->mean2, block->scale2,
                                   memory->narrow, rows, c, memory->gradient, gradients + at->norm2_weight,
                                   gradients + at->norm2_bias);
}

static void attend_backward(const struct train_model *model, struct device_math *math, const struct block *block)
{
    const struct gpt2_memory *memory = &model->gpt2;
    const struct block_places *at = &block->at;
    const float *flat = block->flat, *dout = behind_dropout(model, math, block, PLACE_PROJECTION);
    float *gradients = block->gradients, *dqkv = memory->wide;
    uint64_t c = block->width;
    math->ops->layer_norm_again(math, block->before, flat + at->norm1_weight, flat + at->norm1_bias, block->mean1,
                                block->scale1, block->rows, c, memory->normal);
    back_through(model, math, dout, c, flat + at->projection_weight, memory->narrow, c);
    model_meet(model);
    add_outer(model, math, block->mixed, c, c, dout, c, gradients + at->projection_weight,
              gradients + at->projection_bias);
    attention(model, math, block, memory->narrow, dqkv);
    model_meet(model);
    add_outer(model, math, memory->normal, c, c, dqkv, 3 * c, gradients + at->qkv_weight, gradients + at->qkv_bias);
    back_through(model, math, dqkv, 3 * c, flat + at->qkv_weight, memory->narrow, c);
    math->ops->layer_norm_backward(math, block->before, flat + at->norm1_weight, block->mean1, block->scale1,
                                   memory->narrow, block->rows, c, memory->gradient, gradients + at->norm1_weight,
                                   gradients + at->norm1_bias);
}

void block_backward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat,
                    float *gradients)
{
    struct block block = block_at(self, layer, flat, gradients);
    think_backward(self, math, &block);
    attend_backward(self, math, &block);
}
