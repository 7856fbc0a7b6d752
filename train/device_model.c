/* A model on a device: its memory, the transfers for a batch, and the stack of linear layers. */
#include "train/device_model.h"

#include <assert.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"

enum { SENT_TOKENS, SENT_TARGETS, SENT_ORDER, SENT_DISTINCT, SENT_BEGINS, SENT_LISTS };

/* --- memory --- */

static uint64_t rows_of(const struct train_setup *setup)
{
    return (uint64_t)setup->batch * setup->sequence;
}

static uint64_t sent_words(const struct train_setup *setup)
{
    return setup->shape.kind == TRAIN_GPT2 ? SENT_LISTS * rows_of(setup) + 1 : 0;
}

static uint64_t pinned_bytes(const struct train_setup *setup)
{
    return rows_of(setup) * sizeof(double) + sent_words(setup) * sizeof(uint32_t);
}

/* Number of attention weights of one sample. */
static uint64_t sample_scores(const struct train_setup *setup, const struct gpt2_memory *memory)
{
    return (uint64_t)setup->shape.heads * setup->sequence * memory->scores_stride;
}

static void take_memory(const struct train_setup *setup, struct gpt2_memory *gpt2, struct linear_memory *linear,
                        struct device_model *self, struct arena *arena)
{
    struct train_setup alone = *setup;
    alone.threads = 0; /* per-thread scratch is not needed */
    if (setup->shape.kind == TRAIN_LINEAR) {
        linear_take_memory(&alone, linear, arena);
        self->input = arena_take(arena, rows_of(setup) * setup->shape.width, sizeof(float));
        return;
    }
    gpt2_take_memory(&alone, gpt2, arena);
    uint64_t values = sample_scores(setup, gpt2), fit = DEVICE_SCORES_BYTES / (2 * (values + 1) * sizeof(float));
    self->samples_at_once = fit < 1 ? 1 : fit < setup->batch ? fit : setup->batch;
    self->weights = arena_take(arena, self->samples_at_once * values, sizeof(float));
    self->dweights = arena_take(arena, self->samples_at_once * values, sizeof(float));
    self->words = arena_take(arena, sent_words(setup), sizeof(uint32_t));
}

uint64_t device_model_bytes(const struct train_setup *setup)
{
    struct arena counting = {0};
    struct gpt2_memory gpt2 = {0};
    struct linear_memory linear = {0};
    struct device_model model = {0};
    take_memory(setup, &gpt2, &linear, &model, &counting);
    return counting.used_bytes;
}

uint64_t device_model_host_bytes(const struct train_setup *setup)
{
    return sizeof(struct device_model) + pinned_bytes(setup) + (uint64_t)setup->shape.vocabulary * sizeof(uint32_t);
}

static int allocate(struct device_model *self, const struct train_setup *setup, struct cb_err *err)
{
    struct device *device = self->math->device;
    char text[32];
    self->bytes = device_model_bytes(setup);
    self->pinned_bytes = pinned_bytes(setup);
    int rc = device->ops->allocate(device, MEMORY_DEVICE, self->bytes, &self->memory, err);
    if (rc)
        return cb_context(
            err, "the activations of %u samples of %u tokens, %s (a smaller batch_size or seq_length needs less)",
            setup->batch, setup->sequence, units_format_bytes((double)self->bytes, text));
    return device->ops->allocate(device, MEMORY_PINNED, self->pinned_bytes, &self->pinned, err);
}

int device_model_new(struct train_model *model, struct cb_err *err)
{
    const struct train_setup *setup = &model->setup;
    struct device_model *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a model");
    model->on_device = self;
    self->math = setup->math;
    self->counts = calloc((uint64_t)setup->shape.vocabulary + 1, sizeof *self->counts);
    if (!self->counts)
        return alloc_fail(err, "for a vocabulary of %u", setup->shape.vocabulary);
    int rc = allocate(self, setup, err);
    if (rc)
        return rc;
    struct arena arena = {.base = self->memory};
    take_memory(setup, &model->gpt2, &model->linear, self, &arena);
    assert(arena.used_bytes == self->bytes);
    self->row_loss = self->pinned;
    self->sent = (uint32_t *)(self->row_loss + model->rows);
    return 0;
}

void device_model_free(struct train_model *model)
{
    struct device_model *self = model->on_device;
    if (!self)
        return;
    struct device *device = self->math->device;
    device->ops->release(device, MEMORY_DEVICE, self->memory, self->bytes);
    device->ops->release(device, MEMORY_PINNED, self->pinned, self->pinned_bytes);
    free(self->counts);
    free(self);
    model->on_device = NULL;
}

/* --- a batch --- */

/* Rows grouped by token, so that each token's gradient is summed by one thread block, in the order of rows. */
static uint64_t sort_rows(struct device_model *self, const uint32_t *tokens, uint64_t rows, uint32_t vocabulary)
{
    uint32_t *order = self->sent + SENT_ORDER * rows, *distinct = self->sent + SENT_DISTINCT * rows;
    uint32_t *begins = self->sent + SENT_BEGINS * rows, *counts = self->counts;
    uint64_t found = 0;
    uint32_t before = 0;
    memset(counts, 0, vocabulary * sizeof *counts);
    for (uint64_t r = 0; r < rows; r++)
        counts[tokens[r]]++;
    for (uint32_t token = 0; token < vocabulary; token++) {
        uint32_t count = counts[token];
        if (count == 0)
            continue;
        distinct[found] = token;
        begins[found++] = before;
        counts[token] = before;
        before += count;
    }
    begins[found] = before;
    for (uint64_t r = 0; r < rows; r++)
        order[counts[tokens[r]]++] = (uint32_t)r;
    return found;
}

static int send_tokens(struct train_model *model, struct cb_err *err)
{
    struct device_model *self = model->on_device;
    uint64_t rows = model->rows;
    memcpy(self->sent + SENT_TOKENS * rows, model->batch.tokens, rows * sizeof *self->sent);
    memcpy(self->sent + SENT_TARGETS * rows, model->batch.targets, rows * sizeof *self->sent);
    uint64_t distinct = sort_rows(self, self->sent, rows, model->setup.shape.vocabulary);
    model->batch.tokens = self->words + SENT_TOKENS * rows;
    model->batch.targets = self->words + SENT_TARGETS * rows;
    self->token_rows = (struct device_token_rows){.distinct = self->words + SENT_DISTINCT * rows,
                                                  .begins = self->words + SENT_BEGINS * rows,
                                                  .order = self->words + SENT_ORDER * rows,
                                                  .distinct_count = distinct};
    return device_math_copy(self->math, HOST_TO_DEVICE, self->words, self->sent,
                            sent_words(&model->setup) * sizeof *self->sent, err);
}

static int send_input(struct train_model *model, struct cb_err *err)
{
    struct device_model *self = model->on_device;
    const float *input = model->batch.input;
    model->batch.input = self->input;
    if (self->has_input && model->batch.input_stays)
        return 0;
    self->has_input = true;
    return device_math_copy(self->math, HOST_TO_DEVICE, self->input, input,
                            model->rows * model->setup.shape.width * sizeof *input, err);
}

int device_model_begin(struct train_model *model, struct cb_err *err)
{
    assert(!model->on_device->under_way);
    model->on_device->under_way = true;
    return model->setup.shape.kind == TRAIN_GPT2 ? send_tokens(model, err) : send_input(model, err);
}

int device_model_finish(struct train_model *model, uint64_t deadline_ns, struct cb_err *err)
{
    struct device_model *self = model->on_device;
    bool linear = model->setup.shape.kind == TRAIN_LINEAR;
    double sum = 0, count = linear ? (double)model->rows * (double)model->setup.shape.width : (double)model->counted;
    int rc =
        device_math_copy(self->math, DEVICE_TO_HOST, self->row_loss,
                         linear ? model->linear.row_loss : model->gpt2.row_loss, model->rows * sizeof(double), err);
    if (!rc)
        rc = device_math_finish(self->math, deadline_ns, err);
    if (rc)
        return rc;
    for (uint64_t r = 0; r < model->rows; r++)
        sum += self->row_loss[r];
    model->loss = count > 0 ? sum / count : 0;
    self->under_way = false;
    return 0;
}

/* --- stages --- */

static void layer_forward(struct train_model *model, uint32_t index, const float *flat)
{
    struct device_math *math = model->on_device->math;
    struct layer layer = layer_at(model, index, flat, NULL);
    uint64_t c = layer.width;
    struct device_product product = {.in = layer.in,
                                     .weight = flat,
                                     .bias = model->setup.shape.bias ? flat + c * c : NULL,
                                     .out = layer.out,
                                     .rows = model->rows,
                                     .inner = c,
                                     .columns = c,
                                     .in_stride = c,
                                     .weight_stride = c,
                                     .out_stride = c,
                                     .weight_transposed = true,
                                     .scale = 1};
    math->ops->product(math, &product);
    if (layer.last)
        math->ops->row_sums(math, layer.out, model->rows, c, model->linear.row_loss);
}

/* The weight is [out][in]: its gradient is dout' x in. */
static void layer_backward(struct train_model *model, uint32_t index, const float *flat, float *gradients)
{
    struct device_math *math = model->on_device->math;
    struct layer layer = layer_at(model, index, flat, gradients);
    uint64_t c = layer.width, rows = model->rows;
    if (layer.last)
        math->ops->fill(math, layer.dout, (float)(1.0 / ((double)rows * (double)c)), rows * c);
    device_outer_add(model, layer.dout, c, c, layer.in, c, gradients);
    if (model->setup.shape.bias)
        math->ops->add_column_sums(math, layer.dout, c, rows, c, gradients + c * c);
    struct device_product product = {.in = layer.dout,
                                     .weight = flat,
                                     .out = layer.din,
                                     .rows = rows,
                                     .inner = c,
                                     .columns = c,
                                     .in_stride = c,
                                     .weight_stride = c,
                                     .out_stride = c,
                                     .scale = 1};
    if (layer.din)
        math->ops->product(math, &product);
}

void device_model_forward(struct train_model *model, size_t stage, const float *flat)
{
    if (model->setup.shape.kind == TRAIN_LINEAR)
        layer_forward(model, (uint32_t)stage, flat);
    else if (stage == 0)
        device_embed(model, flat);
    else if (stage <= model->setup.shape.layers)
        device_block_forward(model, (uint32_t)stage - 1, flat);
    else
        device_head(model, flat);
}

void device_model_backward(struct train_model *model, size_t stage, const float *flat, float *gradients)
{
    if (model->setup.shape.kind == TRAIN_LINEAR)
        layer_backward(model, (uint32_t)stage, flat, gradients);
    else if (stage == 0)
        device_embed_backward(model, gradients);
    else if (stage <= model->setup.shape.layers)
        device_block_backward(model, (uint32_t)stage - 1, flat, gradients);
    else
        device_head_backward(model, flat, gradients);
}
