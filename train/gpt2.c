/* The first and the last stage of the transformer (embeddings; the tied head with its loss) and its memory.
 * train/block.c has the blocks. */
#include "train/train_model_internal.h"

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

void gpt2_take_memory(struct train_model *self, struct arena *arena)
{
    const struct train_setup *setup = &self->setup;
    struct gpt2_memory *memory = &self->gpt2;
    uint64_t rows = (uint64_t)setup->batch * setup->sequence, c = setup->shape.width, layers = setup->shape.layers;
    uint64_t narrow = rows * c, threads = setup->math ? 0 : setup->threads;
    memory->scores_stride = round_up(setup->sequence, LINE_FLOATS);
    memory->logits_stride = round_up(setup->shape.vocabulary, LINE_FLOATS);
    memory->partial_stride = round_up(2 * c, LINE_FLOATS);
    memory->stream = arena_take(arena, (layers + 1) * narrow, sizeof(float));
    memory->middle = arena_take(arena, layers * narrow, sizeof(float));
    memory->qkv = arena_take(arena, layers * 3 * narrow, sizeof(float));
    memory->mixed = arena_take(arena, layers * narrow, sizeof(float));
    memory->hidden = arena_take(arena, layers * 4 * narrow, sizeof(float));
    memory->log_sum = arena_take(arena, layers * setup->shape.heads * rows, sizeof(float));
    memory->mean = arena_take(arena, (2 * layers + 1) * rows, sizeof(float));
    memory->scale = arena_take(arena, (2 * layers + 1) * rows, sizeof(float));
    memory->gradient = arena_take(arena, narrow, sizeof(float));
    if (setup->dropout > 0)
        memory->dropped = arena_take(arena, narrow, sizeof(float));
    memory->normal = arena_take(arena, narrow, sizeof(float));
    memory->narrow = arena_take(arena, narrow, sizeof(float));
    /* Logits are needed only between the forward and backward of the blocks, when the two wide buffers are free. */
    uint64_t logits = rows * memory->logits_stride, wide = 4 * narrow;
    memory->wide = arena_take(arena, logits > 2 * wide ? logits : 2 * wide, sizeof(float));
    memory->hidden_slope = memory->wide ? memory->wide + wide : NULL;
    memory->logits = memory->wide;
    memory->partial = arena_take(arena, threads * memory->partial_stride, sizeof(float));
    memory->scores = arena_take(arena, threads * 2 * QUERY_BLOCK * memory->scores_stride, sizeof(float));
    memory->row_loss = arena_take(arena, rows, sizeof(double));
}

static uint64_t positions_at(const struct train_model *self)
{
    return self->units[0].parameters[1].offset;
}

void gpt2_embed(struct train_model *self, struct device_math *math, const float *flat)
{
    float *stream = self->gpt2.stream;
    math->ops->embed(math, self->batch.tokens, flat, flat + positions_at(self), self->rows, self->setup.sequence,
                     self->setup.shape.width, stream);
    if (dropout_is_on(self))
        drop_rows(self, math, 0, PLACE_EMBEDDING, stream, stream);
}

void gpt2_embed_backward(struct train_model *self, struct device_math *math, float *gradients)
{
    float *gradient = self->gpt2.gradient;
    if (dropout_is_on(self)) {
        drop_rows(self, math, 0, PLACE_EMBEDDING, gradient, gradient);
        model_meet(self);
    }
    math->ops->embed_backward(math, &self->token_rows, gradient, self->rows, self->setup.sequence,
                              self->setup.shape.width, gradients, gradients + positions_at(self));
}

/* The final norm, from the stream after the last block. */
struct output {
    uint64_t norm_weight, norm_bias;
    float *last, *mean, *scale;
};

static struct output output_at(const struct train_model *self)
{
    uint64_t layers = self->setup.shape.layers;
    return (struct output){.norm_weight = self->units[0].parameters[2].offset,
                           .norm_bias = self->units[0].parameters[3].offset,
                           .last = self->gpt2.stream + layers * self->rows * self->setup.shape.width,
                           .mean = self->gpt2.mean + 2 * layers * self->rows,
                           .scale = self->gpt2.scale + 2 * layers * self->rows};
}

void gpt2_head(struct train_model *self, struct device_math *math, const float *flat)
{
    const struct gpt2_memory *memory = &self->gpt2;
    struct output output = output_at(self);
    uint64_t c = self->setup.shape.width, vocabulary = self->setup.shape.vocabulary, rows = self->rows;
    struct device_product logits = plain_product(self, memory->normal, c, flat, true, memory->logits, vocabulary);
    logits.out_stride = memory->logits_stride;
    math->ops->layer_norm(math, output.last, flat + output.norm_weight, flat + output.norm_bias, rows, c,
                          memory->normal, output.mean, output.scale);
    math->ops->product(math, &logits);
    math->ops->cross_entropy(math, memory->logits, memory->logits_stride, rows, vocabulary, self->batch.targets,
                             1.0f / (float)self->counted, memory->row_loss);
}

void gpt2_head_backward(struct train_model *self, struct device_math *math, const float *flat, float *gradients)
{
    const struct gpt2_memory *memory = &self->gpt2;
    struct output output = output_at(self);
    uint64_t c = self->setup.shape.width, vocabulary = self->setup.shape.vocabulary, rows = self->rows;
    struct device_product product = plain_product(self, memory->logits, vocabulary, flat, false, memory->narrow, c);
    product.in_stride = memory->logits_stride;
    add_outer(self, math, memory->logits, vocabulary, memory->logits_stride, memory->normal, c, gradients, NULL);
    math->ops->product(math, &product);
    math->ops->fill(math, memory->gradient, 0, rows * c);
    math->ops->layer_norm_backward(math, output.last, flat + output.norm_weight, output.mean, output.scale,
                                   memory->narrow, rows, c, memory->gradient, gradients + output.norm_weight,
                                   gradients + output.norm_bias);
}
