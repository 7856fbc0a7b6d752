/* A model on a device: its memory, and the transfers for a batch. */
#include <assert.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"
#include "train/train_model_internal.h"

#define MOST_GAP 128 /* values before an address that is a multiple of 256 */

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

/* Room for both operands of the largest product, which the head's or an MLP's are: activations or their gradients of
 * all rows, and the same again or a weight. */
static uint64_t rounded_values(const struct train_model *model)
{
    const struct train_setup *setup = &model->setup;
    bool linear = setup->shape.kind == TRAIN_LINEAR;
    uint64_t rows = rows_of(setup), width = setup->shape.width;
    uint64_t wide = linear ? width : 4 * width > model->gpt2.logits_stride ? 4 * width : model->gpt2.logits_stride;
    return wide * rows + wide * (rows > width ? rows : width) + MOST_GAP;
}

void device_model_take_memory(struct train_model *model, struct arena *arena)
{
    const struct train_setup *setup = &model->setup;
    struct device_model *self = model->on_device;
    if (setup->bf16)
        self->rounded = arena_take(arena, rounded_values(model) + MOST_GAP, sizeof *self->rounded);
    if (self->rounded)
        self->rounded += (256 - (uintptr_t)self->rounded % 256) % 256 / sizeof *self->rounded;
    if (setup->shape.kind == TRAIN_LINEAR) {
        self->input = arena_take(arena, rows_of(setup) * setup->shape.width, sizeof(float));
        return;
    }
    /* Attention weights of one sample, and the number of samples that fit. */
    uint64_t values = (uint64_t)setup->shape.heads * setup->sequence * model->gpt2.scores_stride;
    uint64_t fit = DEVICE_SCORES_BYTES / (2 * (values + 1) * sizeof(float));
    self->samples_at_once = fit < 1 ? 1 : fit < setup->batch ? fit : setup->batch;
    self->weights = arena_take(arena, self->samples_at_once * values, sizeof(float));
    self->dweights = arena_take(arena, self->samples_at_once * values, sizeof(float));
    self->words = arena_take(arena, sent_words(setup), sizeof(uint32_t));
}

uint64_t device_model_host_bytes(const struct train_setup *setup)
{
    return sizeof(struct device_model) + pinned_bytes(setup) + (uint64_t)setup->shape.vocabulary * sizeof(uint32_t);
}

static int allocate(struct device_model *self, const struct train_setup *setup, struct cb_err *err)
{
    struct device *device = self->math->device;
    char text[32];
    self->pinned_bytes = pinned_bytes(setup);
    int rc = device->ops->allocate(device, MEMORY_DEVICE, self->bytes, &self->memory, err);
    if (rc)
        return cb_context(
            err, "the activations of %u samples of %u tokens, %s (a smaller batch_size or seq_length needs less)",
            setup->batch, setup->sequence, units_format_bytes((double)self->bytes, text));
    return device->ops->allocate(device, MEMORY_PINNED, self->pinned_bytes, &self->pinned, err);
}

int device_model_new(struct train_model *model, uint64_t bytes, struct cb_err *err)
{
    const struct train_setup *setup = &model->setup;
    struct device_model *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a model");
    model->on_device = self;
    self->math = setup->math;
    self->bytes = bytes;
    self->counts = calloc((uint64_t)setup->shape.vocabulary + 1, sizeof *self->counts);
    if (!self->counts)
        return alloc_fail(err, "for a vocabulary of %u", setup->shape.vocabulary);
    int rc = allocate(self, setup, err);
    if (rc)
        return rc;
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
    model->token_rows = (struct device_token_rows){.distinct = self->words + SENT_DISTINCT * rows,
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
    assert(!model->on_device->batch_open);
    model->on_device->batch_open = true;
    return model->setup.shape.kind == TRAIN_GPT2 ? send_tokens(model, err) : send_input(model, err);
}

int device_model_finish(struct train_model *model, uint64_t deadline_ns, struct cb_err *err)
{
    struct device_model *self = model->on_device;
    int rc = device_math_copy(self->math, DEVICE_TO_HOST, self->row_loss, model_row_loss(model),
                              model->rows * sizeof(double), err);
    if (!rc)
        rc = device_math_finish(self->math, deadline_ns, err);
    if (rc)
        return rc;
    model_add_up_loss(model, self->row_loss);
    self->batch_open = false;
    return 0;
}
