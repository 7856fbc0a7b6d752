/* The state tensors and their fixed names: weights, optimizer state, bytes items, and the tensors of state=mlperf. */
#include <stdio.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "core/alloc.h"

static const struct layout_item optimizer_items[] = {
    {"optimizer.param_groups.lr", "0.0003"},
    {"optimizer.param_groups.betas", "(0.9, 0.95)"},
    {"optimizer.param_groups.eps", "1e-08"},
    {"optimizer.param_groups.weight_decay", "0.1"},
    {"train.step", "0"},
};

/* Whether a tensor of this type has state of this kind. Weights in fp32 are their own master. */
static bool has_kind(enum state_kind kind, enum dtype dtype, bool adam)
{
    if (kind == KIND_WEIGHT)
        return true;
    if (!adam || dtype > DTYPE_F8_E5M2) /* an integer */
        return false;
    return kind != KIND_MASTER || (dtype != DTYPE_F32 && dtype != DTYPE_F64);
}

static int add_state(struct layout *self, struct state_tensor tensor, char *fqn, struct cb_err *err)
{
    if (!fqn)
        return alloc_fail(err, "for the names of the state");
    tensor.fqn = fqn;
    self->tensors[self->tensor_count++] = tensor;
    return 0;
}

static char *state_name(const struct layout *self, const struct model *model, const char *fqn, enum state_kind kind)
{
    static const char *const suffixes[LAYOUT_KINDS] = {"", ".master", ".exp_avg", ".exp_avg_sq"};
    char *name = NULL;
    bool counter = self->training && strncmp(fqn, "train.", strlen("train.")) == 0;
    int written = kind == KIND_WEIGHT ? asprintf(&name, "%s%s", model->verbatim || counter ? "" : "model.", fqn)
                                      : asprintf(&name, "optimizer.state.%s%s", fqn, suffixes[kind]);
    return written < 0 ? NULL : name;
}

static int add_kind(struct layout *self, const struct model *model, enum state_kind kind, bool adam, struct cb_err *err)
{
    int code = 0;
    for (size_t i = 0; i < model->count && !code; i++) {
        const struct model_tensor *source = &model->tensors[i];
        self->state_of[kind][i] = LAYOUT_ABSENT;
        if (!has_kind(kind, source->dtype, adam))
            continue;
        self->state_of[kind][i] = (uint32_t)self->tensor_count;
        struct state_tensor tensor = {.model_tensor = (uint32_t)i,
                                      .kind = kind,
                                      .dtype = kind == KIND_WEIGHT ? source->dtype : DTYPE_F32,
                                      .dims = source->dims};
        memcpy(tensor.shape, source->shape, sizeof tensor.shape);
        code = add_state(self, tensor, state_name(self, model, source->fqn, kind), err);
    }
    return code;
}

static int add_bytes(struct layout *self, const struct layout_item *items, size_t count, struct cb_err *err)
{
    int code = 0;
    for (size_t i = 0; i < count && !code; i++) {
        struct state_tensor tensor = {.model_tensor = UINT32_MAX, .kind = KIND_BYTES, .dtype = DTYPE_U8};
        tensor.literal = strdup(items[i].literal);
        if (!tensor.literal)
            return alloc_fail(err, "for the state");
        code = add_state(self, tensor, strdup(items[i].fqn), err);
        if (code)
            free((char *)tensor.literal);
    }
    return code;
}

/* One file group per layer, as MLPerf writes them without ZeRO-3: embedding, layers, final norm, head. */
static uint32_t layer_group(const struct model *model, const struct state_tensor *tensor)
{
    int32_t layer = model->tensors[tensor->model_tensor].layer;
    if (layer >= 0)
        return 2 + (uint32_t)layer;
    return layer == MODEL_LAYER_FIRST ? 1 : 2 + model->layers + (tensor->dims == 1 ? 0 : 1);
}

/* Norms once for every tp rank; three rows per rank; MLPerf's files. */
static int apply_mlperf(struct layout *self, const struct model *model, struct cb_err *err)
{
    static const char *const names[] = {"optimizer.state.flat.master", "optimizer.state.flat.exp_avg",
                                        "optimizer.state.flat.exp_avg_sq"};
    if (!model->mlperf_tp)
        return cb_fail(err, CB_ERR_USAGE, "state=mlperf is for the presets mlperf-8b, -70b, -405b and -1t, not %s",
                       model->name);
    if (self->mesh.zero == 0 || self->mesh.size[AXIS_FSDP] > 1 || self->mesh.size[AXIS_EP] > 1)
        return cb_fail(err, CB_ERR_USAGE, "state=mlperf needs zero=1, 2 or 3 and no axes but dp, tp and pp");
    bool by_rank = self->mesh.zero == 3 || self->mesh.size[AXIS_PP] == 1;
    for (size_t i = 0; i < model->count; i++) {
        struct state_tensor *tensor = &self->tensors[i];
        tensor->file_group = by_rank ? 1 : layer_group(model, tensor);
        if (tensor->dims == 1) {
            tensor->dims = 2;
            tensor->shape[1] = tensor->shape[0];
            tensor->shape[0] = self->mesh.size[AXIS_TP];
        }
    }
    self->row_first = (uint32_t)self->tensor_count;
    self->row_count = 3;
    self->row_elements = model_parameters(model) / self->mesh.world_size + 5 * model->hidden;
    int code = 0;
    for (uint32_t k = 0; k < 3 && !code; k++) {
        struct state_tensor tensor = {.model_tensor = UINT32_MAX,
                                      .kind = (enum state_kind)(KIND_MASTER + k),
                                      .dtype = DTYPE_F32,
                                      .dims = 2,
                                      .shape = {self->mesh.world_size, self->row_elements},
                                      .file_group = UINT32_MAX};
        code = add_state(self, tensor, strdup(names[k]), err);
    }
    return code;
}

int layout_build_state(struct layout *self, const struct model *model, const struct layout_options *options,
                       struct cb_err *err)
{
    const char *state = options->state;
    if (strcmp(state, "auto") == 0)
        state = model->default_state;
    bool adam = strcmp(state, "weights+adam") == 0, mlperf = strcmp(state, "mlperf") == 0;
    self->state_name = adam ? "weights+adam" : mlperf ? "mlperf" : "weights";
    int code = 0;
    self->tensors = calloc(LAYOUT_KINDS * model->count + LAYOUT_MOST_ITEMS, sizeof *self->tensors);
    if (!self->tensors)
        return alloc_fail(err, "for the state of %zu tensors", model->count);
    for (int kind = 0; kind < LAYOUT_KINDS && !code; kind++) {
        self->state_of[kind] = malloc((model->count + 1) * sizeof *self->state_of[kind]);
        if (!self->state_of[kind])
            return alloc_fail(err, "for the state of %zu tensors", model->count);
        code = add_kind(self, model, (enum state_kind)kind, adam, err);
    }
    if (!code && self->training) {
        code = add_bytes(self, self->training->items, self->training->item_count, err);
    } else if (!code && adam) {
        code = add_bytes(self, optimizer_items, sizeof optimizer_items / sizeof *optimizer_items, err);
        if (!code)
            code = add_bytes(self, &(struct layout_item){"train.seed", options->seed}, 1, err);
    }
    if (!code && mlperf)
        code = apply_mlperf(self, model, err);
    bool chunk = self->mesh.size[AXIS_FSDP] > 1;
    for (int kind = 0; kind < LAYOUT_KINDS; kind++) {
        bool flat = kind == KIND_WEIGHT ? self->mesh.zero == 3 : self->mesh.zero >= 1;
        self->placement[kind] = chunk && self->training ? PLACE_RANGES
                                : chunk                 ? PLACE_CHUNK
                                : flat                  ? PLACE_FLAT
                                                        : PLACE_REPLICATE;
    }
    return code;
}
