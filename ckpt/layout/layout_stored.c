/* Builds a layout from a stored checkpoint. */
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "ckpt/model/model_shape.h"
#include "ckpt/stored.h"
#include "core/alloc.h"

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "for the layout of a stored checkpoint");
}

static int add_values(struct layout *layout, struct stored_value *values, size_t count, struct cb_err *err)
{
    struct state_tensor *tensors = realloc(layout->tensors, (layout->tensor_count + count + 1) * sizeof *tensors);
    if (!tensors)
        return no_memory(err);
    layout->tensors = tensors;
    for (size_t i = 0; i < count; i++) {
        struct state_tensor *tensor = &tensors[layout->tensor_count];
        *tensor = (struct state_tensor){.model_tensor = UINT32_MAX, .kind = KIND_BYTES, .dtype = DTYPE_U8};
        tensor->fqn = strdup(values[i].tensor->fqn);
        if (!tensor->fqn)
            return no_memory(err);
        layout->tensor_count++;
        tensor->literal = values[i].literal;
        tensor->blob = values[i].blob;
        tensor->blob_bytes = values[i].blob_bytes;
        values[i].literal = NULL;
        values[i].blob = NULL;
    }
    return 0;
}

int layout_from_stored(const struct stored_checkpoint *checkpoint, const struct layout_options *options,
                       struct stored_value *values, size_t value_count, struct layout **layout, struct cb_err *err)
{
    struct layout *made = NULL;
    struct model *model = calloc(1, sizeof *model);
    if (!model || !(model->name = strdup("the checkpoint"))) {
        model_free(model);
        return no_memory(err);
    }
    model->default_state = "weights";
    struct layout_options weights = *options;
    weights.state = "weights";
    int code = model_read_stored(model, checkpoint, true, &(struct model_choice){0}, err);
    if (!code)
        code = layout_new(model, &weights, &made, err);
    if (!code)
        code = add_values(made, values, value_count, err);
    for (size_t i = 0; !code && i < made->tensor_count; i++) { /* the keys that lead to a tensor are kept with it */
        const struct stored_tensor *stored = stored_checkpoint_find(checkpoint, made->tensors[i].fqn);
        if (stored && stored->path && !(made->tensors[i].path = strdup(stored->path)))
            code = no_memory(err);
    }
    model_free(model);
    if (code)
        layout_free(made);
    else
        *layout = made;
    return code;
}
