/* The parameters of each unit: names, shapes, offsets in the flat buffer, initial values. */
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/payload.h"
#include "core/alloc.h"
#include "train/train_model_internal.h"

#define BLOCK_PARAMETERS 12
#define ROOT_PARAMETERS 4
#define INIT_DEVIATION 0.02f /* GPT-2's */
#define INIT_CHUNK 4096      /* elements that one thread processes at a time */

size_t units_count(const struct train_shape *shape)
{
    return shape->kind == TRAIN_GPT2 ? (size_t)shape->layers + 1 : shape->layers;
}

size_t units_parameter_count(const struct train_shape *shape)
{
    if (shape->kind == TRAIN_GPT2)
        return (size_t)shape->layers * BLOCK_PARAMETERS + ROOT_PARAMETERS;
    return (size_t)shape->layers * (shape->bias ? 2 : 1);
}

/* Adds one parameter to the unit: rows x columns, or a vector if `columns` is 0. */
CB_PRINTF(4, 5)
static void put(struct train_unit *unit, uint64_t rows, uint64_t columns, const char *format, ...)
{
    struct train_parameter *parameter = &unit->parameters[unit->count++];
    *parameter = (struct train_parameter){.dims = columns ? 2 : 1,
                                          .shape = {rows, columns},
                                          .offset = unit->elements,
                                          .count = columns ? rows * columns : rows,
                                          .decays = columns > 0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(parameter->fqn, sizeof parameter->fqn, format, arguments);
    va_end(arguments);
    unit->elements += parameter->count;
}

static void describe_block(struct train_unit *unit, uint32_t layer, uint64_t width)
{
    put(unit, width, 0, "transformer.h.%u.ln_1.weight", layer);
    put(unit, width, 0, "transformer.h.%u.ln_1.bias", layer);
    put(unit, width, 3 * width, "transformer.h.%u.attn.c_attn.weight", layer);
    put(unit, 3 * width, 0, "transformer.h.%u.attn.c_attn.bias", layer);
    put(unit, width, width, "transformer.h.%u.attn.c_proj.weight", layer);
    put(unit, width, 0, "transformer.h.%u.attn.c_proj.bias", layer);
    put(unit, width, 0, "transformer.h.%u.ln_2.weight", layer);
    put(unit, width, 0, "transformer.h.%u.ln_2.bias", layer);
    put(unit, width, 4 * width, "transformer.h.%u.mlp.c_fc.weight", layer);
    put(unit, 4 * width, 0, "transformer.h.%u.mlp.c_fc.bias", layer);
    put(unit, 4 * width, width, "transformer.h.%u.mlp.c_proj.weight", layer);
    put(unit, width, 0, "transformer.h.%u.mlp.c_proj.bias", layer);
}

static void describe_root(struct train_unit *unit, const struct train_shape *shape)
{
    put(unit, shape->vocabulary, shape->width, "transformer.wte.weight");
    put(unit, shape->positions, shape->width, "transformer.wpe.weight");
    put(unit, shape->width, 0, "transformer.ln_f.weight");
    put(unit, shape->width, 0, "transformer.ln_f.bias");
}

static void describe_linear(struct train_unit *unit, uint32_t layer, const struct train_shape *shape)
{
    put(unit, shape->width, shape->width, "layers.%u.weight", layer);
    if (shape->bias)
        put(unit, shape->width, 0, "layers.%u.bias", layer);
}

void units_describe(const struct train_shape *shape, struct train_unit *units, struct train_parameter *parameters)
{
    size_t count = units_count(shape);
    for (size_t u = 0; u < count; u++) {
        units[u] = (struct train_unit){.parameters = parameters};
        if (shape->kind == TRAIN_LINEAR)
            describe_linear(&units[u], (uint32_t)u, shape);
        else if (u == 0)
            describe_root(&units[u], shape);
        else
            describe_block(&units[u], (uint32_t)u - 1, shape->width);
        parameters += units[u].count;
    }
}

uint64_t train_shape_parameters(const struct train_shape *shape)
{
    uint64_t c = shape->width, l = shape->layers;
    if (shape->kind == TRAIN_LINEAR)
        return l * (c * c + (shape->bias ? c : 0));
    return l * (12 * c * c + 13 * c) + (uint64_t)(shape->vocabulary + (uint64_t)shape->positions) * c + 2 * c;
}

double train_flops_per_token(const struct train_shape *shape, uint32_t sequence)
{
    double parameters = (double)train_shape_parameters(shape);
    if (shape->kind == TRAIN_LINEAR)
        return 6 * parameters;
    return 6 * parameters + 12.0 * shape->layers * shape->width * sequence;
}

static const struct model_tensor *find_tensor(const struct model *model, const char *fqn)
{
    for (size_t i = 0; i < model->count; i++)
        if (strcmp(model->tensors[i].fqn, fqn) == 0)
            return &model->tensors[i];
    return NULL;
}

static bool has_parameter(const struct model *model, const struct train_parameter *parameter)
{
    const struct model_tensor *tensor = find_tensor(model, parameter->fqn);
    if (!tensor || tensor->dims != parameter->dims)
        return false;
    for (uint32_t d = 0; d < parameter->dims; d++)
        if (tensor->shape[d] != parameter->shape[d])
            return false;
    return true;
}

/* Whether the model has all parameters of the shape. */
static int check_parameters(const struct model *model, const struct train_shape *shape, struct cb_err *err)
{
    size_t count = units_parameter_count(shape);
    struct train_parameter *parameters = calloc(count, sizeof *parameters);
    struct train_unit *units = calloc(units_count(shape), sizeof *units);
    int rc = parameters && units ? 0 : alloc_fail(err, "for the names of %zu parameters", count);
    if (!rc)
        units_describe(shape, units, parameters);
    for (size_t i = 0; i < count && !rc; i++)
        if (!has_parameter(model, &parameters[i]))
            rc = cb_fail(err, CB_ERR_UNSUPPORTED,
                         "model %s cannot be trained: as %s it would have a %s of another shape, or does not have it",
                         model->name, shape->kind == TRAIN_GPT2 ? "a GPT-2" : "a stack of linear layers",
                         parameters[i].fqn);
    free(parameters);
    free(units);
    return rc;
}

int train_shape_of_model(const struct model *model, struct train_shape *shape, struct cb_err *err)
{
    const struct model_tensor *tokens = find_tensor(model, "transformer.wte.weight");
    const struct model_tensor *positions = find_tensor(model, "transformer.wpe.weight");
    const struct model_tensor *first = find_tensor(model, "layers.0.weight");
    struct train_shape found = {.layers = model->layers, .heads = model->heads};
    if (tokens && positions && tokens->dims == 2 && positions->dims == 2) {
        found.kind = TRAIN_GPT2;
        found.bias = true;
        found.vocabulary = (uint32_t)tokens->shape[0];
        found.positions = (uint32_t)positions->shape[0];
        found.width = (uint32_t)tokens->shape[1];
    } else if (first && first->dims == 2) {
        found.kind = TRAIN_LINEAR;
        found.bias = find_tensor(model, "layers.0.bias") != NULL;
        found.width = (uint32_t)first->shape[0];
    } else {
        return cb_fail(
            err, CB_ERR_UNSUPPORTED,
            "model %s cannot be trained: workload=train knows GPT-2 (gpt2, gpt2-tiny, ...) and stacks of linear "
            "layers (linear-8x16384)",
            model->name);
    }
    if (units_parameter_count(&found) != model->count)
        return cb_fail(
            err, CB_ERR_UNSUPPORTED,
            "model %s cannot be trained: it has %zu tensors, and %s of %u layers has %zu (a GPT-2 must have its "
            "head tied to the token embedding)",
            model->name, model->count, found.kind == TRAIN_GPT2 ? "a GPT-2" : "a stack", found.layers,
            units_parameter_count(&found));
    int rc = check_parameters(model, &found, err);
    if (!rc)
        *shape = found;
    return rc;
}

/* One normal number from two uniform ones (Box and Muller, 1958). */
static float normal(uint64_t random)
{
    float u = ((float)(random >> 40) + 1.0f) * 0x1p-24f, turn = (float)(random & 0xFFFFFF) * 0x1p-24f;
    return sqrtf(-2.0f * logf(u)) * cosf(6.283185307179586f * turn);
}

enum init_rule { INIT_CONSTANT, INIT_NORMAL, INIT_UNIFORM };

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), want = strlen(end);
    return length >= want && strcmp(text + length - want, end) == 0;
}

/* *size: the constant, the deviation, or the limit. */
static enum init_rule rule_of(const struct train_shape *shape, const struct train_parameter *parameter, float *size)
{
    if (shape->kind == TRAIN_LINEAR) {
        *size = 1.0f / sqrtf((float)shape->width);
        return INIT_UNIFORM;
    }
    if (!parameter->decays) {
        *size = ends_with(parameter->fqn, ".bias") ? 0.0f : 1.0f;
        return INIT_CONSTANT;
    }
    bool into_stream = ends_with(parameter->fqn, ".c_proj.weight");
    *size = into_stream ? INIT_DEVIATION / sqrtf(2.0f * (float)shape->layers) : INIT_DEVIATION;
    return INIT_NORMAL;
}

static void init_part(const struct train_shape *shape, const struct train_parameter *parameter, uint64_t seed,
                      uint64_t first, uint64_t count, float *values)
{
    float size = 0;
    enum init_rule rule = rule_of(shape, parameter, &size);
    uint64_t key = payload_key(seed, parameter->fqn);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t random = rng_mix(key + (first + i) * UINT64_C(0xD1342543DE82EF95));
        if (rule == INIT_CONSTANT)
            values[i] = size;
        else if (rule == INIT_NORMAL)
            values[i] = size * normal(random);
        else
            values[i] = size * ((float)(random >> 40) * 0x1p-23f - 1.0f);
    }
}

struct init {
    struct train_model *model;
    const struct train_unit *unit;
    uint64_t first, count, seed;
    float *values;
};

static void init_share(void *context, uint32_t thread)
{
    const struct init *self = context;
    uint64_t from, to;
    thread_pool_share(self->model->team, thread, self->count, INIT_CHUNK, &from, &to);
    from += self->first;
    to += self->first;
    for (size_t i = 0; i < self->unit->count; i++) {
        const struct train_parameter *parameter = &self->unit->parameters[i];
        uint64_t begin = parameter->offset > from ? parameter->offset : from;
        uint64_t end = parameter->offset + parameter->count < to ? parameter->offset + parameter->count : to;
        if (begin < end)
            init_part(&self->model->setup.shape, parameter, self->seed, begin - parameter->offset, end - begin,
                      self->values + (begin - self->first));
    }
}

void train_model_init(struct train_model *self, size_t unit, uint64_t first, uint64_t count, uint64_t seed,
                      float *values)
{
    assert(unit < self->unit_count && first + count <= self->units[unit].elements);
    struct init init = {self, &self->units[unit], first, count, seed, values};
    thread_pool_run(self->team, init_share, &init);
}
