/* The model's public functions: checks, memory, stages. */
#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/alloc.h"
#include "train/train_model_internal.h"

#define HUGE_FROM_BYTES (UINT64_C(8) << 20) /* smaller memory does not benefit from huge pages */
#define MOST_BYTES 0x1p50                   /* larger sizes are surely wrong, and sums might overflow */
#define MOST_SIDE 0x7FFFFFFF                /* dimensions of a product have type int */

static void take_all(struct train_model *self, struct arena *arena)
{
    if (self->setup.shape.kind == TRAIN_GPT2)
        gpt2_take_memory(self, arena);
    else
        linear_take_memory(self, arena);
    if (self->on_device)
        device_model_take_memory(self, arena);
}

static uint64_t arena_bytes(const struct train_setup *setup)
{
    struct arena counting = {0};
    struct device_model on_device = {0};
    struct train_model model = {.setup = *setup, .on_device = setup->math ? &on_device : NULL};
    take_all(&model, &counting);
    return counting.used_bytes;
}

static uint64_t description_bytes(const struct train_shape *shape)
{
    return sizeof(struct train_model) + units_count(shape) * sizeof(struct train_unit) +
           units_parameter_count(shape) * sizeof(struct train_parameter);
}

uint64_t train_model_bytes(const struct train_setup *setup)
{
    uint64_t bytes = setup->math ? device_model_host_bytes(setup) : arena_bytes(setup);
    return bytes + description_bytes(&setup->shape);
}

uint64_t train_model_device_bytes(const struct train_setup *setup)
{
    return setup->math ? arena_bytes(setup) : 0;
}

static int check_gpt2(const struct train_setup *setup, struct cb_err *err)
{
    const struct train_shape *shape = &setup->shape;
    if (!shape->heads || shape->width % shape->heads)
        return cb_fail(err, CB_ERR_USAGE, "%u heads do not divide a width of %u", shape->heads, shape->width);
    if (!shape->vocabulary || !shape->positions)
        return cb_fail(err, CB_ERR_USAGE, "a GPT-2 needs a vocabulary and positions, not %u and %u", shape->vocabulary,
                       shape->positions);
    if (setup->sequence > shape->positions)
        return cb_fail(err, CB_ERR_USAGE, "sequences of %u tokens do not fit the %u positions of the model",
                       setup->sequence, shape->positions);
    if (!(setup->dropout >= 0 && setup->dropout < 1))
        return cb_fail(err, CB_ERR_USAGE, "a dropout of %g is not in [0, 1)", (double)setup->dropout);
    return 0;
}

/* A rough estimate, at least half of the real size: rejects absurd sizes before they overflow. */
static double rough_bytes(const struct train_setup *setup)
{
    const struct train_shape *shape = &setup->shape;
    double rows = (double)setup->batch * setup->sequence;
    double wide = shape->kind == TRAIN_GPT2 ? 10.0 * shape->width * (shape->layers + 1.0) + shape->vocabulary
                                            : (double)shape->width * shape->layers;
    return 4 * rows * wide + 4 * (double)shape->width * shape->width * shape->layers +
           4.0 * setup->threads * (2.0 * QUERY_BLOCK * setup->sequence + 2.0 * shape->width);
}

static int check_setup(const struct train_setup *setup, struct cb_err *err)
{
    const struct train_shape *shape = &setup->shape;
    if (!shape->layers || !shape->width || !setup->batch || !setup->sequence || !setup->threads)
        return cb_fail(err, CB_ERR_USAGE,
                       "nothing to train: %u layers of width %u, batches of %u samples of %u tokens, %u threads",
                       shape->layers, shape->width, setup->batch, setup->sequence, setup->threads);
    int rc = shape->kind == TRAIN_GPT2 ? check_gpt2(setup, err) : 0;
    if (rc)
        return rc;
    if (rough_bytes(setup) > MOST_BYTES || 4 * (uint64_t)shape->width > MOST_SIDE ||
        (uint64_t)setup->batch * setup->sequence > MOST_SIDE)
        return cb_fail(err, CB_ERR_USAGE, "%u samples of %u tokens and %u layers of width %u are more than any memory",
                       setup->batch, setup->sequence, shape->layers, shape->width);
    return 0;
}

/* Uses huge pages for large memory, since a step reads all of it. */
static void *take_memory(uint64_t bytes)
{
    char *memory = aligned_alloc(LINE_BYTES, bytes);
    if (memory && bytes >= HUGE_FROM_BYTES) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)memory % page) % page;
        (void)madvise(memory + skip, (bytes - skip) / page * page, MADV_HUGEPAGE); /* only slower without them */
    }
    return memory;
}

static int describe_units(struct train_model *self, struct cb_err *err)
{
    const struct train_shape *shape = &self->setup.shape;
    self->unit_count = units_count(shape);
    self->units = calloc(self->unit_count, sizeof *self->units);
    self->parameters = calloc(units_parameter_count(shape), sizeof *self->parameters);
    if (!self->units || !self->parameters)
        return alloc_fail(err, "for the names of a model's parameters");
    units_describe(shape, self->units, self->parameters);
    return 0;
}

static int take_activations(struct train_model *self, struct cb_err *err)
{
    const struct train_setup *setup = &self->setup;
    uint64_t bytes = arena_bytes(setup);
    int rc = setup->math ? device_model_new(self, bytes, err) : 0;
    if (rc)
        return rc;
    self->memory = setup->math ? NULL : take_memory(bytes);
    if (!setup->math && !self->memory)
        return alloc_fail(err,
                          "for the activations of %u samples of %u tokens: %llu bytes; a smaller batch_size or "
                          "seq_length needs less",
                          setup->batch, setup->sequence, (unsigned long long)bytes);
    struct arena arena = {.base = setup->math ? self->on_device->memory : self->memory};
    take_all(self, &arena);
    assert(arena.used_bytes == bytes);
    return 0;
}

int train_model_new(const struct train_setup *setup, struct train_model **model, struct cb_err *err)
{
    int rc = check_setup(setup, err);
    if (rc)
        return rc;
    struct train_model *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a model");
    self->setup = *setup;
    self->rows = (uint64_t)setup->batch * setup->sequence;
    rc = setup->math ? 0 : blas_open(&self->blas, err);
    if (!rc)
        rc = thread_pool_new(setup->threads, &self->team, err);
    if (!rc)
        rc = describe_units(self, err);
    if (!rc)
        rc = take_activations(self, err);
    if (rc)
        train_model_free(self);
    else
        *model = self;
    return rc;
}

void train_model_free(struct train_model *self)
{
    if (!self)
        return;
    device_model_free(self);
    thread_pool_free(self->team);
    blas_close(&self->blas);
    free(self->memory);
    free(self->parameters);
    free(self->units);
    free(self);
}

size_t train_model_unit_count(const struct train_model *self)
{
    return self->unit_count;
}

const struct train_unit *train_model_unit(const struct train_model *self, size_t unit)
{
    assert(unit < self->unit_count);
    return &self->units[unit];
}

size_t train_model_stage_count(const struct train_model *self)
{
    return self->setup.shape.kind == TRAIN_GPT2 ? (size_t)self->setup.shape.layers + 2 : self->setup.shape.layers;
}

size_t train_model_stage_unit(const struct train_model *self, size_t stage)
{
    assert(stage < train_model_stage_count(self));
    return self->setup.shape.kind == TRAIN_GPT2 && stage > self->setup.shape.layers ? 0 : stage;
}

struct thread_pool *train_model_team(struct train_model *self)
{
    return self->team;
}

static int check_tokens(const struct train_model *self, const struct train_batch *batch, uint64_t *counted,
                        struct cb_err *err)
{
    uint32_t vocabulary = self->setup.shape.vocabulary;
    uint64_t sequence = self->setup.sequence;
    *counted = 0;
    for (uint64_t i = 0; i < self->rows; i++) {
        bool counts = batch->targets[i] != TRAIN_IGNORE;
        uint32_t token = batch->tokens[i], target = counts ? batch->targets[i] : 0;
        if (token >= vocabulary || target >= vocabulary)
            return cb_fail(err, CB_ERR_FORMAT,
                           "token %u at place %llu of sample %llu is not in the model's vocabulary of %u",
                           token >= vocabulary ? token : target, (unsigned long long)(i % sequence),
                           (unsigned long long)(batch->first_sample + i / sequence), vocabulary);
        *counted += counts;
    }
    return 0;
}

int train_model_begin(struct train_model *self, const struct train_batch *batch, struct cb_err *err)
{
    uint64_t counted = self->rows;
    int rc = self->setup.shape.kind == TRAIN_GPT2 ? check_tokens(self, batch, &counted, err) : 0;
    if (rc)
        return rc;
    self->batch = *batch;
    self->counted = counted;
    self->loss = 0;
    self->token_rows = (struct device_token_rows){.tokens = batch->tokens};
    return self->on_device ? device_model_begin(self, err) : 0;
}

/* --- stages --- */

/* A stage forward, or backward if `gradients` is given. */
struct stage_run {
    struct train_model *model;
    uint32_t stage;
    const float *flat;
    float *gradients;
};

static void forward(const struct stage_run *self, struct device_math *math)
{
    if (self->model->setup.shape.kind == TRAIN_LINEAR)
        linear_forward(self->model, math, self->stage, self->flat);
    else if (self->stage == 0)
        gpt2_embed(self->model, math, self->flat);
    else if (self->stage <= self->model->setup.shape.layers)
        block_forward(self->model, math, self->stage - 1, self->flat);
    else
        gpt2_head(self->model, math, self->flat);
}

static void backward(const struct stage_run *self, struct device_math *math)
{
    if (self->model->setup.shape.kind == TRAIN_LINEAR)
        linear_backward(self->model, math, self->stage, self->flat, self->gradients);
    else if (self->stage == 0)
        gpt2_embed_backward(self->model, math, self->gradients);
    else if (self->stage <= self->model->setup.shape.layers)
        block_backward(self->model, math, self->stage - 1, self->flat, self->gradients);
    else
        gpt2_head_backward(self->model, math, self->flat, self->gradients);
}

static void run_stage(const struct stage_run *self, struct device_math *math)
{
    if (self->gradients)
        backward(self, math);
    else
        forward(self, math);
}

static void run_on_thread(void *context, uint32_t thread)
{
    const struct stage_run *self = context;
    struct host_math math;
    host_math_init(&math, self->model, thread);
    run_stage(self, &math.base);
}

static void run(struct stage_run *self)
{
    if (self->model->on_device)
        run_stage(self, self->model->on_device->math);
    else
        thread_pool_run(self->model->team, run_on_thread, self);
}

void train_model_forward(struct train_model *self, size_t stage, const float *flat)
{
    struct stage_run call = {.model = self, .stage = (uint32_t)stage, .flat = flat};
    assert(stage < train_model_stage_count(self));
    run(&call);
    if (!self->on_device && stage + 1 == train_model_stage_count(self))
        model_add_up_loss(self, model_row_loss(self));
}

void train_model_backward(struct train_model *self, size_t stage, const float *flat, float *gradients)
{
    struct stage_run call = {.model = self, .stage = (uint32_t)stage, .flat = flat, .gradients = gradients};
    assert(stage < train_model_stage_count(self) && self->batch.training);
    run(&call);
}

int train_model_finish(struct train_model *self, uint64_t deadline_ns, struct cb_err *err)
{
    return self->on_device ? device_model_finish(self, deadline_ns, err) : 0;
}

double train_model_loss(const struct train_model *self)
{
    return self->loss;
}

uint64_t train_model_counted(const struct train_model *self)
{
    return self->counted;
}
