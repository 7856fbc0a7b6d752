/* A model's list of tensors. */
#include "ckpt/model/model.h"

#include <assert.h>
#include <string.h>

#include "ckpt/model/model_shape.h"
#include "core/alloc.h"

#define MODEL_MAX_TENSORS 1000000u
#define MODEL_MAX_ELEMENTS (UINT64_C(1) << 56) /* so that the bytes of any state of the model fit into 64 bits */

int model_add(struct model *self, struct tensor_role role, uint32_t dims, const uint64_t *shape, const char *fqn,
              struct cb_err *err)
{
    assert(dims <= CKPT_MAX_DIMS);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dims; i++)
        elements = shape[i] && elements > MODEL_MAX_ELEMENTS / shape[i] ? MODEL_MAX_ELEMENTS : elements * shape[i];
    self->elements += elements;
    if (self->elements >= MODEL_MAX_ELEMENTS)
        return cb_fail(err, CB_ERR_USAGE, "model %s has 2^56 parameters or more", self->name);
    if (self->count >= MODEL_MAX_TENSORS)
        return cb_fail(err, CB_ERR_USAGE, "model %s has more than %u tensors", self->name, MODEL_MAX_TENSORS);
    int rc = alloc_grow(&self->tensors, self->count, sizeof *self->tensors, err);
    if (rc)
        return rc;
    struct model_tensor tensor = {.fqn = strdup(fqn),
                                  .dims = dims,
                                  .dtype = self->dtype,
                                  .layer = role.layer,
                                  .tp_dim = role.tp_dim,
                                  .tp_unit = role.tp_unit ? role.tp_unit : 1,
                                  .tp_parts = role.tp_parts ? role.tp_parts : 1,
                                  .expert = role.expert};
    if (!tensor.fqn)
        return alloc_fail(err, "for the tensors of model %s", self->name);
    for (uint32_t i = 0; i < dims; i++)
        tensor.shape[i] = shape[i];
    self->tensors[self->count++] = tensor;
    return 0;
}

int model_add_chosen(struct model *self, const struct model_choice *choice, struct tensor_role role, enum dtype dtype,
                     uint32_t dims, const uint64_t *shape, const char *fqn, struct cb_err *err)
{
    bool is_weight = dtype <= DTYPE_F8_E5M2; /* dtype= changes the type of weights, but not integers */
    if (choice->layers && role.layer >= 0 && (uint64_t)role.layer >= choice->layers)
        return 0;
    int rc = model_add(self, role, dims, shape, fqn, err);
    if (rc)
        return rc;
    struct model_tensor *tensor = &self->tensors[self->count - 1];
    tensor->dtype = choice->dtype && is_weight ? *choice->dtype : dtype;
    if (self->count == 1)
        self->dtype = tensor->dtype;
    if (role.layer >= 0 && (uint32_t)role.layer >= self->layers)
        self->layers = (uint32_t)role.layer + 1;
    if (role.expert >= 0 && (uint32_t)role.expert >= self->experts)
        self->experts = (uint32_t)role.expert + 1;
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
