/* A model's list of tensors. */
#include "ckpt/model/model.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "ckpt/model/model_shape.h"
#include "core/alloc.h"

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
        return alloc_fail(err, "for the tensors of model %s", self->name);
    self->tensors = tensors;
    return 0;
}

/* Elements of a tensor, at most MODEL_MAX_ELEMENTS. */
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
        return alloc_fail(err, "for the tensors of model %s", self->name);
    self->tensors[self->count++] = tensor;
    return 0;
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
