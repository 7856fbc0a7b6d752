/* Owns models: presets by name, files by path, cut to layers. Knows nothing of ranks or of state. */
#include "ckpt/model.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/model_shape.h"
#include "core/options.h"

#define MODEL_MAX_TENSORS 1000000u
#define MODEL_MAX_ELEMENTS (UINT64_C(1) << 56) /* so that bytes of any state of it are a number */

static int model_reserve(struct model *self, struct cb_err *err)
{
    /* The array has room for the next power of two. */
    if (self->count & (self->count - 1))
        return 0;
    if (self->count >= MODEL_MAX_TENSORS)
        return cb_fail(err, CB_ERR_USAGE, "model %s has more than %u tensors", self->name, MODEL_MAX_TENSORS);
    size_t capacity = self->count ? 2 * self->count : 1;
    struct model_tensor *tensors = realloc(self->tensors, capacity * sizeof *tensors);
    if (!tensors)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the tensors of model %s", self->name);
    self->tensors = tensors;
    return 0;
}

/* Elements of a tensor, MODEL_MAX_ELEMENTS where they are more. */
static uint64_t count_elements(uint32_t dims, const uint64_t *shape)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dims; i++) {
        if (shape[i] && elements > MODEL_MAX_ELEMENTS / shape[i])
            return MODEL_MAX_ELEMENTS;
        elements *= shape[i];
    }
    return elements;
}

int model_add(struct model *self, struct tensor_role role, uint32_t dims, const uint64_t *shape, struct cb_err *err,
              const char *format, ...)
{
    assert(dims <= CKPT_MAX_DIMS);
    self->elements += count_elements(dims, shape);
    if (self->elements >= MODEL_MAX_ELEMENTS)
        return cb_fail(err, CB_ERR_USAGE, "model %s has 2^56 parameters or more", self->name);
    int code = model_reserve(self, err);
    if (code)
        return code;
    struct model_tensor tensor = {.dims = dims,
                                  .dtype = self->dtype,
                                  .layer = role.layer,
                                  .tp_dim = role.tp_dim,
                                  .tp_unit = role.tp_unit ? role.tp_unit : 1,
                                  .tp_parts = role.tp_parts ? role.tp_parts : 1,
                                  .expert = role.expert};
    for (uint32_t i = 0; i < dims; i++)
        tensor.shape[i] = shape[i];
    va_list arguments;
    va_start(arguments, format);
    int written = vasprintf(&tensor.fqn, format, arguments);
    va_end(arguments);
    if (written < 0)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the tensors of model %s", self->name);
    self->tensors[self->count++] = tensor;
    return 0;
}

static int build_preset(struct model *self, const struct model_preset *preset, uint64_t layers, const enum dtype *dtype,
                        struct cb_err *err)
{
    self->dtype = dtype ? *dtype : preset->dtype;
    self->default_state = preset->state;
    self->mlperf_tp = preset->mlperf_tp;
    self->mlperf_pp = preset->mlperf_pp;
    self->mlperf_dp = preset->mlperf_dp;
    self->mlperf_zero = preset->mlperf_zero;
    return model_build(self, &preset->shape, layers, err);
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

static int fail_unknown(const char *source, struct cb_err *err)
{
    const char *names[256];
    size_t count = model_preset_count();
    assert(count <= sizeof names / sizeof *names);
    for (size_t i = 0; i < count; i++)
        names[i] = model_preset_name(i);
    const char *nearest = nearest_word(source, names, count);
    if (nearest)
        return cb_fail(err, CB_ERR_USAGE, "model=%s is neither a preset nor a file; did you mean %s?", source, nearest);
    return cb_fail(err, CB_ERR_USAGE, "model=%s is neither a preset nor a file; `ckptbench models` lists the presets",
                   source);
}

static int build_file(struct model *self, const char *source, uint64_t layers, const enum dtype *dtype,
                      struct cb_err *err)
{
    struct stat status;
    if (stat(source, &status) != 0)
        return fail_unknown(source, err);
    self->default_state = "weights+adam";
    if (S_ISDIR(status.st_mode)) {
        char path[4096];
        if ((size_t)snprintf(path, sizeof path, "%s/config.json", source) >= sizeof path)
            return cb_fail(err, CB_ERR_USAGE, "model=%s: the path is too long", source);
        return access(path, F_OK) == 0 ? model_read_config(self, path, layers, dtype, err)
                                       : model_read_path(self, source, true, layers, dtype, err);
    }
    if (has_suffix(source, ".safetensors") || has_suffix(source, ".safetensors.index.json"))
        return model_read_path(self, source, false, layers, dtype, err);
    if (has_suffix(source, ".json"))
        return model_read_config(self, source, layers, dtype, err);
    if (has_suffix(source, ".yaml") || has_suffix(source, ".yml"))
        return model_read_list(self, source, layers, dtype, err);
    return cb_fail(
        err, CB_ERR_USAGE,
        "model=%s: a model file is an HF config.json (.json), a safetensors file or index, or a list of name, shape, "
        "dtype (.yaml)",
        source);
}

int model_load(const char *source, uint64_t layers, const enum dtype *dtype, struct model **model, struct cb_err *err)
{
    int code;
    struct model *self = calloc(1, sizeof *self);
    if (self)
        self->name = strdup(source);
    if (!self || !self->name) {
        code = cb_fail(err, CB_ERR_MEMORY, "no memory for model %s", source);
        goto out;
    }
    const struct model_preset *preset = model_preset_find(source);
    code = preset ? build_preset(self, preset, layers, dtype, err) : build_file(self, source, layers, dtype, err);
    if (code)
        goto out;
    *model = self;
    self = NULL;
out:
    model_free(self);
    return code;
}

void model_free(struct model *model)
{
    if (!model)
        return;
    for (size_t i = 0; i < model->count; i++)
        free(model->tensors[i].fqn);
    free(model->tensors);
    free(model->name);
    free(model);
}

uint64_t model_parameters(const struct model *model)
{
    return model->elements;
}
