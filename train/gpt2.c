/* Embeddings, the tied head with its loss, and the memory of the transformer. train/block.c has the blocks. */
#include <string.h>

#include "train/train_model_internal.h"

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

void gpt2_take_memory(const struct train_setup *setup, struct gpt2_memory *memory, struct arena *arena)
{
    uint64_t rows = (uint64_t)setup->batch * setup->sequence, c = setup->shape.width, layers = setup->shape.layers;
    uint64_t narrow = rows * c, threads = setup->threads;
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
    /* Logits are needed between the blocks' forward and backward, when the two wide buffers are free. */
    uint64_t logits = rows * memory->logits_stride, wide = 4 * narrow;
    memory->wide = arena_take(arena, logits > 2 * wide ? logits : 2 * wide, sizeof(float));
    memory->hidden_slope = memory->wide ? memory->wide + wide : NULL;
    memory->logits = memory->wide;
    memory->partial = arena_take(arena, threads * memory->partial_stride, sizeof(float));
    memory->scores = arena_take(arena, threads * 2 * QUERY_BLOCK * memory->scores_stride, sizeof(float));
    memory->row_loss = arena_take(arena, rows, sizeof(double));
}

struct embedding {
    struct train_model *model;
    const float *flat;
    float *gradients;
};

uint64_t gpt2_positions_at(const struct train_model *self)
{
    return self->units[0].parameters[1].offset;
}

static void embed_on(void *context, uint32_t thread)
{
    const struct embedding *self = context;
    struct train_model *model = self->model;
    uint64_t c = model->setup.shape.width, first, end;
    thread_pool_share(model->team, thread, model->rows, 1, &first, &end);
    for (uint64_t r = first; r < end; r++) {
        const float *token = self->flat + model->batch.tokens[r] * c;
        const float *position = self->flat + gpt2_positions_at(model) + r % model->setup.sequence * c;
        kernel_start_rows(token, position, 1, c, model->gpt2.stream + r * c);
    }
    if (dropout_is_on(model))
        dropout_rows(model, 0, PLACE_EMBEDDING, model->gpt2.stream, model->gpt2.stream, first, end);
}

void gpt2_embed(struct train_model *self, const float *flat)
{
    struct embedding embedding = {.model = self, .flat = flat};
    thread_pool_run(self->team, embed_on, &embedding);
}

/* A token may occur in many rows, so threads split the work by columns, not rows. */
static void embed_backward_on(void *context, uint32_t thread)
{
    const struct embedding *self = context;
    struct train_model *model = self->model;
    uint64_t c = model->setup.shape.width, first, end;
    float *gradient = model->gpt2.gradient;
    if (dropout_is_on(model)) {
        thread_pool_share(model->team, thread, model->rows, 1, &first, &end);
        dropout_rows(model, 0, PLACE_EMBEDDING, gradient, gradient, first, end);
        thread_pool_meet(model->team);
    }
    thread_pool_share(model->team, thread, c, LINE_FLOATS, &first, &end);
    for (uint64_t r = 0; r < model->rows; r++) {
        float *token = self->gradients + model->batch.tokens[r] * c;
        float *position = self->gradients + gpt2_positions_at(model) + r % model->setup.sequence * c;
        kernel_add(token + first, gradient + r * c + first, end - first);
        kernel_add(position + first, gradient + r * c + first, end - first);
    }
}

void gpt2_embed_backward(struct train_model *self, float *gradients)
{
    struct embedding embedding = {.model = self, .gradients = gradients};
    thread_pool_run(self->team, embed_backward_on, &embedding);
}

/* Sums of a norm's gradients. */

float *gpt2_clear_partial(struct train_model *self, uint32_t thread)
{
    float *partial = self->gpt2.partial + thread * self->gpt2.partial_stride;
    memset(partial, 0, self->gpt2.partial_stride * sizeof *partial);
    return partial;
}

void gpt2_add_partial(struct train_model *self, uint32_t thread, float *dweight, float *dbias)
{
    uint64_t c = self->setup.shape.width, first, end;
    thread_pool_share(self->team, thread, c, LINE_FLOATS, &first, &end);
    for (uint32_t t = 0; t < thread_pool_threads(self->team); t++) {
        const float *partial = self->gpt2.partial + t * self->gpt2.partial_stride;
        kernel_add(dweight + first, partial + first, end - first);
        kernel_add(dbias + first, partial + c + first, end - first);
    }
}

struct output output_at(struct train_model *self, const float *flat, float *gradients)
{
    uint64_t layers = self->setup.shape.layers;
    return (struct output){.model = self,
                           .flat = flat,
                           .gradients = gradients,
                           .norm_weight = self->units[0].parameters[2].offset,
                           .norm_bias = self->units[0].parameters[3].offset,
                           .last = self->gpt2.stream + layers * self->rows * self->setup.shape.width,
                           .mean = self->gpt2.mean + 2 * layers * self->rows,
                           .scale = self->gpt2.scale + 2 * layers * self->rows};
}

/* The loss of a row; replaces its logits by the gradient of the mean loss. */
static double lose(struct train_model *model, uint64_t row)
{
    uint64_t vocabulary = model->setup.shape.vocabulary;
    float *logits = model->gpt2.logits + row * model->gpt2.logits_stride;
    uint32_t target = model->batch.targets[row];
    if (target == TRAIN_IGNORE) {
        memset(logits, 0, vocabulary * sizeof *logits);
        return 0;
    }
    return kernel_cross_entropy(logits, vocabulary, target, 1.0f / (float)model->counted);
}

static void head_on(void *context, uint32_t thread)
{
    const struct output *self = context;
    struct train_model *model = self->model;
    uint64_t c = model->setup.shape.width, first, end;
    thread_pool_share(model->team, thread, model->rows, 1, &first, &end);
    kernel_layer_norm(self->last + first * c, self->flat + self->norm_weight, self->flat + self->norm_bias, end - first,
                      c, model->gpt2.normal + first * c, self->mean + first, self->scale + first);
    struct product logits = {.in = model->gpt2.normal,
                             .weight = self->flat,
                             .out = model->gpt2.logits,
                             .in_width = c,
                             .in_stride = c,
                             .out_width = model->setup.shape.vocabulary,
                             .out_stride = model->gpt2.logits_stride,
                             .transposed = true};
    product_rows(model, &logits, first, end);
    for (uint64_t r = first; r < end; r++)
        model->gpt2.row_loss[r] = lose(model, r);
}

void gpt2_head(struct train_model *self, const float *flat)
{
    struct output output = output_at(self, flat, NULL);
    thread_pool_run(self->team, head_on, &output);
    double sum = 0;
    for (uint64_t r = 0; r < self->rows; r++)
        sum += self->gpt2.row_loss[r];
    self->loss = self->counted ? sum / (double)self->counted : 0;
}

static void head_backward_on(void *context, uint32_t thread)
{
    const struct output *self = context;
    struct train_model *model = self->model;
    uint64_t c = model->setup.shape.width, vocabulary = model->setup.shape.vocabulary, first, end;
    struct gpt2_memory *memory = &model->gpt2;
    struct outer tokens = {.in = memory->logits,
                           .dout = memory->normal,
                           .gradient = self->gradients,
                           .in_width = vocabulary,
                           .in_stride = memory->logits_stride,
                           .out_width = c,
                           .dout_stride = c};
    outer_add(model, &tokens, thread);
    thread_pool_share(model->team, thread, model->rows, 1, &first, &end);
    struct product product = {.in = memory->logits,
                              .weight = self->flat,
                              .out = memory->narrow,
                              .in_width = vocabulary,
                              .in_stride = memory->logits_stride,
                              .out_width = c,
                              .out_stride = c};
    product_rows(model, &product, first, end);
    float *partial = gpt2_clear_partial(model, thread);
    memset(memory->gradient + first * c, 0, (end - first) * c * sizeof(float));
    kernel_layer_norm_backward(self->last + first * c, self->flat + self->norm_weight, self->mean + first,
                               self->scale + first, memory->narrow + first * c, end - first, c,
                               memory->gradient + first * c, partial, partial + c);
    thread_pool_meet(model->team);
    gpt2_add_partial(model, thread, self->gradients + self->norm_weight, self->gradients + self->norm_bias);
}

void gpt2_head_backward(struct train_model *self, const float *flat, float *gradients)
{
    struct output output = output_at(self, flat, gradients);
    thread_pool_run(self->team, head_backward_on, &output);
}
